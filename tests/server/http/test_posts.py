"""POSTs of envelopes: a head that is known is not parsed again, and clients notice nothing of that."""

import asyncio
import gc
import json
import re
import tracemalloc
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from sandboxagent.protocol.envelope import Envelope, parse
from sandboxagent.server.http import rpc
from sandboxagent.server.http.asgi import Scope
from sandboxagent.server.http.auth import Auth
from sandboxagent.server.http.posts import Post, PostHead
from sandboxagent.server.http.sockets import SocketLimits
from tests.support.in_process import PretendedSocket, head
from tests.support.message_path import MessagePath, message_path

CALL = {"jsonrpc": "2.0", "id": 1, "method": "x/echo", "params": {"sessionId": "s0"}}
PROMPT = {"jsonrpc": "2.0", "id": 1, "method": "session/prompt", "params": {"sessionId": "s0", "prompt": []}}
ENVELOPES: dict[str, object] = {
    "a call": CALL,
    "a prompt": PROMPT,
    "a prompt in no session": {**PROMPT, "params": {"sessionId": "s99", "prompt": []}},
    "a prompt without a session": {**PROMPT, "params": {}},
    "a call in no session": {**CALL, "params": {"sessionId": "s99"}},
    "a method of the server": {**CALL, "method": "session/list", "params": {}},
    "a notification": {"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "s0"}},
    "an answer to nothing": {"jsonrpc": "2.0", "id": 7, "result": {}},
    "another initialize": {**CALL, "method": "initialize"},
    "a batch": [CALL],
    "no envelope": {"id": 1},
    "no JSON": "{",
    "nothing": "",
}


class Sender(PretendedSocket):
    """A socket that sends POSTs, and counts those that were taken apart."""

    def __init__(self, path: MessagePath) -> None:
        super().__init__(path.site)
        self._connection = f"X-ACP-Connection-Id: {path.clients[0].connection_id}"

    def request(self, envelope: object, *headers: str, token: bool = True) -> bytes:
        body = (envelope if isinstance(envelope, str) else json.dumps(envelope)).encode()
        more = ("Content-Type: application/json", self._connection, f"Content-Length: {len(body)}", *headers)
        return head("POST /v1/rpc", *more, token=token) + body

    async def answer(self, *pieces: bytes) -> bytes:
        """What comes for a request."""
        self.transport.written.clear()
        for piece in pieces:
            self.protocol.data_received(piece)
        await self.site.until(lambda: b"\r\n\r\n" in self.written)
        return self.written


@asynccontextmanager
async def sender(folder: Path) -> AsyncGenerator[Sender]:
    """One whose head is known."""
    async with message_path(folder) as path:
        one = Sender(path)
        await one.answer(one.request(CALL))
        assert len(one.site.methods) == 2, "the stream's, and this"
        yield one


def parsed(one: Sender) -> int:
    """How many heads were parsed since."""
    return len(one.site.methods) - 2


def alike(response: bytes) -> bytes:
    """A response without what differs from one to the next."""
    return re.sub(rb"date: [^\r]+\r\n|(x-acp-last-event-id: |turn-)\d+", b"", response)


@pytest.mark.parametrize("envelope", ENVELOPES.values(), ids=ENVELOPES.keys())
@pytest.mark.parametrize("key", [(), ("Idempotency-Key: {}",)], ids=["no key", "key"])
@pytest.mark.parametrize("prefer", [(), ("Prefer: respond-async",)], ids=["waits", "async"])
def test_a_known_head_gets_the_same_answer(
    envelope: object, key: tuple[str, ...], prefer: tuple[str, ...], tmp_path: Path
) -> None:
    async def main() -> None:
        async with message_path(tmp_path) as path:
            one = Sender(path)
            first = await one.answer(one.request(envelope, *(each.format("k-1") for each in key), *prefer))
            taken_apart = len(one.site.methods)
            second = await one.answer(one.request(envelope, *(each.format("k-2") for each in key), *prefer))

            assert alike(second) == alike(first)
            assert len(one.site.methods) == taken_apart

    uvloop.run(main())


@pytest.mark.parametrize("envelope", ENVELOPES.values(), ids=ENVELOPES.keys())
def test_a_request_is_guarded_and_parsed_once_and_the_same_head_is_not_guarded_again(
    envelope: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guarded: list[str] = []
    read: list[bytes] = []
    check = Auth.check

    def note_check(auth: Auth, scope: Scope) -> bool:
        guarded.append(scope["method"])
        return check(auth, scope)

    def note_parse(line: bytes) -> Envelope:
        read.append(line)
        return parse(line)

    async def main() -> None:
        async with message_path(tmp_path) as path:
            one = Sender(path)
            monkeypatch.setattr(Auth, "check", note_check)
            monkeypatch.setattr(rpc, "parse", note_parse)
            for times in (1, 2):
                await one.answer(one.request(envelope))
                assert (guarded.count("POST"), len(read)) == (1, times)

    uvloop.run(main())


def test_a_key_that_comes_again_gets_the_first_outcome(tmp_path: Path) -> None:
    async def main() -> None:
        async with sender(tmp_path) as one:
            first = await one.answer(one.request(PROMPT, "Idempotency-Key: k"))
            assert alike(await one.answer(one.request(PROMPT, "Idempotency-Key: k"))) == alike(first)
            assert b"409" in (await one.answer(one.request({**PROMPT, "id": 2}, "Idempotency-Key: k")))[:16]

    uvloop.run(main())


def test_a_body_may_come_by_itself_and_in_pieces(tmp_path: Path) -> None:
    async def main() -> None:
        async with sender(tmp_path) as one:
            whole = one.request(CALL)
            first, middle = whole.index(b"\r\n\r\n") + 4, len(whole) - 5
            response = await one.answer(whole[:first], whole[first:middle], whole[middle:])
            assert response.startswith(b"HTTP/1.1 200")
            assert parsed(one) == 0

    uvloop.run(main())


def test_a_head_in_pieces_and_requests_one_behind_another_are_parsed(tmp_path: Path) -> None:
    async def main() -> None:
        async with sender(tmp_path) as one:
            whole = one.request(CALL)
            assert (await one.answer(whole[:30], whole[30:])).startswith(b"HTTP/1.1 200")
            one.transport.written.clear()
            one.protocol.data_received(one.request(CALL) + one.request({**CALL, "id": 2}))
            await one.site.until(lambda: one.statuses == [200, 200])
            assert one.written.index(b'"id":1') < one.written.index(b'"id":2')
            assert parsed(one) == 3

    uvloop.run(main())


def test_pipelined_posts_take_turns_even_when_refused_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with sender(tmp_path) as one:
            one.transport.written.clear()
            one.protocol.data_received(b"POST /acp HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 5)
            assert one.statuses == [401], "the others have their turn first"
            await one.site.until(lambda: one.statuses == [401] * 5)

    uvloop.run(main())


@pytest.mark.parametrize("known", [False, True])
def test_a_client_that_does_not_read_its_answers_gets_no_more_of_them(known: bool, tmp_path: Path) -> None:
    async def main() -> None:
        async with sender(tmp_path) as one:
            one.transport.written.clear()
            one.protocol.pause_writing()
            sent = one.request(CALL) if known else b"POST /acp HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
            for _ in range(5):
                one.protocol.data_received(sent)
                await one.site.settle()
            assert one.statuses == []
            one.protocol.resume_writing()
            await one.site.until(lambda: one.statuses == [200 if known else 401] * 5)

    uvloop.run(main())


def test_nothing_behind_a_post_that_closes_the_socket_is_taken(tmp_path: Path) -> None:
    async def main() -> None:
        async with sender(tmp_path) as one:
            before = len(one.site.reached.requests)
            one.transport.written.clear()
            chunked = head("POST /v1/rpc", "Transfer-Encoding: chunked", token=False) + b"0\r\n\r\n"
            one.protocol.data_received(chunked + head("DELETE /v1/x"))
            await one.site.settle()
            assert one.statuses == [401]
            assert len(one.site.reached.requests) == before
            assert one.protocol._framing.part.name == "CHUNKED_BODY", "nor is the rest of its body"

    uvloop.run(main())


def test_a_refusal_leaves_nothing_for_the_collector_of_garbage(tmp_path: Path) -> None:
    async def main() -> None:
        async with sender(tmp_path) as one:
            refused = head("POST /v1/rpc", "Content-Length: 100000", token=False) + b"x" * 100_000
            await one.answer(refused)
            gc.collect()
            gc.disable()
            tracemalloc.start()
            try:
                for _ in range(20):
                    await one.answer(bytes(bytearray(refused)))
                assert tracemalloc.get_traced_memory()[0] < 5 * len(refused)
            finally:
                tracemalloc.stop()
                gc.enable()

    uvloop.run(main())


def test_a_body_in_tiny_pieces_takes_little_more_than_its_size() -> None:
    line: Any = None
    post = Post(line, PostHead(lambda _: None, 1 << 20))
    tracemalloc.start()
    try:
        for _ in range(1 << 18):
            post.take_body(bytes(bytearray(b"ab")))
        post.end_body()
        assert tracemalloc.get_traced_memory()[1] < 4 << 19
    finally:
        tracemalloc.stop()
    assert post.body == b"ab" * (1 << 18)


def test_a_head_without_the_token_is_not_taken_for_the_one_before(tmp_path: Path) -> None:
    async def main() -> None:
        async with sender(tmp_path) as one:
            assert (await one.answer(one.request(CALL, token=False))).startswith(b"HTTP/1.1 401")
            assert parsed(one) == 1

    uvloop.run(main())


def test_a_connection_that_was_closed_is_unknown(tmp_path: Path) -> None:
    async def main() -> None:
        async with message_path(tmp_path) as path:
            one = Sender(path)
            await one.answer(one.request(CALL))
            path.close_connections()
            assert (await one.answer(one.request(CALL))).startswith(b"HTTP/1.1 404")

    uvloop.run(main())


def test_the_answer_to_a_client_that_has_left_goes_to_its_stream(tmp_path: Path) -> None:
    async def main() -> None:
        async with message_path(tmp_path) as path:
            one = Sender(path)
            await one.answer(one.request(CALL))
            one.protocol.data_received(one.request({**CALL, "id": 77}))
            one.transport.close()
            await one.site.until(lambda: b'"id":77' in path.clients[0].heard)

    uvloop.run(main())


def test_a_body_that_does_not_come_is_refused_in_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with sender(tmp_path) as one:
            one.transport.written.clear()
            one.protocol.data_received(one.request(CALL)[:-5])
            one.site.pass_time(SocketLimits().body_timeout + 2)
            await one.site.settle()
            assert one.statuses == [408]
            assert one.transport.ended or one.transport.closed

    uvloop.run(main())


def test_a_socket_whose_request_is_under_way_takes_the_next_one_after_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with sender(tmp_path) as one:
            one.transport.written.clear()
            one.protocol.data_received(one.request(CALL))
            one.protocol.data_received(one.request({**CALL, "id": 2}))
            await one.site.until(lambda: one.statuses == [200, 200])
            assert one.written.index(b'"id":1') < one.written.index(b'"id":2')

    uvloop.run(main())


def test_a_server_that_stops_closes_the_socket_after_the_answer(tmp_path: Path) -> None:
    async def main() -> None:
        async with sender(tmp_path) as one:
            one.transport.written.clear()
            one.protocol.data_received(one.request(CALL))
            one.protocol.shutdown()
            await one.site.until(lambda: one.transport.closed)
            assert one.statuses == [200]
            assert b"connection: close\r\n" in one.written

    uvloop.run(main())


def test_a_socket_that_is_gone_leaves_nothing_for_the_collector_of_garbage(tmp_path: Path) -> None:
    import weakref

    async def main() -> None:
        async with message_path(tmp_path) as path:
            one = Sender(path)
            await one.answer(one.request(CALL))
            await one.answer(one.request(CALL))
            await one.closes()
            remains = weakref.ref(one.protocol)
            path.site.reached.scopes.clear()
            del one
            for _ in range(5):
                await asyncio.sleep(0)
            assert remains() is None

    uvloop.run(main())
