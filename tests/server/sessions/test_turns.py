"""Prompts of one session, one after another: what starts, what waits, what is cancelled, and what clients get."""

import asyncio
import json
from typing import Any

import pytest

from tests.support.world import Json, World, error_of, result_of, run, world

TURN = "_sandboxagent/session/turn"
PROMPT = "session/prompt"
CANCELLED = {"stopReason": "cancelled"}


def sent_prompts(own: World) -> list[str]:
    """The texts of the prompts that the agent has got."""
    return [one["params"]["prompt"][0]["text"] for one in own.process.sent if one.get("method") == PROMPT]


async def turns(own: World) -> list[tuple[str, Any]]:
    """The state of each turn that clients were told, with how it ended."""
    params = [one["params"] for one in await own.events() if one.get("method") == TURN]
    return [(one["state"], one.get("stopReason") or one.get("error", {}).get("code")) for one in params]


async def started(own: World, text: str, id: str) -> asyncio.Task[Any]:
    """A prompt that has been taken; it runs, or waits."""
    task = own.prompt(text, id)
    await own.settled()
    return task


async def ends(own: World, reason: str = "end_turn") -> None:
    """The agent ends the turn that runs."""
    await own.agent.answers(PROMPT, {"stopReason": reason})


def test_the_second_prompt_is_sent_when_the_first_has_ended() -> None:
    async def main() -> None:
        async with world() as own:
            first, second = await started(own, "one", "1"), await started(own, "two", "2")
            assert sent_prompts(own) == ["one"]

            await ends(own)
            assert result_of(await first) == {"stopReason": "end_turn"}
            assert sent_prompts(own) == ["one", "two"]
            await ends(own, "refusal")

            assert result_of(await second) == {"stopReason": "refusal"}
            assert await turns(own) == [
                ("started", None),
                ("ended", "end_turn"),
                ("started", None),
                ("ended", "refusal"),
            ]

    run(main())


def test_sessions_do_not_wait_for_each_other() -> None:
    async def main() -> None:
        async with world() as own:
            own.add_session("other")
            await started(own, "here", "1")
            elsewhere = own.prompt("there", "2", "other")
            await own.settled()

            assert sent_prompts(own) == ["here", "there"]
            own.says(id=own.sent(PROMPT)["id"], result={"stopReason": "end_turn"})
            assert result_of(await elsewhere) == {"stopReason": "end_turn"}
            await ends(own)

    run(main())


def test_no_more_prompts_wait_than_the_queue_takes() -> None:
    async def main() -> None:
        async with world(queue=2) as own:
            tasks = [await started(own, str(number), str(number)) for number in range(3)]

            refused = error_of(await own.prompt("one too many", "last"))

            assert refused["data"]["type"] == "prompt-queue-full"
            for task in tasks:
                await ends(own)
                assert result_of(await task) == {"stopReason": "end_turn"}
            assert sent_prompts(own) == ["0", "1", "2"]

    run(main())


def test_cancel_ends_what_waits_at_once_and_leaves_the_running_turn_to_the_agent() -> None:
    async def main() -> None:
        async with world() as own:
            running, waiting = await started(own, "one", "1"), await started(own, "two", "2")

            await own.notify("session/cancel", sessionId="s")

            assert result_of(await waiting) == CANCELLED
            assert not running.done()
            assert own.sent("session/cancel")["params"] == {"sessionId": "s"}
            await ends(own, "cancelled")
            assert result_of(await running) == CANCELLED
            assert sent_prompts(own) == ["one"]

    run(main())


def test_cancel_answers_what_the_agent_asks() -> None:
    async def main() -> None:
        async with world() as own:
            running = await started(own, "one", "1")
            own.asks("permission")

            await own.notify("session/cancel", sessionId="s")

            answer = next(one for one in own.process.sent if one.get("id") == "permission")
            assert answer["result"] == {"outcome": {"outcome": "cancelled"}}
            await ends(own, "cancelled")
            await running

    run(main())


def test_a_waiting_prompt_is_taken_back_by_its_id_and_the_next_one_keeps_its_place() -> None:
    async def main() -> None:
        async with world() as own:
            tasks = [await started(own, text, text) for text in ("one", "two", "three")]

            await own.notify("$/cancel_request", requestId="two")

            assert result_of(await tasks[1]) == CANCELLED
            for task in (tasks[0], tasks[2]):
                await ends(own)
                await task
            assert sent_prompts(own) == ["one", "three"]

    run(main())


def test_a_client_takes_back_its_own_prompts_only() -> None:
    async def main() -> None:
        async with world() as own:
            await started(own, "one", "1")
            waiting = await started(own, "two", "2")
            other = own.connect()

            assert not own.turns.cancel_queued(other, b'"2"')
            assert not own.turns.cancel_queued(own.client, b"2")

            assert not waiting.done()
            assert own.turns.cancel_queued(own.client, b'"2"')
            assert result_of(await waiting) == CANCELLED
            await ends(own)

    run(main())


def test_crash_fails_running_and_waiting_turns_and_resends_none() -> None:
    async def main() -> None:
        async with world() as own:
            tasks = [await started(own, text, text) for text in ("one", "two")]

            own.agent.crashes()

            errors = [error_of(await task) for task in tasks]
            assert [error["data"]["type"] for error in errors] == ["agent-exited", "agent-exited"]
            assert [state for state, _ in await turns(own)].count("ended") == 2
            assert own.session.running is None
            assert not own.session.waiting

    run(main())


def test_a_prompt_that_the_agent_does_not_read_fails_and_the_next_one_is_tried() -> None:
    async def main() -> None:
        async with world() as own:
            own.process.reads = False
            refused = error_of(await own.prompt("one", "1"))
            own.process.reads = True
            second = await started(own, "two", "2")
            await ends(own)

            assert refused["data"]["type"] == "agent-not-reading"
            assert result_of(await second) == {"stopReason": "end_turn"}
            assert sent_prompts(own) == ["two"]
            assert [state for state, _ in await turns(own)] == ["started", "ended", "started", "ended"]

    run(main())


def test_an_error_of_the_agent_is_the_answer_and_the_end_of_the_turn() -> None:
    async def main() -> None:
        async with world() as own:
            prompt = await started(own, "one", "1")
            request = await own.process.request(PROMPT)
            own.says(id=request["id"], error={"code": -32000, "message": "log in first", "data": {"why": "no key"}})

            assert error_of(await prompt) == {"code": -32000, "message": "log in first", "data": {"why": "no key"}}
            assert await turns(own) == [("started", None), ("ended", -32000)]

    run(main())


def test_vendor_request_ends_with_its_turn_but_a_permission_does_not() -> None:
    async def main() -> None:
        async with world() as own:
            prompt = await started(own, "one", "1")
            own.asks("vendor", "vendor/choose", sessionId="s")
            own.asks("permission")

            await ends(own)
            await prompt

            left = [pending.kind for pending in own.hub.pending.of_session(own.session)]
            assert left == ["permission"]

    run(main())


@pytest.mark.parametrize("echoes", [False, True], ids=["silent", "echoes prompts"])
def test_other_clients_see_a_prompt_once_whether_or_not_the_agent_echoes_it(echoes: bool) -> None:
    async def main() -> None:
        async with world() as own:
            other = own.connect()
            own.hub.attach(other, own.session)
            for number in range(2):
                prompt = await started(own, f"prompt {number}", str(number))
                if echoes:
                    update = {
                        "sessionUpdate": "user_message_chunk",
                        "content": {"type": "text", "text": f"prompt {number}"},
                    }
                    own.says(method="session/update", params={"sessionId": "s", "update": update})
                own.agent.updates("the answer")
                await ends(own)
                await prompt

            assert user_messages(await own.heard(other)) == ["prompt 0", "prompt 1"]
            assert user_messages(await own.heard(own.client)) == (["prompt 0", "prompt 1"] if echoes else [])

    run(main())


def test_a_prompt_is_not_repeated_to_its_only_client() -> None:
    async def main() -> None:
        async with world() as own:
            prompt = await started(own, "alone", "1")
            own.agent.updates("the answer")
            await ends(own)
            await prompt

            assert user_messages(await own.heard(own.client)) == []

    run(main())


def user_messages(events: list[Json]) -> list[str]:
    updates = [one["params"]["update"] for one in events if one.get("method") == "session/update"]
    return [one["content"]["text"] for one in updates if one["sessionUpdate"] == "user_message_chunk"]


def test_an_answer_that_comes_after_the_turn_was_abandoned_changes_nothing() -> None:
    async def main() -> None:
        async with world() as own:
            prompt = await started(own, "one", "1")
            request = await own.process.request(PROMPT)

            own.turns.force_end(own.session)
            assert result_of(await prompt) == CANCELLED
            own.says(id=request["id"], result={"stopReason": "end_turn"})

            assert await turns(own) == [("started", None), ("ended", "cancelled")]

    run(main())


def test_waiting_for_the_end_of_a_turn_lasts_as_long_as_it_runs() -> None:
    async def main() -> None:
        async with world() as own:
            await own.turns.wait_for_end(own.session)
            prompt = await started(own, "one", "1")
            waiting = asyncio.create_task(own.turns.wait_for_end(own.session))
            await own.settled()
            assert not waiting.done()

            await ends(own)

            await waiting
            await prompt

    run(main())


def test_an_id_keeps_its_type_in_the_answer() -> None:
    async def main() -> None:
        async with world() as own:
            for id in (7, "7", 0, ""):
                prompt = own.prompt("hello", id)
                await own.settled()
                await ends(own)
                answer = json.loads((await prompt).line)
                assert answer["id"] == id
                assert type(answer["id"]) is type(id)

    run(main())


def test_a_prompt_by_the_alias_of_a_session_reaches_the_agent_under_its_own_id() -> None:
    async def main() -> None:
        async with world() as own:
            own.hub.store.set_alias(own.session, "alias")
            prompt = own.request(PROMPT, {"sessionId": "alias", "prompt": [{"type": "text", "text": "hi"}]}, "1")
            await own.settled()
            assert own.sent(PROMPT)["params"]["sessionId"] == "s"
            await ends(own)
            await prompt

            logged = [one for one in await own.events(own.session.id) if one.get("method") == PROMPT]
            assert [one["params"]["sessionId"] for one in logged] == [own.session.id]

    run(main())
