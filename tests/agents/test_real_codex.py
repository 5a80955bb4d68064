"""What Codex does in a way of its own."""

import asyncio

import pytest

from tests.agents.conftest import parameters
from tests.agents.real import RealAgent, running, told_now, tree
from tests.support.asking import PERMISSION
from tests.support.client import run
from tests.support.model.script import Call, Fail, Say
from tests.support.running import alive

pytestmark = pytest.mark.parametrize("real", parameters("codex"), indirect=True)

OPTIONS = [{"label": "SQLite", "description": "One file"}, {"label": "Postgres", "description": "A server"}]
QUESTION = {"id": "db", "header": "Database", "question": "Which database?", "options": OPTIONS}


def test_question_outside_of_plan_mode_is_not_asked(real: RealAgent) -> None:
    async def scenario() -> None:
        script = real.model.script(Call("request_user_input", {"questions": [QUESTION]}), Say("I see."))
        async with real.any_session() as session:
            turn = await session.turn(script)

        assert turn.asked == []
        assert "unavailable in Default mode" in told_now(script.requests[1])

    run(scenario())


def test_mode_agent_asks_a_model_in_place_of_a_person(real: RealAgent) -> None:
    async def scenario() -> None:
        async with real.session(mode="agent") as session:
            file = session.folder / "reviewed.txt"
            script = real.model.script(real.recipe.write(file, "hello"), Say("Written."))
            turn = await session.turn(script)

        assert turn.asked == []
        assert file.read_text() == "hello"
        assert "Guardian Review" in [call["title"] for call in turn.updates("tool_call")]

    run(scenario())


def test_patch_within_its_folder_is_made_unasked_and_shown(real: RealAgent) -> None:
    async def scenario() -> None:
        patch = "*** Begin Patch\n*** Add File: new.txt\n+hello\n*** End Patch\n"
        async with real.any_session() as session:
            turn = await session.turn(real.model.script(Call("apply_patch", patch), Say("Patched.")))

        (call,) = turn.updates("tool_call")
        assert PERMISSION not in turn.asked
        assert (session.folder / "new.txt").read_text() == "hello\n"
        assert call["content"][0]["type"] == "diff"
        assert call["content"][0]["newText"] == "hello\n"

    run(scenario())


def test_output_of_a_command_is_in_the_meta_of_its_tool_call_alone(real: RealAgent) -> None:
    async def scenario() -> None:
        wish = {"sandbox_permissions": "require_escalated", "justification": "May I?"}
        script = real.model.script(Call("exec_command", {"cmd": "echo out of it", **wish}), Say("Done."))
        async with real.any_session() as session:
            prompt = session.ask(script)
            await session.decide(await session.asked(), "allow_once")
            turn = await prompt.ended()

        (call,) = turn.updates("tool_call")
        last = turn.updates("tool_call_update")[-1]
        assert call["content"] == [{"type": "terminal", "terminalId": call["toolCallId"]}]
        assert "content" not in last
        assert last["_meta"]["terminal_output_delta"]["data"] == "out of it\n"
        assert last["_meta"]["terminal_exit"]["exit_code"] == 0

    run(scenario())


def test_model_that_wants_another_key_is_an_error(real: RealAgent) -> None:
    async def scenario() -> None:
        script = real.model.script(Fail(401, "invalid_request_error", "who are you"))
        async with real.any_session() as session:
            response = await session.ask(script).response()

        assert response["error"]["code"] == -32000

    run(scenario())


def test_command_that_outlives_its_turn_ends_with_the_server(real: RealAgent) -> None:
    with running(real.recipe) as agent:

        async def scenario() -> tuple[list[int], list[int]]:
            wish = {"sandbox_permissions": "require_escalated", "justification": "May I?"}
            call = Call("exec_command", {"cmd": "tail -f /dev/null", "yield_time_ms": 250, **wish})
            script = agent.model.script(call, Say("It runs.", agent.model.gate()))
            async with agent.client() as client, client.stream() as stream:
                session = await agent.new_session(client, stream)
                before = tree(agent.pid)
                prompt = session.ask(script)
                await session.decide(await session.asked(), "allow_once")
                await session.said("It runs.")
                await client.notify("session/cancel", {"sessionId": session.id})
                assert (await prompt.ended()).stop_reason == "cancelled"
                started = [pid for pid in tree(agent.pid) if pid not in before]
                assert await asyncio.to_thread(agent.server.stop) == 0
            return started, [pid for pid in started if alive(pid)]

        started, left = run(scenario())

    assert started
    assert left == []
