"""Of a full stream the node that has most loses its oldest events: what one publishes costs no other one anything."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from sandboxagent.fleet import messages, records
from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.bus.interface import Bus, BusStream
from sandboxagent.fleet.bus.memory import Cluster, MemoryBus
from sandboxagent.fleet.bus.nats import connect
from sandboxagent.fleet.gateway.feed import Feed
from sandboxagent.fleet.gateway.ingest import Ingest
from sandboxagent.fleet.gateway.owners import Owners
from sandboxagent.fleet.gateway.shares import (
    KEPT,
    MAX_SUBJECTS,
    MIN_PIECE_BYTES,
    SHOWN_AFTER,
    SUBJECT_COST_BYTES,
    Shares,
)
from sandboxagent.fleet.messages import LogReply, LogRequest
from sandboxagent.fleet.records import end_of
from sandboxagent.server.log.event import Chunk, Direction, session_channel
from tests.support.client import run
from tests.support.nats import PROGRAM, nats_server

MOST = 4 << 20
LINE = b"x" * 30_000
Buses = Callable[[int], AbstractAsyncContextManager[list[Bus]]]


@pytest.fixture(params=["memory", "nats"])
def buses(request: pytest.FixtureRequest, tmp_path: Path) -> Buses:
    """So many gateways' ways to one fleet."""

    @asynccontextmanager
    async def in_memory(number: int) -> AsyncGenerator[list[Bus]]:
        cluster = Cluster()
        yield [MemoryBus(cluster) for _ in range(number)]

    @asynccontextmanager
    async def on_nats(number: int) -> AsyncGenerator[list[Bus]]:
        if not PROGRAM.exists():
            pytest.skip(f"{PROGRAM} is not installed")
        with nats_server(tmp_path / "nats") as server:
            opened = [await connect([server.url], f"gw.g{place}.in", f"g{place}") for place in range(number)]
            yield list(opened)
            for bus in opened:
                await bus.close()

    return in_memory if request.param == "memory" else on_nats


@dataclass
class Gateway:
    ingest: Ingest
    shares: Shares
    events: BusStream
    feed: Feed
    ends: dict[str, int] = field(default_factory=dict[str, int])
    last: int = 0

    async def say(self, node: str, session: str, line: bytes = LINE) -> LogReply:
        self.last += 1
        subject = subjects.session_events(session)
        chunk = Chunk(self.last, [line], Direction.FROM_AGENT, session, session_channel(session), 0.0)
        while True:
            expected = {subject: self.ends.get(subject, 0)}
            body = msgspec.msgpack.encode(LogRequest(list(records.outgoing(chunk, subject)), expected, f"of {node}"))
            answer = await self.ingest.take(subjects.request_to_gateway(node, messages.LOG, "g"), body)
            assert answer is not None
            reply = msgspec.msgpack.decode(answer, type=LogReply)
            self.ends |= reply.published or {each: end.sequence for each, end in (reply.ends or {}).items()}
            if reply.ends is None or reply.ends[subject].owner not in ("", node):
                return reply

    async def history(self, session: str) -> tuple[list[bytes], int]:
        chunks, trimmed = await self.feed.history(session, 0, end_of(1 << 30), 1 << 20)
        return [line for chunk in chunks for line in chunk.lines], trimmed

    async def close(self) -> None:
        await self.feed.close()
        await self.shares.close()


async def open_gateway(bus: Bus, name: str) -> Gateway:
    events = await bus.stream("EV", [subjects.EVENTS], max_bytes=MOST, max_age=3600)
    owners = Owners(await bus.table("owners"), events)
    shares = Shares(name, await bus.table("usage"), events, owners, most=MOST, max_age=3600)
    await shares.start()
    leases = {node: messages.Lease(node, f"of {node}", "", {}, [], 0) for node in ("good", "other", "evil")}
    tables = owners, await bus.table("nodes"), await bus.table("sess")
    feed = Feed(events, 1 << 20, dropped=owners.dropped)
    await feed.start()
    return Gateway(Ingest(name, events, *tables, leases, shares=shares), shares, events, feed)


@pytest.mark.parametrize("sessions", [1, 100])
def test_a_node_that_publishes_without_end_drops_its_own_events_and_no_others(buses: Buses, sessions: int) -> None:
    async def main() -> None:
        async with buses(1) as [bus]:
            gateway = await open_gateway(bus, "g1")
            for place in range(30):
                assert (await gateway.say("good", f"good {place % 3}", b"good %d" % place)).published
            for place in range(3 * MOST // len(LINE)):
                reply = await gateway.say("evil", f"evil {place % sessions}")
                await gateway.shares.look()
                assert reply.published or "evil has most of it" in (reply.slow or "")
                assert gateway.shares.wait_reason("good") is None
            for name in range(3):
                lines = [b"good %d" % place for place in range(30) if place % 3 == name]
                assert await gateway.history(f"good {name}") == (lines, 0)
            assert await gateway.events.size() <= MOST
            lines, trimmed = await gateway.history("evil 0")
            assert trimmed
            if sessions == 1:
                assert len(lines) * len(LINE) > MOST / 2
            # What is gone of a session is known as long as the session.
            assert (await gateway.say("good", "evil 0", b"taken over")).ends
            assert await gateway.history("evil 0") == (lines, trimmed)
            await gateway.close()

    run(main())


def test_gateways_agree_on_whose_events_go_first(buses: Buses) -> None:
    async def main() -> None:
        async with buses(3) as [one, two, three]:
            gateways = [await open_gateway(one, "g1"), await open_gateway(two, "g2")]
            await gateways[0].say("good", "good", b"good")
            # Each gateway alone has not seen enough.
            for place in range(MOST // len(LINE)):
                gateway = gateways[place % 2]
                await gateway.say("evil", f"evil {place % 2}")
                await gateway.shares.look()
            for _ in range(SHOWN_AFTER):
                for gateway in gateways:
                    await gateway.shares.look()
                    # What one has put, the other hears of.
                    await asyncio.sleep(0)
            assert await gateways[0].history("good") == ([b"good"], 0)
            assert await gateways[1].events.size() <= KEPT * MOST + MIN_PIECE_BYTES
            # One that comes later knows as much.
            late = await open_gateway(three, "g3")
            assert late.shares.size_of("good")
            found, known = late.shares.size_of("evil"), gateways[0].shares.size_of("evil")
            assert abs(found - known) <= 4 * MIN_PIECE_BYTES
            for gateway in (*gateways, late):
                await gateway.close()

    run(main())


def test_nodes_share_a_full_stream_alike(buses: Buses) -> None:
    async def main() -> None:
        async with buses(1) as [bus]:
            gateway = await open_gateway(bus, "g1")
            for _ in range(MOST // len(LINE)):
                for node in ("good", "evil", "evil", "other"):
                    await gateway.say(node, node)
                await gateway.shares.look()
            sizes = [gateway.shares.size_of(node) for node in ("good", "evil", "other")]
            assert max(sizes) - min(sizes) <= 4 * MIN_PIECE_BYTES
            await gateway.close()

    run(main())


def test_what_is_counted_is_what_the_stream_keeps(buses: Buses) -> None:
    async def main() -> None:
        async with buses(1) as [bus]:
            gateway = await open_gateway(bus, "g1")
            for place in range(60):
                await gateway.say("good", f"s{place % 4}")
            counted, size = gateway.shares.size_of("good"), await gateway.events.size()
            assert size <= counted <= 1.5 * size
            await gateway.close()

    run(main())


def test_many_small_sessions_are_counted_with_the_cost_of_their_subjects() -> None:
    async def main() -> None:
        gateway = await open_gateway(MemoryBus(Cluster()), "g1")
        for place in range(MAX_SUBJECTS):
            await gateway.say("evil", f"s{place}", b"x")
        assert gateway.shares.size_of("evil") > MAX_SUBJECTS * SUBJECT_COST_BYTES
        await gateway.close()

    run(main())


def test_a_share_is_kept_by_itself() -> None:
    async def main() -> None:
        gateway = await open_gateway(MemoryBus(Cluster()), "g1")
        task = asyncio.create_task(gateway.shares.run())
        while await gateway.events.size() < MOST / 2:
            await gateway.say("evil", "evil")
        lines, trimmed = await gateway.history("evil")
        assert not trimmed
        while not trimmed:
            await gateway.say("evil", "evil")
            await asyncio.sleep(0)
            lines, trimmed = await gateway.history("evil")
        assert lines
        task.cancel()
        await gateway.close()

    run(main())
