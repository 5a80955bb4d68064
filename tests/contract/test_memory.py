"""Section 12: what a whole request takes in memory, by the process's own count. Parsers are in tests/protocol."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.acp import Acp, websocket
from tests.support.client import Client, run
from tests.support.running import Server

SIZE = 32 << 20
"""A body at the limit."""
MOST = 8
"""How many times its size a request may take."""
ROOM = SIZE - 4096
VALUES: dict[str, Callable[[], bytes]] = {
    "one escape": lambda: b'"\\n%b"' % (b"x" * ROOM),
    "one emoji": lambda: '"😀'.encode() + b'%b"' % (b"x" * ROOM),
    "half a pair": lambda: b'"\\ud800%b"' % (b"\\n" * (ROOM // 2)),
    "a long name": lambda: b'{"\\n%b":1}' % (b"x" * ROOM),
    "too many values": lambda: b"[%b1]" % (b"1," * (ROOM // 2)),
}


def counted(server: Server, name: str) -> int:
    """Bytes of memory that a server has (VmRSS), or has had at most (VmHWM)."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.partition(f"{name}:")[2].split()[0]) << 10


async def send(server: Server, way: str, bodies: Callable[[str], list[bytes]]) -> int:
    """Send bodies in a way, one after the other; gives the bytes by which the server has grown at most."""
    async with Client(server) as client:
        session = await client.new_session()
        await client.prompt(session, "hello")
        before = counted(server, "VmRSS")
        if way == "/acp":
            sender = Acp(server, agent="scripted")
            await sender.initialize()
            async with sender.get() as stream:
                session = await sender.session(stream)
                for body in bodies(session):
                    assert (await sender.post(body, Acp_Session_Id=session)).status_code in (202, 400)
            await sender.http.aclose()
        elif way == "/v1/rpc":
            for body in bodies(session):
                assert (await client.post(body)).status_code in (202, 400)
        else:
            async with websocket(server, "/v1/rpc", headers=client.headers()) as socket:
                for body in bodies(session):
                    await socket.socket.send(body, text=True)
                    # The next message is answered after this one.
                    await socket.call("session/list", {})
                await socket.prompt(session, "hello")
                return counted(server, "VmHWM") - before
        # It is through when the agent answers what comes after it.
        await client.prompt(session, "hello")
        return counted(server, "VmHWM") - before


@pytest.mark.measures
@pytest.mark.requirement("12.memory")
@pytest.mark.parametrize("way", ["/v1/rpc", "/acp", "a WebSocket"])
@pytest.mark.server_alone("the memory of one process")
def test_a_request_at_the_limit_takes_at_most_eight_times_its_size(way: str) -> None:
    grown: dict[str, float] = {}
    for name, make in VALUES.items():

        def bodies(session: str, make: Callable[[], bytes] = make) -> list[bytes]:
            head = b'{"jsonrpc":"2.0","method":"x/note","params":{"sessionId":"%b","a":' % session.encode()
            return [head + make() + b"}}"]

        with Server() as server:
            grown[name] = run(send(server, way, bodies)) / SIZE
    assert {name: times for name, times in grown.items() if times > MOST} == {}
