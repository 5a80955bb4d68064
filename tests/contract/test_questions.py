"""Questions and forms: each client is asked in the form it knows; agents that ask in ways of their own.

Contract, section 7.
"""

import asyncio
import json
import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support.asking import (
    ALLOW,
    CANCEL,
    ELICITATION,
    PERMISSION,
    PERMISSION_PARAMS,
    QUESTION,
    answer_line,
    ask_outright,
    everything,
    methods,
    texts,
)
from tests.support.client import Client, Json, run
from tests.support.running import Server, scripted
from tests.support.speaking import FORMS, NOTHING, QUESTIONS, URLS, Speaking

ATTACH, PENDING, EVENTS, SET_METADATA = (
    f"_sandboxagent/session/{name}" for name in ("attach", "pending", "events", "set_metadata")
)

FORM: Json = {
    "mode": "form",
    "message": "Please choose.",
    "requestedSchema": {
        "type": "object",
        "properties": {
            "db": {"type": "string", "title": "Which database?", "enum": ["sqlite", "postgres"]},
            "db_custom": {"type": "string", "title": "Other"},
            "more": {"type": "array", "title": "More?", "items": {"anyOf": [{"const": "auth", "title": "Auth"}]}},
        },
        "required": [],
    },
}
OURS: Json = {
    "questionId": "q",
    "prompt": "Which database?",
    "options": [["sqlite", "SQLite"]],
    "questions": [
        {"header": "Database", "question": "Which database?", "options": [{"id": "sqlite", "label": "SQLite"}]},
        {"header": "More", "question": "More?", "options": [{"id": "auth", "label": "Auth"}], "multiSelect": True},
    ],
}
URL: Json = {"mode": "url", "message": "Log in.", "url": "https://example.org/login", "elicitationId": "e"}
QWEN: Json = {
    "toolCall": {
        "toolCallId": "call-1",
        "_meta": {
            "qwenInteractionKind": "user_question",
            "qwenQuestions": [{"header": "Database", "question": "Which?", "options": [{"label": "SQLite"}]}],
        },
    },
    "options": [
        {"optionId": "go", "name": "Submit", "kind": "allow_once"},
        {"optionId": "stop", "name": "Cancel", "kind": "reject_once"},
    ],
}
ACCEPTED = {"action": "accept", "content": {"db": "sqlite", "more": ["auth"]}}
ANSWERED = {"status": "answered", "answers": [["sqlite"], ["auth"]]}
FILLED = {"action": "accept", "content": {"question_0": "sqlite", "question_1": ["auth"]}}


async def asked_and_answered(server: Server, asked: tuple[str, Json], capabilities: Json, answer: Json) -> Json:
    """What an agent gets when a client that can be asked so answers this."""
    method, params = asked
    async with Speaking(server, capabilities) as client, client.stream() as events:
        session = await client.new_session()
        await ask_outright(client, session, ["ask", method, params], ["echo_answer"])
        request = (await events.until(lambda event: "id" in event.data and bool(event.method)))[-1]
        response = await client.answer(request.data["id"], answer)
        assert response.status_code == 202, response.text
        return answer_line(texts(await events.turn_ended())[0])["result"]


# Each in its own form


@pytest.mark.requirement("7.asked-as-declared")
@pytest.mark.parametrize(
    ("method", "params", "capabilities", "shown"),
    [
        (ELICITATION, FORM, FORMS, ELICITATION),
        (ELICITATION, FORM, QUESTIONS, QUESTION),
        (ELICITATION, FORM, NOTHING, QUESTION),
        (ELICITATION, FORM, FORMS | QUESTIONS, ELICITATION),
        (QUESTION, OURS, QUESTIONS, QUESTION),
        (QUESTION, OURS, NOTHING, QUESTION),
        (QUESTION, OURS, FORMS, ELICITATION),
        (QUESTION, OURS, FORMS | QUESTIONS, QUESTION),
        (ELICITATION, URL, URLS, ELICITATION),
        (ELICITATION, URL, FORMS, ELICITATION),
        (ELICITATION, URL, QUESTIONS, QUESTION),
    ],
)
def test_a_client_is_asked_in_the_form_that_it_declared(
    server: Server, method: str, params: Json, capabilities: Json, shown: str
) -> None:
    async def main() -> None:
        async with Speaking(server, capabilities) as client, client.stream() as events:
            session = await client.new_session()
            await ask_outright(client, session, ["ask", method, params], ["wait_answer"])
            request = (await events.until(lambda event: "id" in event.data and bool(event.method)))[-1]
            assert request.method == shown
            if shown == method and not (params is URL and capabilities is FORMS):
                assert request.data["params"] == {"sessionId": session, **params}
            (listed,) = (await client.result(PENDING, {"sessionId": session}))["pending"]
            assert listed["envelope"] == request.data
            assert listed["kind"] == ("question" if shown == QUESTION else "elicitation")
            await client.notify("session/cancel", {"sessionId": session})
            await events.turn_ended()

    run(main())


@pytest.mark.requirement("7.answers-translated")
@pytest.mark.parametrize(
    ("asked", "capabilities", "answer", "told"),
    [
        ((ELICITATION, FORM), QUESTIONS, ANSWERED, ACCEPTED),
        (
            (ELICITATION, FORM),
            QUESTIONS,
            {"status": "answered", "answers": [["mine"], []]},
            {"action": "accept", "content": {"db_custom": "mine", "more": []}},
        ),
        ((ELICITATION, FORM), QUESTIONS, {"status": "rejected"}, {"action": "decline"}),
        ((ELICITATION, FORM), QUESTIONS, {"status": "cancelled"}, {"action": "cancel"}),
        ((QUESTION, OURS), FORMS, FILLED, ANSWERED),
        (
            (QUESTION, OURS),
            FORMS,
            {"action": "accept", "content": {"question_0_other": "mine"}},
            {"status": "answered", "answers": [["mine"], []]},
        ),
        ((QUESTION, OURS), FORMS, {"action": "decline"}, {"status": "rejected"}),
        ((QUESTION, OURS), FORMS, {"action": "cancel"}, {"status": "cancelled"}),
        ((ELICITATION, URL), QUESTIONS, {"status": "answered", "answers": [["accept"]]}, {"action": "accept"}),
        ((ELICITATION, URL), QUESTIONS, {"status": "answered", "answers": [["decline"]]}, {"action": "decline"}),
    ],
)
def test_the_agent_is_answered_in_the_form_that_it_asked_in(
    server: Server, asked: tuple[str, Json], capabilities: Json, answer: Json, told: Json
) -> None:
    async def main() -> None:
        assert await asked_and_answered(server, asked, capabilities, answer) == told

    run(main())


@pytest.mark.requirement("7.each-its-own-form")
@pytest.mark.parametrize("asked", [(ELICITATION, FORM), (QUESTION, OURS)], ids=["form", "question"])
@pytest.mark.parametrize("first", ["form", "question"])
def test_each_client_of_a_session_gets_its_own_form_and_the_first_answer_wins(
    server: Server, asked: tuple[str, Json], first: str
) -> None:
    async def main() -> None:
        async with (
            Speaking(server, FORMS) as a,
            Speaking(server, QUESTIONS) as b,
            a.stream() as forms,
            b.stream() as questions,
        ):
            session = await a.new_session()
            await b.result(ATTACH, {"sessionId": session})
            await ask_outright(a, session, ["ask", *asked], ["echo_answer"])
            form, question = await forms.method(ELICITATION), await questions.method(QUESTION)
            filled = ACCEPTED if asked[0] == ELICITATION else FILLED
            winner, loser = (a, b) if first == "form" else (b, a)
            ids = {a: form.data["id"], b: question.data["id"]}
            answers = {a: filled, b: ANSWERED}
            assert (await winner.answer(ids[winner], answers[winner])).status_code == 202
            withdrawn = await (questions if first == "form" else forms).method(CANCEL)
            assert withdrawn.data["params"]["requestId"] == ids[loser]
            assert withdrawn.data["params"]["_meta"]["sandboxagent.dev"]["outcome"] == "answered"
            late = await loser.answer(ids[loser], answers[loser])
            assert (late.status_code, late.json()["outcome"]) == (409, "answered")
            await forms.turn_ended()
            told = answer_line(texts(forms.seen)[0])["result"]
            assert told == (ACCEPTED if asked[0] == ELICITATION else ANSWERED)
            assert CANCEL not in methods(await everything(winner, forms if first == "form" else questions))

    run(main())


@pytest.mark.requirement("7.wrong-answer")
@pytest.mark.parametrize(
    ("asked", "capabilities", "wrong", "complaint", "right"),
    [
        ((ELICITATION, FORM), FORMS, {"action": "accept", "content": {"db": "x"}}, "db is none of", ACCEPTED),
        ((ELICITATION, FORM), QUESTIONS, {"status": "answered", "answers": [["sqlite"]]}, "2 questions", ANSWERED),
        ((QUESTION, OURS), QUESTIONS, {"status": "answered", "answers": [["a", "b"], []]}, "takes one", ANSWERED),
        ((QUESTION, OURS), FORMS, {"action": "yes"}, "accept, decline or cancel", FILLED),
        ((PERMISSION, PERMISSION_PARAMS), FORMS, {"outcome": {"outcome": "selected"}}, "optionId must be", ALLOW),
    ],
)
def test_an_answer_that_does_not_fit_is_refused_and_the_request_stays_open(
    server: Server, asked: tuple[str, Json], capabilities: Json, wrong: Json, complaint: str, right: Json
) -> None:
    async def main() -> None:
        async with Speaking(server, capabilities) as client, client.stream() as events:
            session = await client.new_session()
            await ask_outright(client, session, ["ask", *asked], ["wait_answer"])
            request = (await events.until(lambda event: "id" in event.data and bool(event.method)))[-1]
            refused = await client.answer(request.data["id"], wrong)
            assert refused.status_code == 422
            assert refused.json()["type"] == "urn:sandbox-agent:error:wrong-answer"
            assert complaint in refused.json()["detail"]
            assert len((await client.result(PENDING, {"sessionId": session}))["pending"]) == 1
            assert (await client.answer(request.data["id"], right)).status_code == 202
            await events.turn_ended()

    run(main())


# Coming back, and dying


@pytest.mark.requirement("7.question-waits")
def test_a_question_is_still_there_for_a_client_that_comes_back_in_another_form(server: Server) -> None:
    async def main() -> None:
        async with Speaking(server, FORMS) as before, before.stream() as events:
            session = await before.new_session()
            await ask_outright(before, session, ["ask", ELICITATION, FORM], ["echo_answer"])
            await events.method(ELICITATION)
            await before.close()
        async with Speaking(server, QUESTIONS) as client, client.stream() as events:
            (listed,) = (await client.result(ATTACH, {"sessionId": session}))["pending"]
            asked = await events.method(QUESTION)
            assert (listed["kind"], listed["envelope"]) == ("question", asked.data)
            assert (await client.answer(listed["id"], ANSWERED)).status_code == 202
            await events.turn_ended()
            assert answer_line(texts(events.seen)[0])["result"] == ACCEPTED
            assert (await client.result(PENDING, {"sessionId": session}))["pending"] == []

    run(main())


@pytest.mark.requirement("7.question-waits")
def test_a_stream_that_is_opened_again_shows_the_question_in_the_same_form(server: Server) -> None:
    async def main() -> None:
        async with Speaking(server, QUESTIONS) as client:
            session = await client.new_session()
            async with client.stream() as events:
                await ask_outright(client, session, ["ask", ELICITATION, FORM], ["wait_answer"])
                first = await events.method(QUESTION)
            async with client.stream() as events:
                again = await events.method(QUESTION)
                assert again.line == first.line
                assert (await client.answer(again.data["id"], ANSWERED)).status_code == 202
                await events.turn_ended()

    run(main())


@pytest.mark.requirement("7.question-waits")
def test_the_question_of_an_agent_that_dies_is_cancelled_for_all_clients() -> None:
    async def main(server: Server) -> None:
        async with (
            Speaking(server, FORMS) as a,
            Speaking(server, QUESTIONS) as b,
            a.stream() as forms,
            b.stream() as questions,
        ):
            session = await a.new_session()
            await b.result(ATTACH, {"sessionId": session})
            await ask_outright(a, session, ["pid"], ["ask", ELICITATION, FORM], ["wait_answer"])
            form, question = await forms.method(ELICITATION), await questions.method(QUESTION)
            os.kill(int(texts(forms.seen)[0]), signal.SIGKILL)
            await asyncio.gather(forms.method(CANCEL), questions.method(CANCEL))
            late = [await a.answer(form.data["id"], ACCEPTED), await b.answer(question.data["id"], ANSWERED)]
            assert [(each.status_code, each.json()["outcome"]) for each in late] == [(409, "cancelled")] * 2
            assert (await b.result(PENDING, {"sessionId": session}))["pending"] == []

    with Server("--no-persist") as server:
        run(main(server))


@pytest.mark.requirement("7.question-waits")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_a_question_does_not_outlive_the_server_and_its_agent(tmp_path: Path, number: int) -> None:
    async def ask(server: Server) -> str:
        async with Speaking(server, QUESTIONS) as client, client.stream() as events:
            session = await client.new_session()
            await ask_outright(client, session, ["ask", ELICITATION, FORM], ["wait_answer"])
            await events.method(QUESTION)
            # Acknowledged, and so on disk with all that came before it: the last moment may be lost when it is killed.
            await client.result(SET_METADATA, {"sessionId": session, "metadata": {"asked": True}})
            return session

    async def look(server: Server, session: str) -> None:
        async with Speaking(server, QUESTIONS) as client:
            assert (await client.result(ATTACH, {"sessionId": session}))["pending"] == []
            assert (await client.http.get(f"/v1/sessions/{session}")).json()["pending"] == 0
            log = (await client.result(EVENTS, {"sessionId": session}))["events"]
            assert ELICITATION in [event["envelope"].get("method") for event in log]

    with Server(directory=tmp_path) as server:
        session = run(ask(server))
        server.stop(number)
        server.start()
        run(look(server, session))


# Agents with ways of their own


@pytest.fixture(scope="module")
def particular() -> Generator[Server]:
    agents = {"own": scripted(dialect="qwen"), "mute": scripted(dialect="opencode")}
    with Server("--no-persist", "--permission-timeout", "2s", agents=agents) as running:
        yield running


@pytest.mark.requirement("7.dialects")
@pytest.mark.parametrize(
    ("capabilities", "answer", "told"),
    [
        (
            QUESTIONS,
            {"status": "answered", "answers": [["SQLite"]]},
            {"outcome": {"outcome": "selected", "optionId": "go"}, "answers": {"0": "SQLite"}},
        ),
        (
            FORMS,
            {"action": "accept", "content": {"question_0_other": "mine"}},
            {"outcome": {"outcome": "selected", "optionId": "go"}, "answers": {"0": "mine"}},
        ),
        (QUESTIONS, {"status": "rejected"}, {"outcome": {"outcome": "selected", "optionId": "stop"}}),
        (FORMS, {"action": "cancel"}, {"outcome": {"outcome": "cancelled"}}),
    ],
    ids=["question", "form", "rejected", "cancelled"],
)
def test_a_permission_that_is_a_question_is_asked_as_one(
    particular: Server, capabilities: Json, answer: Json, told: Json
) -> None:
    async def main() -> None:
        async with Speaking(particular, capabilities, "own") as client, client.stream() as events:
            session = await client.new_session()
            await ask_outright(client, session, ["ask", PERMISSION, QWEN], ["echo_answer"])
            asked = await events.method(QUESTION if capabilities is QUESTIONS else ELICITATION)
            assert (await client.answer(asked.data["id"], answer)).status_code == 202
            await events.turn_ended()
            assert answer_line(texts(events.seen)[0])["result"] == told
            log = (await client.result(EVENTS, {"sessionId": session}))["events"]
            (kept,) = [event["envelope"] for event in log if event["envelope"].get("method") == PERMISSION]
            sent = [event["envelope"] for event in log if event["envelope"].get("id") == kept["id"]][-1]
            # As the agent sent it, and as it was answered.
            assert sent["result"] == told

    run(main())


@pytest.mark.requirement("7.dialects")
def test_permission_of_an_agent_with_its_own_dialect_is_still_one(particular: Server) -> None:
    async def main() -> None:
        async with Speaking(particular, QUESTIONS, "own") as client, client.stream() as events:
            session = await client.new_session()
            await ask_outright(client, session, ["ask", PERMISSION, PERMISSION_PARAMS], ["echo_answer"])
            asked = await events.method(PERMISSION)
            assert (await client.answer(asked.data["id"], ALLOW)).status_code == 202
            await events.turn_ended()
            assert answer_line(texts(events.seen)[0])["result"] == ALLOW

    run(main())


@pytest.mark.requirement("7.dialects")
@pytest.mark.parametrize("how", ["cancel", "deadline"])
def test_what_the_server_answers_is_in_the_agents_own_words(particular: Server, how: str) -> None:
    async def main() -> None:
        async with Speaking(particular, QUESTIONS, "own") as client, client.stream() as events:
            session = await client.new_session()
            await ask_outright(client, session, ["ask", PERMISSION, QWEN], ["echo_answer"])
            await events.method(QUESTION)
            if how == "cancel":
                await client.notify("session/cancel", {"sessionId": session})
            await events.turn_ended()
            outcome = {"outcome": "cancelled"} if how == "cancel" else {"outcome": "selected", "optionId": "stop"}
            assert answer_line(texts(events.seen)[0])["result"] == {"outcome": outcome}

    run(main())


@pytest.mark.requirement("7.no-rules-for-questions")
def test_rules_that_allow_everything_answer_no_question(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rules]]\ntool = "*"\naction = "allow"\n')

    async def main(server: Server) -> None:
        async with Speaking(server, QUESTIONS, "own") as client, client.stream() as events:
            session = await client.new_session()
            asks = [["ask", PERMISSION, PERMISSION_PARAMS], ["echo_answer"], ["ask", PERMISSION, QWEN], ["echo_answer"]]
            await ask_outright(client, session, *asks)
            question = await events.method(QUESTION)
            answer = {"status": "answered", "answers": [["SQLite"]]}
            assert (await client.answer(question.data["id"], answer)).status_code == 202
            await events.turn_ended()
            told = [json.loads(text)["result"] for text in texts(events.seen)]
            assert [each.get("answers") for each in told] == [None, {"0": "SQLite"}]
            assert PERMISSION not in methods(events.seen)

    agents = {"own": scripted(dialect="qwen")}
    with Server("--no-persist", "--permissions-file", str(rules), agents=agents) as server:
        run(main(server))


@pytest.mark.requirement("7.dialects")
def test_an_agent_whose_questions_cannot_be_heard_is_started_so_that_it_asks_none(particular: Server) -> None:
    async def main() -> None:
        async with Client(particular, "mute") as client, client.stream() as events:
            session = await client.new_session()
            await ask_outright(client, session, ["env", "OPENCODE_ENABLE_QUESTION_TOOL"])
            await events.turn_ended()
            assert texts(events.seen) == ["null"]

    run(main())
