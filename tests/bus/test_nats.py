"""What only a bus on NATS can meet."""

import asyncio

import pytest

from sandbox_agent.bus.nats import connect
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
        await gateway.hear(f"up.evil.{unique}", lambda _, body: heard.put_nowait(body))

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
