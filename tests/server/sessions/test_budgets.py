"""What agent processes pin in the server's memory."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxagent.server.sessions.budgets import KEPT_COST_BYTES, Budgets
from sandboxagent.server.sessions.held_updates import HOLD_TIMEOUT
from sandboxagent.server.sessions.hub import HubLimits
from tests.support.world import World, run, world

Json = dict[str, Any]
REJECTED = {"outcome": {"outcome": "selected", "optionId": "no"}}


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 40), st.booleans()), max_size=60))
def test_no_process_pins_more_than_its_budget_and_none_pays_for_another(steps: list[tuple[str, int, bool]]) -> None:
    budgets, kept = Budgets(100), dict[str, list[int]]()
    for process, size, takes in steps:
        mine = kept.setdefault(process, [])
        if takes:
            assert budgets.take(process, size) == (sum(mine) + size <= 100)
            mine += [size] if sum(mine) + size <= 100 else []
        elif mine:
            budgets.release_bytes(process, mine.pop())
        assert {name: budgets.used(name) for name in kept} == {name: sum(sizes) for name, sizes in kept.items()}


def test_what_is_given_back_after_a_process_has_ended_leaves_nothing() -> None:
    budgets = Budgets(100)
    assert budgets.take("a", 60)
    budgets.end("a")
    budgets.release_bytes("a", 60)
    assert budgets.used("a") == 0
    assert budgets.take("a", 100)


async def _history(own: World) -> list[Json]:
    chunks = await own.log.history("s", 0, own.log.position + 1, 10_000)
    return [json.loads(line) for chunk in chunks for line in chunk.lines]


def _decisions(lines: list[Json]) -> list[Json]:
    return [line["params"] for line in lines if line.get("method") == "_sandboxagent/session/decision"]


def test_requests_beyond_the_count_are_rejected_and_the_log_says_by_what() -> None:
    async def main() -> None:
        async with world(limits=HubLimits(pending=2)) as own:
            for id in range(4):
                own.asks(id)
            assert [(line["id"], line["result"]) for line in own.process.sent] == [(2, REJECTED), (3, REJECTED)]
            first, second = _decisions(await _history(own))
            assert (first["agentRequestId"], first["outcome"], first["by"]) == (2, "rejected", {"kind": "limit"})
            assert "--pending-requests" in second["reason"]
            assert len(own.hub.pending.of_session(own.session)) == 2
            # One that is settled makes room for one.
            own.says(method="$/cancel_request", params={"requestId": 0})
            own.asks(5)
            assert len(own.hub.pending.of_session(own.session)) == 2

    run(main())


def test_requests_beyond_the_memory_are_rejected_each_in_its_own_words(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with world(limits=HubLimits(memory=64 << 10)) as own:
            much: Json = {"sessionId": "s", "text": "x" * (60 << 10), "options": []}
            own.asks(1, **much)
            assert own.process.sent == []
            own.asks(2, **much)
            own.asks(3, "elicitation/create", **much)
            own.asks(4, "_sandboxagent/session/request_question", **much)
            own.asks(5, "vendor/ask", **much)
            own.asks(6, "elicitation/create", text=much["text"])
            answers = {line.pop("id"): line for line in own.process.sent}
            assert answers[2]["result"] == {"outcome": {"outcome": "cancelled"}}
            assert answers[3]["result"] == {"action": "decline"}
            assert answers[4]["result"] == {"status": "rejected"}
            assert answers[5]["error"]["code"] == -32600
            assert "--agent-memory" in answers[5]["error"]["message"]
            assert answers[6]["result"] == {"action": "decline"}
            assert own.hub.budgets.used("a-1") <= 64 << 10
            own.agent.crashes()
            assert own.hub.budgets.used("a-1") == 0

    run(main())
    # Five, in two lines: the first at once, the others when the process has ended.
    said = [each.getMessage() for each in caplog.records if "beyond its limits" in each.getMessage()]
    assert [line.split(" reason=")[0] for line in said] == [
        "agent is beyond its limits process=a-1 times=1",
        "agent is beyond its limits process=a-1 times=4",
    ]


def test_held_updates_of_a_new_session_are_released_early_without_room() -> None:
    async def main() -> None:
        async with world(limits=HubLimits(memory=8 << 10)) as own:
            own.hub.held_updates.hold(own.session)
            own.agent.updates("short")
            assert own.session.id in own.hub.held_updates.sessions
            assert own.hub.budgets.used("a-1") > KEPT_COST_BYTES
            own.agent.updates("x" * (8 << 10))
            assert not own.hub.held_updates.sessions
            assert own.hub.budgets.used("a-1") == 0
            said = [line["params"]["update"]["content"]["text"][:5] for line in await _history(own)]
            assert said == ["short", "xxxxx"]
            own.hub.held_updates.hold(own.session)
            own.agent.updates("more")
            own.hub.held_updates.release_overdue(own.now + HOLD_TIMEOUT + 1)
            assert own.hub.budgets.used("a-1") == 0

    run(main())


def test_messages_held_for_opening_sessions_are_bounded() -> None:
    """Beyond the bound a request is refused, and an update is reported as lost."""

    async def main() -> None:
        async with world(limits=HubLimits(memory=16 << 10)) as own:
            opening = own.request("session/new", {"cwd": "/", "mcpServers": []})
            await own.process.request("session/new")
            own.agent.updates("first", "new")
            own.agent.updates("x" * (16 << 10), "new")
            own.says(
                id=9,
                method="session/request_permission",
                params={"sessionId": "new", "options": [], "x": "x" * (16 << 10)},
            )
            (refused,) = [line for line in own.process.sent if line.get("id") == 9]
            assert refused["error"]["code"] == -32600
            await own.log.flushed()
            told = [chunk for chunk in await own.log.since(0) if b"unparsed" in chunk.lines[0]]
            assert len(told) == 1
            (request,) = [line for line in own.process.sent if line.get("method") == "session/new"]
            own.says(id=request["id"], result={"sessionId": "new"})
            await opening
            await own.settled()
            assert own.hub.budgets.used("a-1") < KEPT_COST_BYTES * 2

    run(main())
