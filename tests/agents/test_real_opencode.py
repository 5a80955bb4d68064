"""What OpenCode does in a way of its own."""

import pytest

from tests.agents.conftest import parameters
from tests.agents.real import RealAgent, told
from tests.support.asking import PERMISSION
from tests.support.client import run
from tests.support.model.script import Call, Say

pytestmark = pytest.mark.parametrize("real", parameters("opencode"), indirect=True)


def test_model_is_given_no_tool_to_ask_questions(real: RealAgent) -> None:
    async def scenario() -> None:
        script = real.model.script(Call("question", {"questions": []}), Say("Then not."))
        async with real.session() as session:
            turn = await session.turn(script)

        assert "question" not in {tool["function"]["name"] for tool in script.requests[0].body["tools"]}
        assert turn.asked == []
        assert "unavailable tool" in told(script.requests[1])

    run(scenario())


def test_client_is_asked_for_permission_and_not_to_write_the_file(real: RealAgent) -> None:
    async def scenario() -> None:
        async with real.session() as session:
            script = real.model.script(real.recipe.write(session.folder / "a.txt", "hello"), Say("Written."))
            prompt = session.ask(script)
            await session.decide(await session.asked(), "allow_once")
            turn = await prompt.ended()

        assert turn.asked == [PERMISSION]

    run(scenario())


def test_command_is_asked_for_and_its_output_is_shown(real: RealAgent) -> None:
    async def scenario() -> None:
        call = Call("bash", {"command": "echo out of it", "description": "Says something"})
        async with real.session() as session:
            prompt = session.ask(real.model.script(call, Say("Done.")))
            request = await session.asked()
            await session.decide(request, "allow_once")
            turn = await prompt.ended()

        assert request.data["params"]["toolCall"]["kind"] == "execute"
        assert "out of it" in str(turn.updates("tool_call_update")[-1]["content"])

    run(scenario())
