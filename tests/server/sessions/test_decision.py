"""What clients learn of a settled request: who decided, what was answered, and why; and what the agent gets of it."""

from typing import Any

import pytest

from sandboxagent.protocol.envelope import META
from tests.support.world import Json, World, envelope, error_of, result_of, run, world

DECISION = "_sandboxagent/session/decision"
QUESTION = "_sandboxagent/session/request_question"
FORM: Json = {
    "sessionId": "s",
    "mode": "form",
    "message": "Which database?",
    "requestedSchema": {"type": "object", "properties": {"db": {"type": "string"}}},
}
ASKED: Json = {
    "sessionId": "s",
    "questionId": "q-1",
    "prompt": "Which database?",
    "options": [["a", "SQLite"], ["b", "Postgres"]],
}


async def decided(one: World, asked: str, result: Json) -> Json:
    """The decision after the client's answer."""
    await one.settled()
    await one.requests.answer(one.client, envelope(id=asked, result=result))
    return [event["params"] for event in await one.events() if event.get("method") == DECISION][-1]


def why(reason: str) -> Json:
    return {"_meta": {META: {"reason": reason}}}


@pytest.mark.requirement("7.decision-answers")
def test_the_decision_on_a_question_has_its_id_and_the_answers() -> None:
    async def main() -> None:
        async with world() as one:
            asked = one.asks(7, QUESTION, **ASKED)
            told = await decided(one, asked, {"status": "answered", "answers": [["SQLite"]]})

            assert (told["kind"], told["outcome"], told["questionId"]) == ("question", "answered", "q-1")
            assert told["answers"] == [["SQLite"]]

    run(main())


@pytest.mark.requirement("7.decision-answers")
def test_the_decision_on_a_form_has_the_id_that_clients_saw_and_what_was_filled_in() -> None:
    async def main() -> None:
        async with world() as one:
            one.client = one.connect(clientCapabilities={"elicitation": {"form": {}}})
            one.hub.attach(one.client, one.session)
            asked = one.asks(7, "elicitation/create", **FORM)
            await one.settled()
            (pending,) = one.hub.pending.of_session(one.session)
            told = await decided(one, asked, {"action": "accept", "content": {"db": "SQLite"}})

            assert (told["kind"], told["outcome"]) == ("elicitation", "answered")
            assert told["questionId"] == f"question-{pending.key}"
            assert told["content"] == {"db": "SQLite"}

    run(main())


@pytest.mark.requirement("7.reasons")
def test_a_persons_reason_is_in_the_decision_and_before_the_next_prompt() -> None:
    async def main() -> None:
        async with world() as one:
            asked = one.asks(7)
            rejected = {"outcome": {"outcome": "selected", "optionId": "no"}}
            told = await decided(one, asked, rejected | why("Not on a Friday."))
            assert told["reason"] == "Not on a Friday."

            turn = one.prompt("go on")
            sent = await one.agent.answers("session/prompt", {"stopReason": "end_turn"})
            await turn
            remark, prompt = sent["params"]["prompt"]
            assert remark["text"] == "The user refused your request and says why: Not on a Friday."
            assert prompt["text"] == "go on"

            turn = one.prompt("and on")
            sent = await one.agent.answers("session/prompt", {"stopReason": "end_turn"})
            await turn
            assert [block["text"] for block in sent["params"]["prompt"]] == ["and on"]

            said = [
                event["params"]["prompt"] for event in await one.events() if event.get("method") == "session/prompt"
            ]
            assert [len(prompt) for prompt in said] == [1, 1], "the log has what the client wrote"

    run(main())


@pytest.mark.parametrize(
    "result",
    [
        {"outcome": {"outcome": "selected", "optionId": "yes"}, **why("Go ahead.")},
        {"outcome": {"outcome": "selected", "optionId": "no"}},
        {"outcome": {"outcome": "selected", "optionId": "no"}, **why("  ")},
    ],
)
def test_without_a_refusal_and_a_reason_the_next_prompt_is_as_it_was(result: Json) -> None:
    async def main() -> None:
        async with world() as one:
            asked = one.asks(7)
            await decided(one, asked, result)
            turn = one.prompt("go on")
            sent = await one.agent.answers("session/prompt", {"stopReason": "end_turn"})
            await turn
            assert [block["text"] for block in sent["params"]["prompt"]] == ["go on"]

    run(main())


@pytest.mark.parametrize("session", [5, True, [], {}])
def test_pending_of_a_session_that_is_no_string_is_an_error(session: Any) -> None:
    async def main() -> None:
        async with world() as one:
            one.asks(7)
            await one.settled()
            refused = await one.request("_sandboxagent/session/pending", {"sessionId": session})
            assert error_of(refused)["code"] == -32602
            listed = await one.request("_sandboxagent/session/pending", {})
            assert len(result_of(listed)["pending"]) == 1

    run(main())
