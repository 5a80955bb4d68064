"""A connection whose client left before it learnt its id: nothing can ever use it, so it is closed."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from sandboxagent.core.threads import Pool
from sandboxagent.protocol.envelope import Envelope
from sandboxagent.server.http.acp import Acp
from sandboxagent.server.http.deliver import Delivery
from sandboxagent.server.http.duplex import WebSocketTransport
from sandboxagent.server.http.ports import HubClients
from sandboxagent.server.http.rpc import Rpc
from sandboxagent.server.http.stream import StreamLimits, Streams
from sandboxagent.server.sessions.connection import Connection
from sandboxagent.server.sessions.reply import Answer
from tests.support.client import run
from tests.support.in_process import Site, head
from tests.support.world import World, world

INITIALIZE = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}'
LINES = Pool("lines", 1)
GREETING = b'{"jsonrpc":"2.0","id":1,"result":{}}'


class SlowAgent:
    """Greets a client when a test says so."""

    def __init__(self, world: World) -> None:
        self.connection: Connection = world.connect()
        self.asked, self.greets = asyncio.Event(), asyncio.Event()

    async def open(self, envelope: Envelope, agent: str | None = None) -> tuple[Connection, Answer]:
        self.asked.set()
        await self.greets.wait()
        return self.connection, Answer(GREETING)


def rpc(*parts: Any) -> Rpc:
    return Rpc(*parts, LINES, 1 << 20)


def acp(*parts: Any) -> Acp:
    return Acp(*parts, LINES, 1 << 20, 8)


@pytest.mark.requirement("2.left-before-open")
@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize(("path", "make"), [("/v1/rpc", rpc), ("/acp", acp)])
def test_a_connection_is_closed_whose_client_left_before_it_was_open(
    path: str, make: Callable[..., Rpc | Acp], leaves: bool
) -> None:
    async def main() -> None:
        async with world() as served:
            clients, agent, site = HubClients(served.hub), SlowAgent(served), Site()
            intake: Any = agent
            parts = (clients, intake, Streams(served.log, StreamLimits()))
            delivery = Delivery(clients, served.requests, 10)
            site.take_envelopes(make(*parts, delivery, WebSocketTransport(*parts, delivery, LINES, 1 << 20)))
            socket = site.connect()
            more = ("Content-Type: application/json", f"Content-Length: {len(INITIALIZE)}")
            socket.protocol.data_received(head(f"POST {path}", *more) + INITIALIZE)
            await agent.asked.wait()
            if leaves:
                socket.transport.close()
            agent.greets.set()
            await site.until(lambda: agent.connection.closed if leaves else GREETING in socket.written)
            assert agent.connection.closed is leaves
            assert (await clients.find(agent.connection.connection_id) is None) is leaves
            assert socket.statuses == ([] if leaves else [200])

    run(main())
