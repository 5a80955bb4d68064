"""What agents ask, in the Python SDK: handlers, answers by id, other clients; in doubt the answer is reject."""

import asyncio
import logging
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from sandboxagent import (
    Answer,
    ClientError,
    Decision,
    ElicitationRequest,
    PermissionRequest,
    QuestionRequest,
    SandboxAgent,
    ServerProblem,
    text_of,
)
from sandboxagent.client.updates import read_item
from tests.support.client import run
from tests.support.running import BOUND, Server
from tests.support.sdk import answered, asking, connected, new_session, permission, play

PERMISSION = "session/request_permission"
DECISION = "_sandboxagent/session/decision"
QUESTION = "_sandboxagent/session/request_question"
FORM = {
    "mode": "form",
    "message": "Who are you?",
    "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
}


def question(id: str = "q-1") -> dict[str, Any]:
    options = [{"id": "red", "label": "Red"}, {"id": "blue", "label": "Blue", "description": "Like the sky"}]
    asked = {"header": "Color", "question": "Which color?", "multiSelect": False, "options": options}
    return {
        "questionId": id,
        "prompt": "Which color?",
        "options": [["red", "Red"], ["blue", "Blue"]],
        "questions": [asked],
    }


def selected(option: str) -> dict[str, Any]:
    return {"outcome": {"outcome": "selected", "optionId": option}}


async def next_request(client: SandboxAgent, count: int = 1) -> list[Any]:
    """Wait until this client was asked."""
    async with asyncio.timeout(BOUND):
        while len(client.requests()) < count:  # noqa: ASYNC110 - there is nothing to wait on without a handler
            await asyncio.sleep(0.005)
    return client.requests()


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (PermissionRequest.allow, selected("yes")),
        (PermissionRequest.reject, selected("no")),
        (PermissionRequest.cancel, {"outcome": {"outcome": "cancelled"}}),
        (lambda request: request.select("no"), selected("no")),
    ],
)
def test_a_permission_handler_decides(server: Server, answer: Any, result: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with connected(server, on_permission=answer) as client:
            session = await new_session(client, server)
            assert await answered(play(session, asking(PERMISSION, permission()))) == result

    run(scenario())


@pytest.mark.requirement("7.reasons")
def test_a_rejection_may_have_a_reason_which_the_agent_and_the_decision_have(server: Server) -> None:
    def decide(request: PermissionRequest) -> Answer:
        return request.reject(reason="Not on a Friday.")

    async def scenario() -> None:
        async with connected(server, on_permission=decide) as client:
            session = await new_session(client, server)
            items = [item async for item in play(session, asking(PERMISSION, permission()))]

        told = msgspec.json.decode("".join(map(text_of, items)), type=dict[str, Any])
        assert told["result"] == selected("no") | {"_meta": {"sandboxagent.dev": {"reason": "Not on a Friday."}}}
        [decision] = [item for item in items if isinstance(item, Decision)]
        assert (decision.reason, decision.option_id, decision.option_kind) == ("Not on a Friday.", "no", "reject_once")

    run(scenario())


def test_questions_and_forms_are_rejected_with_a_reason_too() -> None:
    reason = {"_meta": {"sandboxagent.dev": {"reason": "None of these."}}}
    asked = QuestionRequest("q-1", "s-1", "Which?", [])
    form = ElicitationRequest("e-1", "s-1", "Who?", "form")

    assert asked.reject(reason="None of these.").result == {"status": "rejected"} | reason
    assert form.decline(reason="None of these.").result == {"action": "decline"} | reason
    assert asked.reject().result == {"status": "rejected"}


@pytest.mark.requirement("7.decision-answers")
def test_a_decision_has_the_answers_and_what_was_filled_in() -> None:
    facts = {"sessionId": "s", "requestId": 1, "outcome": "answered", "by": {"kind": "client"}, "questionId": "q-1"}
    question = read_item(DECISION, {**facts, "kind": "question", "answers": [["blue"], []]})
    form = read_item(DECISION, {**facts, "kind": "elicitation", "content": {"name": "Ada"}})
    newer = read_item(DECISION, {**facts, "kind": "question", "answers": "blue"})

    assert isinstance(question, Decision)
    assert isinstance(form, Decision)
    assert isinstance(newer, Decision)
    assert (question.question_id, question.answers, question.content) == ("q-1", [["blue"], []], None)
    assert (form.question_id, form.answers, form.content) == ("q-1", None, {"name": "Ada"})
    assert (newer.answers, newer.raw["answers"]) == (None, "blue")


@pytest.mark.parametrize(
    "options",
    [
        [("always", "allow_always"), ("no", "reject_once")],
        [("a", "allow_once"), ("b", "allow_once"), ("no", "reject_once")],
    ],
)
def test_allow_without_one_such_option_is_a_rejection(server: Server, options: list[tuple[str, str]]) -> None:
    async def scenario() -> None:
        async with connected(server, on_permission=lambda request: request.allow()) as client:
            session = await new_session(client, server)
            assert await answered(play(session, asking(PERMISSION, permission(*options)))) == selected("no")

    run(scenario())


def test_an_option_that_upstream_does_not_know_is_left_out(server: Server) -> None:
    async def scenario() -> None:
        offered: list[str] = []

        def decide(request: PermissionRequest) -> Answer:
            offered.extend(option.option_id for option in request.options)
            return request.allow()

        async with connected(server, on_permission=decide) as client:
            session = await new_session(client, server)
            options = [("week", "allow_for_a_week"), ("yes", "allow_once"), ("no", "reject_once")]
            assert await answered(play(session, asking(PERMISSION, permission(*options)))) == selected("yes")
        assert offered == ["yes", "no"]

    run(scenario())


def test_a_permission_that_cannot_be_read_is_rejected(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server, on_permission=lambda request: request.allow()) as client:
            session = await new_session(client, server)
            strange = {"toolCall": "everything", "options": permission()["options"]}
            answer = await answered(play(session, asking(PERMISSION, strange)))
            assert answer == {"outcome": {"outcome": "cancelled"}}

    run(scenario())


def test_a_handler_that_fails_rejects(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    def fail(request: PermissionRequest) -> Answer:
        raise ValueError(request.id)

    async def scenario() -> None:
        async with connected(server, on_permission=fail) as client:
            session = await new_session(client, server)
            assert await answered(play(session, asking(PERMISSION, permission()))) == selected("no")

    run(scenario())
    assert "a handler failed, rejecting" in caplog.text


@pytest.mark.parametrize("answer", [True, "yes", {"outcome": {"outcome": "selected", "optionId": "yes"}}])
def test_a_handler_that_gives_no_answer_rejects(server: Server, answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with connected(server, on_permission=lambda request: answer) as client:
            session = await new_session(client, server)
            assert await answered(play(session, asking(PERMISSION, permission()))) == selected("no")

    run(scenario())
    assert "a handler failed, rejecting" in caplog.text


def test_an_answer_that_does_not_fit_is_a_rejection(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with connected(server, on_permission=lambda request: request.select("maybe")) as client:
            session = await new_session(client, server)
            assert await answered(play(session, asking(PERMISSION, permission()))) == selected("no")

    run(scenario())
    assert "an answer was refused" in caplog.text


def test_an_async_handler_does_not_hold_up_the_updates(server: Server) -> None:
    async def scenario() -> None:
        said = asyncio.Event()

        async def decide(request: PermissionRequest) -> Answer:
            async with asyncio.timeout(BOUND):
                await said.wait()
            return request.allow()

        async with connected(server, on_permission=decide) as client:
            session = await new_session(client, server)
            turn = play(session, [["ask", PERMISSION, permission()], ["say", "meanwhile"], ["wait_answer"]])
            await anext(turn)
            said.set()
            assert (await turn).stop_reason == "end_turn"

    run(scenario())


def test_a_session_has_handlers_of_its_own(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server, on_permission=lambda request: request.reject()) as client:
            trusted, other = await new_session(client, server), await new_session(client, server)

            @trusted.on_permission
            def allow(request: PermissionRequest) -> Answer:
                return request.allow()

            program = asking(PERMISSION, permission())
            assert await answered(play(trusted, program)) == selected("yes")
            assert await answered(play(other, program)) == selected("no")

    run(scenario())


def test_questions_are_answered_by_handlers(server: Server) -> None:
    async def scenario() -> None:
        asked: list[QuestionRequest] = []

        def answer(request: QuestionRequest) -> Answer:
            asked.append(request)
            return request.answer("blue")

        async with connected(server, on_question=answer) as client:
            session = await new_session(client, server)
            result = await answered(play(session, asking(QUESTION, question())))

        assert result == {"status": "answered", "answers": [["blue"]]}
        [request] = asked
        assert (request.question_id, request.prompt) == ("q-1", "Which color?")
        [one] = request.questions
        assert [choice.id for choice in one.options] == ["red", "blue"]
        assert not one.multi_select

    run(scenario())


def test_a_question_can_be_left_open_and_answered_by_its_id(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server, on_question=lambda request: None) as client:
            session = await new_session(client, server)
            turn = play(session, asking(QUESTION, question("later")))
            [request] = await next_request(client)
            assert session.requests() == [request]
            [pending] = await session.pending()
            assert pending == replace(request, asked_at=pending.asked_at)
            assert pending.asked_at is not None
            with pytest.raises(ServerProblem) as wrong:
                await client.reply_question(request.id, ["red", "too many"])
            assert wrong.value.slug == "wrong-answer"
            await client.reply_question(request.id, ["red"])
            assert await answered(turn) == {"status": "answered", "answers": [["red"]]}
            assert client.requests() == []
            with pytest.raises(ServerProblem, match="its outcome is answered") as late:
                await client.reply_question(request.id, ["red"])
            assert (late.value.slug, late.value.status) == ("already-answered", 409)

    run(scenario())


def test_agents_that_call_their_questions_the_same_are_answered_each_by_its_own_id(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server, on_question=lambda request: None) as client:
            turns = {(session := await new_session(client, server)).id: session for _ in range(2)}
            running = {id: play(session, asking(QUESTION, question("q-1"))) for id, session in turns.items()}
            asked = await next_request(client, 2)
            assert len({request.id for request in asked}) == 2
            assert {request.question_id for request in asked} == {"q-1"}
            for id in ("q-1", "0", "never"):
                with pytest.raises(ServerProblem, match="no open request of this kind") as nobody:
                    await client.reply_question(id, ["red"])
                assert (nobody.value.slug, nobody.value.status) == ("nobody-asked", 404)
            with pytest.raises(ServerProblem, match="no open request of this kind"):
                await client.reply_permission(asked[0].id, "red")
            for request, color in zip(asked, ("red", "blue"), strict=True):
                await client.reply_question(request.id, [color])
                assert (await answered(running[request.session_id]))["answers"] == [[color]]

    run(scenario())


def test_what_was_left_open_can_be_rejected_by_its_id(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            session = await new_session(client, server)
            turn = play(session, asking(QUESTION, question()))
            [request] = await next_request(client)
            await client.reject_question(request.id)
            assert await answered(turn) == {"status": "rejected"}
            turn = play(session, asking(PERMISSION, permission()))
            [request] = await next_request(client)
            await client.reject_permission(request.id)
            assert await answered(turn) == selected("no")
            turn = play(session, asking(PERMISSION, permission()))
            [request] = await next_request(client)
            await client.reply_permission(request.id, "yes")
            assert await answered(turn) == selected("yes")

    run(scenario())


def test_forms_come_as_forms_to_a_client_that_takes_them(server: Server) -> None:
    async def scenario() -> None:
        asked: list[ElicitationRequest] = []

        def fill(request: ElicitationRequest) -> Answer:
            asked.append(request)
            return request.accept({"name": "Ada"})

        async with connected(server, on_elicitation=fill) as client:
            session = await new_session(client, server)
            result = await answered(play(session, asking("elicitation/create", FORM)))
            assert result == {"action": "accept", "content": {"name": "Ada"}}
            assert asked[0].message == "Who are you?"
            assert asked[0].schema == FORM["requestedSchema"]

    run(scenario())


def test_forms_come_as_questions_to_a_client_that_does_not(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server, on_question=lambda request: request.answer("Ada")) as client:
            session = await new_session(client, server)
            result = await answered(play(session, asking("elicitation/create", FORM)))
            assert result == {"action": "accept", "content": {"name": "Ada"}}
            with pytest.raises(ClientError, match="too late"):
                client.on_elicitation(lambda request: request.decline())

    run(scenario())


def test_what_is_asked_in_a_session_that_we_leave_is_asked_anew_when_we_come_back(server: Server) -> None:
    async def scenario() -> None:
        asked: list[str] = []
        async with connected(server, on_permission=lambda request: asked.append(request.id)) as client:
            session = await new_session(client, server)
            turn = play(session, asking(PERMISSION, permission()))
            [request] = await next_request(client)
            await session.detach()
            assert client.requests() == []
            await client.sessions.attach(session.id)
            assert await next_request(client) == [request]
            await client.reply_permission(request.id, "yes")
            assert client.requests() == []
            assert (await turn).stop_reason == "end_turn"
        assert len(asked) == 2

    run(scenario())


def test_an_answer_that_cannot_be_written_is_a_rejection(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with connected(server, on_elicitation=lambda request: request.accept({"name": object()})) as client:
            session = await new_session(client, server)
            assert await answered(play(session, asking("elicitation/create", FORM))) == {"action": "decline"}

    run(scenario())
    assert "a handler failed, rejecting" in caplog.text


def test_the_first_answer_wins_and_the_other_handler_is_cancelled(server: Server) -> None:
    async def scenario() -> None:
        asked, cancelled = asyncio.Event(), asyncio.Event()

        async def slow(request: PermissionRequest) -> Answer:
            asked.set()
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                cancelled.set()
                raise
            return request.reject()

        async with connected(server, on_permission=slow) as client, connected(server) as other:
            session = await new_session(client, server)
            await other.sessions.attach(session.id)
            turn = play(session, asking(PERMISSION, permission()))
            async with asyncio.timeout(BOUND):
                await asked.wait()
                [request] = await next_request(other)
                await other.reply_permission(request.id, "yes")
                await cancelled.wait()
            assert await answered(turn) == selected("yes")
            with pytest.raises(ServerProblem, match="its outcome is answered"):
                await client.reply_permission(request.id, "no")

    run(scenario())


def test_without_a_handler_a_request_is_left_to_others(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            session = await new_session(client, server)
            turn = play(session, asking(PERMISSION, permission()))
            await next_request(client)
            async with connected(server, on_permission=lambda request: request.allow()) as other:
                await other.sessions.attach(session.id)
                assert await answered(turn) == selected("yes")

    run(scenario())
    assert "left open for other clients" in caplog.text


def test_a_private_server_rejects_what_stays_unanswered(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with SandboxAgent.start(agent="mock") as client:
            session = await client.sessions.create()
            async with asyncio.timeout(60):
                assert "reject_once" in await session.prompt("permission").text()

    caplog.set_level(logging.WARNING)
    run(scenario())
    assert "no handler on_permission, so it is rejected" in caplog.text


def test_an_unknown_request_is_not_answered(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            session = await new_session(client, server)
            turn = play(session, [["ask", "vendor/strange"], ["say", "asked"], ["wait_cancel"]])
            await anext(turn)
            assert (await session.info()).pending == 1
            assert await client.pending(session.id) == []
            await turn.cancel()
            await turn

    run(scenario())
