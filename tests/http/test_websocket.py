"""A WebSocket on a socket of ours, without sockets: frames in, frames out, what is bounded and how it ends.

Contract, section 14.
"""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State

from sandbox_agent.http.asgi import Receive, Scope, Send
from sandbox_agent.http.sockets import SocketLimits
from sandbox_agent.http.websocket import UNREAD, WebSocket
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

    def __init__(self, site: Site, *, greeted: bool = True) -> None:
        self.site = site
        self.socket: PretendedSocket = site.connect()
        self.frames = ClientProtocol(_uri())
        self.frames.state = State.OPEN
        self.end = asyncio.Event()
        self.server: WebSocket
        self._read = 0
        self._greeted = greeted
        site.reached.handle = self._handle

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.server = scope["extensions"]["sandbox_agent.websocket"](LIMIT)
        self.server.accept(scope, [("X-Test", "yes")])
        self.server.greeted = self._greeted
        await self.end.wait()

    async def open(self, behind: bytes = b"") -> "Peer":
        self.socket.give(head("GET /v1/rpc", *OFFER) + behind)
        await self.site.until(lambda: self.socket.statuses)
        assert self.socket.statuses == [101]
        await asyncio.sleep(0)
        self._read = self.socket.written.index(b"\r\n\r\n") + 4
        return self

    def frame(self, opcode: Opcode, data: bytes, *, fin: bool = True) -> bytes:
        return Frame(opcode, data, fin).serialize(mask=True)

    async def send(self, data: bytes) -> int:
        taken = self.socket.give(data)
        for _ in range(3):
            await asyncio.sleep(0)
        return taken

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


@pytest.mark.requirement("14.ws-frames")
def test_messages_come_whole_and_what_came_with_the_head_is_not_lost() -> None:
    async def test(site: Site) -> None:
        peer = Peer(site)
        early = peer.frame(Opcode.TEXT, b"early")
        await peer.open(early)
        await peer.send(peer.frame(Opcode.TEXT, b"a", fin=False) + peer.frame(Opcode.PING, b"hi"))
        await peer.send(peer.frame(Opcode.CONT, b"b", fin=False) + peer.frame(Opcode.CONT, b"c"))
        await peer.send(peer.frame(Opcode.BINARY, b"x", fin=False) + peer.frame(Opcode.CONT, b"y"))
        await peer.send(peer.frame(Opcode.TEXT, b"last"))
        assert [await peer.server.receive() for _ in range(3)] == [b"early", b"abc", b"last"]
        assert [(one.opcode, bytes(one.data)) for one in peer.received()] == [(Opcode.PONG, b"hi")]
        await peer.socket.closes()
        assert await peer.server.receive() is None
        peer.end.set()
        await site.settle()

    on_site(test)


@pytest.mark.requirement("14.ws-closing")
def test_what_was_sent_before_a_close_is_taken_before_it_ends() -> None:
    async def test(site: Site) -> None:
        peer = await Peer(site).open()
        await peer.send(peer.frame(Opcode.TEXT, b"last words") + peer.frame(Opcode.CLOSE, b"\x03\xe8"))
        assert await peer.server.receive() == b"last words"
        assert await peer.server.receive() is None
        assert peer.server.left
        assert [one.opcode for one in peer.received()] == [Opcode.CLOSE]
        peer.end.set()
        await site.settle()

    on_site(test)


@pytest.mark.requirement("14.ws-bad-frames")
@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (Frame(Opcode.TEXT, b"unmasked").serialize(mask=False), 1002),
        (b"\xff\xff\xff\xff", 1002),
        (Frame(Opcode.CONT, b"of nothing").serialize(mask=True), 1002),
        (Frame(Opcode.TEXT, b"x" * (LIMIT + 1)).serialize(mask=True), 1009),
    ],
    # Masks are random.
    ids=["unmasked", "nonsense", "continuation", "huge"],
)
def test_frames_that_break_the_protocol_close_the_socket(bad: bytes, code: int) -> None:
    async def test(site: Site) -> None:
        peer = await Peer(site).open()
        await peer.send(bad)
        [close] = peer.received()
        assert (close.opcode, int.from_bytes(close.data[:2], "big")) == (Opcode.CLOSE, code)
        assert await peer.server.receive() is None
        assert not peer.server.left
        peer.end.set()
        await peer.socket.closes()

    on_site(test)


@pytest.mark.requirement("14.ws-bad-frames")
def test_a_message_in_a_million_fragments_takes_no_more_than_its_bytes() -> None:
    async def test(site: Site) -> None:
        peer = await Peer(site).open()
        await peer.send(peer.frame(Opcode.TEXT, b"x", fin=False))
        fragment = peer.frame(Opcode.CONT, b"x", fin=False)
        await peer.send(fragment * 50_000)
        assert len(peer.server._partial) == 50_001
        await peer.send(fragment * 50_000)
        assert int.from_bytes(peer.received()[-1].data[:2], "big") == 1009
        peer.end.set()
        await peer.socket.closes()

    on_site(test)


@pytest.mark.requirement("14.ws-slow")
def test_unread_messages_wait_in_the_socket() -> None:
    async def test(site: Site) -> None:
        peer = await Peer(site).open()
        message = peer.frame(Opcode.TEXT, b"x" * 10_000)
        sent = message * 100
        taken = await peer.send(sent)
        assert taken < len(sent)
        assert not peer.socket.transport.is_reading()
        while peer.server._waiting_bytes > UNREAD:
            await peer.server.receive()
        assert peer.socket.transport.is_reading()
        peer.end.set()
        await peer.socket.closes()

    on_site(test)


@pytest.mark.requirement("14.ws-slow")
def test_one_that_pings_and_does_not_read_gets_the_newest_pong_alone() -> None:
    async def test(site: Site) -> None:
        peer = await Peer(site).open()
        peer.socket.protocol.pause_writing()
        for number in range(1000):
            await peer.send(peer.frame(Opcode.PING, b"%d" % number))
        assert peer.received() == []
        peer.socket.protocol.resume_writing()
        await asyncio.sleep(0)
        assert [bytes(one.data) for one in peer.received()] == [b"999"]
        peer.end.set()
        await peer.socket.closes()

    on_site(test)


@pytest.mark.requirement("14.ws-silent")
def test_a_ping_that_stays_without_an_answer_closes_the_socket() -> None:
    async def test(site: Site) -> None:
        peer = await Peer(site).open()
        site.pass_time(1000)
        assert not peer.socket.transport.closed, "nothing was asked of it"
        peer.server.expect_pong()
        site.pass_time(50)
        await peer.send(peer.frame(Opcode.PONG, b""))
        site.pass_time(1000)
        assert not peer.socket.transport.closed
        peer.server.expect_pong()
        site.pass_time(62)
        assert peer.socket.transport.closed
        peer.end.set()
        await site.settle()

    on_site(test)


@pytest.mark.requirement("14.ws-silent")
def test_one_that_never_sends_its_first_message_is_closed() -> None:
    async def test(site: Site) -> None:
        peer = await Peer(site, greeted=False).open()
        site.pass_time(25)
        assert peer.received() == []
        site.pass_time(10)
        await asyncio.sleep(0)
        [close] = peer.received()
        assert int.from_bytes(close.data[:2], "big") == 1002
        peer.end.set()
        await peer.socket.closes()

    on_site(test)


@pytest.mark.requirement("14.ws-closing")
def test_a_server_that_stops_says_so() -> None:
    async def test(site: Site) -> None:
        peer = await Peer(site).open()
        peer.socket.protocol.shutdown()
        await asyncio.sleep(0)
        [close] = peer.received()
        assert int.from_bytes(close.data[:2], "big") == 1001
        peer.end.set()
        await peer.socket.closes()

    on_site(test)


@pytest.mark.requirement("14.guard")
def test_a_thousand_half_open_handshakes_do_not_keep_a_client_out() -> None:
    async def test(site: Site) -> None:
        strangers = [site.connect() for _ in range(1000)]
        for stranger in strangers:
            stranger.give(head("GET /acp", *OFFER, token=False)[:-2])
        site.pass_time(1)
        assert sum(not each.transport.closed for each in strangers) <= site.sockets.limits.anonymous
        peer = await Peer(site).open()
        await peer.send(peer.frame(Opcode.TEXT, b"hello"))
        assert await peer.server.receive() == b"hello"
        peer.end.set()
        for each in (peer.socket, *strangers):
            await each.closes()

    on_site(test)
