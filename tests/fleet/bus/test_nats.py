"""What only a bus on NATS can meet."""

import asyncio

import nats.errors
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from sandboxagent.fleet.bus.interface import BusRefused, Unreachable
from sandboxagent.fleet.bus.nats import NatsBus, connect
from tests.support.client import run
from tests.support.nats import NatsServer


@pytest.mark.parametrize(
    "headers",
    [
        b"NATS/1.0 \xff\xfe\xfd\r\n\r\n",
        b"NATS/1.0 503\xff\r\n\r\n",
        b"NATS/1.0",
        b"\r\n\r\n",
        b"NATS/1.0\r\n\xff: \xff\r\n\r\n",
    ],
)
def test_headers_that_make_no_sense_do_not_make_a_member_deaf(
    nats_of_tests: NatsServer, unique: str, headers: bytes
) -> None:
    async def main() -> None:
        gateway = await connect([nats_of_tests.url], "gw.g.in", "g")
        heard: asyncio.Queue[bytes] = asyncio.Queue()
        await gateway.subscribe(f"up.evil.{unique}", lambda _, body: heard.put_nowait(body))

        async def answer(subject: str, body: bytes) -> bytes:
            return body

        await gateway.serve(f"up.good.{unique}", answer)
        reader, writer = await asyncio.open_connection("127.0.0.1", nats_of_tests.port)
        await reader.readline()
        writer.write(b'CONNECT {"headers":true,"verbose":false,"protocol":1}\r\n')
        writer.write(
            b"HPUB up.evil.%s %d %d\r\n" % (unique.encode(), len(headers), len(headers) + 1) + headers + b"x\r\n"
        )
        writer.write(b"PUB up.evil.%s 5\r\nafter\r\n" % unique.encode())
        await writer.drain()
        # Nor does the next message go astray.
        while await heard.get() != b"after":
            pass
        good = await connect([nats_of_tests.url], "dn.good.in", "good")
        assert await good.request(f"up.good.{unique}", b"hello", 60) == b"hello"
        writer.close()
        for bus in (good, gateway):
            await bus.close()

    run(main())


class Silent(Client):
    """A connection on which no request is answered; the servers deny some of them."""

    def __init__(self, denials: list[str]) -> None:
        self.denials = denials
        self.bus = NatsBus(self)

    async def request(self, *_: object, **__: object) -> Msg:
        if self.denials:
            self.bus.denied = self.denials.pop()
        raise nats.errors.TimeoutError


def test_earlier_denial_does_not_explain_an_unanswered_request() -> None:
    async def main() -> None:
        bus = Silent(['nats: permissions violation for publish to "up.n1.log"']).bus
        with pytest.raises(BusRefused):
            await bus.request("up.n1.log", b"", 1)
        with pytest.raises(Unreachable):
            await bus.request("up.n1.log", b"", 1)

    run(main())


def test_the_time_without_servers_counts_from_when_they_were_lost(nats_of_tests: NatsServer) -> None:
    async def main() -> None:
        bus = await connect([nats_of_tests.url], "gw.g.in", "g")
        now = asyncio.get_running_loop().time
        for _ in range(2):
            lost_at = now()
            bus._client._transport.close()
            longest, was_cut = 0.0, False
            # On a quick machine the way back takes less than the clock's millisecond: `cut_off_for` may stay 0.
            while not was_cut or bus.cut_at is not None:
                await asyncio.sleep(0)
                was_cut = was_cut or bus.cut_at is not None
                longest = max(longest, bus.cut_off_for - (now() - lost_at))
            assert longest <= 0
        await bus.close()

    run(main())
