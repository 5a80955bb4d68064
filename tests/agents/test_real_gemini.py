"""What Gemini CLI does in a way of its own."""

import pytest

from tests.agents.conftest import parameters
from tests.agents.real import RealAgent
from tests.support.asking import PERMISSION
from tests.support.client import run
from tests.support.model.script import Say

pytestmark = pytest.mark.parametrize("real", parameters("gemini"), indirect=True)


def test_permission_is_the_first_that_is_heard_of_a_tool_call(real: RealAgent) -> None:
    async def scenario() -> None:
        async with real.session() as session:
            script = real.model.script(real.recipe.write(session.folder / "a.txt", "hello"), Say("Written."))
            prompt = session.ask(script)
            request = await session.asked()
            await session.decide(request, "allow_once")
            turn = await prompt.ended()

        assert turn.updates("tool_call") == []
        (update,) = turn.updates("tool_call_update")
        assert update["toolCallId"] == request.data["params"]["toolCall"]["toolCallId"]
        assert update["status"] == "completed"

    run(scenario())


def test_nothing_is_heard_of_a_tool_call_that_was_rejected(real: RealAgent) -> None:
    async def scenario() -> None:
        async with real.session() as session:
            script = real.model.script(real.recipe.write(session.folder / "a.txt", "hello"), Say("As you like."))
            prompt = session.ask(script)
            await session.decide(await session.asked(), "reject_once")
            turn = await prompt.ended()

        assert turn.updates("tool_call_update") == []

    run(scenario())


def test_model_is_given_no_tool_to_ask_questions(real: RealAgent) -> None:
    async def scenario() -> None:
        script = real.model.script(Say("I have none."))
        async with real.session() as session:
            await session.turn(script)

        tools = [tool for group in script.requests[0].body["tools"] for tool in group["functionDeclarations"]]
        assert "write_file" in {tool["name"] for tool in tools}
        assert "ask_user" not in {tool["name"] for tool in tools}

    run(scenario())


def test_edits_are_made_unasked_in_auto_edit(real: RealAgent) -> None:
    async def scenario() -> None:
        async with real.session(mode="autoEdit") as session:
            file = session.folder / "unasked.txt"
            turn = await session.turn(real.model.script(real.recipe.write(file, "hello"), Say("Written.")))

        assert PERMISSION not in turn.asked
        assert file.read_text() == "hello"

    run(scenario())


def test_changed_mode_is_told_in_words(real: RealAgent) -> None:
    async def scenario() -> None:
        async with real.session() as session:
            await session.client.result("session/set_mode", {"sessionId": session.id, "modeId": "plan"})
            await session.said("[MODE_UPDATE] plan")

    run(scenario())
