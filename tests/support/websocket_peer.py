"""A client of a WebSocket on a server's HTTP side without sockets."""

import asyncio
from collections.abc import Awaitable, Callable

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State

from sandboxagent.server.http.asgi import App, Receive, Scope, Send
from sandboxagent.server.http.sockets import SocketLimits
from sandboxagent.server.http.websocket import WebSocket
from tests.support.in_process import PretendedSocket, Site, head

OFFER = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
)
LIMIT = 100_000


class Peer:
    """A client that has opened a WebSocket, and the server's side of it."""

    def __init__(self, site: Site, *, greeted: bool = True, serve: App | None = None) -> None:
        """`serve` is what answers in place of the test itself."""
        self.site = site
        self.socket: PretendedSocket = site.connect()
        self.frames = ClientProtocol(_uri())
        self.frames.state = State.OPEN
        self.end = asyncio.Event()
        self.server: WebSocket
        self._read = 0
        self._greeted = greeted
        site.reached.handle = serve or self._handle

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.server = scope["extensions"]["sandboxagent.websocket"](LIMIT)
        self.server.accept(scope, [("X-Test", "yes")])
        self.server.greeted = self._greeted
        await self.end.wait()

    async def open(self, behind: bytes = b"", *headers: str) -> "Peer":
        self.socket.give(head("GET /v1/rpc", *OFFER, *headers) + behind)
        await self.site.until(lambda: self.socket.statuses)
        assert self.socket.statuses == [101]
        await asyncio.sleep(0)
        self._read = self.socket.written.index(b"\r\n\r\n") + 4
        return self

    def frame(self, opcode: Opcode, data: bytes, *, fin: bool = True) -> bytes:
        return Frame(opcode, data, fin).serialize(mask=True)

    async def send(self, data: bytes) -> int:
        """Send what the server reads at once."""
        taken = self.socket.give(data)
        for _ in range(3):
            await asyncio.sleep(0)
        return taken

    async def send_all(self, data: bytes) -> int:
        """Send all of it, as fast as the server takes it; returns in how many turns of the event loop it did."""
        turns = 0
        while data and not self.socket.transport.closed:
            data = data[self.socket.give(data) :]
            turns += 1
            await asyncio.sleep(0)
        return turns

    def received(self) -> list[Frame]:
        """What the server has written since."""
        written = self.socket.written
        data, self._read = written[self._read :], len(written)
        frames: list[Frame] = []
        while data:
            length, header = data[1] & 127, 2
            if length == 126:
                length, header = int.from_bytes(data[2:4], "big"), 4
            frames.append(Frame(Opcode(data[0] & 15), data[header : header + length]))
            data = data[header + length :]
        return frames


def _uri() -> object:
    from websockets.uri import parse_uri

    return parse_uri("ws://127.0.0.1/")


def on_site(test: Callable[[Site], Awaitable[None]], limits: SocketLimits | None = None) -> None:
    async def main() -> None:
        site = Site(limits)
        await test(site)
        assert site.failures == []

    asyncio.run(main())
