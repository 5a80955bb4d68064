"""What Qwen Code does in a way of its own."""

import pytest

from tests.agents.conftest import parameters
from tests.agents.real import RealAgent, told
from tests.support.asking import PERMISSION
from tests.support.client import Json, run
from tests.support.model.script import Call, Say

pytestmark = pytest.mark.parametrize("real", parameters("qwen"), indirect=True)

OPTIONS = [{"label": "SQLite", "description": "One file"}, {"label": "Postgres", "description": "A server"}]
QUESTION = {"header": "Database", "question": "Which database?", "multiSelect": False, "options": OPTIONS}
SUBMIT = {"outcome": {"outcome": "selected", "optionId": "proceed_once"}}


@pytest.mark.parametrize(
    ("answer", "heard"),
    [
        ({**SUBMIT, "answers": {"0": "SQLite"}}, "**Database**: SQLite"),
        ({**SUBMIT, "answers": {"0": "a text file"}}, "**Database**: a text file"),
        (SUBMIT, "No valid answers were provided"),
    ],
    ids=["chosen", "own words", "only allowed"],
)
def test_question_is_a_permission_that_is_answered_with_more(real: RealAgent, answer: Json, heard: str) -> None:
    async def scenario() -> None:
        script = real.model.script(Call("ask_user_question", {"questions": [QUESTION]}), Say("I see."))
        async with real.session() as session:
            prompt = session.ask(script)
            request = await session.asked()
            await session.client.answer(request.data["id"], answer)
            turn = await prompt.ended()

        call = request.data["params"]["toolCall"]
        assert call["_meta"]["qwenInteractionKind"] == "user_question"
        assert call["_meta"]["qwenQuestions"] == [QUESTION]
        assert [option["kind"] for option in request.data["params"]["options"]] == ["allow_once", "reject_once"]
        assert heard in told(script.requests[1])
        assert turn.stop_reason == "end_turn"

    run(scenario())


def test_rejected_question_ends_the_turn(real: RealAgent) -> None:
    async def scenario() -> None:
        script = real.model.script(Call("ask_user_question", {"questions": [QUESTION]}), Say("Never said."))
        async with real.session() as session:
            prompt = session.ask(script)
            await session.decide(await session.asked(), "reject_once")
            turn = await prompt.ended()

        assert turn.stop_reason == "end_turn"
        assert len(script.requests) == 1

    run(scenario())


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
