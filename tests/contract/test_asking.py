"""What agents ask of humans: who is asked, whose answer counts, and what happens when no answer comes.

Contract, section 5, 7 and 12.
"""

import asyncio
import json
from collections.abc import Generator

import pytest

from tests.support.asking import (
    ALLOW,
    CANCEL,
    CANCELLED,
    ELICITATION,
    ELICITATION_PARAMS,
    PERMISSION,
    PERMISSION_PARAMS,
    QUESTION,
    QUESTION_PARAMS,
    REJECT,
    answer_line,
    ask_outright,
    everything,
    methods,
    permission,
    texts,
)
from tests.support.client import Client, Json, run
from tests.support.running import BOUND, Server

EVENTS = "_sandboxagent/session/events"
ATTACH, DETACH = "_sandboxagent/session/attach", "_sandboxagent/session/detach"
PENDING = "_sandboxagent/session/pending"
QUESTION_ANSWER: Json = {"status": "answered", "answers": [["a"]]}


@pytest.mark.requirement("7.permission-passes-through")
def test_a_permission_request_passes_through_with_the_agents_own_options(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, a.stream() as events:
            session = await a.new_session()
            turn = asyncio.create_task(a.prompt(session, [permission(), ["echo_answer"]]))
            asked = await events.method(PERMISSION)
            assert asked.data["params"] == {"sessionId": session, **PERMISSION_PARAMS}
            assert (await a.answer(asked.data["id"], ALLOW)).status_code == 202
            assert (await turn)["result"] == {"stopReason": "end_turn"}
            assert answer_line(texts(await everything(a, events))[0])["result"] == ALLOW

    run(main())


@pytest.mark.requirement("6.events-request-id")
def test_the_event_of_a_request_has_its_id_as_long_as_it_is_open(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, a.stream() as events, Client(server) as b:
            session = await a.new_session()
            # An agent may use an id again once it has its answer.
            asks = [permission("7"), ["wait_answer"]]
            turn = asyncio.create_task(a.prompt(session, [*asks, *asks, ["say", "over"]]))
            first = await events.method(PERMISSION)
            assert await open_requests(b, session) == [first.data["id"]]
            assert (await a.answer(first.data["id"], ALLOW)).status_code == 202
            second = (await events.until(lambda event: event.method == PERMISSION and event.id != first.id))[-1]
            assert await open_requests(b, session) == [second.data["id"]]
            await b.result(ATTACH, {"sessionId": session})
            assert (await b.answer(second.data["id"], ALLOW)).status_code == 202
            await turn
            assert await open_requests(a, session) == []

    async def open_requests(client: Client, session: str) -> list[str]:
        page = await client.result(EVENTS, {"sessionId": session})
        named = [event for event in page["events"] if "requestId" in event]
        assert all(event["envelope"]["method"] == PERMISSION for event in named)
        assert named == named[-1:]
        return [event["requestId"] for event in named]

    run(main())


@pytest.mark.requirement("7.question-passes-through")
def test_a_question_passes_through_and_so_does_its_answer(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, a.stream() as events:
            session = await a.new_session()
            await ask_outright(a, session, ["ask", QUESTION, QUESTION_PARAMS], ["echo_answer"])
            asked = await events.method(QUESTION)
            assert asked.data["params"] == {"sessionId": session, **QUESTION_PARAMS}
            assert (await a.answer(asked.data["id"], QUESTION_ANSWER)).status_code == 202
            assert answer_line(texts(await events.turn_ended())[0])["result"] == QUESTION_ANSWER

    run(main())


@pytest.mark.requirement("7.question-status")
@pytest.mark.parametrize(
    ("answer", "outcome"), [(QUESTION_ANSWER, "answered"), ({"status": "rejected"}, "rejected"), (None, "cancelled")]
)
def test_a_late_answer_to_a_question_is_refused_with_the_outcome(
    server: Server, answer: Json | None, outcome: str
) -> None:
    async def main() -> None:
        async with Client(server) as a, Client(server) as b, a.stream() as events, b.stream() as others:
            session = await a.new_session()
            await b.result(ATTACH, {"sessionId": session})
            await ask_outright(a, session, ["ask", QUESTION, QUESTION_PARAMS], ["wait_answer"])
            asked = await events.method(QUESTION)
            if answer is None:
                await a.notify("session/cancel", {"sessionId": session})
            else:
                await a.answer(asked.data["id"], answer)
            await events.turn_ended()
            late = await b.answer((await others.method(QUESTION)).data["id"], QUESTION_ANSWER)
            assert late.status_code == 409
            assert late.headers["content-type"].startswith("application/problem+json")
            assert late.json()["outcome"] == outcome

    run(main())


@pytest.mark.requirement("5.asks-all-attached", "5.first-answer-wins")
def test_all_attached_are_asked_and_the_first_answer_wins(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, Client(server, "other") as b, Client(server) as c:
            session = await a.new_session()
            await b.result(ATTACH, {"sessionId": session})
            await c.result(ATTACH, {"sessionId": session})
            async with a.stream() as seen_a, b.stream() as seen_b, c.stream() as seen_c:
                await ask_outright(a, session, permission(), ["echo_answer"])
                ids = [(await stream.method(PERMISSION)).data["id"] for stream in (seen_a, seen_b, seen_c)]
                assert (await b.answer(ids[1], REJECT)).status_code == 202
                for client, stream, id in ((a, seen_a, ids[0]), (c, seen_c, ids[2])):
                    withdrawn = await stream.method(CANCEL)
                    assert withdrawn.data["params"]["requestId"] == id
                    assert "id" not in withdrawn.data
                    late = await client.answer(id, ALLOW)
                    assert late.status_code == 409
                    assert late.json()["type"] == "urn:sandbox-agent:error:already-answered"
                    assert late.json()["outcome"] == "answered"
                twice = await b.answer(ids[1], ALLOW)
                assert twice.status_code == 409
                await seen_a.turn_ended()
                assert [answer_line(text)["result"] for text in texts(seen_a.seen)] == [REJECT]
                assert CANCEL not in methods(await everything(b, seen_b)), "who answered is not told to stop"

    run(main())


@pytest.mark.requirement("5.first-answer-wins")
def test_of_many_answers_at_once_exactly_one_is_taken(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, Client(server) as b, a.stream() as seen_a, b.stream() as seen_b:
            session = await a.new_session()
            await b.result(ATTACH, {"sessionId": session})
            await ask_outright(a, session, permission(), ["echo_answer"], ["say", "end"])
            id_a, id_b = (await seen_a.method(PERMISSION)).data["id"], (await seen_b.method(PERMISSION)).data["id"]
            answers = [(client, id, n) for n in range(5) for client, id in ((a, id_a), (b, id_b))]
            sent = [client.answer(id, ALLOW | {"n": f"{n} {client is a}"}) for client, id, n in answers]
            taken = [response.status_code for response in await asyncio.gather(*sent)]
            assert sorted(taken) == [202, *[409] * 9]
            client, _, n = answers[taken.index(202)]
            await seen_a.turn_ended()
            assert answer_line(texts(seen_a.seen)[0])["result"]["n"] == f"{n} {client is a}"
            assert texts(seen_a.seen)[1:] == ["end"]

    run(main())


@pytest.mark.requirement("5.first-answer-wins")
def test_an_error_is_an_answer_too(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, a.stream() as events:
            session = await a.new_session()
            await ask_outright(a, session, permission(), ["echo_answer"])
            id = (await events.method(PERMISSION)).data["id"]
            error = {"code": -32601, "message": "what is a permission?"}
            assert (await a.post({"jsonrpc": "2.0", "id": id, "error": error})).status_code == 202
            assert answer_line(texts(await events.turn_ended())[0])["error"] == error
            assert (await a.answer(id, ALLOW)).status_code == 409

    run(main())


@pytest.mark.requirement("5.answer-unasked")
def test_an_answer_under_an_id_that_was_asked_of_others_only_is_refused(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, Client(server) as b, a.stream() as events:
            session = await a.new_session()
            await ask_outright(a, session, permission(), ["echo_answer"])
            id = (await events.method(PERMISSION)).data["id"]
            refused = await b.answer(id, ALLOW)
            assert refused.status_code == 404
            assert refused.json()["type"] == "urn:sandbox-agent:error:nobody-asked"
            assert (await a.answer(id, REJECT)).status_code == 202
            assert answer_line(texts(await events.turn_ended())[0])["result"] == REJECT

    run(main())


@pytest.mark.requirement("5.pending-waits")
def test_request_without_attached_client_waits_listed_for_the_next_one(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, Client(server) as b, b.stream() as events:
            session = await a.new_session()
            gate = ["ask", "x/gate", {"sessionId": None}]
            async with a.stream() as own:
                await ask_outright(a, session, gate, ["wait_answer"], permission(), ["echo_answer"])
                opened = await own.method("x/gate")
                await a.result(DETACH, {"sessionId": session})
                # The agent goes on when no client is there any more.
                assert (await a.answer(opened.data["id"], {})).status_code == 202
            listed: list[Json] = []
            async with asyncio.timeout(BOUND):
                while not listed:
                    listed = (await b.result(PENDING, {"sessionId": session}))["pending"]
            assert [one["kind"] for one in listed] == ["permission"]
            assert [one["sessionId"] for one in listed] == [session]
            assert listed[0]["envelope"]["params"] == {"sessionId": session, **PERMISSION_PARAMS}
            assert listed[0]["askedAt"]
            history = await b.result("_sandboxagent/session/events", {"sessionId": session})
            (logged,) = [one["envelope"] for one in history["events"] if one["envelope"].get("method") == PERMISSION]
            assert listed[0]["agentRequestId"] == logged["id"]
            view = (await b.http.get(f"/v1/sessions/{session}")).json()
            assert view["pending"] == 1
            assert PERMISSION not in methods(await everything(b, events))
            attached = await b.result(ATTACH, {"sessionId": session})
            assert attached["pending"] == listed
            asked = await events.method(PERMISSION)
            assert asked.data == listed[0]["envelope"]
            assert asked.data["id"] == listed[0]["id"]
            assert (await b.answer(asked.data["id"], REJECT)).status_code == 202
            assert answer_line(texts(await events.turn_ended())[0])["result"] == REJECT
            assert (await b.result(PENDING, {"sessionId": session}))["pending"] == []

    run(main())


@pytest.mark.requirement("5.pending-waits")
@pytest.mark.parametrize("how", ["load", "resume", "attach"])
def test_client_attaching_during_a_request_is_asked_and_told_of_its_end(server: Server, how: str) -> None:
    async def main() -> None:
        async with Client(server) as a, Client(server) as b, a.stream() as seen_a, b.stream() as seen_b:
            session = await a.new_session()
            await ask_outright(a, session, permission(), ["wait_answer"])
            first = await seen_a.method(PERMISSION)
            params = {"sessionId": session, "cwd": server.work, "mcpServers": []}
            await b.result(ATTACH if how == "attach" else f"session/{how}", params)
            second = await seen_b.method(PERMISSION)
            assert second.data["params"] == first.data["params"]
            assert (await a.answer(first.data["id"], ALLOW)).status_code == 202
            assert (await seen_b.method(CANCEL)).data["params"]["requestId"] == second.data["id"]
            late = await b.answer(second.data["id"], ALLOW)
            assert late.json()["outcome"] == "answered"

    run(main())


@pytest.mark.requirement("5.pending-waits")
def test_a_reconnecting_stream_shows_an_open_request_under_the_id_it_had(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a:
            mine, other = await a.new_session(), await a.new_session(agent="other")
            id = json.dumps(f"again-{mine}")
            for session in (mine, other):
                await ask_outright(a, session, permission(id), ["echo_answer"])
            async with a.stream() as events:
                first = [(await events.method(PERMISSION)).line for _ in range(2)]
            async with a.stream() as events:
                asked = [await events.method(PERMISSION) for _ in range(2)]
                assert [event.line for event in asked] == first
                for event in asked:
                    assert (await a.answer(event.data["id"], ALLOW)).status_code == 202
                await events.turn_ended()
                await events.turn_ended()

    run(main())


# No answer


@pytest.fixture(scope="module")
def hurried() -> Generator[Server]:
    with Server("--no-persist", "--permission-timeout", "0.3s") as running:
        yield running


@pytest.mark.requirement("7.deadline-rejects")
@pytest.mark.parametrize(
    ("method", "params", "told"),
    [
        (PERMISSION, PERMISSION_PARAMS, REJECT),
        (PERMISSION, {**PERMISSION_PARAMS, "options": PERMISSION_PARAMS["options"][:2]}, CANCELLED),
        (PERMISSION, {"toolCall": {}}, CANCELLED),
        (PERMISSION, {"toolCall": {}, "options": [{"kind": "reject_once"}, 7, None]}, CANCELLED),
        (QUESTION, QUESTION_PARAMS, {"status": "rejected"}),
        (ELICITATION, ELICITATION_PARAMS, {"action": "decline"}),
    ],
    ids=["permission", "no-reject-option", "no-options", "odd-options", "question", "elicitation"],
)
def test_at_the_deadline_the_answer_is_no(hurried: Server, method: str, params: Json, told: Json) -> None:
    async def main() -> None:
        async with Client(hurried) as a, a.stream() as events:
            session = await a.new_session()
            await ask_outright(a, session, ["ask", method, params], ["echo_answer"])
            asked = await events.method(method)
            assert (await events.method(CANCEL)).data["params"]["requestId"] == asked.data["id"]
            await events.turn_ended()
            assert answer_line(texts(events.seen)[0])["result"] == told
            late = await a.answer(asked.data["id"], ALLOW)
            assert late.status_code == 409
            assert late.json()["outcome"] == "rejected"

    run(main())


@pytest.mark.requirement("7.deadline-rejects")
def test_the_deadline_also_counts_with_no_client_attached(hurried: Server) -> None:
    async def main() -> None:
        async with Client(hurried) as a, Client(hurried) as b, b.stream() as events:
            session = await a.new_session()
            await ask_outright(a, session, permission(), ["wait_answer"], ["ask", "x/end"], ["wait_answer"])
            await a.close()
            log: list[Json] = []
            async with asyncio.timeout(BOUND):
                while not any(event["envelope"].get("method") == "x/end" for event in log):
                    log = (await b.result("_sandboxagent/session/events", {"sessionId": session}))["events"]
            (answer,) = [event for event in log if event["envelope"].get("result") == REJECT]
            assert answer["direction"] == "fromServer"
            await b.notify("session/cancel", {"sessionId": session})
            assert PERMISSION not in methods(await everything(b, events))

    run(main())


@pytest.mark.requirement("7.no-deadline-by-default")
def test_without_a_deadline_a_request_waits_longer_than_any_other_timeout() -> None:
    async def main(server: Server) -> None:
        async with Client(server) as a, a.stream() as events:
            session = await a.new_session()
            turn = asyncio.create_task(a.prompt(session, [permission(), ["echo_answer"]]))
            asked = await events.method(PERMISSION)
            # Another request times out meanwhile, and another turn ends for idleness.
            other = await a.new_session()
            hung, idle = await asyncio.gather(
                a.post({"jsonrpc": "2.0", "id": "h", "method": "x/hang", "params": {}}),
                a.post(
                    {
                        "jsonrpc": "2.0",
                        "id": "i",
                        "method": "session/prompt",
                        "params": a.prompt_params(other, [["wait_cancel"]]),
                    }
                ),
            )
            assert (hung.status_code, idle.status_code) == (504, 504)
            assert not turn.done()
            assert (await a.answer(asked.data["id"], ALLOW)).status_code == 202
            assert (await turn)["result"] == {"stopReason": "end_turn"}

    with Server("--no-persist", "--request-timeout", "2s", "--turn-idle-timeout", "2s") as server:
        run(main(server))
