"""A node that floods is set aside: it costs others nothing, and everyone who looks at it is told."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec
import pytest

from sandboxagent.fleet import messages
from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.bus.interface import Bus, BusError, Table
from sandboxagent.fleet.bus.memory import Cluster, MemoryBus
from sandboxagent.fleet.gateway.ingest import LEASE_TIMEOUT, Ingest
from sandboxagent.fleet.gateway.intake import MAX_FIRST_BEATS, UNKNOWN_TIMEOUT, Intake
from sandboxagent.fleet.gateway.limits import ExcessReports
from sandboxagent.fleet.gateway.owners import Owners
from sandboxagent.fleet.gateway.registry import NodeRegistry, Orders
from sandboxagent.fleet.gateway.tunnels import GatewayTunnels, NodeRequest
from sandboxagent.fleet.gateway.validate import (
    IGNORE_TIMEOUT,
    MAX_INVALID,
    MAX_INVALID_PER_SECOND,
    MAX_UNKNOWN_PIECES_PER_SECOND,
    Quotas,
)
from sandboxagent.fleet.messages import BeatReply, BeatRequest
from sandboxagent.protocol.errors import NodeUnreachable
from tests.fleet.gateway.test_rights import Guarded, guarded, needs_nats
from tests.fleet.gateway.test_validate import Clock
from tests.support.client import run
from tests.support.running import BOUND

__all__ = ["guarded"]
RATE = 1 << 30


@dataclass
class Gateway:
    name: str
    bus: Bus
    registry: NodeRegistry
    quotas: Quotas
    intake: Intake
    flows: GatewayTunnels
    clock: Clock
    leases: Table
    taken: Counter[str] = field(default_factory=Counter[str])
    """Requests that came here, by node."""

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(BOUND):
            while not condition():  # noqa: ASYNC110 - what is waited for has no events
                await asyncio.sleep(0)

    def view(self, node: str) -> object:
        return next((each for each in self.registry.nodes() if each.node == node), None)

    def aside(self, node: str) -> str:
        lease = self.registry.leases.get(node)
        return "" if lease is None else lease.set_aside

    async def close(self) -> None:
        await self.intake.close()
        await self.registry.close()


async def open_gateway(bus: Bus, name: str = "g", orders: Orders | None = None) -> Gateway:
    clock, taken = Clock(), Counter[str]()
    events = await bus.stream("EV", [subjects.EVENTS], max_bytes=1 << 20, max_age=60)
    leases, listed = await bus.table("nodes"), await bus.table("sess")
    registry, quotas, marks = NodeRegistry(orders), Quotas(RATE, clock), ExcessReports(clock)
    await registry.start(leases, listed)
    tables = Owners(await bus.table("owners"), events), leases, listed
    ingest = Ingest(
        name, events, *tables, registry.leases, registry=registry, quotas=quotas, marks=marks, orders=orders
    )

    async def take(subject: str, body: bytes) -> bytes | None:
        taken[subjects.sender(subject)[0]] += 1
        return await ingest.take(subject, body)

    intake = Intake(name, bus, take, quotas, registry, leases, clock, LEASE_TIMEOUT)
    flows = GatewayTunnels(name, bus, registry.leases, 4)
    flows.stray, intake.silenced = quotas.stray, flows.silence
    await intake.start()
    return Gateway(name, bus, registry, quotas, intake, flows, clock, leases, taken)


@dataclass
class Node:
    name: str
    bus: Bus

    async def ask(self, verb: str, body: bytes = b"garbage", gateway: str = "g") -> bytes:
        return await self.bus.request(subjects.request_to_gateway(self.name, verb, gateway), body, 1.0)

    async def beat(self, gateway: str = "g") -> BeatReply:
        request = BeatRequest(f"of {self.name}", 0, "", {}, [], 0)
        answer = await self.ask(messages.BEAT, msgspec.msgpack.encode(request), gateway)
        return msgspec.msgpack.decode(answer, type=BeatReply)

    async def shout(self, verb: str, times: int, body: bytes = b"garbage", gateway: str = "g") -> None:
        for _ in range(times):
            await self.bus.publish(subjects.request_to_gateway(self.name, verb, gateway), body)
            await asyncio.sleep(0)


@asynccontextmanager
async def joined(cluster: Cluster | None = None) -> AsyncGenerator[tuple[Gateway, Node, Node]]:
    """A gateway in memory that knows two nodes."""
    cluster = cluster or Cluster()
    gateway = await open_gateway(MemoryBus(cluster))
    nodes = [Node(name, MemoryBus(cluster)) for name in ("evil", "good")]
    for node in nodes:
        assert (await node.beat()).failed is None
    await gateway.until(lambda: len(gateway.registry.leases) == 2)
    yield gateway, *nodes
    await gateway.close()


@pytest.mark.parametrize(
    ("verb", "body"),
    [("nonsense", b"x"), (messages.LOG, b"garbage"), (messages.FACTS, b""), (messages.BEAT, b"\xff"), ("flow", b"x")],
)
def test_a_node_that_floods_with_anything_is_set_aside_and_everyone_is_told(
    verb: str, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        cluster = Cluster()
        async with joined(cluster) as (gateway, evil, good):
            other = await open_gateway(MemoryBus(cluster), "g2")
            caplog.clear()
            await evil.shout(verb, 2000, body)
            await gateway.until(lambda: bool(other.aside("evil")))
            assert gateway.taken["evil"] <= MAX_FIRST_BEATS + 200
            assert "it is accepted again 30 s after g noticed" in gateway.aside("evil")
            assert gateway.registry.nodes()[0].set_aside == gateway.aside("evil")
            assert "floods" in gateway.registry.closed()["evil"]
            assert len([each for each in caplog.records if "evil" in each.getMessage()]) <= 3
            # Its node learns why, of either gateway, and no other one notices anything.
            await gateway.intake.renew()
            for name in ("g", "g2"):
                assert (await evil.beat(name)).failed == gateway.aside("evil")
                assert (await good.beat(name)).failed is None
            with pytest.raises(BusError):
                await evil.ask(messages.LOG)
            with pytest.raises(NodeUnreachable, match="floods"):
                async with gateway.flows.open("evil", NodeRequest("GET", b"/")):
                    pass
            assert not gateway.aside("good")
            assert "good" not in gateway.registry.closed()
            # It does not lose its lease meanwhile, and is heard again.
            gateway.clock.now = IGNORE_TIMEOUT
            await gateway.intake.renew()
            await gateway.until(lambda: not other.aside("evil"))
            assert (await evil.beat()).failed is None
            await other.close()

    run(main())


def test_an_honest_node_that_sends_too_much_has_to_wait_and_is_not_set_aside() -> None:
    clock = Clock()
    quotas = Quotas(1000, clock)
    told: list[str] = []
    quotas.set_aside = lambda node, reason: told.append(node)
    for _ in range(600):
        # As its outbox, its list and its beats do.
        clock.now += 1 / 7
        if quotas.begin("good", 1 << 20) is None:
            quotas.end("good")
    assert not told
    for _ in range(int(MAX_INVALID) + 10):
        quotas.begin("good", 1 << 20)
    assert told == ["good"]
    assert quotas.is_aside("good")
    clock.now += IGNORE_TIMEOUT
    assert not quotas.is_aside("good")
    # Once more at once, if it goes on.
    for _ in range(int(MAX_INVALID) + 10):
        quotas.blame("good", "it goes on")
    assert told == ["good"] * 2
    assert MAX_INVALID_PER_SECOND < MAX_INVALID


def test_few_stray_pieces_are_no_flood_but_many_are() -> None:
    """A client that gives up leaves a few stray pieces."""
    clock = Clock()
    quotas = Quotas(1000, clock)
    told: list[str] = []
    quotas.set_aside = lambda node, reason: told.append(reason)
    for _ in range(100):
        clock.now += 1
        for _ in range(int(MAX_UNKNOWN_PIECES_PER_SECOND) - 1):
            quotas.stray("n")
    assert not told
    for _ in range(2000):
        quotas.stray("n")
    assert told == ["it sends into flows that are not there"]


def test_a_node_is_heard_by_its_first_beat_and_not_for_ever_without_a_lease() -> None:
    async def main() -> None:
        async with joined() as (gateway, _, good):
            with pytest.raises(BusError):
                await Node("stranger", good.bus).ask(messages.LOG)
            assert not gateway.taken["stranger"]
            await gateway.leases.delete("good")
            await gateway.until(lambda: "good" not in gateway.registry.leases)
            gateway.clock.now = UNKNOWN_TIMEOUT + 1
            await gateway.intake.renew()
            with pytest.raises(BusError):
                await good.ask(messages.LOG)
            assert (await good.beat()).failed is None

    run(main())


def test_a_flood_of_first_beats_keeps_out_no_node_that_is_known() -> None:
    async def main() -> None:
        async with joined() as (gateway, _, good):
            before = gateway.taken.total()
            stranger = Node("no-name!", good.bus)
            await stranger.shout(messages.BEAT, 2 * MAX_FIRST_BEATS)
            assert gateway.taken.total() == before
            assert (await good.beat()).failed is None
            with pytest.raises(BusError):
                await Node("new", good.bus).beat()
            # At the next beacon a new one gets in.
            await gateway.intake.renew()
            assert (await Node("new", good.bus).beat()).failed is None

    run(main())


@needs_nats
def test_megabytes_of_nonsense_of_one_node_cost_no_other_its_lease(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        bus = await guarded.gateway()
        gateway = await open_gateway(bus)
        evil, good = [Node(name, await guarded.node(name)) for name in ("evil", "good")]
        for node in (evil, good):
            assert (await node.beat()).failed is None
        await gateway.until(lambda: len(gateway.registry.leases) == 2)
        caplog.clear()
        done = asyncio.Event()

        async def flood() -> None:
            while not done.is_set():
                for _ in range(20):
                    await evil.bus.publish(subjects.request_to_gateway("evil", "nonsense", "g"), b"x" * 100)
                await evil.shout(messages.BEAT, 1, b"x" * 100)

        flooding = asyncio.create_task(flood())
        while not gateway.aside("evil"):
            assert (await good.beat()).failed is None
            gateway.clock.now += 0.2
        # Nothing of it comes here any more but first beats, and so many of these.
        before = gateway.taken["evil"]
        for _ in range(40):
            assert (await good.beat()).failed is None
            gateway.clock.now += 0.2
        assert gateway.taken["evil"] - before <= 2 * MAX_FIRST_BEATS
        done.set()
        await flooding
        lines = [each.getMessage() for each in caplog.records]
        assert len(lines) < 30, lines[:40]
        assert any(each.startswith("node set aside node=evil") for each in lines)
        await gateway.close()
        for each in (bus, evil.bus, good.bus):
            await each.close()

    run(main())
