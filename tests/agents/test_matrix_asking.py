"""Every real agent: what it asks before it acts."""

import pytest

from tests.agents.conftest import parameters
from tests.agents.real import RealAgent
from tests.agents.recipes import RECIPES
from tests.support.asking import CANCEL, PERMISSION
from tests.support.client import run
from tests.support.model.script import Say

# Agents that never ask get no answers: the first test says that they write without asking.
asking = pytest.mark.parametrize(
    "real", parameters(*(recipe.agent for recipe in RECIPES if recipe.asks)), indirect=True
)


@pytest.mark.every_run
def test_file_is_written_when_it_is_allowed(real: RealAgent) -> None:
    async def scenario() -> None:
        async with real.any_session() as session:
            file = session.folder / "allowed.txt"
            script = real.model.script([Say("I write."), real.recipe.write(file, "hello")], Say("Written."))
            prompt = session.ask(script)
            if real.recipe.asks:
                request = await session.asked()
                assert not file.exists()
                await session.decide(request, "allow_once")
            turn = await prompt.ended()

        assert turn.stop_reason == "end_turn"
        assert turn.asked.count(PERMISSION) == (1 if real.recipe.asks else 0)
        assert file.read_text().strip() == "hello"
        assert "Written." in turn.text
        assert len(script.requests) == 2

    run(scenario())


@pytest.mark.every_run
@asking
def test_file_is_not_written_when_it_is_rejected(real: RealAgent) -> None:
    async def scenario() -> None:
        async with real.any_session() as session:
            file = session.folder / "rejected.txt"
            script = real.model.script([Say("I write."), real.recipe.write(file, "hello")], Say("As you like."))
            prompt = session.ask(script)
            await session.decide(await session.asked(), "reject_once")
            turn = await prompt.ended()

        assert not file.exists()
        assert turn.stop_reason == real.recipe.reject_ends
        assert ("As you like." in turn.text) == real.recipe.reject_asks_model
        assert len(script.requests) == (2 if real.recipe.reject_asks_model else 1)

    run(scenario())


@pytest.mark.every_run
@asking
def test_cancel_withdraws_what_was_asked(real: RealAgent) -> None:
    async def scenario() -> None:
        async with real.any_session() as session:
            file = session.folder / "cancelled.txt"
            script = real.model.script([Say("I write."), real.recipe.write(file, "hello")], Say("Never said."))
            prompt = session.ask(script)
            request = await session.asked()
            await session.client.notify("session/cancel", {"sessionId": session.id})
            turn = await prompt.ended()
            late = await session.client.answer(request.data["id"], {"outcome": {"outcome": "cancelled"}})

        assert turn.stop_reason == "cancelled"
        assert [event.data["params"]["requestId"] for event in turn.events if event.method == CANCEL] == [
            request.data["id"]
        ]
        assert late.status_code == 202, "a client that answers as ACP says is not punished"
        assert not file.exists()

    run(scenario())
