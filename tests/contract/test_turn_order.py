"""Prompts of one session run one after another; what a cancel ends. Contract, section 5."""

import asyncio
import json

import pytest

from tests.support.asking import (
    ALLOW,
    CANCEL,
    CANCELLED,
    ELICITATION,
    ELICITATION_PARAMS,
    PERMISSION,
    QUESTION,
    QUESTION_PARAMS,
    TURN,
    answer_line,
    ask_outright,
    everything,
    permission,
    received,
    texts,
)
from tests.support.client import Client, Event, Stream, run
from tests.support.running import BOUND, Server

WAITING = 16
GATE = [permission(), ["wait_answer"]]


async def hold(client: Client, session: str, events: Stream) -> object:
    """Start a turn that lasts until the request with this id is answered."""
    await ask_outright(client, session, *GATE)
    return (await events.method(PERMISSION)).data["id"]


async def send_later(client: Client, session: str, id: str, text: object) -> None:
    """A prompt whose response comes on the stream."""
    body = {"jsonrpc": "2.0", "id": id, "method": "session/prompt", "params": client.prompt_params(session, text)}
    assert (await client.post(body, Prefer="respond-async")).status_code == 202


async def prompts_kept(client: Client, session: str) -> int:
    """How many prompts the session's log has."""
    kept = (await client.result("_sandboxagent/session/events", {"sessionId": session}))["events"]
    return sum(event["envelope"].get("method") == "session/prompt" for event in kept)


def responses(events: list[Event]) -> dict[str, object]:
    """What came of prompts sent with `send_later`, in the order of their end."""
    return {event.data["id"]: event.data.get("result", event.data.get("error")) for event in events if not event.method}


@pytest.mark.requirement("5.prompts-one-after-another")
def test_a_second_prompt_reaches_the_agent_only_when_the_first_has_ended(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, Client(server) as b, a.stream() as events:
            session = await a.new_session()
            gate = await hold(a, session, events)
            await send_later(b, session, "second", f"second of {session}")
            await send_later(a, session, "third", f"third of {session}")
            assert not any(f"second of {session}" in line for line in await received(a))
            assert (await a.answer(gate, ALLOW)).status_code == 202
            await events.until(lambda event: event.data.get("id") == "third")
            seen = [event for event in events.seen if event.method in (TURN, "session/update")]
            states = [event.data["params"].get("state") or event.text for event in seen]
            expected = ["started", "ended", "started", f"second of {session}", f"second of {session}", "ended"]
            assert states == [*expected, "started", f"third of {session}", "ended"]
            turns = [event.data["params"]["turnId"] for event in seen if event.method == TURN]
            assert turns[::2] == turns[1::2]
            assert len(set(turns)) == 3

    run(main())


@pytest.mark.requirement("5.prompts-one-after-another")
def test_prompts_of_two_sessions_run_at_the_same_time(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, a.stream() as events:
            first, second = await a.new_session(), await a.new_session()
            gate = await hold(a, first, events)
            assert (await a.prompt(second, "meanwhile"))["result"] == {"stopReason": "end_turn"}
            await a.answer(gate, ALLOW)
            await events.turn_ended()

    run(main())


@pytest.mark.requirement("5.prompt-queue-limit")
def test_sixteen_prompts_wait_in_their_order_and_the_next_is_refused_saying_so(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, Client(server) as b, a.stream() as events:
            session = await a.new_session()
            gate = await hold(a, session, events)
            for index in range(WAITING):
                await send_later(a, session, f"p{index}", f"text {index}")
            for client in (a, b):
                error = (await client.prompt(session, "one too many"))["error"]
                assert error["code"] == -32000
                assert "16" in error["message"]
            await a.answer(gate, ALLOW)
            await events.until(lambda event: event.data.get("id") == f"p{WAITING - 1}")
            assert texts(events.seen) == [f"text {index}" for index in range(WAITING)]
            ended = {id: result for id, result in responses(events.seen).items() if id.startswith("p")}
            assert ended == {f"p{index}": {"stopReason": "end_turn"} for index in range(WAITING)}
            assert (await a.prompt(session, "room again"))["result"] == {"stopReason": "end_turn"}
            assert not any("one too many" in line for line in await received(a))

    run(main())


@pytest.mark.requirement("5.prompt-queue-limit")
def test_a_refused_prompt_is_not_part_of_the_conversation(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, Client(server) as b, a.stream() as events, b.stream() as replayed:
            session = await a.new_session()
            gate = await hold(a, session, events)
            for index in range(WAITING):
                await send_later(a, session, f"p{index}", f"text {index}")
            assert "error" in await a.prompt(session, "one too many")
            await a.notify("session/cancel", {"sessionId": session})
            await events.until(lambda event: event.data.get("id") == f"p{WAITING - 1}")
            assert (await a.answer(gate, ALLOW)).status_code == 409
            await b.result("session/load", {"sessionId": session, "cwd": server.work, "mcpServers": []})
            assert "one too many" not in texts(await everything(b, replayed), "user_message_chunk")

    run(main())


@pytest.mark.requirement("5.cancel-running")
def test_cancel_ends_the_running_turn(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, Client(server) as b, a.stream() as events:
            session = await a.new_session()
            turn = asyncio.create_task(a.prompt(session, [["say", "working"], ["wait_cancel"]]))
            await events.until(lambda event: event.text == "working")
            # Any client may.
            assert (await b.notify("session/cancel", {"sessionId": session})).status_code == 202
            assert (await turn)["result"] == {"stopReason": "cancelled"}
            assert (await events.turn_ended())[-1].data["params"]["stopReason"] == "cancelled"
            assert (await a.prompt(session, "and on"))["result"] == {"stopReason": "end_turn"}

    run(main())


@pytest.mark.requirement("5.cancel-waiting")
def test_cancel_takes_back_the_prompts_that_wait_and_the_agent_never_sees_them(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, Client(server) as b, a.stream() as events:
            session = await a.new_session()
            turn = asyncio.create_task(a.prompt(session, [["say", "working"], ["wait_cancel"]]))
            await events.until(lambda event: event.text == "working")
            await send_later(a, session, "w1", f"never {session}")
            waiting = asyncio.create_task(b.prompt(session, f"never {session}"))
            await send_later(a, session, "w2", f"never {session}")
            async with asyncio.timeout(BOUND):
                while await prompts_kept(a, session) < 4:
                    pass
            assert (await a.notify("session/cancel", {"sessionId": session})).status_code == 202
            assert (await turn)["result"] == {"stopReason": "cancelled"}
            assert (await waiting)["result"] == {"stopReason": "cancelled"}
            while not (ended := responses(events.seen)).keys() >= {"w1", "w2"}:
                await events.next()
            assert ended["w1"] == ended["w2"] == {"stopReason": "cancelled"}
            assert not any(f"never {session}" in line for line in await received(a))
            assert texts(events.seen) == ["working"]

    run(main())


@pytest.mark.requirement("5.cancel-answers-pending", "7.cancelled")
def test_cancel_answers_what_is_pending_with_cancelled(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, Client(server) as b, a.stream() as events, b.stream() as others:
            session = await a.new_session()
            await b.result("_sandboxagent/session/attach", {"sessionId": session})
            asks = [["ask", PERMISSION], ["ask", QUESTION, QUESTION_PARAMS], ["ask", ELICITATION, ELICITATION_PARAMS]]
            await ask_outright(a, session, *asks, ["ask", "x/private"], *[["echo_answer"]] * 4)
            asked = [await events.next() for _ in range(5)][1:]
            assert [event.method for event in asked] == [PERMISSION, QUESTION, ELICITATION, "x/private"]
            await a.notify("session/cancel", {"sessionId": session})
            end = await events.turn_ended()
            assert end[-1].data["params"]["stopReason"] == "cancelled"
            answers = [answer_line(text) for text in texts(end)]
            assert [answer.get("result") for answer in answers[:3]] == [
                CANCELLED,
                {"status": "cancelled"},
                {"action": "cancel"},
            ]
            assert "error" in answers[3]
            for client, stream in ((a, events), (b, others)):
                seen = await everything(client, stream)
                withdrawn = [event.data["params"]["requestId"] for event in seen if event.method == CANCEL]
                assert withdrawn == [event.data["id"] for event in asked]
                late = await client.answer(withdrawn[0], ALLOW)
                assert late.status_code == 409
                assert late.json()["outcome"] == "cancelled"
            pending = await a.result("_sandboxagent/session/pending", {"sessionId": session})
            assert pending == {"pending": []}

    run(main())


@pytest.mark.requirement("5.cancel-answers-pending")
def test_the_agent_hears_of_the_cancel_before_its_requests_are_answered(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, a.stream() as events:
            session = await a.new_session()
            id = f"order-{session}"
            await ask_outright(a, session, permission(json.dumps(id)), ["wait_answer"])
            await events.method(PERMISSION)
            await a.notify("session/cancel", {"sessionId": session})
            await events.turn_ended()
            lines = [json.loads(line) for line in await received(a)]
            about = [line for line in lines if line.get("id") == id or line.get("params") == {"sessionId": session}]
            assert [line.get("method") for line in about] == ["session/cancel", None]

    run(main())


@pytest.mark.requirement("5.cancel-running")
def test_a_cancel_of_one_session_leaves_the_others_alone(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, a.stream() as events:
            mine, other = await a.new_session(), await a.new_session()
            gate = await hold(a, other, events)
            await send_later(a, other, "waits", "my turn")
            await a.notify("session/cancel", {"sessionId": mine})
            assert (await a.answer(gate, ALLOW)).status_code == 202
            await events.until(lambda event: event.data.get("id") == "waits")
            assert responses(events.seen)["waits"] == {"stopReason": "end_turn"}
            assert "my turn" in texts(events.seen)

    run(main())


@pytest.mark.requirement("5.cancel-running")
def test_a_cancel_with_nothing_running_does_not_cancel_the_next_prompt(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a:
            session = await a.new_session()
            assert (await a.notify("session/cancel", {"sessionId": session})).status_code == 202
            assert (await a.prompt(session, "hello"))["result"] == {"stopReason": "end_turn"}

    run(main())
