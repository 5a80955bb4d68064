"""A gateway in memory whose nodes answer as a test says."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from sandbox_agent.bus import subjects
from sandbox_agent.bus.memory import Cluster, MemoryBus
from sandbox_agent.envelope import Envelope, parse
from sandbox_agent.gateway.calls import FleetCalls
from sandbox_agent.gateway.connection import FleetConnection
from sandbox_agent.gateway.connections import FleetConnections
from sandbox_agent.gateway.feed import Feed
from sandbox_agent.gateway.flows import NodeAnswer, NodeRequest
from sandbox_agent.gateway.guests import GuestCalls
from sandbox_agent.gateway.ingest import IsThere
from sandbox_agent.gateway.methods import GatewayMethods
from sandbox_agent.gateway.own_events import OwnEvents
from sandbox_agent.gateway.owners import Owners
from sandbox_agent.gateway.roster import Roster
from sandbox_agent.http.guests import PATH
from sandbox_agent.wire import fleet
from tests.support.running import BOUND

INITIALIZE = b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}'
PENDING = b'{"jsonrpc":"2.0","id":1,"method":"_sandboxagent/session/pending","params":{}}'
PROMPT = b'{"jsonrpc":"2.0","id":"turn","method":"session/prompt","params":{"sessionId":"s"}}'
GREETING = b'{"jsonrpc":"2.0","id":0,"result":{}}'
NEW = b'{"jsonrpc":"2.0","id":2,"method":"session/new","params":{}}'
INTRODUCED = fleet.Introduced(known=True, agent="a", greeting=msgspec.Raw(b"null"))
KNOWN = NodeAnswer(200, [], msgspec.json.encode(INTRODUCED), "")
STRANGER = NodeAnswer(200, [], msgspec.json.encode(fleet.Introduced(known=False, agent="a")), "")
FORGOTTEN = NodeAnswer(404, [], b'{"type":"urn:sandbox-agent:error:unknown-connection"}', "")
ACCEPTED = NodeAnswer(202, [], b"", "")
REFUSED = NodeAnswer(409, [], b'{"type":"urn:sandbox-agent:error:turn-running","title":"Busy"}', "")
Reply = Callable[[NodeRequest, bytes], Awaitable[NodeAnswer]]


async def never(asked: NodeRequest, body: bytes) -> NodeAnswer:
    await asyncio.Event().wait()
    raise AssertionError


def replying(answer: NodeAnswer) -> Reply:
    """Knows every guest, and answers all else with this."""

    async def reply(asked: NodeRequest, body: bytes) -> NodeAnswer:
        return KNOWN if asked.target == PATH.encode() else answer

    return reply


@dataclass
class Nodes:
    """The way to nodes; each answers as a test says."""

    replies: dict[str, Reply]
    leases: dict[str, fleet.Lease]
    called: list[tuple[str, bytes]] = field(default_factory=list[tuple[str, bytes]])

    async def call(self, node: str, asked: NodeRequest, body: bytes = b"", *, most: int) -> NodeAnswer:
        self.called.append((node, asked.target))
        run = self.leases[node].nonce
        return replace(await self.replies[node](asked, body), run=run)


@dataclass
class Gateway:
    connections: FleetConnections
    guests: GuestCalls
    calls: FleetCalls
    nodes: Nodes
    roster: Roster
    feed: Feed

    async def client(self, *nodes: str, home: str | None = None) -> FleetConnection:
        connection = await self.connections.open(self.connections.make_id(), "a", parse(INITIALIZE), home)
        for node in nodes:
            await self.connections.add_node(connection, node)
        return connection


def lease_of(node: str, run: str) -> fleet.Lease:
    return fleet.Lease(node, run, "", {}, [], 0)


async def open_gateway(cluster: Cluster | None = None, answers: IsThere | None = None, **replies: Reply) -> Gateway:
    bus = MemoryBus(cluster or Cluster())
    events = await bus.stream("EV", [subjects.EVENTS], max_bytes=1 << 20, max_age=60)
    roster, feed = Roster(), Feed(events, 1 << 20)
    nodes = Nodes(replies, roster.leases)
    for name in replies:
        roster.leases[name] = lease_of(name, f"of {name}")
    await feed.start()
    connections = FleetConnections("g", feed, roster, await bus.table("conns"), OwnEvents(events), ttl=60)
    guests = GuestCalls(connections, nodes, roster, 1 << 20)
    own = GatewayMethods(feed, roster, Owners(await bus.table("owners"), events))

    async def answers_if_it_replies(node: str, run: str) -> bool:
        return replies[node] is not never and run == roster.leases[node].nonce

    asked = answers or answers_if_it_replies
    calls = FleetCalls("g", connections, guests, own, roster, asked, await bus.table("keys"), 60, None)
    return Gateway(connections, guests, calls, nodes, roster, feed)


async def until_done_since(before: set["asyncio.Task[Any]"]) -> None:
    """Wait for everything that was begun since."""
    async with asyncio.timeout(BOUND):
        while begun := asyncio.all_tasks() - before:
            await asyncio.wait(begun)


def said_by_gateways(cluster: Cluster, client: FleetConnection) -> list[Envelope]:
    """What gateways have said to a client."""
    own = subjects.connection_events(client.tag, subjects.GATEWAY)
    return [parse(record.body) for record in cluster.streams["EV"].records if record.subject == own]
