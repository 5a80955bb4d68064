"""POSTs that reach a node through a gateway: they enter where those on a socket do, and are answered early."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from sandboxagent.core.threads import Pool
from sandboxagent.fleet.gateway.tunnels import NodeAnswer, NodeRequest
from sandboxagent.fleet.messages import SAFE_AT
from sandboxagent.protocol.envelope import Envelope
from sandboxagent.server.http.app import App
from sandboxagent.server.http.auth import Auth
from sandboxagent.server.http.deliver import Delivery
from sandboxagent.server.http.duplex import WebSocketTransport
from sandboxagent.server.http.ports import HubClients
from sandboxagent.server.http.rpc import Rpc
from sandboxagent.server.http.stream import StreamLimits, Streams
from sandboxagent.server.sessions.connection import Connection
from sandboxagent.server.sessions.reply import Reply
from tests.support.client import Json, run
from tests.support.flows import Fleet, echo, in_memory
from tests.support.in_process import Site, head
from tests.support.running import BOUND, TOKEN
from tests.support.world import World, world

MOST = 64 << 10
CALL: Json = {"jsonrpc": "2.0", "id": 1, "method": "x/echo", "params": {"sessionId": "s"}}
PROMPT: Json = {"jsonrpc": "2.0", "id": 1, "method": "session/prompt", "params": {"sessionId": "s", "prompt": []}}
LIST: Json = {"jsonrpc": "2.0", "id": 1, "method": "session/list"}
RESULT: Json = {"stopReason": "end_turn"}


class GatewaySide:
    """The way in of a node, which notes what comes by it."""

    def __init__(self, own: World) -> None:
        self._own = own.requests
        self.submitted: list[tuple[str, str | None]] = []

    def submit(
        self, connection: Connection, envelope: Envelope, key: str | None = None, *, on_stream: bool = False
    ) -> Reply:
        self.submitted.append((envelope.method, key))
        return self._own.submit(connection, envelope, key, on_stream=on_stream)

    def notify(self, connection: Connection, envelope: Envelope) -> Reply:
        return self._own.notify(connection, envelope)

    def answer(self, connection: Connection, envelope: Envelope) -> Reply:
        return self._own.answer(connection, envelope)


class Node:
    """A node, and a gateway that calls it for a remote connection."""

    def __init__(self, own: World, fleet: Fleet) -> None:
        self.own, self._fleet = own, fleet
        self.intake = GatewaySide(own)
        self.remote_tag = own.hub.connections.open("mock", {}, "guest-id", "g1.1")
        own.hub.attach(self.remote_tag, own.session)
        clients, intake, lines = HubClients(own.hub), self.intake, Pool("lines", 1)
        parts: Any = (clients, intake, Streams(own.log, StreamLimits()))
        way_in: Any = intake
        delivery = Delivery(clients, way_in, 10)
        self.rpc = Rpc(*parts, delivery, WebSocketTransport(*parts, delivery, lines, MOST), lines, MOST)
        other: Any = None
        auth = Auth(TOKEN, "127.0.0.1", (), (), public_health=False)
        self._app = App(auth, self.rpc, other, other, [], lambda: echo)

    async def join(self) -> None:
        await self._fleet.join("n1", partial(self._app.answer_gateway, {}), read_post=self._app.read_gateway_post)

    async def post(self, body: bytes | Json, *headers: tuple[bytes, bytes]) -> NodeAnswer:
        """What a gateway gets for a POST."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        identity = (b"x-acp-connection-id", self.remote_tag.connection_id.encode())
        asked = NodeRequest("POST", b"/v1/rpc", headers=[(b"content-type", b"application/json"), identity, *headers])
        async with asyncio.timeout(BOUND):
            return await self._fleet.gateway.call("n1", asked, data, most=1 << 20)

    @property
    def flows(self) -> int:
        """How many are under way here."""
        return len(self._fleet.nodes["n1"]._answering)  # pyright: ignore[reportPrivateUsage]


@asynccontextmanager
async def a_node() -> AsyncGenerator[Node]:
    async with world() as own, in_memory() as fleet:
        node = Node(own, fleet)
        await node.join()
        yield node


@pytest.mark.parametrize(("asked", "key"), [(CALL, None), (CALL, "k"), (PROMPT, None), (PROMPT, "k")])
def test_a_request_of_a_gateway_is_submitted_once_and_answered_early(asked: Json, key: str | None) -> None:
    async def main() -> None:
        async with a_node() as node:
            headers = () if key is None else ((b"idempotency-key", key.encode()),)
            posting = asyncio.create_task(node.post(asked, *headers))
            await node.own.agent.answers(asked["method"], RESULT)
            answer = await posting

            assert (answer.status, json.loads(answer.body)["result"]) == (200, RESULT)
            assert int(dict(answer.headers)[SAFE_AT]) <= node.own.log.position
            assert node.intake.submitted == [(asked["method"], key)]
            assert node.remote_tag.busy == 0

    run(main())


def test_a_request_whose_response_goes_to_the_stream_is_submitted_once() -> None:
    async def main() -> None:
        async with a_node() as node:
            answer = await node.post(CALL, (b"prefer", b"respond-async"), (b"idempotency-key", b"k"))
            assert (answer.status, answer.body) == (202, b"")
            assert (b"preference-applied", b"respond-async") in [
                (name.lower(), value) for name, value in answer.headers
            ]
            await node.own.agent.answers(CALL["method"], RESULT)
            heard = await node.own.heard(node.remote_tag)
            assert [one["result"] for one in heard if one.get("id") == 1] == [RESULT]
            assert node.intake.submitted == [(CALL["method"], "k")]

    run(main())


@pytest.mark.parametrize("method", ["x/echo", "session/new"])
def test_a_gateway_that_left_finds_the_response_on_the_stream_and_updates_after_it(method: str) -> None:
    async def main() -> None:
        async with a_node() as node:
            own, opens = node.own, method == "session/new"
            params: Json = {"cwd": "/", "mcpServers": []} if opens else {"sessionId": "s"}
            posting = asyncio.create_task(node.post({**CALL, "method": method, "params": params}))
            request = await own.agent.pipe.request(method)
            posting.cancel()
            await asyncio.wait([posting])
            session = "fresh" if opens else "s"
            own.says(id=request["id"], result={"sessionId": session})
            own.agent.updates("hello", session)
            await Site().until(lambda: not node.flows)

            heard = [one.get("method", "response") for one in await own.heard(node.remote_tag, session)]
            assert heard == (["response", "session/update"] if opens else ["session/update", "response"])
            assert node.remote_tag.busy == 0

    run(main())


BODIES: dict[str, bytes | Json] = {
    "a method of the server": LIST,
    "a notification": {"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "s"}},
    "an answer to nothing": {"jsonrpc": "2.0", "id": 7, "result": {}},
    "another initialize": {**LIST, "method": "initialize"},
    "a batch": b"[]",
    "no JSON": b"{",
    "nothing": b"",
    "too much": b" " * (MOST + 1),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_a_post_of_a_gateway_is_answered_as_one_on_a_socket(body: bytes | Json) -> None:
    async def main() -> None:
        async with a_node() as node:
            answer = await node.post(body)
            site = Site()
            site.take_envelopes(node.rpc)
            socket, data = site.connect(), body if isinstance(body, bytes) else json.dumps(body).encode()
            connection = node.own.connect()
            identity = f"X-ACP-Connection-Id: {connection.connection_id}"
            length = f"Content-Length: {len(data)}"
            socket.protocol.data_received(head("POST /v1/rpc", "Content-Type: application/json", identity, length))
            await socket.send(data)
            await site.until(lambda: socket.statuses)

            assert socket.statuses == [answer.status]
            assert socket.written.partition(b"\r\n\r\n")[2] == answer.body

    run(main())


def test_refused_head_is_answered_and_nothing_is_submitted() -> None:
    async def main() -> None:
        async with a_node() as node:
            node.own.hub.close_connection(node.remote_tag, "it is gone")
            answer = await node.post(b"x" * (1 << 20))
            assert (answer.status, json.loads(answer.body)["type"].rpartition(":")[2]) == (404, "unknown-connection")
            assert node.intake.submitted == []

    run(main())
