"""Answers that should not count, from clients that should not give them (contract, section 7)."""

import pytest

from tests.support.asking import ALLOW, CANCEL, PERMISSION, QUESTION, answer_line, ask_outright, permission, texts
from tests.support.client import META, Client, Json, run
from tests.support.problems import problem
from tests.support.running import Server
from tests.support.world import envelope, result_of, world

ATTACH, DETACH, PENDING, EVENTS = (
    f"_sandboxagent/session/{name}" for name in ("attach", "detach", "pending", "events")
)
DECISION = "_sandboxagent/session/decision"
MANY = 10_000


@pytest.mark.requirement("7.detached")
def test_a_client_that_has_detached_cannot_answer_any_more(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, Client(server) as b, a.stream() as seen_a, b.stream() as seen_b:
            session = await a.new_session()
            await b.result(ATTACH, {"sessionId": session})
            await ask_outright(a, session, permission(), ["echo_answer"])
            id = (await seen_b.method(PERMISSION)).data["id"]
            await b.result(DETACH, {"sessionId": session})
            problem(await b.answer(id, ALLOW), 404)
            asked = await seen_a.method(PERMISSION)
            assert (await a.answer(asked.data["id"], ALLOW)).status_code == 202
            await seen_a.turn_ended()

    run(main())


@pytest.mark.requirement("7.detached")
def test_a_client_of_another_session_cannot_answer(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, Client(server) as b, a.stream() as seen:
            session = await a.new_session()
            await b.new_session()
            await ask_outright(a, session, permission('"only-a"'), ["echo_answer"])
            asked = await seen.method(PERMISSION)
            problem(await b.answer("only-a", ALLOW), 404)
            assert (await a.answer(asked.data["id"], ALLOW)).status_code == 202
            await seen.turn_ended()

    run(main())


@pytest.mark.requirement("7.who-answered")
def test_the_client_that_answers_is_named_to_the_others_and_in_the_log(server: Server) -> None:
    async def main() -> None:
        named = Client(server)
        async with named.http:
            meta = {META: {"agent": "scripted", "user": "ada@example.org"}}
            await named.initialize(clientInfo={"name": "chat", "version": "1"}, _meta=meta)
            async with Client(server) as other, named.stream() as mine, other.stream() as theirs:
                session = await named.new_session()
                await other.result(ATTACH, {"sessionId": session})
                await ask_outright(named, session, permission(), ["echo_answer"])
                asked = await mine.method(PERMISSION)
                await theirs.method(PERMISSION)
                assert (await named.answer(asked.data["id"], ALLOW)).status_code == 202
                withdrawn = (await theirs.method(CANCEL)).data["params"]["_meta"][META]
                assert (withdrawn["client"], withdrawn["user"]) == ("chat", "ada@example.org")
                await mine.turn_ended()
                events = (await named.result(EVENTS, {"sessionId": session}))["events"]
                (decision,) = [each["envelope"] for each in events if each["envelope"].get("method") == DECISION]
                by = decision["params"]["by"]
                assert (by["kind"], by["client"], by["user"]) == ("client", "chat", "ada@example.org")

    run(main())


@pytest.mark.requirement("7.odd-questions")
@pytest.mark.parametrize(
    "odd",
    [
        {"questionId": "q", "prompt": "Which?", "options": []},
        {"questionId": "q", "prompt": "Which?"},
        {"questionId": "q", "prompt": "Which?", "options": [["a", "A"], ["a", "B"]]},
        {"questionId": "q", "prompt": "Which?", "options": "none", "questions": []},
    ],
)
def test_a_question_without_options_or_with_the_same_twice_is_asked_and_answered(server: Server, odd: Json) -> None:
    async def main() -> None:
        async with Client(server) as a, a.stream() as events:
            session = await a.new_session()
            await ask_outright(a, session, ["ask", QUESTION, odd], ["echo_answer"])
            asked = await events.method(QUESTION)
            answer = {"status": "answered", "answers": [["a"]]}
            assert (await a.answer(asked.data["id"], answer)).status_code == 202
            await events.turn_ended()
            assert answer_line(texts(events.seen)[0])["result"] == answer

    run(main())


@pytest.mark.requirement("7.many-pending")
def test_ten_thousand_requests_may_wait_and_are_taken_back_together() -> None:
    async def main() -> None:
        async with world() as own:

            async def pending() -> list[Json]:
                return result_of(await own.request(PENDING, {"sessionId": "s"}))["pending"]

            turn = own.prompt()
            asked = await own.process.request("session/prompt")
            for number in range(MANY):
                own.asks(number)
            waiting = await pending()
            assert len({each["id"] for each in waiting}) == MANY
            await own.requests.answer(own.client, envelope(id=waiting[MANY // 2]["id"], result=ALLOW))
            assert len(await pending()) == MANY - 1
            await own.notify("session/cancel", sessionId="s")
            own.says(id=asked["id"], result={"stopReason": "cancelled"})
            assert result_of(await turn)["stopReason"] == "cancelled"
            assert await pending() == []
            answers = [line for line in own.process.sent if "method" not in line]
            assert [line["id"] for line in answers if line["result"] == ALLOW] == [MANY // 2]
            assert {line["id"] for line in answers} == set(range(MANY)), "the agent has an answer to each"

    run(main())
