"""One WebSocket of a client over the whole hub, in memory: what is taken of it, and that every request is answered."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from websockets.frames import Frame, Opcode

from sandboxagent.core.threads import Pool
from sandboxagent.server.http.asgi import Receive, Scope, Send
from sandboxagent.server.http.deliver import Delivery
from sandboxagent.server.http.duplex import IN_ONE_TURN, MAX_INVALID, WebSocketTransport
from sandboxagent.server.http.ports import HubClients, RequestHandler
from sandboxagent.server.http.stream import StreamLimits, Streams
from tests.support.client import run
from tests.support.in_process import Site
from tests.support.websocket_peer import Peer
from tests.support.world import World, world

ECHO = {"jsonrpc": "2.0", "method": "x/echo", "params": {"sessionId": "s"}}
LINES = Pool("lines", 1)
INTERNAL = {"code": -32603, "type": "internal-error"}


class Faulty:
    """The way in for envelopes, of which some parts fail as nothing of ours does."""

    def __init__(self, intake: Any, *broken: str) -> None:
        self._intake = intake
        self._broken = broken

    def __getattr__(self, name: str) -> Any:
        if name in self._broken:
            return self._fail
        return getattr(self._intake, name)

    def _fail(self, *_: object, **__: object) -> Any:
        raise ZeroDivisionError("injected")


class Client:
    """One that has a WebSocket."""

    def __init__(self, world: World, site: Site, intake: RequestHandler, most: int) -> None:
        self.world = world
        self.site = site
        clients, streams = HubClients(world.hub), Streams(world.log, StreamLimits())
        self._websockets = WebSocketTransport(clients, intake, streams, Delivery(clients, intake, most), LINES, 1 << 20)
        self.peer = Peer(site, serve=self._serve)
        self.heard: list[dict[str, Any]] = []
        self.close: tuple[int, str] | None = None

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._websockets(scope, self.world.client, self.world.log.position, [], "x-connection")

    def frame(self, message: object) -> bytes:
        text = message if isinstance(message, str) else json.dumps(message)
        return Frame(Opcode.TEXT, text.encode()).serialize(mask=True)

    async def says(self, *messages: object) -> None:
        await self.peer.send_all(b"".join(map(self.frame, messages)))

    async def hears(self, condition: Callable[["Client"], object]) -> None:
        """Wait until it has heard what it waits for."""
        while not condition(self):
            for frame in self.peer.received():
                if frame.opcode is Opcode.CLOSE:
                    self.close = int.from_bytes(frame.data[:2], "big"), bytes(frame.data[2:]).decode()
                elif frame.opcode is Opcode.TEXT:
                    self.heard.append(json.loads(bytes(frame.data)))
            # The log's thread writes meanwhile.
            await asyncio.sleep(0)

    def answers(self) -> dict[object, dict[str, Any]]:
        return {one["id"]: one for one in self.heard if "method" not in one and one.get("id") is not None}


def on_socket(
    test: Callable[[Client], Awaitable[None]], most: int = 10_000, change: Callable[[Any], Any] | None = None
) -> None:
    async def main() -> None:
        async with world() as one:
            site = Site()
            client = Client(one, site, change(one.requests) if change else one.requests, most)
            await client.peer.open()
            await test(client)
            await client.peer.socket.closes()

    run(main())


@pytest.mark.requirement("14.ws-flood")
def test_one_that_sends_nothing_but_nonsense_is_closed_and_told_why() -> None:
    async def test(client: Client) -> None:
        await client.says(*[""] * 10 * MAX_INVALID)
        await client.hears(lambda one: one.close)
        assert client.close is not None
        assert client.close[0] == 1008
        assert "no envelopes" in client.close[1]
        assert 0 < len([one for one in client.heard if one.get("id") is None]) <= MAX_INVALID + 1

    on_socket(test)


@pytest.mark.requirement("14.ws-flood")
def test_nonsense_among_envelopes_is_complained_of_and_no_more() -> None:
    async def test(client: Client) -> None:
        for _ in range(3):
            await client.says(*["nonsense"] * MAX_INVALID, {"jsonrpc": "2.0", "method": "$/nothing"})
        await client.hears(lambda one: len(one.heard) == 3 * MAX_INVALID)
        assert client.close is None

    on_socket(test)


@pytest.mark.requirement("14.ws-flood")
def test_others_have_their_turn_between_the_messages_of_one() -> None:
    turns = [0]

    class Counting(Faulty):
        def submit(self, *arguments: object, on_stream: bool) -> Any:
            turns[-1] += 1
            return self._intake.submit(*arguments, on_stream=on_stream)

    async def test(client: Client) -> None:
        async def tick() -> None:
            while True:
                turns.append(0)
                await asyncio.sleep(0)

        ticking = asyncio.ensure_future(tick())
        count = 10 * IN_ONE_TURN
        await client.says(*[{"jsonrpc": "2.0", "id": id, "method": "initialize"} for id in range(count)])
        await client.hears(lambda one: len(one.answers()) == count)
        assert sum(turns) == count
        assert max(turns) <= IN_ONE_TURN
        ticking.cancel()

    on_socket(test, change=Counting)


@pytest.mark.requirement("3.stream-requests")
def test_request_over_the_waiting_limit_is_refused_until_one_is_answered() -> None:
    async def test(client: Client) -> None:
        await client.says(*[ECHO | {"id": id} for id in range(5)])
        await client.hears(lambda one: len(one.answers()) == 2)
        assert sorted(client.answers()) == [3, 4]
        for refused in client.answers().values():
            assert refused["error"]["data"]["type"] == "too-many"
            assert "--stream-requests" in refused["error"]["message"]
        first = await client.world.process.request("x/echo")
        client.world.says(id=first["id"], result={})
        await client.hears(lambda one: len(one.answers()) == 3)
        await client.says(ECHO | {"id": 9})
        sent = [one for one in client.world.process.sent if one.get("method") == "x/echo"]
        while len(sent) < 4:
            await asyncio.sleep(0)
            sent = [one for one in client.world.process.sent if one.get("method") == "x/echo"]
        assert 9 not in client.answers()

    on_socket(test, most=3)


@pytest.mark.requirement("3.every-answer")
@pytest.mark.parametrize("asked", [ECHO, {"jsonrpc": "2.0", "method": "session/list"}], ids=["call", "own method"])
def test_a_request_on_a_websocket_is_answered_when_what_takes_it_fails(
    asked: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def test(client: Client) -> None:
        await client.says(asked | {"id": 7})
        await client.hears(lambda one: 7 in one.answers())
        error = client.answers()[7]["error"]
        assert {"code": error["code"], "type": error["data"]["type"]} == INTERNAL
        assert "injected" not in json.dumps(error)
        # The socket goes on.
        assert client.close is None

    with caplog.at_level(logging.ERROR):
        on_socket(test, change=lambda intake: Faulty(intake, "submit"))
    assert any("ZeroDivisionError" in str(one.exc_info) for one in caplog.records)


@pytest.mark.requirement("3.every-answer")
@pytest.mark.parametrize("broken", ["notify", "answer"])
def test_failure_to_take_a_notification_or_answer_is_reported(broken: str, caplog: pytest.LogCaptureFixture) -> None:
    said = {"notify": {"jsonrpc": "2.0", "method": "x/y"}, "answer": {"jsonrpc": "2.0", "id": 1, "result": {}}}

    async def test(client: Client) -> None:
        await client.says(said[broken])
        await client.hears(lambda one: one.heard)
        [complaint] = client.heard
        assert (complaint["id"], complaint["error"]["code"]) == (None, -32603)
        assert client.close is None

    with caplog.at_level(logging.ERROR):
        on_socket(test, change=lambda intake: Faulty(intake, broken))
    assert any("ZeroDivisionError" in str(one.exc_info) for one in caplog.records)
