"""Every real agent: the questions that it asks people, and what its model gets of the answers."""

import asyncio

import pytest

from tests.agents.asker import ASKERS, SPEECHES, Asker
from tests.agents.conftest import parameters
from tests.agents.real import ATTACH, RealAgent, Session, told_now
from tests.agents.recipes import RECIPES
from tests.support.asking import CANCEL, ELICITATION, PERMISSION, QUESTION
from tests.support.client import Event, Json, run
from tests.support.model.api import Request
from tests.support.model.script import Say, Script
from tests.support.speaking import FORMS, QUESTIONS, Speaking

PENDING = "_sandboxagent/session/pending"
METHODS = {"questions": QUESTION, "forms": ELICITATION}

asking = pytest.mark.parametrize("real", parameters(*ASKERS), indirect=True)
several = pytest.mark.parametrize("real", parameters(*(id for id, one in ASKERS.items() if one.many)), indirect=True)
freely = pytest.mark.parametrize("real", parameters(*(id for id, one in ASKERS.items() if one.own)), indirect=True)
silent = pytest.mark.parametrize(
    "real", parameters(*(recipe.agent for recipe in RECIPES if recipe.agent not in ASKERS)), indirect=True
)
spoken = pytest.mark.parametrize("speech", SPEECHES)


def asker_of(real: RealAgent) -> Asker:
    return ASKERS[real.recipe.agent]


def chosen(asker: Asker, speech: str, *choices: str, many: bool = False) -> Json:
    """An answer as a client gives it that knows questions, or forms."""
    if speech == "forms":
        return asker.form(*choices, several=many)
    return {"status": "answered", "answers": [list(choices)]}


def asking_script(real: RealAgent, many: bool = False) -> Script:
    asker = asker_of(real)
    call = asker.many if many else asker.one
    assert call is not None
    return real.model.script(call, Say("I see."))


async def answer(session: Session, request: Event, result: Json) -> None:
    response = await session.client.answer(request.data["id"], result)
    assert response.status_code == 202, response.text


# Every run asks in one speech: the server translates between the two, and one agent is enough for the other.
@asking
@pytest.mark.parametrize("speech", [pytest.param("questions", marks=pytest.mark.every_run), "forms"])
def test_model_hears_what_was_chosen(real: RealAgent, speech: str) -> None:
    async def scenario() -> None:
        asker, script = asker_of(real), asking_script(real)
        async with asker.session(real, SPEECHES[speech]) as session:
            prompt = session.ask(script)
            request = await session.asked(METHODS[speech])
            await answer(session, request, chosen(asker, speech, "Postgres"))
            turn = await prompt.ended()

        assert asker.heard.format("Postgres") in told_now(script.requests[1])
        assert turn.stop_reason == "end_turn"
        assert turn.asked == [METHODS[speech]]
        assert turn.text.endswith("I see.")

    run(scenario())


@several
@spoken
def test_model_hears_all_that_were_chosen(real: RealAgent, speech: str) -> None:
    async def scenario() -> None:
        asker, script = asker_of(real), asking_script(real, many=True)
        async with asker.session(real, SPEECHES[speech]) as session:
            prompt = session.ask(script)
            request = await session.asked(METHODS[speech])
            await answer(session, request, chosen(asker, speech, "SQLite", "Redis", many=True))
            await prompt.ended()

        assert asker.heard.format("SQLite, Redis") in told_now(script.requests[1])

    run(scenario())


@freely
@spoken
def test_model_hears_an_answer_in_ones_own_words(real: RealAgent, speech: str) -> None:
    async def scenario() -> None:
        asker, script = asker_of(real), asking_script(real)
        async with asker.session(real, SPEECHES[speech]) as session:
            prompt = session.ask(script)
            request = await session.asked(METHODS[speech])
            own = {"status": "answered", "answers": [["a text file"]]}
            await answer(session, request, asker.own_words("a text file") if speech == "forms" else own)
            await prompt.ended()

        assert "a text file" in told_now(script.requests[1])

    run(scenario())


@asking
@pytest.mark.parametrize(
    ("speech", "refusal", "declined"),
    [
        ("questions", {"status": "rejected"}, True),
        ("forms", {"action": "decline"}, True),
        ("questions", {"status": "cancelled"}, False),
        ("forms", {"action": "cancel"}, False),
    ],
    ids=["rejected", "declined", "cancelled question", "cancelled form"],
)
def test_question_that_is_not_answered_ends_the_turn_or_is_told_to_the_model(
    real: RealAgent, speech: str, refusal: Json, declined: bool
) -> None:
    async def scenario() -> None:
        asker, script = asker_of(real), asking_script(real)
        async with asker.session(real, SPEECHES[speech]) as session:
            prompt = session.ask(script)
            await answer(session, await session.asked(METHODS[speech]), refusal)
            turn = await prompt.ended()

        hears = asker.declined if declined else asker.cancelled
        assert turn.stop_reason == "end_turn"
        assert len(script.requests) == (1 if hears is None else 2)
        assert hears is None or hears in told_now(script.requests[1])

    run(scenario())


@asking
@pytest.mark.parametrize("first", SPEECHES)
def test_each_client_is_asked_in_its_own_form_and_the_first_answer_wins(real: RealAgent, first: str) -> None:
    async def scenario() -> None:
        asker, script = asker_of(real), asking_script(real)
        other = "forms" if first == "questions" else "questions"
        async with (
            asker.session(real, SPEECHES[first]) as session,
            Speaking(real.server, SPEECHES[other], real.recipe.agent) as client,
            client.stream() as stream,
        ):
            await client.result(ATTACH, {"sessionId": session.id})
            second = session.on(client, stream)
            prompt = session.ask(script)
            asked, also = await session.asked(METHODS[first]), await second.asked(METHODS[other])
            await answer(session, asked, chosen(asker, first, "Postgres"))
            withdrawn = await second.next(lambda event: event.method == CANCEL)
            late = await client.answer(also.data["id"], chosen(asker, other, "SQLite"))
            turn = await prompt.ended()

        assert withdrawn.data["params"]["requestId"] == also.data["id"]
        assert late.status_code == 409
        assert asker.heard.format("Postgres") in told_now(script.requests[1])
        assert CANCEL not in [event.method for event in turn.events]

    run(scenario())


@pytest.mark.every_run
@asking
def test_cancel_of_the_turn_withdraws_the_question_from_everybody(real: RealAgent) -> None:
    async def scenario() -> None:
        asker, script = asker_of(real), asking_script(real)
        async with (
            asker.session(real, QUESTIONS) as session,
            Speaking(real.server, FORMS, real.recipe.agent) as client,
            client.stream() as stream,
        ):
            await client.result(ATTACH, {"sessionId": session.id})
            second = session.on(client, stream)
            prompt = session.ask(script)
            await asyncio.gather(session.asked(QUESTION), second.asked(ELICITATION))
            await session.client.notify("session/cancel", {"sessionId": session.id})
            withdrawn = await second.next(lambda event: event.method == CANCEL)
            turn = await prompt.ended()
            pending = await client.result(PENDING, {"sessionId": session.id})
            # It is as good as before.
            again = asking_script(real)
            prompt = session.ask(again)
            await answer(session, await session.asked(QUESTION), chosen(asker, "questions", "SQLite"))
            await prompt.ended()

        assert turn.stop_reason == "cancelled"
        assert withdrawn.data["params"]["_meta"]["sandboxagent.dev"]["outcome"] == "cancelled"
        assert pending["pending"] == []
        # Claude may have asked its model once more before it read the cancel; no answer was in that.
        assert not [request for request in script.requests if asker.heard.format("SQLite") in told_now(request)]
        assert len(again.requests) == 2

    run(scenario())


@asking
def test_question_waits_for_a_client_that_comes_back(real: RealAgent) -> None:
    async def scenario() -> None:
        asker, script = asker_of(real), asking_script(real)
        async with asker.session(real, FORMS) as session:
            prompt = session.ask(script)
            await session.asked(ELICITATION)
            async with Speaking(real.server, QUESTIONS, real.recipe.agent) as client, client.stream() as stream:
                (listed,) = (await client.result(PENDING, {"sessionId": session.id}))["pending"]
                await client.result(ATTACH, {"sessionId": session.id})
                back = session.on(client, stream)
                request = await back.asked(QUESTION)
                await answer(back, request, chosen(asker, "questions", "Postgres"))
                await prompt.ended()

        assert (listed["kind"], listed["envelope"]) == ("question", request.data)
        assert asker.heard.format("Postgres") in told_now(script.requests[1])

    run(scenario())


# One of them will do: for the server a question is the same whichever way it came.
@pytest.mark.parametrize("real", parameters("codex"), indirect=True)
def test_question_of_an_agent_that_dies_is_cancelled(real: RealAgent) -> None:
    async def scenario() -> None:
        asker, script = asker_of(real), asking_script(real)
        async with asker.session(real, QUESTIONS) as session:
            prompt = session.ask(script)
            request = await session.asked(QUESTION)
            real.crash()
            withdrawn = await session.next(lambda event: event.method == CANCEL)
            response = await prompt.response()
            late = await session.client.answer(request.data["id"], chosen(asker, "questions", "Postgres"))
            pending = await session.client.result(PENDING, {"sessionId": session.id})

        assert withdrawn.data["params"]["requestId"] == request.data["id"]
        assert withdrawn.data["params"]["_meta"]["sandboxagent.dev"]["outcome"] == "cancelled"
        assert response["error"]["data"]["type"] == "agent-exited"
        assert (late.status_code, late.json()["outcome"]) == (409, "cancelled")
        assert pending["pending"] == []

    run(scenario())


def tools(request: Request) -> list[str]:
    """The tools that a model was given, by whatever API."""
    names: list[str] = []
    for tool in request.body.get("tools", []):
        declared = tool.get("functionDeclarations") or [tool.get("function") or tool]
        names += [each["name"] for each in declared if "name" in each]
    return names


@silent
def test_agent_that_asks_no_questions_gives_its_model_no_tool_to_ask(real: RealAgent) -> None:
    async def scenario() -> None:
        script = real.model.script(Say("Nothing to ask."))
        async with real.any_session() as session:
            turn = await session.turn(script)

        given = tools(script.requests[0])
        assert real.recipe.manifest["features"]["questions"] == "none"
        assert given
        assert not [name for name in given if "ask_" in name or "question" in name or name == "ask"]
        assert not {QUESTION, ELICITATION, PERMISSION} & set(turn.asked)

    run(scenario())
