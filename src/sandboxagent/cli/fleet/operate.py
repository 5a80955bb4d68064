"""Show a running fleet and give orders about its nodes, directly at its NATS servers."""

import asyncio
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from sandboxagent.fleet import messages as fleet
from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.bus.interface import BusError, TableEntry
from sandboxagent.fleet.bus.jetstream_api import StreamFacts, describe
from sandboxagent.fleet.bus.nats import NatsBus, connect
from sandboxagent.fleet.gateway import owners, registry, shares
from sandboxagent.protocol.errors import SettingsError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Servers:
    """The addresses of a fleet's NATS servers, and the key to use there."""

    urls: Sequence[str]
    key: Path | None

    def ask(self, ask: Callable[[NatsBus], Awaitable[T]], about: str | None = None) -> T:
        """Call `ask` with a new connection. Raises SettingsError, also when the fleet has no node `about`."""

        async def main() -> T:
            name = f"cli-{secrets.token_hex(6)}"
            bus = await connect(self.urls, subjects.inbox_of_gateway(name), name, self.key)
            try:
                if about is not None:
                    await _check_known(bus, about)
                return await ask(bus)
            finally:
                await bus.close()

        try:
            return asyncio.run(main())
        except BusError as error:
            raise SettingsError(f"cannot ask the fleet: {error}") from error


class NodeStatus(Struct, rename="camel"):
    """The facts about one node."""

    node: str
    state: str
    """`there`, `draining`, `set aside` (it floods), `away` (it has sessions and no lease) or `forgotten`."""
    version: str
    sessions: int
    running: int
    waiting: int
    """Bytes of its log that are not published yet."""
    agents: list[str]
    labels: dict[str, str]
    pinned: bool
    """Whether an operator has set its labels and agents, in place of the node's own."""
    limited: str
    """The facts that a gateway recently refused from the node, and why."""


class StreamStatus(Struct, rename="camel"):
    """The state of one of the fleet's streams."""

    name: str
    leader: str
    servers: int
    behind: dict[str, int]
    """Servers that lack messages, with the number of them; -1 for a server that is away."""
    messages: int
    size: int
    most: int


class Status(Struct):
    """The state of a whole fleet."""

    nodes: list[NodeStatus]
    streams: list[StreamStatus]


async def read_status(bus: NatsBus) -> Status:
    """Read the nodes with their leases, and the streams with their leaders."""
    tables = ("nodes", "sess", owners.TABLE, shares.TABLE, registry.ORDERS)
    streams = [await describe(bus, name) for name in ("EV", *(f"KV_{table}" for table in tables))]
    leases = {
        key: msgspec.json.decode(value, type=fleet.Lease) for key, value in (await _read_table(bus, "nodes")).items()
    }
    listed = (await _read_table(bus, "sess")).values()
    sessions = Counter(msgspec.json.decode(value, type=fleet.Listed).node for value in listed)
    given = registry.Orders()
    for key, value in (await _read_table(bus, registry.ORDERS)).items():
        given.take(TableEntry(key, value, 0))
    names = sorted({*leases, *sessions, *given.draining, *given.forgotten, *given.pins})
    return Status([_status_of(name, leases.get(name), sessions[name], given) for name in names], _streams(streams))


def _status_of(name: str, lease: fleet.Lease | None, sessions: int, given: registry.Orders) -> NodeStatus:
    if name in given.forgotten:
        state = "forgotten"
    elif lease is None:
        state = "away"
    else:
        state = "set aside" if lease.set_aside else "draining" if name in given.draining else "there"
    if lease is None:
        pin = given.pins.get(name)
        labels = {} if pin is None else pin.labels
        return NodeStatus(name, state, "", sessions, 0, 0, [], labels, pin is not None, "")
    lease = given.describe(lease)
    numbers = (sessions, lease.running, lease.waiting)
    return NodeStatus(name, state, lease.version, *numbers, lease.agents, lease.labels, lease.pinned, lease.limited)


def _streams(found: Sequence[StreamFacts]) -> list[StreamStatus]:
    return [
        StreamStatus(each.name, each.leader, each.servers, each.behind, each.messages, each.size, each.most)
        for each in found
    ]


async def _read_table(bus: NatsBus, name: str) -> dict[str, bytes]:
    values: dict[str, bytes] = {}

    def take(entry: TableEntry) -> None:
        if entry.value is not None:
            values[entry.key] = entry.value

    reader = await bus.open_table(name).watch(take)
    await reader.close()
    return values


async def _check_known(bus: NatsBus, node: str) -> None:
    names = [each.node for each in (await read_status(bus)).nodes]
    if node not in names:
        raise SettingsError(f"no node of this fleet is called {node}; there are: {', '.join(names) or 'none'}")


async def drain(bus: NatsBus, node: str) -> None:
    """Order the fleet to open no new sessions at a node."""
    await bus.open_table(registry.ORDERS).put(registry.drain_key(node), b"{}")


async def pin(bus: NatsBus, node: str, labels: Mapping[str, str], agents: Sequence[str]) -> None:
    """Set the labels of a node, and the agents that it may run, in place of those that it reports."""
    said = fleet.Pin(dict(labels), list(agents) or None)
    await bus.open_table(registry.ORDERS).put(registry.pin_key(node), msgspec.json.encode(said))


async def unpin(bus: NatsBus, node: str) -> None:
    """Let the labels and agents that a node reports count again."""
    await bus.open_table(registry.ORDERS).delete(registry.pin_key(node))


async def resume(bus: NatsBus, node: str) -> None:
    """Admit a node again that drains or was forgotten."""
    table = bus.open_table(registry.ORDERS)
    for key in (registry.drain_key(node), registry.forget_key(node)):
        if await table.get(key) is not None:
            await table.delete(key)


async def forget(bus: NatsBus, node: str) -> int:
    """Make gateways refuse a node, end its lease and remove its sessions from the list. Return how many there were."""
    # Before the lease ends, so that the node cannot come back in between.
    await bus.open_table(registry.ORDERS).put(registry.forget_key(node), b"{}")
    await bus.open_table("nodes").delete(node)
    listed = bus.open_table("sess")
    values = await _read_table(bus, "sess")
    own = [key for key, value in values.items() if msgspec.json.decode(value, type=fleet.Listed).node == node]
    for key in own:
        await listed.delete(key)
    # Free its aliases for other nodes. Keep its ids, because clients may still ask for these sessions.
    granted = bus.open_table(owners.TABLE)
    for key, value in (await _read_table(bus, owners.TABLE)).items():
        owner = msgspec.json.decode(value, type=owners.Owner)
        if owner.node == node and owner.session:
            await granted.delete(key)
    return len(own)
