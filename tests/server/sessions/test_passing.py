"""Requests that are passed on without a task: under a key, when their agent is late, and when it is gone meanwhile."""

import asyncio
from typing import Any

import pytest

from sandboxagent.protocol.errors import AgentTimeout, ShuttingDown
from tests.support.world import World, envelope, error_of, result_of, run, world

CALL: dict[str, Any] = {"id": "r", "method": "x/echo", "params": {"sessionId": "s"}}
PROMPT: dict[str, Any] = {"id": "p", "method": "session/prompt", "params": {"sessionId": "s", "prompt": []}}


def submit(world: World, request: dict[str, Any], key: str | None) -> asyncio.Future[Any]:
    """The answer to a request that can be passed on."""
    reply = world.requests.submit(world.client, envelope(**request), key)

    async def answer() -> Any:
        return await reply

    return asyncio.ensure_future(answer())


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("request_", [CALL, PROMPT], ids=["call", "prompt"])
def test_an_answer_comes_back(request_: dict[str, Any], key: str | None) -> None:
    async def main() -> None:
        async with world() as one:
            answered = submit(one, request_, key)
            await one.agent.answers(request_["method"], {"stopReason": "end_turn"})

            assert result_of(await answered) == {"stopReason": "end_turn"}

    run(main())


def test_one_that_joins_under_the_key_gets_the_same_answer() -> None:
    async def main() -> None:
        async with world() as one:
            answered = submit(one, CALL, "k")
            joined = one.request(CALL["method"], CALL["params"], CALL["id"], "k")
            await one.agent.answers("x/echo", {"a": 1})

            assert (await answered).line == (await joined).line
            assert len([line for line in one.process.sent if line["method"] == "x/echo"]) == 1

    run(main())


def test_an_answer_that_comes_late_is_kept_under_the_key() -> None:
    async def main() -> None:
        async with world() as one:
            answered = submit(one, CALL, "k")
            request = await one.process.request("x/echo")
            one.now += 200
            one.timeout_loop.tick()
            with pytest.raises(AgentTimeout):
                await answered
            again = one.request(CALL["method"], CALL["params"], CALL["id"], "k")
            await one.settled()
            one.says(id=request["id"], result={"a": 1})

            assert result_of(await again) == {"a": 1}
            assert result_of(await one.request(CALL["method"], CALL["params"], CALL["id"], "k")) == {"a": 1}

    run(main())


def test_a_session_whose_agent_is_gone_before_the_key_is_on_disk_is_brought_back() -> None:
    async def main() -> None:
        async with world() as one:
            answered = submit(one, PROMPT, "k")
            one.agent.crashes()
            await (await one.started()).answers("session/resume")
            await one.agent.answers("session/prompt", {"stopReason": "end_turn"})

            assert result_of(await answered) == {"stopReason": "end_turn"}

    run(main())


def test_what_is_wrong_with_a_request_is_its_answer_under_the_key() -> None:
    async def main() -> None:
        async with world(queue=0) as one:
            running = one.prompt()
            await one.process.request("session/prompt")
            refused = await submit(one, PROMPT, "k")
            again = await one.request(PROMPT["method"], PROMPT["params"], PROMPT["id"], "k")

            assert error_of(refused)["data"]["type"] == "prompt-queue-full"
            assert again.line == refused.line
            running.cancel()

    run(main())


@pytest.mark.parametrize("key", [None, "k"])
def test_a_server_that_stops_lets_its_client_know(key: str | None) -> None:
    async def main() -> None:
        async with world() as one:
            answered = submit(one, CALL, key)
            await one.process.request("x/echo")
            one.hub.calls.fail_all(ShuttingDown())

            with pytest.raises(ShuttingDown):
                await answered

    run(main())


@pytest.mark.parametrize(
    "request_",
    [
        {**CALL, "params": {"sessionId": "unknown"}},
        {**CALL, "params": {}},
        {**CALL, "method": "session/list"},
        {**PROMPT, "params": PROMPT["params"] | {"_meta": {"sandboxagent.dev": {"attachments": [{"path": "x"}]}}}},
    ],
    ids=["no such session", "no session", "a method of the server", "files"],
)
def test_what_may_have_to_wait_for_something_else_is_not_passed_on(request_: dict[str, Any]) -> None:
    async def main() -> None:
        async with world() as one:
            one.requests.submit(one.client, envelope(**request_))

            assert len(one.requests._tasks) == 1
            assert one.process.sent == []

    run(main())


@pytest.mark.parametrize("when", ["begun", "accepted"])
def test_a_caller_that_leaves_takes_nothing_from_the_next_one_under_its_key(when: str) -> None:
    async def main() -> None:
        async with world() as one:
            leaving = one.request(CALL["method"], CALL["params"], CALL["id"], "k")
            if when == "accepted":
                await one.process.has_been_sent(1)
            await asyncio.sleep(0)
            leaving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await leaving
            again = one.request(CALL["method"], CALL["params"], CALL["id"], "k")
            await one.agent.answers("x/echo", {"a": 1})

            assert result_of(await again) == {"a": 1}
            assert len(one.process.sent) == 1

    run(main())
