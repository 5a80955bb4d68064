"""What Claude Code does in a way of its own."""

import asyncio

import psutil
import pytest

from tests.agents.conftest import parameters
from tests.agents.real import RealAgent, tree
from tests.support.asking import ELICITATION, PERMISSION
from tests.support.client import run
from tests.support.model.script import Call, Say
from tests.support.running import alive, eventually

pytestmark = pytest.mark.parametrize("real", parameters("claude"), indirect=True)

OPTIONS = [{"label": "Postgres", "description": "Relational"}, {"label": "Redis", "description": "Key and value"}]
QUESTION = {"question": "Which database?", "header": "Database", "multiSelect": False, "options": OPTIONS}


def test_question_is_a_form_with_its_header_and_labels(real: RealAgent) -> None:
    async def scenario() -> None:
        script = real.model.script(Call("AskUserQuestion", {"questions": [QUESTION]}), Say("I see."))
        async with real.any_session() as session:
            prompt = session.ask(script)
            request = await session.asked(ELICITATION)
            await session.client.answer(request.data["id"], {"action": "accept", "content": {"question_0": "Redis"}})
            turn = await prompt.ended()

        form = request.data["params"]["requestedSchema"]["properties"]
        assert form["question_0"]["title"] == "Database"
        assert [option["const"] for option in form["question_0"]["oneOf"]] == ["Postgres", "Redis"]
        assert turn.stop_reason == "end_turn"

    run(scenario())


def test_edit_tells_the_line_of_the_part_that_it_shows(real: RealAgent) -> None:
    async def scenario() -> None:
        async with real.any_session() as session:
            file = session.folder / "long.txt"
            file.write_text("".join(f"line {number}\n" for number in range(1, 41)))
            change = {"file_path": str(file), "old_string": "line 20\n", "new_string": "twenty\n"}
            prompt = session.ask(
                real.model.script(Call("Read", {"file_path": str(file)}), Call("Edit", change), Say("Edited."))
            )
            await session.decide(await session.asked(), "allow_once")
            turn = await prompt.ended()

        (shown,) = [each for each in turn.updates("tool_call_update") if "line 17" in str(each.get("content"))][-1:]
        assert shown["locations"] == [{"path": str(file), "line": 17}]
        assert shown["content"][0]["oldText"].startswith("line 17\n")

    run(scenario())


def test_always_allowed_edits_are_not_asked_for_again_in_that_session(real: RealAgent) -> None:
    async def scenario() -> None:
        async with real.session() as session, real.any_session() as other:
            writes = [real.recipe.write(session.folder / f"{number}.txt", "hello") for number in (1, 2)]
            prompt = session.ask(real.model.script(*writes, Say("Both written.")))
            await session.decide(await session.asked(), "allow_always")
            turn = await prompt.ended()
            elsewhere = other.ask(real.model.script(real.recipe.write(other.folder / "3.txt", "hello"), Say("No.")))
            await other.decide(await other.asked(), "reject_once")
            await elsewhere.ended()

        assert turn.asked.count(PERMISSION) == 1
        assert (session.folder / "2.txt").exists()
        assert not (other.folder / "3.txt").exists()

    run(scenario())


def test_plan_is_left_by_permission(real: RealAgent) -> None:
    async def scenario() -> None:
        script = real.model.script(Call("ExitPlanMode"), Say("Now I begin."))
        async with real.session(mode="plan") as session:
            prompt = session.ask(script)
            request = await session.asked()
            await session.decide(request, "allow_once")
            turn = await prompt.ended()
            view = await session.client.result("_sandboxagent/session/get", {"sessionId": session.id})

        assert request.data["params"]["toolCall"]["kind"] == "switch_mode"
        assert turn.text.endswith("Now I begin.")
        assert view["session"]["mode"] == "default"

    run(scenario())


def test_cancel_ends_the_command_that_runs(real: RealAgent) -> None:
    async def scenario() -> None:
        call = Call("Bash", {"command": "touch running; tail -f /dev/null", "description": "Wait"})
        async with real.session(mode="bypassPermissions") as session:
            prompt = session.ask(real.model.script(call, Say("Never said.")))
            await session.next(lambda event: event.update.get("sessionUpdate") == "tool_call")
            eventually((session.folder / "running").exists, "the command")
            commands = [pid for pid in tree(real.pid) if "tail" in psutil.Process(pid).name()]
            await session.client.notify("session/cancel", {"sessionId": session.id})
            turn = await prompt.ended()

        assert turn.stop_reason == "cancelled"
        assert len(commands) == 1
        eventually(lambda: not alive(commands[0]), "the end of the command")

    run(scenario())


def test_a_crash_of_claude_code_itself_ends_the_turn_of_its_session_alone(real: RealAgent) -> None:
    async def scenario() -> None:
        gates = real.model.gate(), real.model.gate()
        doomed, spared = (real.model.script(Say("first ", gate, "last")) for gate in gates)
        async with real.session() as other:
            before = psutil.Process(real.pid).children()
            async with real.session() as session:
                own = [each for each in psutil.Process(real.pid).children() if each not in before]
                # Claude Code stores a session with its first turn, and resumes only what is stored.
                await session.turn(real.model.script(Say("Stored.")))
                prompts = session.ask(doomed), other.ask(spared)
                await asyncio.gather(*(gate.reached() for gate in gates))
                for each in own:
                    each.kill()
                failed = await prompts[0].ended()
                gates[1].open()
                turn = await prompts[1].ended()
                lost = await session.turn(real.model.script(Say("Never.")))
                await session.client.result("session/close", {"sessionId": session.id})
                resumed = await session.turn(real.model.script(Say("Here again.")))

        assert own
        assert "error" in failed.response
        assert turn.text == "first last"
        assert lost.response["error"]["code"] == -32002
        assert resumed.text == "Here again."

    run(scenario())
