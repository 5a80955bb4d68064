"""HTTP/1.1 on a socket: one request at a time, what is refused, what is waited for. Contract, sections 3 and 10."""

import asyncio
import gc
import json
import weakref
from collections.abc import Awaitable, Callable
from email.utils import formatdate

import pytest

from sandboxagent.server.http.asgi import Receive, Scope, Send, respond
from sandboxagent.server.http.framing import MAX_HEAD_BYTES
from sandboxagent.server.http.http1 import Cycle, format_date
from tests.support.in_process import READ, PretendedSocket, Site, head

SMALL = b"GET /v1/x HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
CHUNKED = "Transfer-Encoding: chunked"


def on_site(test: Callable[[Site], Awaitable[None]]) -> None:
    """Run a test, in which nothing may fail unseen."""

    async def main() -> None:
        site = Site()
        await test(site)
        assert site.failures == []

    asyncio.run(main())


def detail(socket: PretendedSocket) -> str:
    return json.loads(socket.written.rpartition(b"\r\n\r\n")[2])["detail"]


# --- one request behind another ---------------------------------------------------------------------------------------


@pytest.mark.requirement("3.pipelining")
def test_of_requests_one_behind_another_one_is_read_and_the_rest_waits_outside() -> None:
    async def test(site: Site) -> None:
        blocked = asyncio.Event()

        async def handle(scope: Scope, receive: Receive, send: Send) -> None:
            await blocked.wait()
            await respond(send, 200, [(b"content-length", b"0")])

        site.reached.handle = handle
        before = sum(type(each) is Cycle for each in gc.get_objects())
        socket = site.connect()
        burst = head("GET /v1/x") * 60_000
        taken = socket.give(burst)
        await site.settle()
        taken += socket.give(burst[taken:])
        assert taken <= 2 * READ < len(burst)
        assert len(site.reached.requests) == 1
        cycles = sum(type(each) is Cycle for each in gc.get_objects()) - before
        assert cycles == 1
        await socket.closes()
        blocked.set()
        await site.settle()

    on_site(test)


@pytest.mark.requirement("3.pipelining")
def test_all_of_them_are_answered_once_and_in_order() -> None:
    async def test(site: Site) -> None:
        async def handle(scope: Scope, receive: Receive, send: Send) -> None:
            # Some take longer than others.
            for _ in range(hash(scope["path"]) % 3):
                await asyncio.sleep(0)
            await respond(send, 200, [(b"content-length", b"0"), (b"x-path", scope["path"].encode())])

        site.reached.handle = handle
        socket = site.connect()
        count = 500
        await socket.send(b"".join(head(f"GET /v1/{number}") for number in range(count)))
        await site.until(lambda: len(socket.statuses) == count)
        paths = [line[8:] for line in socket.written.split(b"\r\n") if line.startswith(b"x-path: ")]
        assert paths == [b"/v1/%d" % number for number in range(count)]
        assert not socket.transport.closed
        await socket.send(head("GET /v1/last"))
        assert socket.statuses == [200] * (count + 1)

    on_site(test)


@pytest.mark.requirement("3.pipelining")
def test_a_burst_on_one_socket_leaves_the_others_their_turn() -> None:
    async def test(site: Site) -> None:
        greedy, modest = site.connect(), site.connect()
        greedy.give(SMALL * 2000)
        modest.give(head("GET /v1/x"))
        await site.until(lambda: modest.statuses)
        assert len(greedy.statuses) < 10

    on_site(test)


@pytest.mark.requirement("3.pipelining")
def test_a_socket_that_is_gone_leaves_nothing_for_the_collector_of_garbage() -> None:
    async def test(site: Site) -> None:
        gc.collect()
        gc.disable()
        try:
            socket = site.connect()
            await socket.send(SMALL * 50 + head("POST /v1/rpc", "Content-Length: 3") + b"abc" + SMALL * 50)
            socket.give(head("POST /v1/rpc", CHUNKED))
            socket.give(b"2\r\nab\r\n" + SMALL)
            remains = [
                weakref.ref(each) for each in (socket.protocol, socket.protocol.cycle, socket.protocol.transport)
            ]
            await socket.closes()
            site.reached.scopes.clear()
            del socket
            for _ in range(5):
                await asyncio.sleep(0)
            assert [each() for each in remains] == [None] * 3
        finally:
            gc.enable()

    on_site(test)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.requirement("3.ambiguous-http-400")
@pytest.mark.parametrize("target", ["/", "127.0.0.1:80", "http://127.0.0.1/", "*", "/v1/rpc"])
@pytest.mark.parametrize("upgrade", [(), ("Connection: Upgrade", "Upgrade: h2c")], ids=["plain", "upgrade"])
def test_a_tunnel_is_answered_once_and_shortly(
    target: str, upgrade: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    async def test(site: Site) -> None:
        socket = site.connect()
        await socket.send(head(f"CONNECT {target}", *upgrade, "Content-Length: 5") + b"hello" + SMALL)
        assert socket.statuses == [400]
        assert socket.transport.ended
        assert site.reached.requests == []

    on_site(test)
    assert sum(len(record.getMessage()) for record in caplog.records) < 1000


@pytest.mark.requirement("3.request-200")
@pytest.mark.parametrize("end", ["Content-Length: 5", CHUNKED], ids=["counted", "chunked"])
def test_an_offer_of_another_protocol_changes_neither_the_body_nor_what_comes_behind(end: str) -> None:
    async def test(site: Site) -> None:
        socket = site.connect()
        body = b"hello" if end != CHUNKED else b"5\r\nhello\r\n0\r\n\r\n"
        offer = ("Connection: keep-alive, Upgrade", "Upgrade: h2c", "HTTP2-Settings: x")
        await socket.send((head("POST /v1/rpc", *offer, end) + body + head("GET /v1/x", *offer)) * 3)
        assert socket.statuses == [200] * 6
        assert site.reached.bodies == [b"hello", b""] * 3

    on_site(test)


@pytest.mark.requirement("3.request-200")
def test_close_is_heard_also_beside_an_offer_of_another_protocol() -> None:
    async def test(site: Site) -> None:
        socket = site.connect()
        await socket.send(head("GET /v1/x", "Connection: close, Upgrade", "Upgrade: h2c") + head("GET /v1/y"))
        assert socket.statuses == [200]
        assert site.reached.requests == [("GET", "/v1/x")]
        assert socket.transport.closed

    on_site(test)


@pytest.mark.requirement("3.trailers")
def test_what_comes_after_the_last_chunk_is_no_header() -> None:
    async def test(site: Site) -> None:
        stranger, client = site.connect(), site.connect()
        trailers = head("X", "Content-Type: text/evil", "X-ACP-Connection-Id: stolen").partition(b"\r\n")[2]
        await stranger.send(head("POST /v1/rpc", CHUNKED, token=False, host=False) + b"0\r\n" + trailers)
        assert stranger.statuses == [421]
        await client.send(head("POST /v1/rpc", CHUNKED) + b"1\r\nx\r\n0\r\n" + trailers)
        assert client.statuses == [200]
        (scope,) = site.reached.scopes
        assert [name for name, _ in scope["headers"]] == [b"host", b"authorization", b"transfer-encoding"]
        await client.send(head("GET /v1/x"))
        assert client.statuses == [200, 200]

    on_site(test)


@pytest.mark.requirement("3.trailers")
@pytest.mark.parametrize("what", ["one trailer", "many trailers", "an extension of a chunk"])
def test_what_is_neither_head_nor_body_is_bounded(what: str) -> None:
    async def test(site: Site) -> None:
        socket = site.connect()
        socket.give(head("POST /v1/rpc", CHUNKED))
        socket.give(b"1\r\nx\r\n" + (b"1;" if what == "an extension of a chunk" else b"0\r\n"))
        if what == "one trailer":
            socket.give(b"A: ")
        piece = b"A: b\r\n" * 100 if what == "many trailers" else b"x" * 1000
        sent = 0
        while not socket.protocol.transport.is_closing():
            sent += socket.give(piece)
            assert sent < 4 * MAX_HEAD_BYTES
        await site.settle()
        assert socket.statuses == [431]
        assert site.reached.bodies == []

    on_site(test)


@pytest.mark.requirement("3.chunk-flood")
def test_chunks_are_taken_a_few_at_a_time_and_others_have_their_turn() -> None:
    async def test(site: Site) -> None:
        socket, other = site.connect(), site.connect()
        count, turns = 100_000, 0
        left = head("POST /v1/rpc", CHUNKED) + b"1\r\nx\r\n" * count + b"0\r\n\r\n"
        while len(site.reached.bodies) < 2:
            left = left[socket.give(left) :]
            if turns == 1:
                other.give(head("GET /v1/x"))
            turns += 1
            await asyncio.sleep(0)
        await site.settle()
        # What is parsed at once has 64 KiB at most.
        assert turns > count * 6 // (64 << 10)
        assert site.reached.bodies == [b"", b"x" * count]
        assert (other.statuses, socket.statuses) == ([200], [200])

    on_site(test)


@pytest.mark.requirement("3.ambiguous-http-400")
def test_chunks_that_make_no_sense_end_the_request_that_waits_for_them() -> None:
    async def test(site: Site) -> None:
        socket = site.connect()
        await socket.send(head("POST /v1/rpc", CHUNKED) + b"2\r\nab\r\n")
        await socket.send(b"nonsense\r\n")
        assert socket.statuses == [400]
        assert site.reached.bodies == []
        assert not site.server.tasks

    on_site(test)


@pytest.mark.requirement("3.ambiguous-http-400")
def test_chunks_that_make_no_sense_do_not_cut_off_an_answer_that_has_begun() -> None:
    async def test(site: Site) -> None:
        go_on = asyncio.Event()

        async def handle(scope: Scope, receive: Receive, send: Send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
            await go_on.wait()
            await send({"type": "http.response.body", "body": b"ok"})

        site.reached.handle = handle
        socket = site.connect()
        await socket.send(head("POST /v1/rpc", CHUNKED) + b"2\r\nab\r\n")
        socket.give(b"nonsense\r\n" + SMALL)
        socket.give(SMALL)
        go_on.set()
        await site.settle()
        assert socket.statuses == [200]
        assert socket.written.endswith(b"\r\n\r\nok")
        assert socket.transport.ended

    on_site(test)


# --- what is waited for -----------------------------------------------------------------------------------------------


@pytest.mark.requirement("3.slow-request-408")
@pytest.mark.parametrize("before", [b"", head("GET /v1/x")], ids=["first", "second"])
def test_a_head_that_does_not_end_is_a_408_although_bytes_keep_coming(before: bytes) -> None:
    async def test(site: Site) -> None:
        socket = site.connect()
        await socket.send(before)
        for byte in (b"G", b"E", b"T", b" ", b"/", *[b"x"] * 8):
            socket.give(byte)
            site.pass_time(2)
        assert socket.statuses == ([200] if before else [])
        for _ in range(10):
            socket.give(b"x")
            site.pass_time(2)
        await site.settle()
        assert socket.statuses == ([200] if before else []) + [408]
        assert "headers" in detail(socket)
        assert socket.transport.ended

    on_site(test)


@pytest.mark.requirement("3.slow-request-408")
@pytest.mark.parametrize("end", ["Content-Length: 1000", CHUNKED], ids=["counted", "chunked"])
def test_a_body_that_stops_is_a_408_and_one_that_is_slow_is_not(end: str) -> None:
    async def test(site: Site) -> None:
        socket = site.connect()
        socket.give(head("POST /v1/rpc", end))
        if end == CHUNKED:
            socket.give(b"3e8\r\n")
        for _ in range(50):
            site.pass_time(50)
            socket.give(b"x")
        await site.settle()
        assert socket.statuses == []
        site.pass_time(61)
        await site.settle()
        assert socket.statuses == [408]
        assert "body" in detail(socket)
        assert site.reached.bodies == []
        assert not site.server.tasks

    on_site(test)


@pytest.mark.requirement("3.slow-request-408")
def test_the_server_may_take_its_time_with_a_body() -> None:
    async def test(site: Site) -> None:
        slow = asyncio.Event()

        async def handle(scope: Scope, receive: Receive, send: Send) -> None:
            await slow.wait()
            size = 0
            while (message := await receive())["more_body"]:
                size += len(message["body"])
            await respond(send, 200, [(b"content-length", b"0")])

        site.reached.handle = handle
        socket = site.connect()
        socket.give(head("POST /v1/rpc", "Content-Length: 300000") + b"x" * 200_000)
        await site.settle()
        assert not socket.transport.is_reading()
        site.pass_time(1000)
        slow.set()
        await site.settle()
        site.pass_time(50)
        socket.give(b"x" * 100_000)
        await site.settle()
        assert socket.statuses == [200]

    on_site(test)


@pytest.mark.requirement("3.idle-socket")
@pytest.mark.parametrize("sent", [b"", b"\r\n", head("GET /v1/x")], ids=["nothing", "a blank line", "a request"])
def test_an_idle_socket_is_closed_without_a_word(sent: bytes) -> None:
    async def test(site: Site) -> None:
        socket = site.connect()
        await socket.send(sent)
        answers = list(socket.statuses)
        site.pass_time(70)
        assert not socket.transport.closed
        site.pass_time(10)
        await site.settle()
        assert socket.transport.closed
        assert socket.statuses == answers

    on_site(test)


@pytest.mark.requirement("3.idle-socket")
def test_a_long_answer_is_not_cut() -> None:
    async def test(site: Site) -> None:
        end = asyncio.Event()

        async def handle(scope: Scope, receive: Receive, send: Send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await end.wait()
            await send({"type": "http.response.body", "body": b"late"})

        site.reached.handle = handle
        socket = site.connect()
        await socket.send(head("GET /v1/rpc"))
        site.pass_time(10_000)
        end.set()
        await site.settle()
        assert b"late" in socket.written
        assert not socket.transport.closed

    on_site(test)


@pytest.mark.requirement("3.idle-socket")
def test_a_client_that_does_not_take_its_answer_does_not_keep_its_socket() -> None:
    async def test(site: Site) -> None:
        socket = site.connect()
        socket.transport.taken = False
        await socket.send(head("GET /v1/x"))
        site.pass_time(80)
        assert socket.transport.closed

    on_site(test)


@pytest.mark.requirement("10.anonymous-sockets")
@pytest.mark.parametrize(
    ("request_bytes", "admitted"),
    [
        (head("GET /v1/x"), True),
        (head("GET /v1/x") + head("GET /", token=False), True),
        (head("GET /v1/x", token=False), False),
        (head("GET /"), False),
        (head("GET /v1/x")[:-1], False),
        (head("GET /v1/x", "Host: evil"), False),
    ],
    ids=["the token", "the token once", "none", "the token where none is needed", "half a head", "a second host"],
)
def test_only_the_token_makes_a_socket_a_clients(request_bytes: bytes, admitted: bool) -> None:
    async def test(site: Site) -> None:
        socket = site.connect()
        await socket.send(request_bytes)
        for _ in range(site.sockets.limits.anonymous):
            site.connect()
        site.pass_time(1)
        await site.settle()
        assert socket.transport.closed is not admitted

    on_site(test)


# --- the date ---------------------------------------------------------------------------------------------------------


def test_date_of_an_answer_is_written_as_http_has_it() -> None:
    some_each_day = range(0, 4 * 366 * 86_400, 86_400 + 3_661)

    assert [second for second in some_each_day if format_date(second) != formatdate(second, usegmt=True)] == []
