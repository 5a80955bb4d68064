"""What GitHub Copilot CLI does in a way of its own."""

import pytest

from tests.agents.conftest import parameters
from tests.agents.real import RealAgent, told
from tests.support.asking import PERMISSION
from tests.support.client import run
from tests.support.model.script import Call, Say

pytestmark = pytest.mark.parametrize("real", parameters("copilot"), indirect=True)


def test_question_cannot_be_asked(real: RealAgent) -> None:
    async def scenario() -> None:
        script = real.model.script(Call("ask_user", {"question": "Which?", "choices": ["A", "B"]}), Say("Never mind."))
        async with real.session() as session:
            turn = await session.turn(script)

        assert "ask_user" not in [tool["name"] for tool in script.requests[0].body["tools"]]
        assert turn.asked == []
        assert "does not exist" in told(script.requests[1])

    run(scenario())


def test_option_to_allow_all_takes_the_questions_away(real: RealAgent) -> None:
    async def scenario() -> None:
        async with real.session() as session:
            params = {"sessionId": session.id, "configId": "allow_all", "value": "on"}
            await session.client.result("session/set_config_option", params)
            file = session.folder / "unasked.txt"
            turn = await session.turn(real.model.script(real.recipe.write(file, "hello"), Say("Written.")))

        assert PERMISSION not in turn.asked
        assert file.read_text() == "hello"

    run(scenario())
