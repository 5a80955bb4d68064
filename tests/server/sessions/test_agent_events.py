"""Everything that an agent may write, well-formed or not: which clients get it, and that it harms no other line."""

import asyncio
import json
import logging
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxagent.protocol.json_bounds import MAX_DEPTH
from sandboxagent.server.agents.lines import Stderr
from sandboxagent.server.agents.process import Exit
from sandboxagent.server.sessions.agent_events import MAX_BUFFER_BYTES, MAX_UNPARSED, MAX_UNPARSED_BYTES
from tests.support.growing import lines_run
from tests.support.world import FakeAgent, Json, World, error_of, result_of, run, world

UPDATE = "session/update"


def update(text: str, session: str = "s") -> bytes:
    content = {"type": "text", "text": text}
    params = {"sessionId": session, "update": {"sessionUpdate": "agent_message_chunk", "content": content}}
    return json.dumps({"jsonrpc": "2.0", "method": UPDATE, "params": params}).encode()


def receive(own: World, *lines: bytes) -> None:
    """Lines that come from the agent at once."""
    own.agent_events.receive(own.running, b"".join(line + b"\n" for line in lines))


def texts(events: list[Json]) -> list[str]:
    updates = [one["params"]["update"] for one in events if one.get("method") == UPDATE]
    return [one["content"]["text"] for one in updates if one["sessionUpdate"] == "agent_message_chunk"]


async def unparsed(own: World) -> list[Json]:
    heard = await own.heard(own.client)
    return [one["params"] for one in heard if str(one.get("method")).endswith("unparsed")]


def answers(own: World, id: object) -> list[Json]:
    """What the agent was answered."""
    return [one for one in own.process.sent if one.get("id") == id and "method" not in one]


async def opening(own: World) -> tuple[asyncio.Task[Any], Json]:
    """A `session/new` that the agent has got and not answered."""
    task = own.request("session/new", {"cwd": "/", "mcpServers": []}, id="new")
    return task, await own.process.request("session/new")


# --- lines ------------------------------------------------------------------------------------------------------------


def test_updates_are_kept_byte_for_byte_and_in_order() -> None:
    async def main() -> None:
        async with world() as own:
            lines = [update(text) for text in ("a", "é\u2028", "\\u0041")]
            receive(own, *lines)

            chunks = await own.log.history("s", 0, own.log.position + 1, 100)
            assert [line for chunk in chunks for line in chunk.lines] == lines

    run(main())


SHORTEST_TOO_DEEP = b'{"jsonrpc":"2.0","id":1,"error":' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}"
BAD = [
    b"no json",
    b"[1, 2]",
    b'"text"',
    b"{}",
    b'{"jsonrpc": "1.0", "method": "x"}',
    b'{"jsonrpc": "2.0"}',
    b'{"jsonrpc": "2.0", "method": 7}',
    b'{"jsonrpc": "2.0", "id": {}, "result": 1}',
    b"\xff\xfe",
    b"[" * 3000,
    SHORTEST_TOO_DEEP,
    b'{"jsonrpc": "2.0", "method": "x"} {"jsonrpc": "2.0", "method": "y"}',
]


@pytest.mark.parametrize("bad", BAD, ids=[repr(line[:24]) for line in BAD])
def test_a_line_that_is_no_envelope_is_set_aside_and_those_beside_it_arrive(bad: bytes) -> None:
    async def main() -> None:
        async with world() as own:
            receive(own, update("before"), bad, update("after"))

            assert texts(await own.events()) == ["before", "after"]
            (told,) = await unparsed(own)
            assert told["agent"] == "a"
            assert told["line"] == bad[:MAX_UNPARSED_BYTES].decode(errors="replace")

    run(main())


def test_flood_of_bad_lines_is_shown_as_the_first_and_a_count() -> None:
    """Good lines between them arrive."""

    async def main() -> None:
        async with world() as own:
            receive(own, *[b"x", b"{"] * 1000, update("between"), *[b"x"] * 1000)

            assert texts(await own.events()) == ["between"]
            *first, last = await unparsed(own)
            assert len(first) == MAX_UNPARSED
            assert last["reason"].startswith(f"{3000 - MAX_UNPARSED} more lines")

    run(main())


def test_lines_without_anything_take_no_step_each() -> None:
    async def main() -> None:
        async with world() as own:
            blob = b"\n" * 200_000 + update("after") + b"\n" * 200_000
            steps = lines_run(lambda: own.agent_events.receive(own.running, blob))

            assert steps < 5_000
            assert texts(await own.events()) == ["after"]
            assert await unparsed(own) == []

    run(main())


def test_clients_see_no_more_than_the_head_of_a_bad_line() -> None:
    async def main() -> None:
        async with world() as own:
            receive(own, b"x" * (MAX_UNPARSED_BYTES + 1))
            own.agent_events.oversized(own.running, b"the head")

            first, second = await unparsed(own)
            assert (len(first["line"]), first["truncated"]) == (MAX_UNPARSED_BYTES, True)
            assert (second["line"], second["truncated"]) == ("the head", True)

    run(main())


@settings(max_examples=25)
@given(st.lists(st.sampled_from([*BAD, b"", b" \r", None]), max_size=8))
def test_every_good_line_arrives_whatever_stands_between_them(lines: list[bytes | None]) -> None:
    async def main() -> None:
        async with world() as own:
            good = [str(number) for number, line in enumerate(lines) if line is None]
            blob = [update(str(number)) if line is None else line for number, line in enumerate(lines)]
            receive(own, *blob)

            assert texts(await own.events()) == good

    run(main())


# --- whose session it is ----------------------------------------------------------------------------------------------


def test_updates_of_two_sessions_in_one_blob_go_each_to_its_own() -> None:
    async def main() -> None:
        async with world() as own:
            own.add_session("other")
            receive(own, update("1"), update("2", "other"), update("3"), update("4", "other"))

            assert texts(await own.events()) == ["1", "3"]
            assert texts(await own.events("other")) == ["2", "4"]

    run(main())


def test_a_process_cannot_speak_in_a_session_that_another_process_holds() -> None:
    async def main() -> None:
        async with world() as own:
            intruder = FakeAgent(own, "a-2", own.capabilities)

            intruder.updates("not mine")
            intruder.says(id=7, method="session/request_permission", params={"sessionId": "s", "options": []})

            assert texts(await own.events()) == []
            assert intruder.sent[-1]["error"]["code"] == -32002
            assert own.hub.pending.of_session(own.session) == []

    run(main())


def test_sessionless_notification_reaches_the_agents_clients_and_no_history() -> None:
    async def main() -> None:
        async with world() as own:
            other = own.connect()
            own.says(method="vendor/news", params={"n": 1})

            for client in (own.client, other):
                assert [one["params"] for one in await own.heard(client) if one.get("method") == "vendor/news"] == [
                    {"n": 1}
                ]
            assert "vendor/news" not in [one.get("method") for one in await own.events()]

    run(main())


def test_an_agent_cannot_say_what_only_the_server_says() -> None:
    async def main() -> None:
        async with world() as own:
            own.says(method="_sandboxagent/session/decision", params={"sessionId": "s", "outcome": "answered"})
            own.says(id=1, method="_sandboxagent/session/terminate", params={"sessionId": "s"})

            assert not [one for one in await own.heard(own.client) if "decision" in str(one.get("method"))]
            assert answers(own, 1)[0]["error"]["code"] == -32601

    run(main())


# --- a session that is being opened -----------------------------------------------------------------------------------


def test_messages_before_the_answer_naming_their_session_come_after_it() -> None:
    async def main() -> None:
        async with world() as own:
            task, request = await opening(own)
            own.agent.updates("early", "fresh")
            own.asks("early question", sessionId="fresh", options=[])
            assert answers(own, "early question") == []
            own.says(id=request["id"], result={"sessionId": "fresh"})

            assert result_of(await task)["sessionId"] == "fresh"
            assert texts(await own.events("fresh")) == ["early"]
            fresh = own.hub.session("fresh")
            assert [pending.kind for pending in own.hub.pending.of_session(fresh)] == ["permission"]

    run(main())


def test_what_waits_for_a_session_is_bounded_in_bytes() -> None:
    async def main() -> None:
        async with world() as own:
            task, request = await opening(own)
            half = "x" * (MAX_BUFFER_BYTES // 2)
            for text in (half, half, "small"):
                own.agent.updates(text, "fresh")
            own.says(id=request["id"], result={"sessionId": "fresh"})
            await task

            assert texts(await own.events("fresh")) == [half, "small"]

    run(main())


def test_what_waits_for_another_session_goes_on_waiting() -> None:
    async def main() -> None:
        async with world() as own:
            first, request = await opening(own)
            second = own.request("session/new", {"cwd": "/", "mcpServers": []}, id="new 2")
            other = await own.process.request("session/new")
            own.agent.updates("of the second", "two")
            own.says(id=request["id"], result={"sessionId": "one"})
            result_of(await first)
            own.says(id=other["id"], result={"sessionId": "two"})
            result_of(await second)

            assert texts(await own.events("two")) == ["of the second"]
            assert texts(await own.events("one")) == []

    run(main())


# --- answers and requests ---------------------------------------------------------------------------------------------


def test_a_second_answer_and_an_unexpected_one_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with world() as own:
            task = own.request("vendor/echo", {"sessionId": "s"}, id="e")
            request = await own.agent.answers("vendor/echo", {"n": 1})
            own.says(id=request["id"], result={"n": 2})
            own.says(id="never sent", result={})

            assert result_of(await task) == {"n": 1}
            own.agent.crashes()

    with caplog.at_level(logging.WARNING):
        run(main())
    # The first at once, the others once no more can come.
    assert caplog.text.count("agent answered unknown requests process=a-1 answers=1\n") == 2


def test_a_request_for_a_session_that_is_not_there_is_refused() -> None:
    async def main() -> None:
        async with world() as own:
            own.asks(1, sessionId="nowhere", options=[])
            own.asks(2, "fs/read_text_file", sessionId="nowhere", path="/etc/passwd")

            assert [answers(own, id)[0]["error"]["code"] for id in (1, 2)] == [-32002, -32002]

    run(main())


def test_a_request_that_the_agent_withdraws_is_cancelled_and_cannot_be_allowed() -> None:
    async def main() -> None:
        async with world() as own:
            own.asks("p")
            own.says(method="$/cancel_request", params={"requestId": "p"})
            own.says(method="$/cancel_request", params={"requestId": "never asked"})
            own.says(method="$/cancel_request", params={})

            assert [one["result"] for one in answers(own, "p")] == [{"outcome": {"outcome": "cancelled"}}]
            assert own.hub.pending.of_session(own.session) == []

    run(main())


def test_an_answer_for_an_agent_that_is_gone_is_dropped() -> None:
    async def main() -> None:
        async with world() as own:
            own.process.alive = False
            own.asks(1, sessionId="nowhere", options=[])

            assert own.process.sent == []

    run(main())


# --- the end of a process ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "signal"), [(0, None), (1, None), (None, "SIGKILL")])
def test_the_end_of_a_process_ends_its_calls_requests_and_sessions_and_says_how(
    code: int | None, signal: str | None
) -> None:
    async def main() -> None:
        async with world() as own:
            task = own.request("vendor/echo", {"sessionId": "s"}, id="e")
            await own.process.request("vendor/echo")
            own.asks("p")
            running = own.running
            own.process.alive = False
            own.agents.append(None)
            own.agent_events.exited(running, Exit(code, signal, Stderr([], [], False, 0)))

            error = error_of(await task)
            assert error["data"]["type"] == "agent-exited"
            assert error["data"].get("signal") == signal
            assert own.hub.pending.of_process(running) == []
            assert own.hub.store.find_all_held(running) == []
            (ended,) = [one for one in await own.events() if str(one.get("method")).endswith("session/ended")]
            assert (ended["params"]["reason"], ended["params"]["terminatedBy"]) == ("error", "agent")

    run(main())


def test_the_end_of_one_process_leaves_the_sessions_of_another_alone() -> None:
    async def main() -> None:
        async with world() as own:
            other = FakeAgent(own, "a-2", own.capabilities)
            other.pipe.alive = False
            own.agent_events.exited(other.running, Exit(1, None, Stderr([], [], False, 0)))

            assert own.session.held is own.running
            own.agent.updates("still here")
            assert texts(await own.events()) == ["still here"]

    run(main())
