"""Ids are each hop's own: clients' ids, agents' ids, and the ids inside cancellations. Contract, section 5."""

import asyncio
import json

import pytest

from tests.support.asking import (
    ALLOW,
    CANCEL,
    ELICITATION,
    ELICITATION_PARAMS,
    PERMISSION,
    REJECT,
    answer_line,
    ask_outright,
    everything,
    methods,
    permission,
    received,
    received_envelopes,
    texts,
)
from tests.support.client import Client, Json, run
from tests.support.running import BOUND, Server


def raw_request(id: str, method: str, params: Json | None = None) -> str:
    """A request whose id is this JSON text."""
    return f'{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{json.dumps(params or {})}}}'


async def hanging(client: Client, *marks: str, agent: str | None = None) -> dict[str, str]:
    """The ids on stdio of requests that hang, by the mark in their params; waits until the agent has all of them."""
    async with asyncio.timeout(BOUND):
        while True:
            lines = [json.loads(line) for line in await received(client, agent)]
            asked = {line["params"].get("mark"): line["id"] for line in lines if line.get("method") == "x/hang"}
            if asked.keys() >= set(marks):
                return asked


def of_session(line: Json, session: str) -> bool:
    params = line.get("params")
    return isinstance(params, dict) and params.get("sessionId") == session


@pytest.mark.requirement("5.client-ids-restored")
def test_ids_that_look_alike_are_three_ids_and_come_back_byte_for_byte(server: Server) -> None:
    ids = ["1", "1.0", '"1"', "0", "-7", "1e2", "123456789012345678901234567890", '"caf\\u00e9"', '"a\\/b"']

    async def main() -> None:
        async with Client(server) as a:
            waiting = [asyncio.create_task(a.post(raw_request(id, "x/hang", {"mark": f"alike {id}"}))) for id in ids]
            await hanging(a, *(f"alike {id}" for id in ids))
            await a.result("x/release")
            for id, response in zip(ids, await asyncio.gather(*waiting), strict=True):
                assert response.text == f'{{"jsonrpc":"2.0","id":{id},"result":{{"released":true}}}}'

    run(main())


@pytest.mark.requirement("5.client-ids-collide")
def test_two_clients_with_the_same_id_in_flight_get_their_own_answers(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, Client(server) as b:
            slow = asyncio.create_task(a.post(raw_request("7", "x/hang", {"mark": "collide"})))
            stdio = await hanging(a, "collide")
            answer = (await b.post(raw_request("7", "x/echo", {"from": "b"}))).json()
            assert answer["id"] == 7
            assert answer["result"]["params"] == {"from": "b"}
            assert json.loads(answer["result"]["line"])["id"] != stdio["collide"]
            assert not slow.done()
            await b.result("x/release")
            assert (await slow).json() == {"jsonrpc": "2.0", "id": 7, "result": {"released": True}}

    run(main())


@pytest.mark.requirement("5.client-ids-collide")
def test_one_client_may_use_an_id_twice_at_once_and_both_are_answered(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a:
            slow = asyncio.create_task(a.post(raw_request("7", "x/hang", {"mark": "twice"})))
            await hanging(a, "twice")
            assert (await a.post(raw_request("7", "x/echo"))).json()["result"]["method"] == "x/echo"
            await a.result("x/release")
            assert (await slow).json()["result"] == {"released": True}

    run(main())


@pytest.mark.requirement("5.agent-ids-restored")
@pytest.mark.parametrize(
    "id", ["0", '"0"', "0.0", "-3", "98765432109876543210", '"5f0c7c1e-9a40-4b39-8f7d-d1f4a7e1c1aa"', '""']
)
def test_an_agent_gets_its_answer_under_its_own_id_which_no_client_knows(server: Server, id: str) -> None:
    async def main() -> None:
        async with Client(server) as a, a.stream() as events:
            session = await a.new_session()
            turn = asyncio.create_task(a.prompt(session, [permission(id), ["echo_answer"]]))
            asked = await events.method(PERMISSION)
            assert asked.line.startswith(f'{{"jsonrpc":"2.0","id":"{asked.data["id"]}","method":"{PERMISSION}"')
            assert asked.data["id"].startswith("rq_")
            answer = f'{{"jsonrpc":"2.0","id":{id},"result":{json.dumps(ALLOW)}}}'
            assert (await a.post(answer)).status_code == 404
            assert (await a.post(answer.replace(f'"id":{id}', f'"id":"{asked.data["id"]}"'))).status_code == 202
            assert (await turn)["result"] == {"stopReason": "end_turn"}
            assert texts(await everything(a, events)) == [answer]

    run(main())


@pytest.mark.requirement("5.agent-ids-unique")
def test_two_agents_asking_under_one_id_on_one_connection_are_told_apart(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, a.stream() as events:
            mine, other = await a.new_session(), await a.new_session(agent="other")
            id = json.dumps(f"both-{mine}")
            for session in (mine, other):
                await ask_outright(a, session, permission(id), ["echo_answer"])
            first, second = await events.method(PERMISSION), await events.method(PERMISSION)
            assert first.data["id"] != second.data["id"]
            # Each is answered with its own session's id, in the other order.
            for event in (second, first):
                answer = ALLOW | {"mine": event.data["params"]["sessionId"]}
                assert (await a.answer(event.data["id"], answer)).status_code == 202
            await events.turn_ended()
            await events.turn_ended()
            for event in (event for event in events.seen if event.text):
                echoed = answer_line(event.text)
                assert echoed == {
                    "jsonrpc": "2.0",
                    "id": json.loads(id),
                    "result": ALLOW | {"mine": event.data["params"]["sessionId"]},
                }
            assert len(texts(events.seen)) == 2

    run(main())


@pytest.mark.requirement("5.agent-ids-unique")
def test_one_agent_asking_twice_under_one_open_id_gets_both_answers(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, a.stream() as events:
            session = await a.new_session()
            id = json.dumps(f"twice-{session}")
            await ask_outright(a, session, permission(id), permission(id), ["echo_answer"], ["echo_answer"])
            first, second = await events.method(PERMISSION), await events.method(PERMISSION)
            assert first.data["id"] != second.data["id"]
            assert (await a.answer(second.data["id"], ALLOW | {"n": 2})).status_code == 202
            assert (await a.answer(first.data["id"], ALLOW | {"n": 1})).status_code == 202
            await events.turn_ended()
            answers = [answer_line(text) for text in texts(events.seen)]
            assert [answer["id"] for answer in answers] == [json.loads(id)] * 2
            assert sorted(answer["result"]["n"] for answer in answers) == [1, 2]

    run(main())


@pytest.mark.requirement("5.agent-ids-never-reused")
def test_a_late_answer_to_an_old_request_does_not_settle_a_new_one_under_the_same_id(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, Client(server) as b, a.stream() as seen_a, b.stream() as seen_b:
            session = await a.new_session()
            await b.result("_sandboxagent/session/attach", {"sessionId": session})
            id = json.dumps(f"again-{session}")
            await ask_outright(a, session, permission(id), ["echo_answer"], permission(id), ["echo_answer"])
            old = (await seen_b.method(PERMISSION)).data["id"]
            await seen_a.method(PERMISSION)
            assert (await b.answer(old, REJECT)).status_code == 202
            new_a, new_b = await seen_a.method(PERMISSION), await seen_b.method(PERMISSION)
            # A has not seen that the old one was answered; it says yes to it now.
            assert (await a.answer(old, ALLOW)).status_code == 409
            assert new_a.data["id"] != old
            assert (await a.answer(new_a.data["id"], REJECT)).status_code == 202
            await seen_a.turn_ended()
            assert [answer_line(text)["result"] for text in texts(seen_a.seen)] == [REJECT, REJECT]
            assert (await b.answer(new_b.data["id"], ALLOW)).status_code == 409

    run(main())


@pytest.mark.requirement("5.cancel-request-translated")
def test_a_clients_cancel_request_reaches_the_agent_under_the_id_it_knows(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, Client(server) as b:
            session = await a.new_session()
            waiting = [
                asyncio.create_task(client.post(raw_request('"x"', "x/hang", {"mark": f"{mark} {session}"})))
                for client, mark in ((a, "a"), (b, "b"))
            ]
            stdio = await hanging(a, f"a {session}", f"b {session}")
            assert (await a.notify(CANCEL, {"requestId": "x"})).status_code == 202
            cancelled = [json.loads(line)["params"] for line in await received(a) if CANCEL in line]
            assert cancelled[-1] == {"requestId": stdio[f"a {session}"]}
            assert {"requestId": stdio[f"b {session}"]} not in cancelled
            await a.result("x/release")
            await asyncio.gather(*waiting)

    run(main())


@pytest.mark.requirement("5.cancel-request-translated")
def test_a_cancel_request_for_nothing_in_flight_does_not_reach_the_agent(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, Client(server) as b:
            mark = f"mine-{await a.new_session()}"
            waiting = asyncio.create_task(a.post(raw_request(json.dumps(mark), "x/hang", {"mark": mark})))
            await hanging(a, mark)
            before = len(await received(a))
            for id in (mark, "never used", 1, None):
                assert (await b.notify(CANCEL, {"requestId": id})).status_code == 202
            assert not [line for line in (await received(a))[before:] if CANCEL in line]
            await a.result("x/release")
            await waiting

    run(main())


@pytest.mark.requirement("5.cancel-request-translated")
def test_a_cancel_request_for_a_running_prompt_is_translated_too(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, a.stream() as events:
            session = await a.new_session()
            body = raw_request(
                '"my prompt"', "session/prompt", a.prompt_params(session, [permission(), ["wait_answer"]])
            )
            turn = asyncio.create_task(a.post(body))
            asked = await events.method(PERMISSION)
            await a.notify(CANCEL, {"requestId": "my prompt"})
            lines = await received_envelopes(a)
            (prompt,) = [line for line in lines if of_session(line, session) and "id" in line]
            assert lines[-2]["method"] == CANCEL
            assert lines[-2]["params"]["requestId"] == prompt["id"]
            await a.answer(asked.data["id"], ALLOW)
            await turn

    run(main())


@pytest.mark.requirement("5.cancel-request-translated")
def test_a_cancel_request_for_a_prompt_that_waits_takes_it_back(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, a.stream() as events:
            session = await a.new_session()
            await ask_outright(a, session, permission(), ["wait_answer"])
            asked = await events.method(PERMISSION)
            body = raw_request('"second"', "session/prompt", a.prompt_params(session, "must not run"))
            assert (await a.post(body, Prefer="respond-async")).status_code == 202
            await a.notify(CANCEL, {"requestId": "second"})
            await a.answer(asked.data["id"], ALLOW)
            answers = await events.until(lambda event: event.data.get("id") == "second")
            response = answers[-1].data
            assert response.get("result") == {"stopReason": "cancelled"} or response["error"]["code"] == -32800
            assert "must not run" not in texts(events.seen)

    run(main())


@pytest.mark.requirement("5.cancel-request-translated", "5.agent-withdraws")
def test_an_agent_that_takes_a_request_back_cancels_it_under_each_clients_own_id(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, Client(server) as b, a.stream() as seen_a, b.stream() as seen_b:
            session, foreign = await a.new_session(), await b.new_session(agent="other")
            id = json.dumps(f"withdrawn-{session}")
            # On b's connection another agent has the id already.
            await ask_outright(b, foreign, permission(id), ["wait_answer"])
            theirs = (await seen_b.method(PERMISSION)).data["id"]
            await b.result("_sandboxagent/session/attach", {"sessionId": session})
            await ask_outright(a, session, permission(id), ["cancel_own"], ["echo_answer"])
            id_a = (await seen_a.method(PERMISSION)).data["id"]
            id_b = (await seen_b.method(PERMISSION)).data["id"]
            assert id_b != theirs
            for client, stream, id in ((a, seen_a, id_a), (b, seen_b, id_b)):
                assert (await stream.method(CANCEL)).data["params"]["requestId"] == id
                response = await client.answer(id, ALLOW)
                assert response.status_code == 409
                assert response.json()["outcome"] == "cancelled"
            # An agent that asks gets an answer, also when the question was taken back: ACP demands it.
            await seen_a.turn_ended()
            answer = answer_line(texts(seen_a.seen)[0])
            assert answer.get("result", {"outcome": {}})["outcome"].get("outcome") != "selected"
            assert (await b.answer(theirs, ALLOW)).status_code == 202

    run(main())


@pytest.mark.requirement("5.elicitation-request-id")
def test_an_elicitation_names_the_request_it_belongs_to_by_the_clients_own_id(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, Client(server) as b, a.stream() as events, b.stream() as others:
            session = await a.new_session()
            await b.result("_sandboxagent/session/attach", {"sessionId": session})
            about = {**ELICITATION_PARAMS, "sessionId": None, "requestId": "$prompt"}
            program = [["ask", ELICITATION, about], ["echo_answer"]]
            body = raw_request('"my own id"', "session/prompt", a.prompt_params(session, program))
            turn = asyncio.create_task(a.post(body))
            asked = await events.method(ELICITATION)
            assert asked.data["params"]["requestId"] == "my own id"
            assert (await a.answer(asked.data["id"], {"action": "decline"})).status_code == 202
            await turn
            assert answer_line(texts(await everything(a, events))[0])["result"] == {"action": "decline"}
            assert ELICITATION not in methods(await everything(b, others)), "it is the sender's request"

    run(main())


@pytest.mark.requirement("5.elicitation-request-id")
def test_an_elicitation_with_both_a_session_and_a_request_is_translated_too(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, a.stream() as events:
            session = await a.new_session()
            program = [["ask", ELICITATION, {**ELICITATION_PARAMS, "requestId": "$prompt"}], ["wait_answer"]]
            body = raw_request('"my own id"', "session/prompt", a.prompt_params(session, program))
            assert (await a.post(body, Prefer="respond-async")).status_code == 202
            asked = await events.method(ELICITATION)
            assert asked.data["params"]["requestId"] == "my own id"
            assert (await a.answer(asked.data["id"], {"action": "decline"})).status_code == 202
            await events.turn_ended()

    run(main())


@pytest.mark.requirement("5.cancel-answers-pending", "5.elicitation-request-id")
def test_session_cancel_also_answers_an_elicitation_that_belongs_to_the_prompt(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, a.stream() as events:
            session = await a.new_session()
            about = {**ELICITATION_PARAMS, "sessionId": None, "requestId": "$prompt"}
            await ask_outright(a, session, ["ask", ELICITATION, about], ["echo_answer"])
            asked = await events.method(ELICITATION)
            await a.notify("session/cancel", {"sessionId": session})
            assert (await events.method(CANCEL)).data["params"]["requestId"] == asked.data["id"]
            await events.turn_ended()
            assert answer_line(texts(events.seen)[0])["result"] == {"action": "cancel"}

    run(main())


@pytest.mark.requirement("5.pending-waits", "5.elicitation-request-id")
def test_elicitation_of_a_gone_client_goes_to_the_next_that_attaches(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, Client(server) as b, b.stream() as events:
            session = await a.new_session()
            about = {**ELICITATION_PARAMS, "sessionId": None, "requestId": "$prompt"}
            async with a.stream() as own:
                await ask_outright(a, session, ["ask", ELICITATION, about], ["echo_answer"])
                await own.method(ELICITATION)
            await a.close()
            pending = (await b.result("_sandboxagent/session/pending", {"sessionId": session}))["pending"]
            assert [one["kind"] for one in pending] == ["elicitation"]
            await b.result("_sandboxagent/session/attach", {"sessionId": session})
            asked = await events.method(ELICITATION)
            assert (await b.answer(asked.data["id"], {"action": "decline"})).status_code == 202
            await events.turn_ended()
            assert answer_line(texts(events.seen)[0])["result"] == {"action": "decline"}

    run(main())
