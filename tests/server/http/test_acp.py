"""POSTs of `/acp`: one whose agent runs needs no task, and is answered when its request is kept."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from sandboxagent.core.threads import Pool
from sandboxagent.server.http.acp import Acp
from sandboxagent.server.http.deliver import Delivery
from sandboxagent.server.http.duplex import WebSocketTransport
from sandboxagent.server.http.ports import HubClients
from sandboxagent.server.http.stream import StreamLimits, Streams
from tests.support.client import Json, run
from tests.support.in_process import PretendedSocket, Site, head
from tests.support.world import World, world

MOST = 64 << 10
REQUESTS: list[Json] = [
    {"jsonrpc": "2.0", "id": 1, "method": "x/echo", "params": {"sessionId": "s"}},
    {"jsonrpc": "2.0", "id": 1, "method": "session/prompt", "params": {"sessionId": "s", "prompt": []}},
]


@asynccontextmanager
async def a_socket(own: World) -> AsyncGenerator[PretendedSocket]:
    clients, lines, site = HubClients(own.hub), Pool("lines", 1), Site()
    parts = (clients, own.requests, Streams(own.log, StreamLimits()))
    delivery = Delivery(clients, own.requests, 10)
    site.take_envelopes(Acp(*parts, delivery, WebSocketTransport(*parts, delivery, lines, MOST), lines, MOST, 8))
    yield site.connect()


def send(socket: PretendedSocket, own: World, envelope: Json, *headers: str) -> None:
    body = json.dumps(envelope).encode()
    named = f"Acp-Connection-Id: {own.client.connection_id}"
    more = ("Content-Type: application/json", named, f"Content-Length: {len(body)}", *headers)
    socket.protocol.data_received(head("POST /acp", *more) + body)


@pytest.mark.parametrize("request_", REQUESTS, ids=["call", "prompt"])
def test_a_request_that_an_agent_only_has_to_answer_has_no_task(request_: Json) -> None:
    async def main() -> None:
        async with world() as own, a_socket(own) as socket:
            before = asyncio.all_tasks()
            send(socket, own, request_)
            assert asyncio.all_tasks() == before
            await own.agent.answers(request_["method"], {"stopReason": "end_turn"})
            await socket.site.until(lambda: socket.statuses)

            assert socket.statuses == [202]
            heard = [one for one in await own.heard(own.client) if one.get("id") == 1]
            assert [one["result"] for one in heard] == [{"stopReason": "end_turn"}]
            assert own.client.busy == 0

    run(main())


def test_a_request_that_is_refused_leaves_nothing_under_way() -> None:
    async def main() -> None:
        async with world() as own, a_socket(own) as socket:
            send(socket, own, REQUESTS[0], "Acp-Session-Id: another")
            assert socket.statuses == [400]
            own.client.delivering = 10
            send(socket, own, REQUESTS[0])
            assert socket.statuses == [400, 429]
            assert own.client.busy == 0

    run(main())
