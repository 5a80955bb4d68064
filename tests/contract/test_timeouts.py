"""Section 3: who waits how long, and what becomes of an answer that comes too late."""

import asyncio
import json
from collections.abc import Generator
from typing import Any

import httpx
import pytest

from tests.support.asking import ALLOW, PERMISSION, permission
from tests.support.client import META, Client, run
from tests.support.problems import problem
from tests.support.running import Server, scripted

LATE, IDLE = 1.0, 2.0
"""Seconds that a request and a silent turn may take: more than anything here takes on a busy machine."""
FLAGS = ("--no-persist", "--request-timeout", f"{LATE}s", "--turn-idle-timeout", f"{IDLE}s")


@pytest.fixture(scope="module")
def impatient() -> Generator[Server]:
    agents = {"silent": scripted("--bad-handshake", "silent"), "deaf": scripted(), "clock": scripted()}
    with Server(*FLAGS, agents=agents) as running:
        yield running


async def post(client: Client, id: str, method: str, params: object = None) -> httpx.Response:
    """A POST whose id is JSON text."""
    return await client.post(f'{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{json.dumps(params or {})}}}')


async def time_passes(client: Client, seconds: float) -> None:
    """A turn of another agent is the clock: it says something all the while, so that it is never idle itself."""
    session = await client.new_session(agent="clock")
    steps: list[Any] = [["say", "tick"], ["sleep", 0.2]]
    response = await client.prompt(session, steps * round(seconds / 0.2))
    assert response["result"] == {"stopReason": "end_turn"}


@pytest.mark.requirement("3.request-timeout-504")
def test_a_request_that_is_not_answered_in_time_is_a_504(impatient: Server) -> None:
    async def main() -> None:
        async with Client(impatient) as client:
            document = problem(await post(client, "1", "x/hang"), 504, "agent-timeout")
            assert (document["agent"], document["method"]) == ("scripted", "x/hang")
            await client.result("x/release")

    run(main())


@pytest.mark.requirement("3.request-timeout-504")
def test_a_session_that_is_not_made_in_time_is_a_504(impatient: Server) -> None:
    async def main() -> None:
        async with Client(impatient, "deaf") as client:
            session = await client.new_session()
            await client.prompt(session, [["stop_reading"]])
            response = await post(client, "1", "session/new", {"cwd": impatient.work, "mcpServers": []})
            assert problem(response, 504, "agent-timeout")["method"] == "session/new"

    run(main())


@pytest.mark.requirement("3.request-timeout-504")
def test_an_agent_that_does_not_shake_hands_in_time_is_a_504(impatient: Server) -> None:
    async def main() -> None:
        client = Client(impatient)
        async with client.http:
            response = await post(client, "1", "initialize", {"_meta": {META: {"agent": "silent"}}})
            assert problem(response, 504)["agent"] == "silent"

    run(main())


@pytest.mark.requirement("3.late-answer")
def test_an_answer_that_comes_after_the_504_goes_to_the_stream(impatient: Server) -> None:
    async def main() -> None:
        async with Client(impatient) as client, client.stream() as stream:
            problem(await post(client, "1.0", "x/hang"), 504)
            await client.result("x/release")
            assert (await stream.next()).line == '{"jsonrpc":"2.0","id":1.0,"result":{"released":true}}'

    run(main())


@pytest.mark.requirement("3.late-answer")
def test_an_answer_that_comes_after_the_504_is_kept_for_a_later_stream(impatient: Server) -> None:
    async def main() -> None:
        async with Client(impatient) as client:
            problem(await post(client, '"kept"', "x/hang"), 504)
            await client.result("x/release")
            async with client.stream() as stream:
                assert (await stream.next()).data["id"] == "kept"

    run(main())


@pytest.mark.requirement("3.late-answer")
def test_other_requests_are_answered_while_one_is_late(impatient: Server) -> None:
    async def main() -> None:
        async with Client(impatient) as client:
            problem(await post(client, "1", "x/hang"), 504)
            assert "result" in await client.call("x/echo")
            assert (await client.result("x/release"))["released"] >= 1

    run(main())


@pytest.mark.requirement("3.turn-no-total-limit")
def test_a_turn_may_take_any_time_as_long_as_the_agent_says_something(impatient: Server) -> None:
    async def main() -> None:
        async with Client(impatient) as client:
            session = await client.new_session()
            steps: list[Any] = [["sleep", IDLE / 4], ["say", "still there"]]
            response = await client.prompt(session, [*steps * 4, ["sleep", IDLE / 4]])
            assert response["result"] == {"stopReason": "end_turn"}

    run(main())


@pytest.mark.requirement("3.turn-idle-504", "3.late-answer")
def test_a_turn_without_a_sign_of_life_is_a_504_and_goes_on(impatient: Server) -> None:
    async def main() -> None:
        async with Client(impatient) as client, client.stream() as stream:
            session = await client.new_session()
            params = client.prompt_params(session, [["say", "begun"], ["wait_cancel"], ["say", "went on"]])
            response = await post(client, '"idle"', "session/prompt", params)
            assert problem(response, 504, "agent-timeout")["method"] == "session/prompt"
            await client.notify("session/cancel", {"sessionId": session})
            events = await stream.until(lambda event: event.data.get("id") == "idle")
            assert [event.text for event in events if event.text] == ["begun", "went on"]
            assert events[-1].data["result"] == {"stopReason": "cancelled"}

    run(main())


@pytest.mark.requirement("3.busy-after-504")
def test_a_session_stays_busy_after_the_504_until_its_agent_answers(impatient: Server) -> None:
    async def main() -> None:
        async with Client(impatient) as client, client.stream() as stream:
            session = await client.new_session()
            first = client.prompt_params(session, [["wait_cancel"], ["sleep", 0.2], ["say", "first is over"]])
            problem(await post(client, '"first"', "session/prompt", first), 504)
            # Not cancelled with the first: it comes after the cancellation.
            await client.notify("session/cancel", {"sessionId": session})
            assert (await client.prompt(session, [["say", "second"]]))["result"] == {"stopReason": "end_turn"}
            events = await stream.until(lambda event: event.text == "second")
            assert [event.text for event in events if event.text] == ["first is over", "second"]
            states = [event.data["params"]["state"] for event in events if event.method.endswith("/turn")]
            assert states == ["started", "ended", "started"]

    run(main())


@pytest.mark.requirement("3.turn-waits-for-human")
def test_a_turn_is_not_idle_while_a_human_is_asked(impatient: Server) -> None:
    async def main() -> None:
        async with Client(impatient) as client, client.stream() as stream:
            session = await client.new_session()
            turn = asyncio.create_task(client.prompt(session, [permission(), ["wait_answer"]]))
            asked = await stream.method(PERMISSION)
            await time_passes(client, 1.2 * IDLE)
            assert not turn.done()
            await client.answer(asked.data["id"], ALLOW)
            assert (await turn)["result"] == {"stopReason": "end_turn"}

    run(main())


@pytest.mark.requirement("3.turn-waits-for-human")
def test_the_time_a_human_took_does_not_count_as_idle_afterwards(impatient: Server) -> None:
    async def main() -> None:
        async with Client(impatient) as client, client.stream() as stream:
            session = await client.new_session()
            turn = asyncio.create_task(client.prompt(session, [permission(), ["wait_answer"], ["sleep", IDLE / 4]]))
            asked = await stream.method(PERMISSION)
            await time_passes(client, 1.2 * IDLE)
            await client.answer(asked.data["id"], ALLOW)
            assert (await turn)["result"] == {"stopReason": "end_turn"}

    run(main())


@pytest.mark.requirement("3.turn-idle-504")
def test_a_prompt_that_waits_for_its_turn_is_not_idle(impatient: Server) -> None:
    async def main() -> None:
        async with Client(impatient) as client, client.stream() as stream:
            session = await client.new_session()
            steps: list[Any] = [["say", "busy"], ["sleep", IDLE / 4]]
            first = asyncio.create_task(client.prompt(session, steps * 5))
            await stream.until(lambda event: event.text == "busy")
            second = await client.prompt(session, "my turn")
            assert second["result"] == (await first)["result"] == {"stopReason": "end_turn"}

    run(main())


@pytest.mark.requirement("3.request-timeout-504", "3.respond-async")
def test_an_asynchronous_request_has_one_response_on_the_stream_however_late(impatient: Server) -> None:
    async def main() -> None:
        async with Client(impatient) as client, client.stream() as stream:
            body = '{"jsonrpc":"2.0","id":"slow","method":"x/hang"}'
            assert (await client.post(body, Prefer="respond-async")).status_code == 202
            await time_passes(client, 1.2 * LATE)
            await client.result("x/release")
            await client.post('{"jsonrpc":"2.0","id":"end","method":"x/echo"}', Prefer="respond-async")
            events = await stream.until(lambda event: event.data.get("id") == "end")
            responses = [event.data for event in events if event.data.get("id") == "slow"]
            # JSON-RPC has one response for a request; who has waited on the stream anyway waits for the real one.
            assert responses == [{"jsonrpc": "2.0", "id": "slow", "result": {"released": True}}]

    run(main())
