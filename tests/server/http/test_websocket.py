"""A WebSocket on a socket of ours, without sockets: frames in, frames out, what is bounded and how it ends.

Contract, section 14.
"""

import asyncio

import pytest
from websockets.frames import Frame, Opcode

from sandboxagent.server.http.websocket import MAX_FRAMES, MAX_UNREAD_BYTES, MESSAGE_COST_BYTES
from tests.support.in_process import Site, head
from tests.support.websocket_peer import LIMIT, OFFER, Peer, on_site


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
        await peer.send_all(fragment * 50_000)
        await site.until(lambda: len(peer.server._partial) == 50_001)
        await peer.send_all(fragment * 50_000)
        await site.until(peer.socket.transport.is_reading)
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
        while peer.server._waiting_bytes > MAX_UNREAD_BYTES:
            await peer.server.receive()
        assert peer.socket.transport.is_reading()
        peer.end.set()
        await peer.socket.closes()

    on_site(test)


EMPTY = {
    "messages": Frame(Opcode.TEXT, b"").serialize(mask=True),
    "binary": Frame(Opcode.BINARY, b"").serialize(mask=True),
    "pings": Frame(Opcode.PING, b"").serialize(mask=True),
    "pongs": Frame(Opcode.PONG, b"").serialize(mask=True),
    "fragments": Frame(Opcode.TEXT, b"", fin=False).serialize(mask=True)
    + Frame(Opcode.CONT, b"").serialize(mask=True) * 2
    + Frame(Opcode.CONT, b"", fin=False).serialize(mask=True),
}


@pytest.mark.requirement("14.ws-flood")
@pytest.mark.parametrize("kind", ["messages", "pings", "pongs", "fragments"])
def test_frames_are_taken_a_few_in_each_turn_and_others_have_theirs_between(kind: str) -> None:
    async def test(site: Site) -> None:
        peer = await Peer(site).open()
        opening = peer.frame(Opcode.TEXT, b"", fin=False) if kind == "fragments" else b""
        one = peer.frame(Opcode.CONT, b"", fin=False) if kind == "fragments" else EMPTY[kind]
        frames = 100 * MAX_FRAMES
        peer.socket.give(opening + one * frames)
        turns = 0
        while not peer.socket.transport.is_reading():
            await asyncio.sleep(0)
            turns += 1
            if kind == "messages" and peer.server._messages:
                await peer.server.receive()
        assert turns >= 99
        peer.end.set()
        await peer.socket.closes()

    on_site(test)


@pytest.mark.requirement("14.ws-flood")
def test_messages_without_a_byte_are_counted_and_wait_in_the_socket() -> None:
    async def test(site: Site) -> None:
        peer = await Peer(site).open()
        await peer.send(EMPTY["messages"] * 100_000)
        await site.until(lambda: peer.server._waiting_bytes > MAX_UNREAD_BYTES)
        assert len(peer.server._messages) <= MAX_UNREAD_BYTES // MESSAGE_COST_BYTES + MAX_FRAMES
        assert not peer.socket.transport.is_reading()
        peer.end.set()
        await peer.socket.closes()

    on_site(test)


@pytest.mark.requirement("14.ws-flood")
@pytest.mark.parametrize("piece", [1, 2, 3, 5, 7, 64, 1000, 70_000])
def test_frames_of_every_size_come_whole_however_their_bytes_come(piece: int) -> None:
    sizes = [0, 1, 125, 126, 127, 300, 0, 65_535, 65_536, 70_000, 5, *range(200)]

    async def test(site: Site) -> None:
        peer = await Peer(site).open()
        sent = b"".join(peer.frame(Opcode.TEXT, bytes([size % 251]) * size) for size in sizes)
        received: list[bytes] = []

        async def take() -> None:
            while len(received) < len(sizes):
                message = await peer.server.receive()
                assert message is not None
                received.append(message)

        taking = asyncio.ensure_future(take())
        for at in range(0, len(sent), piece):
            await site.until(peer.socket.transport.is_reading)
            peer.socket.give(sent[at : at + piece])
        await taking
        assert received == [bytes([size % 251]) * size for size in sizes]
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
