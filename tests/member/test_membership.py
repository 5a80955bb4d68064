"""A node's life in a fleet, on a bus in memory."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import cast

import msgspec
import pytest

from sandbox_agent.bus import subjects
from sandbox_agent.bus.memory import Cluster, MemoryBus
from sandbox_agent.bus.ports import Bus
from sandbox_agent.errors import LogUnavailable
from sandbox_agent.gateway.ingest import Ingest
from sandbox_agent.gateway.roster import Roster
from sandbox_agent.log.event import Chunk, Direction, session_channel
from sandbox_agent.log.group import Group
from sandbox_agent.log.log import Log
from sandbox_agent.member.membership import Gateways, Identity, Membership, Memory
from sandbox_agent.wire import fleet
from tests.support.client import run


class Shaky:
    """A log that cannot be read the first time."""

    def __init__(self) -> None:
        self.failures = 1
        self.chunks: list[Chunk] = []

    @property
    def position(self) -> int:
        return self.chunks[-1].last if self.chunks else 0

    async def since(self, position: int) -> list[Chunk]:
        if self.failures:
            self.failures -= 1
            raise LogUnavailable("the disk is gone")
        return [chunk for chunk in self.chunks if chunk.first > position]

    def resume_producers(self) -> None:
        pass


def test_a_log_that_cannot_be_read_for_a_moment_keeps_no_node_out_of_its_fleet() -> None:
    async def main() -> None:
        cluster = Cluster()
        bus = MemoryBus(cluster)
        events = await bus.stream("EV", [subjects.EVENTS], max_bytes=1 << 20, max_age=60)
        leases, listed, roster = await bus.table("nodes"), await bus.table("sess"), Roster()
        await roster.start(leases, listed)
        await Ingest("g", events, leases, listed, roster.leases).serve(bus)
        log = Shaky()
        identity = Identity("n1", {}, list, lambda: 0)

        async def connect() -> Bus:
            return MemoryBus(cluster)

        node = Membership(
            identity, connect, cast("Log", log), lambda _: None, lambda: (), Memory(None, "n1"), 1 << 20, 0.01
        )
        assert node.trouble == "not connected yet"
        running = asyncio.create_task(node.run())
        channel = session_channel("s")
        log.chunks.append(Chunk(1, [b"{}"], Direction.FROM_AGENT, "s", channel, 0.0))
        node.committed(Group(chunks=list(log.chunks)))
        beacon = msgspec.msgpack.encode(fleet.Beacon("g", fleet.PROTOCOL, fleet.PROTOCOL))
        while node.published < 1:
            await bus.publish(subjects.BEACON, beacon)
            await asyncio.sleep(0.01)
        assert log.failures == 0
        assert node.trouble is None
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running

    run(main())


def test_a_gateway_that_does_not_answer_is_left_for_another_one() -> None:
    now = 0.0
    gateways = Gateways(lambda: now)
    assert gateways.choose() is None
    for name in ("a", "b"):
        assert gateways.take_beacon(fleet.Beacon(name, fleet.PROTOCOL, fleet.PROTOCOL))
    first = gateways.choose()
    assert first is not None
    assert gateways.choose() == first
    gateways.leave(first)
    assert gateways.choose() == ({"a", "b"} - {first}).pop()
    now = 10.0
    assert gateways.choose() is None


@pytest.mark.parametrize("versions", [(fleet.PROTOCOL + 1, fleet.PROTOCOL + 2), (0, fleet.PROTOCOL - 1)])
def test_a_gateway_of_another_protocol_is_not_asked(versions: tuple[int, int]) -> None:
    gateways = Gateways(lambda: 0.0)
    assert not gateways.take_beacon(fleet.Beacon("g", *versions))
    assert gateways.choose() is None


def test_what_a_node_remembers_is_of_its_own_name(tmp_path: Path) -> None:
    path = tmp_path / "fleet.json"
    memory = Memory(path, "n1")
    memory.save(7)
    memory.save_revision(3)
    again = Memory(path, "n1")
    assert (again.position, again.revision) == (7, 3)
    assert Memory(path, "n2").position == 0
    path.write_bytes(b"\xff")
    assert Memory(path, "n1").position == 0
