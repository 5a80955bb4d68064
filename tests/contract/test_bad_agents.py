"""Agents that flood, stall, write garbage, answer twice, or die: only their own sessions notice.

Contract, section 5 and 6.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.asking import (
    ALLOW,
    CANCEL,
    ENDED,
    PERMISSION,
    TURN,
    UNPARSED,
    answer_line,
    ask_outright,
    everything,
    methods,
    permission,
    texts,
)
from tests.support.client import META, Client, Event, Json, run
from tests.support.problems import problem
from tests.support.running import BOUND, Server, scripted

ATTACH = "_sandboxagent/session/attach"
MIB = 1 << 20
Steps = list[list[Any]]

GARBAGE = [
    "not json",
    "{",
    '"text"',
    "[]",
    '[{"jsonrpc":"2.0","method":"x/batch"}]',
    "null",
    "{}",
    '{"jsonrpc":"1.0","method":"x"}',
    '{"jsonrpc":"2.0"}',
    '{"jsonrpc":"2.0","method":7}',
    '{"jsonrpc":"2.0","id":null,"result":{}}',
    '{"jsonrpc":"2.0","id":{},"method":"x"}',
    '{"jsonrpc":"2.0","method":"x/a"} trailing',
    '{"jsonrpc":"2.0","method":"x/a"}{"jsonrpc":"2.0","method":"x/b"}',
    "[" * 100_000,
    "\x00\x01\x1b[31m",
]
STATES: dict[str, Steps] = {
    "quiet": [],
    "flooding": [["flood", 2000, 100]],
    "garbage": [["raw", line] for line in GARBAGE],
    "invalid-utf8": [["rawhex", "7b22ff22"], ["rawhex", "c328"]],
    "half-a-line": [["raw", '{"jsonrpc":"2.0","method":"session/upd', False]],
    "answered-twice": [["answer_twice"]],
    "answered-nobody": [["answer_unknown_id"]],
    "asking": [permission()],
    "stalled": [["stop_reading"]],
}

DEATHS = [*((state, ("exits", "killed")[place % 2]) for place, state in enumerate(STATES)), ("quiet", "killed")]
"""Each state, and each way to die."""
MORTAL = ["stderr", "last-words", "two-sessions", "queue", "pending", "again"]


@pytest.fixture(scope="module")
def server() -> Generator[Server]:
    """A server with an agent for each test in which it dies: one that has died often is started only after a while."""
    names = ["lives", *(f"{state}-{end}" for state, end in DEATHS), *MORTAL]
    agents = {name: scripted() for name in names}
    agents["dies-at-new"] = scripted("--before-new", json.dumps([["say", "early"], ["exit", 5]]))
    with Server(agents=agents) as running:
        yield running


@asynccontextmanager
async def bystander(server: Server) -> AsyncGenerator[None]:
    """A client of another agent, in the middle of a turn while something bad happens in the block.

    Its turn ends afterwards as if nothing had happened, and it got nothing else.
    """
    async with Client(server) as client, client.stream() as events:
        session = await client.new_session()
        await ask_outright(client, session, ["say", "before"], permission(), ["wait_answer"], ["say", "after"])
        asked = await events.method(PERMISSION)
        yield
        assert (await client.answer(asked.data["id"], ALLOW)).status_code == 202
        await events.turn_ended()
        assert texts(events.seen) == ["before", "after"]
        seen = await everything(client, events)
        assert {event.data["params"]["sessionId"] for event in seen if event.method} == {session}


def unparsed(events: list[Event]) -> list[Json]:
    return [event.data["params"] for event in events if event.method == UNPARSED]


@pytest.mark.requirement("5.bad-agents-live")
@pytest.mark.parametrize("state", [state for state in STATES if state != "stalled"])
def test_an_agent_that_misbehaves_and_lives_goes_on_and_no_other_notices(server: Server, state: str) -> None:
    async def main() -> None:
        async with bystander(server), Client(server, "lives") as a, a.stream() as events:
            session = await a.new_session()
            end = [["raw", ""], ["say", "still talking"]]
            assert (await a.prompt(session, [*STATES[state], *end]))["result"] == {"stopReason": "end_turn"}
            assert (await a.prompt(session, "and again"))["result"] == {"stopReason": "end_turn"}
            said = texts(await everything(a, events))
            assert [text for text in said if not text[0].isdigit()] == ["still talking", "and again"]

    run(main())


@pytest.mark.requirement("5.bad-agents-die", "6.death-waiting", "6.death-ended")
@pytest.mark.parametrize(("state", "end"), DEATHS)
def test_an_agent_that_dies_in_any_state_ends_its_own_sessions_only(server: Server, state: str, end: str) -> None:
    async def main() -> None:
        async with bystander(server), Client(server, f"{state}-{end}") as a, a.stream() as events:
            session = await a.new_session()
            death = ["exit", 9] if end == "exits" else ["kill"]
            response = await a.prompt(session, [["say", "alive"], *STATES[state], death])
            how = {"exitCode": 9} if end == "exits" else {"signal": "SIGKILL"}
            if state == "answered-twice":
                assert response["result"] == {"stopReason": "end_turn"}
            else:
                assert response["error"]["code"] == -32603
                assert {name: response["error"]["data"].get(name) for name in how} == how
                assert ("exitCode" in response["error"]["data"]) is (end == "exits")
                assert "stderr" in response["error"]["data"]
            ended = (await events.method(ENDED)).data["params"]
            assert ended["sessionId"] == session
            assert (ended["reason"], ended["terminatedBy"]) == ("error", "agent")
            assert {name: ended.get(name) for name in how} == how
            assert texts(events.seen)[0] == "alive"
            # A new process takes it up again.
            assert (await a.prompt(session, "back"))["result"] == {"stopReason": "end_turn"}
            assert texts(await everything(a, events))[-1] == "back"

    run(main())


@pytest.mark.requirement("5.bad-agents-die", "6.death-waiting")
def test_an_agent_that_dies_before_it_answers_session_new_fails_that_call(server: Server) -> None:
    async def main() -> None:
        async with bystander(server), Client(server) as a, a.stream() as events:
            params = {"cwd": server.work, "mcpServers": [], "_meta": {META: {"agent": "dies-at-new"}}}
            error = await a.error("session/new", params)
            assert error["code"] == -32603
            assert error["data"]["exitCode"] == 5
            assert ENDED not in methods(await everything(a, events))

    run(main())


@pytest.mark.requirement("6.death-ended")
def test_every_session_of_a_dead_process_ends_and_every_call_on_it_fails(server: Server) -> None:
    async def main() -> None:
        async with Client(server, "two-sessions") as a, Client(server, "two-sessions") as b, b.stream() as events:
            mine, other, third = await a.new_session(), await b.new_session(), await b.new_session()
            hanging = asyncio.create_task(b.call("x/hang"))
            turn = asyncio.create_task(b.prompt(other, [["say", "working"], ["wait_cancel"]]))
            await events.until(lambda event: event.text == "working")
            await a.prompt(mine, [["exit", 4]])
            for response in (await hanging, await turn):
                assert response["error"]["code"] == -32603
                assert response["error"]["data"]["exitCode"] == 4
            seen = await everything(b, events)
            assert {event.data["params"]["sessionId"] for event in seen if event.method == ENDED} == {other, third}
            order = [event.method for event in seen if event.data.get("params", {}).get("sessionId") == other]
            assert order[-2:] == [TURN, ENDED]

    run(main())


@pytest.mark.requirement("6.death-waiting")
def test_prompts_that_wait_fail_with_the_turn_that_ran(server: Server) -> None:
    async def main() -> None:
        async with Client(server, "queue") as a, a.stream() as events:
            session = await a.new_session()
            await ask_outright(a, session, permission(), ["wait_answer"], ["exit", 6])
            asked = await events.method(PERMISSION)
            for id in ("w1", "w2"):
                body = {"jsonrpc": "2.0", "id": id, "method": "session/prompt", "params": a.prompt_params(session, id)}
                assert (await a.post(body, Prefer="respond-async")).status_code == 202
            await a.answer(asked.data["id"], ALLOW)
            failed: dict[str, Json] = {}
            while not failed.keys() >= {"w1", "w2"}:
                event = await events.next()
                failed |= {event.data["id"]: event.data["error"]} if "error" in event.data else {}
            for id in ("w1", "w2"):
                assert failed[id]["code"] == -32603
                assert failed[id]["data"]["exitCode"] == 6

    run(main())


@pytest.mark.requirement("5.first-answer-wins", "6.death-pending")
def test_what_a_dead_agent_asked_is_withdrawn_and_a_late_answer_is_refused(server: Server) -> None:
    async def main() -> None:
        async with Client(server, "pending") as a, Client(server) as b, a.stream() as events, b.stream() as others:
            session = await a.new_session()
            await b.result(ATTACH, {"sessionId": session})
            await ask_outright(a, session, permission(), ["ask", "x/gate"], ["wait_answer"], ["exit", 1])
            asked, gate = await events.method(PERMISSION), await events.method("x/gate")
            second = await others.method(PERMISSION)
            # The agent waits for the permission first, so that is answered, and the gate stays open.
            assert (await a.answer(asked.data["id"], ALLOW)).status_code == 202
            await events.method(ENDED)
            withdrawn = [event.data["params"]["requestId"] for event in events.seen if event.method == CANCEL]
            assert withdrawn == [gate.data["id"]]
            late = await a.answer(gate.data["id"], {})
            assert late.status_code == 409
            assert late.json()["outcome"] == "cancelled"
            assert (await b.answer(second.data["id"], ALLOW)).json()["outcome"] == "answered"
            assert (await a.result("_sandboxagent/session/pending", {"sessionId": session}))["pending"] == []

    run(main())


@pytest.mark.requirement("5.agent-ids-never-reused")
def test_an_answer_meant_for_a_dead_process_does_not_reach_its_successor(server: Server) -> None:
    async def main() -> None:
        async with Client(server, "again") as a, a.stream() as events:
            session = await a.new_session()
            assert "error" in await a.prompt(session, [permission("0"), ["exit", 1]])
            old = await events.method(PERMISSION)
            await ask_outright(a, session, permission("0"), ["echo_answer"])
            new = await events.method(PERMISSION)
            assert new.data["id"] != old.data["id"]
            assert (await a.answer(old.data["id"], ALLOW)).status_code == 409
            assert (await a.answer(0, ALLOW)).status_code == 404, "it is the agent's, and no client's"
            assert (await a.answer(new.data["id"], ALLOW | {"n": 1})).status_code == 202
            await events.turn_ended()
            assert answer_line(texts(events.seen)[-1]) == {"jsonrpc": "2.0", "id": 0, "result": ALLOW | {"n": 1}}

    run(main())


# Bad lines


@pytest.mark.requirement("5.quarantine")
def test_each_bad_line_is_set_aside_by_itself_and_its_neighbours_arrive_in_order(server: Server) -> None:
    async def main() -> None:
        async with Client(server, "lives") as a, Client(server) as b, a.stream() as events, b.stream() as others:
            session = await a.new_session()
            update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "TEXT"}}
            params = {"sessionId": session, "update": update}
            good = json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": params})
            lines = [line for index, bad in enumerate(GARBAGE) for line in (good.replace("TEXT", f"t{index}"), bad)]
            # All in one write.
            assert "result" in await a.prompt(session, [["raw", "\n".join(lines)]])
            seen = await everything(a, events)
            assert texts(seen) == [f"t{index}" for index in range(len(GARBAGE))]
            assert [told["line"] for told in unparsed(seen)] == [bad[:4096] for bad in GARBAGE]
            assert all(told["agent"] == "lives" and told["reason"] for told in unparsed(seen))
            kinds = [event.method for event in seen if event.method != TURN]
            assert kinds == ["session/update", UNPARSED] * len(GARBAGE), "also their order"
            assert UNPARSED not in methods(await everything(b, others))

    run(main())


@pytest.mark.requirement("5.quarantine")
@pytest.mark.parametrize(
    "blob",
    [
        '{"jsonrpc":"2.0","method":"x/a"}{"jsonrpc":"2.0",\n"method":"x/b"}',
        '{"jsonrpc":"2.0","method":"x/a"}{"jsonrpc":"2.0","method":"x/b"}\n',
        '{"jsonrpc":"2.0","method":"x/a"} {"jsonrpc":"2.0","method":"x/b"}\n{"jsonrpc":"2.0",\n"method":"x/c"}\n',
        '{"jsonrpc":"2.0",\n"method":"x/a"}\n{"jsonrpc":"2.0","method":"x/b"}{"jsonrpc":"2.0","method":"x/c"}',
    ],
)
def test_envelopes_that_share_a_line_or_span_two_are_bad_lines_and_shift_no_other(server: Server, blob: str) -> None:
    async def main() -> None:
        async with Client(server, "lives") as a, a.stream() as events:
            session = await a.new_session()
            good = json.dumps({"jsonrpc": "2.0", "method": "x/good", "params": {"sessionId": session}})
            await a.prompt(session, [["raw", f"{good}\n{blob}\n{good}"]])
            seen = await everything(a, events)
            assert [event.line for event in seen if event.method == "x/good"] == [good, good]
            assert [told["line"] for told in unparsed(seen)] == [line for line in blob.split("\n") if line]
            assert {event.method for event in seen} == {TURN, "x/good", UNPARSED}

    run(main())


@pytest.mark.requirement("5.quarantine")
def test_what_is_shown_of_a_bad_line_is_short_and_text(server: Server) -> None:
    async def main() -> None:
        async with Client(server, "lives") as a, a.stream() as events:
            session = await a.new_session()
            steps: Steps = [["raw", "x" * 100_000], ["rawhex", "66ff6f"], ["raw", '{"a":1}\r{"b":2}']]
            await a.prompt(session, [*steps, ["raw", "short"]])
            long, invalid, returned, short = unparsed(await everything(a, events))
            assert long["truncated"] is True
            assert long["line"] == "x" * len(long["line"])
            assert len(long["line"]) < 10_000
            assert (invalid["line"], invalid["truncated"]) == ("f\ufffdo", False)
            assert returned["line"] == '{"a":1}\r{"b":2}'
            assert (short["line"], short["truncated"]) == ("short", False)

    run(main())


@pytest.mark.requirement("5.line-size")
def test_a_line_of_63_mib_arrives_whole_while_others_work(server: Server) -> None:
    size = 63 * MIB

    async def main() -> None:
        async with bystander(server), Client(server, "lives") as a:
            session = await a.new_session()
            turn = asyncio.create_task(a.prompt(session, [["line", size], ["say", "after"]]))
            request = a.headers(Accept="text/event-stream")
            received = bytearray()
            async with asyncio.timeout(60), a.http.stream("GET", "/v1/rpc", headers=request) as response:
                async for piece in response.aiter_raw():
                    received += piece
                    if b'"after"' in piece[-4096:]:
                        break
            assert (await turn)["result"] == {"stopReason": "end_turn"}
            (line,) = [line for line in received.split(b"\n") if len(line) > MIB]
            assert len(line) == len("data: ") + size
            assert line.count(b"x") > size - 1000

    run(main())


@pytest.mark.requirement("5.line-size")
def test_a_line_over_the_limit_is_quarantined_and_the_next_ones_arrive() -> None:
    limit = 1 << 16

    async def main(server: Server) -> None:
        async with Client(server) as a, a.stream() as events:
            session = await a.new_session()
            await a.prompt(session, [["line", limit], ["line", limit + 1], ["line", 3 * limit], ["say", "after"]])
            seen = await everything(a, events)
            whole, after = (event for event in seen if event.text)
            assert len(whole.line) == limit
            assert after.text == "after"
            too_long = unparsed(seen)
            assert len(too_long) == 2
            assert all(told["truncated"] is True for told in too_long)
            assert all(told["line"].startswith('{"jsonrpc":"2.0","method":"session/update"') for told in too_long)

    with Server("--no-persist", "--max-line", "64KiB") as server:
        run(main(server))


# Flooding and stalling


@pytest.mark.requirement("5.bad-agents-live")
def test_a_flood_arrives_complete_and_in_order_and_others_are_answered_meanwhile(server: Server) -> None:
    n = 10_000

    async def main() -> None:
        async with Client(server) as other, Client(server, "lives") as a, a.stream() as events:
            session, elsewhere = await a.new_session(), await other.new_session()
            turn = asyncio.create_task(a.prompt(session, [["say", "go"], ["flood", n, 100], ["say", "end"]]))
            await events.until(lambda event: event.text == "go")
            for index in range(3):
                async with asyncio.timeout(BOUND):
                    assert (await other.prompt(elsewhere, f"meanwhile {index}"))["result"] == {"stopReason": "end_turn"}
            await events.until(lambda event: event.text == "end")
            assert (await turn)["result"] == {"stopReason": "end_turn"}
            assert [text.split()[0] for text in texts(events.seen)] == ["go", *map(str, range(n)), "end"]

    run(main())


@pytest.mark.requirement("5.bad-agents-stall")
def test_an_agent_that_does_not_read_blocks_neither_its_clients_nor_others() -> None:
    async def main(server: Server) -> None:
        async with Client(server) as a, Client(server, "other") as b, a.stream() as events:
            session, elsewhere = await a.new_session(), await b.new_session()
            await ask_outright(a, session, ["stop_reading"], permission(), ["wait_answer"])
            asked = await events.method(PERMISSION)
            error: Json = {}
            async with asyncio.timeout(BOUND):
                while not error:
                    big = {"jsonrpc": "2.0", "id": "big", "method": "x/echo", "params": {"pad": "x" * 700_000}}
                    assert (await a.post(big, Prefer="respond-async")).status_code == 202
                    refused = [event for event in await everything(a, events) if event.data.get("id") == "big"]
                    error = refused[0].data["error"] if refused else {}
            assert error["code"] == -32603
            assert "does not read" in error["message"]
            assert (await b.prompt(elsewhere, "hello"))["result"] == {"stopReason": "end_turn"}
            body = {
                "jsonrpc": "2.0",
                "id": "w",
                "method": "session/prompt",
                "params": a.prompt_params(session, "waits"),
            }
            assert (await a.post(body, Prefer="respond-async")).status_code == 202
            async with asyncio.timeout(BOUND):
                assert (await a.notify("session/cancel", {"sessionId": session})).status_code == 202
                assert (await a.answer(asked.data["id"], ALLOW)).status_code == 409
            cancelled = await events.until(lambda event: event.data.get("id") == "w")
            assert cancelled[-1].data["result"] == {"stopReason": "cancelled"}

    with Server("--no-persist", "--stdin-limit", "1MiB", agents={"other": scripted()}) as server:
        run(main(server))


# stderr


@pytest.mark.requirement("5.stderr")
def test_stderr_is_kept_as_its_head_and_tail_and_reaches_no_stream_before_the_end(server: Server) -> None:
    async def main() -> None:
        async with Client(server, "stderr") as a, a.stream() as events:
            session = await a.new_session()
            lines = [["stderr", f"complaint {index}"] for index in range(100)]
            await a.prompt(session, [*lines, ["say", "hello"]])
            assert not any("complaint" in event.line for event in await everything(a, events))
            error = (await a.prompt(session, [["exit", 3]]))["error"]
            ended = (await events.method(ENDED)).data["params"]["stderr"]
            assert ended == error["data"]["stderr"]
            assert ended["head"] == [f"complaint {index}" for index in range(20)]
            assert ended["tail"] == [f"complaint {index}" for index in range(50, 100)]
            assert ended["truncated"] is True
            assert ended["totalLines"] == 100

    run(main())
    logs = [path.read_text() for path in (server.directory / "data").rglob("*stderr*")]
    assert any("complaint 42\n" in log for log in logs), "all of it is in a log file"


@pytest.mark.requirement("5.load-unknown", "6.death-ended")
def test_a_session_whose_agent_died_while_it_loaded_it_never_came_to_be(tmp_path: Path) -> None:
    async def die(server: Server) -> None:
        async with Client(server, "dying") as a:
            session = await a.new_session()
            failed = await a.call("session/load", {"sessionId": "ghost", "cwd": server.work, "mcpServers": []})
            assert failed["error"]["data"]["type"] == "agent-exited"
            listed = (await a.result("session/list"))["sessions"]
            assert [entry["sessionId"] for entry in listed] == [session]

    async def look(server: Server) -> None:
        async with Client(server) as a:
            assert "ghost" not in [entry["sessionId"] for entry in (await a.result("session/list"))["sessions"]]

    server = Server(directory=tmp_path, agents={"dying": scripted("--dies-at", "session/load")})
    with server:
        run(die(server))
    with server:
        run(look(server))


@pytest.mark.requirement("5.bad-agents-live")
@pytest.mark.parametrize("number", ["1e999", "-1e999", "1" * 5000])
def test_a_result_with_a_number_out_of_range_ends_its_turn(server: Server, number: str) -> None:
    async def main() -> None:
        async with Client(server, "lives") as client, client.stream() as events:
            session = await client.new_session()
            await client.prompt(session, "which id comes next?")
            prompts = [line for line in (await client.result("x/received"))["lines"] if "which id" in line]
            # The ids on stdio count up: the x/received above had one, the prompt below has the next.
            id = json.loads(prompts[-1])["id"] + 2
            result = f'{{"stopReason":"end_turn","x":{number}}}'
            line = f'{{"jsonrpc":"2.0","id":{id},"result":{result}}}'
            response = await client.post(
                {
                    "jsonrpc": "2.0",
                    "id": "p",
                    "method": "session/prompt",
                    "params": client.prompt_params(session, [["raw", line], ["wait_cancel"]]),
                }
            )
            assert response.text == f'{{"jsonrpc":"2.0","id":"p","result":{result}}}'
            await events.turn_ended()
            assert (await client.prompt(session, "next"))["result"] == {"stopReason": "end_turn"}

    run(main())


@pytest.mark.requirement("5.stderr-end")
def test_the_end_of_what_an_agent_wrote_to_stderr_can_be_read_also_after_its_death(server: Server) -> None:
    async def main() -> None:
        async with Client(server, "last-words") as client:
            session = await client.new_session()
            await client.prompt(
                session, json.dumps([["stderr", "x" * 70_000], ["stderr", "the last words"], ["exit", 3]])
            )
            told = (await client.http.get("/v1/agents/last-words/stderr")).json()
            assert told["text"].endswith("the last words\n")
            assert (len(told["text"]), told["truncated"]) == (65_536, True)
            assert (await client.http.get("/v1/agents/mock/stderr")).json() == {"text": "", "truncated": False}
            problem(await client.http.get("/v1/agents/nobody/stderr"), 404, "unknown-agent")

    run(main())
