"""A client that leaves before it has the answer: the response is on its stream, once, whenever it left."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from sandboxagent.protocol.envelope import LARGE_BYTES
from sandboxagent.protocol.errors import LogUnavailable, ShuttingDown
from tests.support.in_process import PretendedSocket
from tests.support.running import BOUND
from tests.support.transports import Transports, frame_of
from tests.support.world import Json, World, run, world

PROMPT: Json = {"jsonrpc": "2.0", "id": "r", "method": "session/prompt", "params": {"sessionId": "s", "prompt": []}}
RESULT: Json = {"stopReason": "end_turn"}
TEXT = {"type": "text", "text": "x" * LARGE_BYTES}
LARGE_PROMPT: Json = PROMPT | {"params": {"sessionId": "s", "prompt": [TEXT]}}
KEY = "Idempotency-Key: k"
ASYNC = "Prefer: respond-async"
Callback = Callable[[Exception | None], None]


class Leaver:
    """A client that sends one prompt, by a way of its own."""

    def __init__(self, own: World, way: str) -> None:
        self.own = own
        self.server = Transports(own)
        self._way = way
        self._socket: PretendedSocket

    async def send(self, envelope: Json, *, keyed: bool = False) -> None:
        if self._way == "websocket":
            peer = await self.server.websocket()
            self._socket = peer.socket
            await self._socket.send(frame_of(envelope, "k" if keyed else None))
            return
        more = [KEY] if keyed else []
        more += [ASYNC] if self._way == "respond-async" else []
        self._socket = self.server.post("/acp" if self._way == "acp" else "/v1/rpc", envelope, *more)

    def leave(self) -> None:
        self._socket.transport.close()

    async def only_response(self) -> Json:
        """The one response that the stream has; the agent was asked once."""
        while not (found := await self.server.responses("r")):
            # The log's thread reads: others go on meanwhile.
            continue
        await self.own.settled()
        assert await self.server.responses("r") == found
        assert (self.own.client.busy, self.own.client.delivering) == (0, 0)
        (response,) = found
        return response

    def asked(self) -> int:
        return [one.get("method") for one in self.own.process.sent].count("session/prompt")


async def body_is_parsed(client: Leaver) -> None:
    """The client leaves while a thread parses its body."""
    is_over = asyncio.Event()
    loop, blocked = asyncio.get_running_loop(), asyncio.Event()

    def block() -> None:
        loop.call_soon_threadsafe(blocked.set)
        asyncio.run_coroutine_threadsafe(is_over.wait(), loop).result(BOUND)

    client.server.lines.start(block)
    await blocked.wait()
    await client.send(LARGE_PROMPT)
    client.leave()
    await client.own.settled()
    assert client.asked() == 0
    is_over.set()
    await client.own.agent.answers("session/prompt", RESULT)


async def key_is_recorded(client: Leaver) -> None:
    """The client leaves before its key is on disk."""
    flushed: list[Callback] = []
    client.own.log.when_flushed = flushed.append  # type: ignore[method-assign]
    await client.send(PROMPT, keyed=True)
    client.leave()
    await client.own.settled()
    assert (client.asked(), len(flushed)) == (0, 1)
    del client.own.log.when_flushed
    flushed[0](None)
    await client.own.agent.answers("session/prompt", RESULT)


async def agent_works(client: Leaver) -> None:
    """The client leaves while the agent works."""
    await client.send(PROMPT)
    client.leave()
    await client.own.agent.answers("session/prompt", RESULT)


async def answer_is_not_committed(client: Leaver) -> None:
    """The client leaves when the agent has answered, and the answer is not on disk."""
    waiting = await answered(client)
    client.leave()
    await client.own.settled()
    assert await client.server.responses("r") == []
    for callback in waiting:
        callback(None)


async def answered(client: Leaver) -> list[Callback]:
    """Have the prompt answered while nothing gets to the disk; return what waits for the disk."""
    await client.send(PROMPT)
    request = await client.own.process.request("session/prompt")
    await client.own.settled()
    waiting: list[Callback] = []
    client.own.log.when_committed = lambda _, callback: waiting.append(callback)  # type: ignore[method-assign]
    client.own.says(id=request["id"], result=RESULT)
    await client.own.settled()
    del client.own.log.when_committed
    assert len(waiting) == 1
    return waiting


Step = Callable[[Leaver], Awaitable[None]]
STEPS: list[Step] = [body_is_parsed, key_is_recorded, agent_works, answer_is_not_committed]
WAYS = ["post", "respond-async", "acp", "websocket"]


@pytest.mark.requirement("3.client-leaves")
@pytest.mark.parametrize(
    ("step", "way"),
    # A POST of /acp has no key.
    [(step, way) for step in STEPS for way in WAYS if (step, way) != (key_is_recorded, "acp")],
    ids=lambda part: part if isinstance(part, str) else part.__name__,
)
def test_response_is_on_the_stream_once_whenever_the_client_left(step: Step, way: str) -> None:
    async def main() -> None:
        async with world() as own:
            client = Leaver(own, way)
            await step(client)
            assert (await client.only_response())["result"] == RESULT
            assert client.asked() == 1
            own.hub.close_connection(own.client, "this is the end")
            await client.server.site.settle()

    run(main())


@pytest.mark.requirement("3.client-leaves")
@pytest.mark.parametrize("way", WAYS)
def test_failure_to_keep_the_answer_is_on_the_stream_of_a_client_that_left(way: str) -> None:
    async def main() -> None:
        async with world() as own:
            client = Leaver(own, way)
            waiting = await answered(client)
            client.leave()
            waiting[0](LogUnavailable("the disk is full"))
            assert (await client.only_response())["error"]["data"]["type"] == "log-unavailable"
            own.hub.close_connection(own.client, "this is the end")
            await client.server.site.settle()

    run(main())


@pytest.mark.requirement("3.client-leaves")
@pytest.mark.parametrize("way", WAYS)
def test_stopping_server_is_on_the_stream_of_a_client_that_left(way: str) -> None:
    async def main() -> None:
        async with world() as own:
            client = Leaver(own, way)
            await client.send(PROMPT)
            await own.process.request("session/prompt")
            client.leave()
            own.hub.calls.fail_all(ShuttingDown())
            assert (await client.only_response())["error"]["data"]["type"] == "shutting-down"
            own.hub.close_connection(own.client, "this is the end")
            await client.server.site.settle()

    run(main())


@pytest.mark.requirement("3.client-leaves", "3.late-answer")
@pytest.mark.parametrize("way", WAYS)
def test_only_the_late_answer_is_on_the_stream_of_a_client_that_left(way: str) -> None:
    async def main() -> None:
        async with world() as own:
            client = Leaver(own, way)
            call = PROMPT | {"method": "x/echo", "params": {"sessionId": "s"}}
            await client.send(call)
            request = await own.process.request("x/echo")
            client.leave()
            own.now += 200
            own.timeout_loop.tick()
            await own.settled()
            assert await client.server.responses("r") == []
            own.says(id=request["id"], result={})
            assert (await client.only_response())["result"] == {}
            own.hub.close_connection(own.client, "this is the end")
            await client.server.site.settle()

    run(main())


@pytest.mark.requirement("3.client-leaves")
@pytest.mark.parametrize("left", [False, True], ids=["stays", "leaves"])
def test_response_is_doubled_by_no_failure_to_keep_the_request(left: bool) -> None:
    """The stream brings the response, even if the POST could not be answered with 202."""

    async def main() -> None:
        async with world() as own:
            client = Leaver(own, "respond-async")
            waiting: list[Callback] = []
            own.log.when_committed = lambda _, callback: waiting.append(callback)  # type: ignore[method-assign]
            await client.send(PROMPT)
            await own.settled()
            del own.log.when_committed
            if left:
                client.leave()
            waiting[0](LogUnavailable("the disk is full"))
            await own.agent.answers("session/prompt", RESULT)
            assert (await client.only_response())["result"] == RESULT

    run(main())


def test_a_tunnel_that_is_gone_leaves_the_failure_to_the_stream() -> None:
    async def main() -> None:
        async with world() as own:
            server = Transports(own)
            tunnel = server.tunnel(PROMPT)
            await own.process.request("session/prompt")
            tunnel.left = True
            own.hub.calls.fail_all(ShuttingDown())
            assert json.loads(tunnel.bodies[0])["status"] == 503
            (response,) = await server.responses("r")
            assert response["error"]["data"]["type"] == "shutting-down"

    run(main())
