"""Requests that are accepted at once and answered on the stream, without a task."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sandboxagent.protocol.errors import AgentTimeout, ShuttingDown, TooMany
from sandboxagent.server.http.deliver import Delivery
from sandboxagent.server.http.ports import HubClients
from sandboxagent.server.sessions.reply import Reply
from tests.support.logs import until
from tests.support.world import World, envelope, run, world

MOST = 10
CALL: dict[str, Any] = {"id": "r", "method": "x/echo", "params": {"sessionId": "s"}}
PROMPT: dict[str, Any] = {"id": "p", "method": "session/prompt", "params": {"sessionId": "s", "prompt": []}}


def submit(world: World, request: dict[str, Any], key: str | None) -> asyncio.Future[int | Exception]:
    """What a client learns of a request that is passed on: where it is kept, or why it was refused."""
    taken: asyncio.Future[int | Exception] = asyncio.get_running_loop().create_future()
    delivery = Delivery(HubClients(world.hub), world.requests, MOST)
    delivery.deliver(world.client, envelope(**request), key).when_accepted(taken.set_result)
    return taken


async def begin(world: World, request: dict[str, Any], key: str | None) -> None:
    """A request that may have to wait for more than its agent's answer."""
    delivery = Delivery(HubClients(world.hub), world.requests, MOST)
    await delivery.deliver(world.client, envelope(**request), key).accepted()


async def responses(world: World, id: str) -> list[dict[str, Any]]:
    """What its client has been sent under an id so far."""
    return [line for line in await world.heard(world.client) if line.get("id") == id and "method" not in line]


async def only_response(world: World, id: str) -> dict[str, Any]:
    while not (found := await responses(world, id)):
        # The log's thread reads: others go on meanwhile.
        continue
    await world.settled()
    assert await responses(world, id) == found
    return found[0]


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("request_", [CALL, PROMPT], ids=["call", "prompt"])
def test_a_response_comes_once_and_after_what_came_before_it(request_: dict[str, Any], key: str | None) -> None:
    async def main() -> None:
        async with world() as one:
            taken = submit(one, request_, key)
            request = await one.process.request(request_["method"])
            kept = await one.log.history("s", 0, one.log.position + 1, 10)
            assert await taken == next(chunk.first for chunk in kept if request_["method"].encode() in chunk.lines[0])
            assert await responses(one, request_["id"]) == []
            one.agent.updates("hello")
            one.says(id=request["id"], result={"stopReason": "end_turn"})

            assert (await only_response(one, request_["id"]))["result"] == {"stopReason": "end_turn"}
            heard = [line.get("method", line.get("id")) for line in await one.heard(one.client)]
            assert heard.index("session/update") < heard.index(request_["id"])
            assert one.client.busy == 0

    run(main())


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("request_", [CALL, PROMPT], ids=["call", "prompt"])
def test_one_that_an_agent_only_has_to_answer_has_no_task(request_: dict[str, Any], key: str | None) -> None:
    async def main() -> None:
        async with world() as one:
            before = asyncio.all_tasks()
            await begin(one, request_, key)
            request = await one.process.request(request_["method"])
            assert asyncio.all_tasks() == before
            one.says(id=request["id"], result={"stopReason": "end_turn"})

            assert (await only_response(one, request_["id"]))["result"] == {"stopReason": "end_turn"}
            assert one.client.busy == 0

    run(main())


def test_a_caller_that_leaves_before_its_request_is_kept_takes_nothing_from_it() -> None:
    async def main() -> None:
        async with world() as one:
            beginning = asyncio.ensure_future(begin(one, PROMPT, "k"))
            await asyncio.sleep(0)
            beginning.cancel()
            await one.agent.answers("session/prompt", {"stopReason": "end_turn"})

            assert (await only_response(one, "p"))["result"] == {"stopReason": "end_turn"}
            assert beginning.cancelled()

    run(main())


def test_what_is_wrong_with_the_method_comes_on_the_stream() -> None:
    async def main() -> None:
        async with world(queue=0) as one:
            running = one.prompt(id="first")
            await one.process.request("session/prompt")

            assert isinstance(await submit(one, PROMPT, None), int)
            response = await only_response(one, "p")
            assert response["error"]["data"]["type"] == "prompt-queue-full"
            running.cancel()

    run(main())


def test_what_ends_the_exchange_later_comes_on_the_stream() -> None:
    async def main() -> None:
        async with world() as one:
            await submit(one, CALL, None)
            one.hub.calls.fail_all(ShuttingDown())

            response = await only_response(one, "r")
            assert response["error"]["data"]["type"] == ShuttingDown.slug
            assert one.client.busy == 0

    run(main())


def test_an_agent_that_takes_too_long_is_still_waited_for() -> None:
    async def main() -> None:
        async with world() as one:
            await submit(one, CALL, "k")
            request = await one.process.request("x/echo")
            one.now += 200
            one.timeout_loop.tick()
            assert await responses(one, "r") == []
            one.says(id=request["id"], result={"a": 1})

            assert (await only_response(one, "r"))["result"] == {"a": 1}

    run(main())


def test_a_session_whose_agent_is_gone_before_the_key_is_on_disk_is_brought_back() -> None:
    async def main() -> None:
        async with world() as one:
            taken = submit(one, PROMPT, "k")
            one.agent.crashes()
            await until(lambda: one.agents[-1] is not None)
            await one.agent.answers("session/resume")
            assert isinstance(await taken, int)
            await one.agent.answers("session/prompt", {"stopReason": "end_turn"})

            assert (await only_response(one, "p"))["result"] == {"stopReason": "end_turn"}

    run(main())


@pytest.mark.requirement("3.async-no-late-answer")
@pytest.mark.parametrize("key", [None, "k"])
def test_request_whose_session_resumes_too_late_is_answered_once(key: str | None) -> None:
    """The answer comes on the stream."""

    async def main() -> None:
        async with world() as one:
            one.agent.crashes()
            await begin(one, PROMPT, key)
            resume = await (await one.started()).pipe.request("session/resume")
            one.now += 200
            one.timeout_loop.tick()

            assert (await only_response(one, "p"))["error"]["data"]["type"] == "agent-timeout"
            one.says(id=resume["id"], result={})
            assert "error" in await only_response(one, "p")

    run(main())


@pytest.mark.requirement("3.async-no-late-answer")
def test_a_request_whose_agent_does_not_start_in_time_is_answered_on_the_stream() -> None:
    async def main() -> None:
        async with world() as one:
            one.agent.crashes()
            one.start_failure = AgentTimeout("agent a did not answer initialize in 120 s", agent="a")
            await begin(one, {"id": "n", "method": "session/new", "params": {"cwd": "/", "mcpServers": []}}, None)

            assert (await only_response(one, "n"))["error"]["data"]["type"] == "agent-timeout"

    run(main())


class Fault(Exception):
    """None of ours."""


class FaultyIntake:
    """Takes requests, and fails at their answers."""

    def __init__(self, *, at_once: bool) -> None:
        self._at_once = at_once

    def submit(self, *_: object, on_stream: bool) -> Reply:
        reply = Reply()
        reply.accept(0)
        if self._at_once:
            reply.set_exception(Fault("injected"))
        else:
            asyncio.get_running_loop().call_soon(reply.set_exception, Fault("injected"))
        return reply


class FaultyClients:
    """Clients of a world, of which some part fails."""

    def __init__(self, world: World, broken: str) -> None:
        self._clients: Any = HubClients(world.hub)
        self._broken = broken

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clients, name)

    def when_committed(self, position: int, callback: Callable[[Exception | None], None]) -> None:
        if self._broken == "when_committed":
            callback(Fault("injected"))
        else:
            self._clients.when_committed(position, callback)

    def find_session(self, name: str) -> str | None:
        if self._broken == "find_session":
            raise Fault("injected")
        return self._clients.find_session(name)


def is_reported(caplog: pytest.LogCaptureFixture) -> bool:
    """Whether the server has logged where the fault was."""
    return any(one.exc_info is not None and one.exc_info[0] is Fault for one in caplog.records)


@pytest.mark.requirement("3.every-answer")
@pytest.mark.parametrize("at_once", [False, True])
def test_request_is_answered_when_its_answer_fails_with_a_foreign_error(
    at_once: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with world() as one:
            intake: Any = FaultyIntake(at_once=at_once)
            await Delivery(HubClients(one.hub), intake, MOST).deliver(one.client, envelope(**CALL)).accepted()
            error = (await only_response(one, "r"))["error"]
            assert (error["code"], error["data"]) == (-32603, {"type": "internal-error"})
            assert (one.client.busy, one.client.delivering) == (0, 0)

    with caplog.at_level(logging.ERROR):
        run(main())
    assert is_reported(caplog)


@pytest.mark.requirement("3.every-answer")
@pytest.mark.parametrize(
    ("broken", "request_"),
    [("when_committed", "session/list"), ("when_committed", "x/echo"), ("find_session", "x/echo")],
)
def test_a_request_is_answered_when_what_brings_its_answer_fails(
    broken: str, request_: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with world() as one:
            # Its answers go to the session's own stream.
            one.client.session_streams["s"] = 0
            clients: Any = FaultyClients(one, broken)
            asked = CALL | {"method": request_} if request_ != "session/list" else {"id": "r", "method": request_}
            await Delivery(clients, one.requests, MOST).deliver(one.client, envelope(**asked)).accepted()
            if request_ == "x/echo":
                request = await one.process.request("x/echo")
                one.says(id=request["id"], result={})
            response = await only_response(one, "r")
            assert "result" in response if broken == "find_session" else response["error"]["code"] == -32603
            assert (one.client.busy, one.client.delivering) == (0, 0)

    with caplog.at_level(logging.ERROR):
        run(main())
    assert is_reported(caplog)


@pytest.mark.requirement("3.every-answer")
def test_a_request_is_answered_when_what_should_come_before_its_answer_fails(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with world() as one:

            async def flush() -> None:
                raise Fault("injected")

            over = asyncio.Event()
            before: Callable[[], Awaitable[None]] = flush
            delivery = Delivery(HubClients(one.hub), one.requests, MOST)
            listing = envelope(id="r", method="session/list")
            await delivery.deliver(one.client, listing, before=before, after=over.set).accepted()
            assert "result" in await only_response(one, "r")
            await over.wait()

    with caplog.at_level(logging.ERROR):
        run(main())
    assert is_reported(caplog)


@pytest.mark.requirement("3.stream-requests")
@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("method", ["x/echo", "session/list"])
def test_no_more_requests_wait_than_may_and_each_that_ends_makes_room(method: str, key: str | None) -> None:
    async def main() -> None:
        async with world() as one:
            delivery = Delivery(HubClients(one.hub), one.requests, 1)
            held = envelope(**CALL)
            await delivery.deliver(one.client, held, key).accepted()
            with pytest.raises(TooMany):
                await delivery.deliver(one.client, envelope(id=2, method=method, params=CALL["params"])).accepted()
            request = await one.process.request("x/echo")
            one.says(id=request["id"], result={})
            await only_response(one, "r")
            await delivery.deliver(one.client, envelope(id="again", method="session/list")).accepted()
            await only_response(one, "again")
            assert one.client.delivering == 0

    run(main())
