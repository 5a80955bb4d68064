"""What Qwen Code does in a way of its own."""

import pytest

from tests.agents.asker import ASKERS
from tests.agents.conftest import parameters
from tests.agents.real import RealAgent, told
from tests.support.asking import PERMISSION, QUESTION
from tests.support.client import run
from tests.support.model.script import Say

pytestmark = pytest.mark.parametrize("real", parameters("qwen"), indirect=True)

ASKER = ASKERS["qwen"]


def test_nothing_is_pending_after_a_turn(real: RealAgent) -> None:
    async def scenario() -> None:
        async with real.session() as session:
            script = real.model.script(real.recipe.write(session.folder / "a.txt", "hello"), Say("Written."))
            prompt = session.ask(script)
            await session.decide(await session.asked(), "allow_once")
            await prompt.ended()
            pending = await session.client.result("_sandboxagent/session/pending", {"sessionId": session.id})

        assert pending["pending"] == []

    run(scenario())


def test_edits_are_made_unasked_in_auto_edit(real: RealAgent) -> None:
    async def scenario() -> None:
        async with real.session(mode="auto-edit") as session:
            file = session.folder / "unasked.txt"
            turn = await session.turn(real.model.script(real.recipe.write(file, "hello"), Say("Written.")))

        assert PERMISSION not in turn.asked
        assert file.read_text() == "hello"

    run(scenario())


def test_model_that_was_chosen_is_that_of_its_session_alone(real: RealAgent) -> None:
    async def scenario() -> None:
        first, second = real.recipe.models or ("", "")
        async with real.session(model=second) as session, real.session() as later:
            models = [
                await each.client.result("_sandboxagent/session/list_models", {"sessionId": each.id})
                for each in (session, later)
            ]

        # By its own session/set_model it would be that of later ones as well. The server goes by its option.
        assert [each["currentModelId"] for each in models] == [second, first]

    run(scenario())


def test_question_is_kept_as_the_permission_that_it_was(real: RealAgent) -> None:
    async def scenario() -> None:
        async with ASKER.session(real) as session:
            prompt = session.ask(real.model.script(ASKER.one, Say("I see.")))
            request = await session.asked(QUESTION)
            await session.client.answer(request.data["id"], {"status": "answered", "answers": [["Redis"]]})
            await prompt.ended()
            log = await session.client.result("_sandboxagent/session/events", {"sessionId": session.id})

        kept = [event["envelope"] for event in log["events"]]
        # Other tests may have asked in this session before.
        asked = [each for each in kept if each.get("method") == PERMISSION][-1]
        said = asked["params"]
        assert said["toolCall"]["_meta"]["qwenInteractionKind"] == "user_question"
        assert [option["kind"] for option in said["options"]] == ["allow_once", "reject_once"]
        submitted = {"outcome": {"outcome": "selected", "optionId": "proceed_once"}, "answers": {"0": "Redis"}}
        assert submitted in [each.get("result") for each in kept if each.get("id") == asked["id"]]

    run(scenario())


@pytest.mark.parametrize("mode", ["yolo", "auto-edit"])
def test_question_is_asked_also_where_nothing_else_is(real: RealAgent, mode: str) -> None:
    async def scenario() -> None:
        script = real.model.script(ASKER.one, Say("I see."))
        async with ASKER.session(real) as session:
            await session.client.result("session/set_mode", {"sessionId": session.id, "modeId": mode})
            prompt = session.ask(script)
            request = await session.asked(QUESTION)
            await session.client.answer(request.data["id"], {"status": "answered", "answers": [["Redis"]]})
            await prompt.ended()

        assert ASKER.heard.format("Redis") in told(script.requests[1])

    run(scenario())
