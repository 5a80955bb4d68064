"""A step of an answer that raises, on every transport: the client gets an error, and the agent's next line is read."""

import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from sandboxagent.protocol.errors import LogUnavailable
from tests.support.transports import Failing, Transports, frame_of, until
from tests.support.world import Json, World, run, world

CALL: Json = {"jsonrpc": "2.0", "id": "r", "method": "x/echo", "params": {"sessionId": "s"}}
NOTIFICATION: Json = {"jsonrpc": "2.0", "method": "x/note", "params": {"sessionId": "s"}}
ANSWER: Json = {"jsonrpc": "2.0", "id": 1, "result": {}}
ASYNC, KEY = "Prefer: respond-async", "Idempotency-Key: k"
INTERNAL = -32603


async def wait_sent(position: int) -> None: ...


def give_stream(own: World, broken: str) -> None:
    """Give the client a stream that has not sent everything yet, and of which a function may be broken."""
    stream: Any = SimpleNamespace(
        push=lambda _: None,
        resync=lambda: None,
        close=lambda _: None,
        wait_sent=wait_sent,
        has_sent=lambda _: False,
        apply_backpressure=lambda _: False,
    )
    faulty: Any = Failing(stream, broken)
    own.client.stream = faulty


async def goes_on(own: World) -> None:
    """The agent answers what it was asked, and its next line, read at once with the answer, arrives."""
    lines = [{"jsonrpc": "2.0", "id": one["id"], "result": {}} for one in own.process.sent if "id" in one]
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "next"}}
    lines.append({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s", "update": update}})
    own.hears(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    await own.settled()
    heard = [line.get("method") for line in await own.heard(own.client)]
    assert heard.count("session/update") == 1


def is_idle(own: World) -> bool:
    return (own.client.busy, own.client.delivering) == (0, 0)


def is_logged(caplog: pytest.LogCaptureFixture) -> bool:
    return any(one.exc_info is not None and one.exc_info[0] is ZeroDivisionError for one in caplog.records)


POSTS: list[tuple[str, str, Json, tuple[str, ...]]] = [
    *(("/v1/rpc", broken, CALL, ()) for broken in ("submit", "when_safe", "has_sent", "wait_sent")),
    *(("/v1/rpc", broken, CALL, (ASYNC,)) for broken in ("submit", "when_safe")),
    *(("/acp", broken, CALL, ()) for broken in ("submit", "when_safe")),
    *((path, "notify", NOTIFICATION, ()) for path in ("/v1/rpc", "/acp")),
    *((path, "answer", ANSWER, ()) for path in ("/v1/rpc", "/acp")),
]


@pytest.mark.requirement("3.every-answer")
@pytest.mark.parametrize(
    ("path", "broken", "envelope", "headers"), POSTS, ids=lambda part: part if isinstance(part, str) else ""
)
def test_a_post_is_answered_with_500_when_a_step_raises(
    path: str, broken: str, envelope: Json, headers: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with world() as own:
            give_stream(own, broken)
            server = Transports(own, broken)
            socket = server.post(path, envelope, *headers)
            await goes_on(own)
            await until(lambda: socket.statuses)
            assert socket.statuses == [500]
            assert b"injected" not in socket.written
            assert is_idle(own)
            # The socket takes the next request.
            await socket.send(b"GET / HTTP/1.1\r\n\r\n")
            await until(lambda: len(socket.statuses) == 2)

    with caplog.at_level(logging.ERROR):
        run(main())
    assert is_logged(caplog)


@pytest.mark.requirement("3.every-answer")
@pytest.mark.parametrize(
    ("way", "broken"),
    [*((way, "when_committed") for way in ("respond-async", "acp", "websocket")), ("websocket", "submit")],
)
def test_a_request_has_an_error_on_the_stream_when_a_step_raises(
    way: str, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with world() as own:
            server = Transports(own, broken)
            if way == "websocket":
                peer = await server.websocket()
                await peer.send(frame_of(CALL))
            else:
                server.post("/acp" if way == "acp" else "/v1/rpc", CALL, *([] if way == "acp" else [ASYNC]))
            await own.settled()
            await goes_on(own)
            while not (found := await server.responses("r")):
                # The log's thread reads: others go on meanwhile.
                continue
            assert [one["error"]["code"] for one in found] == [INTERNAL]
            assert is_idle(own)
            own.hub.close_connection(own.client, "this is the end")
            await server.site.settle()

    with caplog.at_level(logging.ERROR):
        run(main())
    assert is_logged(caplog)


@pytest.mark.requirement("3.every-answer")
@pytest.mark.parametrize("broken", ["save_outcome", "when_flushed"])
def test_a_post_under_a_key_is_answered_when_its_outcome_cannot_be_stored(broken: str) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("injected")

    async def main() -> None:
        async with world() as own:
            server = Transports(own)
            socket = server.post("/v1/rpc", CALL, KEY)
            request = await own.process.request("x/echo")
            setattr(own.log, broken, fail)
            own.says(id=request["id"], result={})
            await goes_on(own)
            delattr(own.log, broken)
            assert b'"code":-32603' in socket.written
            assert is_idle(own)

    run(main())


@pytest.mark.requirement("3.every-answer")
@pytest.mark.parametrize("broken", ["submit", "when_safe", "has_sent", "wait_sent"])
def test_a_post_of_a_gateway_ends_with_a_problem_when_a_step_raises(
    broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with world() as own:
            give_stream(own, broken)
            tunnel = Transports(own, broken).tunnel(CALL)
            await goes_on(own)
            await until(lambda: tunnel.is_over)
            # An early answer is replaced.
            problem = next(json.loads(body) for body in tunnel.bodies if b'"type"' in body)
            assert (problem["status"], problem["type"].rpartition(":")[2]) == (500, "internal-error")
            assert tunnel.statuses == [500 if broken == "submit" else 200]
            assert is_idle(own)

    with caplog.at_level(logging.ERROR):
        run(main())
    assert is_logged(caplog)


@pytest.mark.requirement("3.every-answer")
def test_a_post_whose_client_left_ends_even_when_the_stream_cannot_be_told(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with world() as own:
            socket = Transports(own, "tell").post("/v1/rpc", CALL)
            socket.transport.close()
            await goes_on(own)
            await until(lambda: is_idle(own))

    with caplog.at_level(logging.ERROR):
        run(main())
    assert is_logged(caplog)


@pytest.mark.requirement("5.held-updates")
@pytest.mark.parametrize("headers", [(), (ASYNC,), (KEY,), (ASYNC, KEY)], ids=" ".join)
def test_updates_of_a_new_session_are_released_when_its_response_cannot_be_kept(headers: tuple[str, ...]) -> None:
    async def main() -> None:
        async with world() as own:
            server = Transports(own)
            params = {"cwd": "/", "mcpServers": []}
            socket = server.post("/v1/rpc", CALL | {"method": "session/new", "params": params}, *headers)
            asked = await own.process.request("session/new")
            await until(lambda: socket.statuses or ASYNC not in headers)
            full = LogUnavailable("the disk is full")
            own.log.when_committed = lambda _, callback: callback(full)  # type: ignore[method-assign]
            own.log.when_flushed = lambda callback: callback(full)  # type: ignore[method-assign]
            own.says(id=asked["id"], result={"sessionId": "fresh"})
            own.agent.updates("first", "fresh")
            await own.settled()
            del own.log.when_committed, own.log.when_flushed

            assert own.hub.held_updates.sessions == {}
            heard = [line.get("method") for line in await own.heard(own.client, "fresh")]
            assert "session/update" in heard
            if ASYNC in headers:
                assert [one["error"]["data"]["type"] for one in await server.responses("r")] == ["log-unavailable"]
            else:
                assert socket.statuses == [507]

    run(main())
