"""Gateways on a bus in memory, and what nodes say to their clients."""

import asyncio
from dataclasses import dataclass

import msgspec

from sandboxagent.fleet import records
from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.bus.interface import Append, StreamMessage
from sandboxagent.fleet.bus.memory import Cluster, MemoryBus
from sandboxagent.fleet.gateway.connection import FleetConnection
from sandboxagent.fleet.gateway.connections import FleetConnections
from sandboxagent.fleet.gateway.events import GatewayEvents
from sandboxagent.fleet.gateway.feed import Feed
from sandboxagent.fleet.gateway.registry import NodeRegistry
from sandboxagent.fleet.messages import AttachmentChange
from sandboxagent.protocol.envelope import parse
from sandboxagent.server.http.stream import Stream, StreamLimits, Streams
from sandboxagent.server.log.event import Chunk, Direction, attachment_channel, connection_channel, session_channel
from tests.support.running import BOUND

INITIALIZE = parse(b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}')
OWN, SESSION, LAST = b'{"own":1}', b'{"session":1}', b'{"last":1}'


class Socket:
    """Takes everything at once."""

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        raise AssertionError("the stream was cut off")


@dataclass
class Gateway:
    """What a gateway has for connections."""

    bus: MemoryBus
    feed: Feed
    registry: NodeRegistry
    connections: FleetConnections
    streams: Streams

    async def open(self, home: str | None = None) -> FleetConnection:
        return await self.connections.open(self.connections.make_id(), "a", INITIALIZE, home)

    async def take_over(self, opened: FleetConnection) -> FleetConnection:
        """The same connection, which its client now uses here."""
        moved = await self.connections.find(opened.connection_id)
        assert moved is not None
        return moved

    def read(self, connection: FleetConnection, after: int = 0) -> Stream:
        return self.streams.open(connection, after, Socket())


async def start_gateway(cluster: Cluster, name: str) -> Gateway:
    bus = MemoryBus(cluster)
    events = await bus.stream("EV", [subjects.EVENTS], max_bytes=1 << 30, max_age=3600)
    feed, registry = Feed(events, 1 << 20), NodeRegistry()
    await registry.start(await bus.table("nodes"), await bus.table("sess"))
    await feed.start()
    connections = FleetConnections(name, feed, registry, await bus.table("conns"), GatewayEvents(events), 600)
    await connections.start()
    streams = Streams(feed, StreamLimits(), connections.announce_stream, connections.is_incomplete)
    return Gateway(bus, feed, registry, connections, streams)


async def start_two(cluster: Cluster) -> tuple[Gateway, Gateway]:
    return await start_gateway(cluster, "g1"), await start_gateway(cluster, "g2")


def say(cluster: Cluster, node: str, chunk: Chunk) -> None:
    """Append what a node says."""
    subject = records.subject_of(chunk, node)
    assert subject is not None
    stream = cluster.streams["EV"]
    for each in records.outgoing(chunk, subject):
        last = stream.newest(subject)
        headers = {
            records.NODE: node,
            records.EPOCH: "1",
            records.LAST: str(stream.position + 1),
            records.META: each.meta,
        }
        expected = {subject: 0 if last is None else last.sequence}
        stream.append(Append([StreamMessage(subject, each.body, headers)], expected))


def tell_gateways(cluster: Cluster, source: str, tag: str, line: bytes) -> None:
    """Append what a node, or a gateway, says about a connection."""
    say(cluster, source, Chunk(1, [line], Direction.FROM_SERVER, None, attachment_channel(tag), 0.0, history=False))


def attach(cluster: Cluster, node: str, tag: str, session_id: str, *, attached: bool = True) -> None:
    tell_gateways(cluster, node, tag, msgspec.json.encode(AttachmentChange(session_id, attached=attached)))


def tell(cluster: Cluster, node: str, tag: str, line: bytes) -> None:
    say(cluster, node, Chunk(1, [line], Direction.FROM_SERVER, None, connection_channel(tag), 0.0, history=False))


def speak(cluster: Cluster, node: str, session_id: str, line: bytes) -> None:
    say(cluster, node, Chunk(1, [line], Direction.FROM_AGENT, session_id, session_channel(session_id), 0.0))


async def read_until(stream: Stream, line: bytes) -> list[bytes]:
    """The data of all events up to a line."""
    lines: list[bytes] = []
    async with asyncio.timeout(BOUND):
        while line not in lines:
            data = await stream.next()
            assert data is not None
            found = [each.removeprefix(b"data:").strip() for each in data.splitlines() if each.startswith(b"data:")]
            lines += found
    return lines
