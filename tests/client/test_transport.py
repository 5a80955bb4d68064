"""The SDK against servers and proxies that no honest server is: it neither dies, nor races, nor answers the wrong."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from sandboxagent import (
    Answer,
    ConnectionLost,
    ForeignAnswer,
    PermissionRequest,
    SandboxAgent,
    ServerProblem,
    text_of,
)
from tests.support.client import run
from tests.support.loopback import answer
from tests.support.pretending import (
    EVENTS,
    SESSION,
    Json,
    Post,
    asks,
    left,
    looked,
    opened,
    pretender,
    problem,
    turn_started,
    update,
)
from tests.support.running import BOUND

# --- answers ----------------------------------------------------------------------------------------------------------


def test_an_answer_to_a_connection_that_is_gone_is_not_given_to_the_next() -> None:
    """There, the same id may be another request."""

    async def main() -> None:
        asked: list[str] = []
        go = asyncio.Event()

        async def decide(request: PermissionRequest) -> Answer:
            asked.append(str(request.tool_call.title))
            if request.tool_call.title == "harmless":
                with suppress(asyncio.CancelledError):  # A handler that does not listen.
                    await go.wait()
                return request.allow()
            return request.reject()

        async with pretender() as pretending, SandboxAgent.connect(pretending.url, on_permission=decide) as client:
            await opened(client, pretending)
            await pretending.told(1, asks(0, "harmless"))
            await looked(lambda: asked)
            pretending.restart()
            await pretending.until(lambda: pretending.opened == 2)
            go.set()
            await pretending.told(2, asks(0, "dangerous"), "c2")
            await pretending.until(lambda: any(post.connection == "c2" for post in pretending.answers()))
        given = [
            post.envelope["result"]["outcome"]["optionId"] for post in pretending.answers() if post.connection == "c2"
        ]
        assert given == ["no"]

    run(main())


def test_ids_that_are_written_differently_are_different_requests() -> None:
    async def main() -> None:
        async with pretender() as pretending, SandboxAgent.connect(pretending.url) as client:
            await opened(client, pretending)
            for position, id in enumerate((1, 1.0, "1"), 1):
                await pretending.told(position, asks(id, repr(id)))
            withdrawn = {"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": 1.0}}
            await pretending.told(4, withdrawn)
            await looked(lambda: [request.tool_call.title for request in client.requests()] == ["1", "'1'"])

    run(main())


def test_an_answer_is_given_however_long_that_takes() -> None:
    """The request is open on the server, and it will not be asked again."""

    async def main() -> None:
        async with (
            pretender() as pretending,
            SandboxAgent.connect(
                pretending.url, on_permission=lambda request: request.allow(), reconnect_timeout=0.05
            ) as client,
        ):
            await opened(client, pretending)
            refusals = [b"", problem("log-unavailable", 507), b"", problem("node-unreachable", 503), b""]
            pretending.results["None"] = lambda post: refusals.pop(0) if refusals else {}
            await pretending.told(1, asks(0, "any"))
            await pretending.until(lambda: len(pretending.answers()) == 6)
            assert len({str(post.envelope) for post in pretending.answers()}) == 1

    run(main())


def test_what_cannot_be_read_is_left_to_others_and_forgotten_when_it_is_withdrawn() -> None:
    async def main() -> None:
        async with pretender() as pretending, SandboxAgent.connect(pretending.url) as client:
            await opened(client, pretending)
            idle = len(left())
            question = {"sessionId": "s-1", "questionId": "q", "prompt": "?", "options": [["red"]]}
            strange = [
                ("_sandboxagent/session/request_question", question),
                ("session/request_permission", {"sessionId": "s-1"}),
                ("vendor/strange", {"sessionId": "s-1"}),
            ]
            for position, (method, params) in enumerate(strange, 1):
                await pretending.told(position, {"jsonrpc": "2.0", "id": position, "method": method, "params": params})
            await looked(lambda: len(left()) == idle + len(strange))
            for position in (1, 2, 3):
                withdrawn = {"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": position}}
                await pretending.told(10 + position, withdrawn)
            await looked(lambda: len(left()) == idle)
        assert pretending.answers() == []

    run(main())


# --- a new connection -------------------------------------------------------------------------------------------------


async def first(items: AsyncIterator[object], count: int) -> list[str]:
    """The texts of the first items."""
    async with asyncio.timeout(BOUND):
        return [text_of(await anext(items)) for _ in range(count)]


def test_an_answer_that_waits_for_a_stream_that_is_gone_comes_after_what_the_log_has() -> None:
    async def main() -> None:
        async with pretender() as pretending, SandboxAgent.connect(pretending.url) as client:
            session = await opened(client, pretending)
            go = asyncio.Event()

            async def prompted(post: Post) -> Json:
                await go.wait()
                pretending.last_event = 12
                return {"stopReason": "end_turn"}

            pretending.results["session/prompt"] = prompted
            turn = session.prompt("hello")
            await pretending.until(lambda: pretending.requests("session/prompt"))
            [post] = pretending.requests("session/prompt")
            started = turn_started(post.envelope["params"]["_meta"]["sandboxagent.dev"]["promptId"])
            await pretending.told(10, started)
            await pretending.told(11, update("one"))
            assert await first(turn, 1) == ["one"]
            pretending.log = [(10, started), (11, update("one")), (12, update("two"))]
            held = asyncio.Event()
            pretending.results["_sandboxagent/session/attach"] = lambda post: held.wait()
            go.set()
            await looked(lambda: client._connection.position == 12)
            pretending.restart()
            assert await first(turn, 1) == ["two"]
            assert (await turn).stop_reason == "end_turn"

    run(main())


def test_nothing_is_lost_when_a_session_speaks_before_it_is_attached_again() -> None:
    """A prompt attaches, too: what came before it is not on the stream."""

    async def main() -> None:
        async with pretender() as pretending, SandboxAgent.connect(pretending.url) as client:
            session = await opened(client, pretending)
            updates = session.updates()
            await pretending.told(1, update("1"))
            assert await first(updates, 1) == ["1"]
            attach = asyncio.Event()

            async def attached(post: Post) -> Json:
                await attach.wait()
                return {"session": SESSION, "position": 5}

            pretending.results["_sandboxagent/session/attach"] = attached
            pretending.log = [(number, update(str(number))) for number in range(1, 5)]
            pretending.restart()
            await pretending.until(lambda: pretending.requests("_sandboxagent/session/attach"))
            assert await first(updates, 3) == ["2", "3", "4"]
            pretending.log += [(number, update(str(number))) for number in range(5, 8)]
            await pretending.told(7, update("7"), "c2")
            await client.request("x/any")
            attach.set()
            assert await first(updates, 3) == ["5", "6", "7"]
            await pretending.told(8, update("8"), "c2")
            assert await first(updates, 1) == ["8"]

    run(main())


def test_the_past_of_a_session_that_was_attached_does_not_come_as_new() -> None:
    async def main() -> None:
        async with pretender() as pretending, SandboxAgent.connect(pretending.url, agent="any") as client:
            pretending.log = [(90, update("old")), (101, update("new"))]
            pretending.results["_sandboxagent/session/attach"] = {"session": SESSION, "position": 100}
            updates = (await client.sessions.attach("s-1")).updates()
            pretending.restart()
            assert await first(updates, 1) == ["new"]

    run(main())


def test_what_happened_while_the_server_was_away_does_not_come_as_new() -> None:
    async def main() -> None:
        async with pretender() as pretending, SandboxAgent.connect(pretending.url) as client:
            session = await opened(client, pretending)
            pretending.results["_sandboxagent/session/attach"] = {"session": SESSION, "position": 50}
            pretending.log = [(40, update("away"))]
            before = session.updates()
            pretending.restart()
            assert await first(before, 1) == ["away"]
            await looked(lambda: not client._connection._detached)
            after = session.updates()
            pretending.restart()
            pretending.log += [(60, update("new"))]
            assert await first(after, 1) == ["new"]
            assert await first(before, 1) == ["new"]

    run(main())


@pytest.mark.parametrize("method", ["session/new", "session/fork", "session/resume"])
def test_a_session_is_attached_though_the_connection_that_opened_it_is_gone(method: str) -> None:
    async def main() -> None:
        async with pretender() as pretending, SandboxAgent.connect(pretending.url, agent="any") as client:
            await client.request("x/any")
            pretending.results["_sandboxagent/session/attach"] = {"session": SESSION, "position": 0}
            pretending.results[method] = SESSION

            def last(post: Post) -> Json:
                pretending.last_event = 5  # It is waited for.
                return SESSION

            pretending.results[method] = last
            calls = {
                "session/new": lambda: client.sessions.create(cwd="/"),
                "session/fork": lambda: client.sessions.fork("s-0"),
                "session/resume": lambda: client.sessions.resume("s-1"),
            }
            opening = asyncio.create_task(calls[method]())
            await looked(lambda: client._connection.position == 5)
            pretending.last_event = 0
            pretending.restart()
            assert (await opening).id == "s-1"
            attached = ("c2", {"sessionId": "s-1"})
            attach = "_sandboxagent/session/attach"
            await pretending.until(
                lambda: attached in [(post.connection, post.envelope["params"]) for post in pretending.requests(attach)]
            )

    run(main())


# --- the stream -------------------------------------------------------------------------------------------------------


def test_an_event_that_cannot_be_read_does_not_end_the_stream() -> None:
    async def main() -> None:
        async with pretender() as pretending, SandboxAgent.connect(pretending.url) as client:
            session = await opened(client, pretending)
            updates = session.updates()
            pretending.log = [(1, update("1")), (2, update("2")), (3, update("3"))]
            await pretending.told(1, update("1"))
            await pretending.told(2, "no JSON")
            await pretending.told("strange", update("strange"))
            await pretending.until(lambda: pretending.streams_opened == 2)
            await pretending.told(3, update("3"))
            assert await first(updates, 3) == ["1", "2", "3"]

    run(main())


def test_events_that_a_proxy_repeats_are_passed_over() -> None:
    async def main() -> None:
        asked: list[str] = []
        async with (
            pretender() as pretending,
            SandboxAgent.connect(pretending.url, on_permission=lambda request: asked.append(request.id)) as client,
        ):
            await opened(client, pretending)
            await pretending.told(1, asks(7, "once"))
            await looked(lambda: asked)
            pretending.cut()
            await pretending.told(1, asks(7, "once"))
            await pretending.told(2, asks(8, "next"))
            await looked(lambda: "8" in asked)
            assert asked == ["7", "8"]

    run(main())


def test_a_server_that_forgets_each_connection_is_not_asked_in_a_hurry() -> None:
    async def main() -> None:
        async with pretender() as pretending, SandboxAgent.connect(pretending.url) as client:
            pretending.stream = lambda: problem("unknown-connection", 404)
            await opened(client, pretending)
            start = asyncio.get_running_loop().time()
            await pretending.until(lambda: pretending.opened >= 6)
            # A tenth of a second, two and four, of which each may be halved.
            assert asyncio.get_running_loop().time() - start > 0.3

    run(main())


def test_a_request_to_a_server_that_forgets_each_connection_fails_in_the_end() -> None:
    async def main() -> None:
        async with pretender() as pretending, SandboxAgent.connect(pretending.url, reconnect_timeout=0.3) as client:
            await opened(client, pretending)
            pretending.forgetful = True
            pretending.known.clear()
            async with asyncio.timeout(BOUND):
                with pytest.raises(ServerProblem) as lost:
                    await client.request("x/any")
            assert lost.value.slug == "unknown-connection"
            assert pretending.opened < 20

    run(main())


def test_readers_learn_when_the_token_is_no_longer_good() -> None:
    async def main() -> None:
        async with pretender() as pretending, SandboxAgent.connect(pretending.url) as client:
            session = await opened(client, pretending)
            updates, following = session.updates(), session.log()
            pretending.stream = lambda: problem("unauthorized", 401)
            pretending.results[EVENTS] = problem("unauthorized", 401)
            pretending.cut()
            for waiting in (anext(updates), anext(following)):
                async with asyncio.timeout(BOUND):
                    with pytest.raises(ServerProblem) as refused:
                        await waiting
                assert refused.value.slug == "unauthorized"

    run(main())


# --- answers that are none --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"<html>Log in</html>", b"[]", b"7", b'{"jsonrpc":"2.0"', b"\xff"])
def test_an_answer_that_is_no_envelope_is_said_to_be_foreign(body: bytes) -> None:
    async def main() -> None:
        async with pretender() as pretending, SandboxAgent.connect(pretending.url) as client:
            session = await opened(client, pretending)
            pretending.results["x/any"] = answer(body, Content_Type="text/html")
            with pytest.raises(ForeignAnswer):
                await client.request("x/any")
            updates = session.updates()
            await pretending.told(1, update("still there"))
            assert await first(updates, 1) == ["still there"]

    run(main())


def test_something_that_opens_no_connection_is_said_to_be_foreign() -> None:
    async def main() -> None:
        async with pretender() as pretending, SandboxAgent.connect(pretending.url) as client:
            pretending.results["initialize"] = answer(b"{}", Content_Type="application/json")
            with pytest.raises(ForeignAnswer):
                await opened(client, pretending)

    run(main())


@pytest.mark.parametrize("status", ["502 Bad Gateway", "503 Service Unavailable", "504 Gateway Timeout"])
def test_a_proxy_that_does_not_reach_the_server_is_waited_for(status: str) -> None:
    async def main() -> None:
        async with pretender() as pretending, SandboxAgent.connect(pretending.url) as client:
            await opened(client, pretending)
            replies: list[object] = [answer(b"<html>", status, Content_Type="text/html"), {"fine": True}]
            pretending.results["x/any"] = lambda post: replies.pop(0)
            assert await client.request("x/any") == {"fine": True}
            one, two = pretending.requests("x/any")
            assert one.key == two.key

    run(main())


def test_initialize_cannot_be_sent_again() -> None:
    async def main() -> None:
        async with pretender() as pretending, SandboxAgent.connect(pretending.url) as client:
            await opened(client, pretending)
            await client.request("initialize", {"protocolVersion": 1})
            assert [post.connection for post in pretending.requests("initialize")] == [None, "c1"]

    run(main())


# --- a proxy that keeps the stream to itself --------------------------------------------------------------------------


def test_a_turn_ends_though_the_stream_brings_nothing() -> None:
    async def main() -> None:
        async with (
            pretender() as pretending,
            SandboxAgent.connect(pretending.url, reconnect_timeout=1) as client,
        ):
            session = await opened(client, pretending)

            def prompted(post: Post) -> Json:
                name = post.envelope["params"]["_meta"]["sandboxagent.dev"]["promptId"]
                pretending.log = [(10, turn_started(name)), (11, update("one")), (12, update("two"))]
                pretending.last_event = 13
                return {"stopReason": "end_turn"}

            pretending.results["session/prompt"] = prompted
            async with asyncio.timeout(BOUND):
                assert await session.prompt("hello").text() == "onetwo"
            start = asyncio.get_running_loop().time()
            for _ in range(10):
                await client.request("x/any")
            assert asyncio.get_running_loop().time() - start < 5, "it is not waited for again and again"

    run(main())


# --- an outage --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["create", "attach", "info"])
def test_an_outage_is_waited_for_whatever_is_asked(call: str) -> None:
    async def main() -> None:
        async with pretender() as pretending, SandboxAgent.connect(pretending.url) as client:
            if call == "info":
                session = await opened(client, pretending)
            pretending.outages = 3
            match call:
                case "create":
                    await opened(client, pretending)
                case "attach":
                    await client.sessions.attach("s-1")
                case _:
                    await session.info()
            assert pretending.outages == 0

    run(main())


def test_an_outage_that_lasts_too_long_is_an_error_for_every_call() -> None:
    async def main() -> None:
        async with pretender() as pretending, SandboxAgent.connect(pretending.url, reconnect_timeout=0.2) as client:
            pretending.outages = 1000
            async with asyncio.timeout(BOUND):
                with pytest.raises(ConnectionLost):
                    await client.sessions.get("s-1")
                with pytest.raises(ConnectionLost):
                    await opened(client, pretending)

    run(main())


def test_a_proxy_that_cuts_what_waits_for_long_is_no_outage() -> None:
    """It is seen by the stream that the server can be reached."""

    async def main() -> None:
        async with (
            pretender() as pretending,
            SandboxAgent.connect(pretending.url, reconnect_timeout=0.3) as client,
        ):
            session = await opened(client, pretending)
            await pretending.told(1, update("the stream is there"))

            async def prompted(post: Post) -> Json | bytes:
                await asyncio.sleep(0.2)
                return {"stopReason": "end_turn"} if len(pretending.requests("session/prompt")) > 5 else b""

            pretending.results["session/prompt"] = prompted
            assert (await session.prompt("hello")).stop_reason == "end_turn"

    run(main())
