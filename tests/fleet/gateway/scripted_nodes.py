"""A gateway in memory whose nodes answer as a test says."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from sandboxagent.core.threads import Pool
from sandboxagent.fleet import messages
from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.bus.memory import Cluster, MemoryBus
from sandboxagent.fleet.gateway.connection import FleetConnection
from sandboxagent.fleet.gateway.connections import FleetConnections
from sandboxagent.fleet.gateway.events import GatewayEvents
from sandboxagent.fleet.gateway.feed import Feed
from sandboxagent.fleet.gateway.ingest import IsThere
from sandboxagent.fleet.gateway.methods import GatewayMethods
from sandboxagent.fleet.gateway.node_calls import NodeCalls
from sandboxagent.fleet.gateway.owners import Owners
from sandboxagent.fleet.gateway.registry import NodeRegistry
from sandboxagent.fleet.gateway.requests import FleetRequests
from sandboxagent.fleet.gateway.tunnels import NodeAnswer, NodeRequest
from sandboxagent.fleet.node.connections import PATH
from sandboxagent.protocol.envelope import Envelope, parse
from tests.support.running import BOUND

INITIALIZE = b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}'
PENDING = b'{"jsonrpc":"2.0","id":1,"method":"_sandboxagent/session/pending","params":{}}'
PROMPT = b'{"jsonrpc":"2.0","id":"turn","method":"session/prompt","params":{"sessionId":"s"}}'
GREETING = b'{"jsonrpc":"2.0","id":0,"result":{}}'
NEW = b'{"jsonrpc":"2.0","id":2,"method":"session/new","params":{}}'
INTRODUCED = messages.IntroductionReply(known=True, agent="a", greeting=msgspec.Raw(b"null"))
KNOWN = NodeAnswer(200, [], msgspec.json.encode(INTRODUCED), "")
STRANGER = NodeAnswer(200, [], msgspec.json.encode(messages.IntroductionReply(known=False, agent="a")), "")
FORGOTTEN = NodeAnswer(404, [], b'{"type":"urn:sandbox-agent:error:unknown-connection"}', "")
ACCEPTED = NodeAnswer(202, [], b"", "")
REFUSED = NodeAnswer(409, [], b'{"type":"urn:sandbox-agent:error:turn-running","title":"Busy"}', "")
Reply = Callable[[NodeRequest, bytes], Awaitable[NodeAnswer]]


async def never(asked: NodeRequest, body: bytes) -> NodeAnswer:
    await asyncio.Event().wait()
    raise AssertionError


def replying(answer: NodeAnswer) -> Reply:
    """Knows every remote connection, and answers all else with this."""

    async def reply(asked: NodeRequest, body: bytes) -> NodeAnswer:
        return KNOWN if asked.target == PATH.encode() else answer

    return reply


@dataclass
class Nodes:
    """The way to nodes; each answers as a test says."""

    replies: dict[str, Reply]
    leases: dict[str, messages.Lease]
    called: list[tuple[str, bytes]] = field(default_factory=list[tuple[str, bytes]])

    async def call(self, node: str, asked: NodeRequest, body: bytes = b"", *, most: int) -> NodeAnswer:
        self.called.append((node, asked.target))
        run = self.leases[node].nonce
        return replace(await self.replies[node](asked, body), run=run)


@dataclass
class Gateway:
    connections: FleetConnections
    remotes: NodeCalls
    calls: FleetRequests
    nodes: Nodes
    registry: NodeRegistry
    feed: Feed

    async def client(self, *nodes: str, home: str | None = None) -> FleetConnection:
        connection = await self.connections.open(self.connections.make_id(), "a", parse(INITIALIZE), home)
        for node in nodes:
            await self.connections.add_node(connection, node)
        return connection


def lease_of(node: str, run: str) -> messages.Lease:
    return messages.Lease(node, run, "", {}, [], 0)


async def open_gateway(cluster: Cluster | None = None, answers: IsThere | None = None, **replies: Reply) -> Gateway:
    bus = MemoryBus(cluster or Cluster())
    events = await bus.stream("EV", [subjects.EVENTS], max_bytes=1 << 20, max_age=60)
    registry, feed = NodeRegistry(), Feed(events, 1 << 20)
    nodes = Nodes(replies, registry.leases)
    for name in replies:
        registry.leases[name] = lease_of(name, f"of {name}")
    await feed.start()
    connections = FleetConnections("g", feed, registry, await bus.table("conns"), GatewayEvents(events), ttl=60)
    remotes = NodeCalls(connections, nodes, registry, 1 << 20)
    own = GatewayMethods(feed, registry, Owners(await bus.table("owners"), events))

    async def answers_if_it_replies(node: str, run: str) -> bool:
        return replies[node] is not never and run == registry.leases[node].nonce

    asked = answers or answers_if_it_replies
    keys, lines = await bus.table("keys"), Pool("lines", 1)
    calls = FleetRequests("g", connections, remotes, own, registry, asked, lines, keys, 60, None)
    return Gateway(connections, remotes, calls, nodes, registry, feed)


async def until_done_since(before: set["asyncio.Task[Any]"]) -> None:
    """Wait for everything that was begun since."""
    async with asyncio.timeout(BOUND):
        while begun := asyncio.all_tasks() - before:
            await asyncio.wait(begun)


def said_by_gateways(cluster: Cluster, client: FleetConnection) -> list[Envelope]:
    """What gateways have said to a client."""
    own = subjects.connection_events(client.tag, subjects.GATEWAY)
    return [parse(record.body) for record in cluster.streams["EV"].records if record.subject == own]
