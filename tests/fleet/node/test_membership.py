"""A node's life in a fleet, on a bus in memory."""

import asyncio
import os
import shutil
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import cast

import msgspec
import pytest

from sandboxagent.fleet import messages
from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.bus.interface import Bus, BusRefused, Unreachable
from sandboxagent.fleet.bus.memory import Cluster, MemoryBus
from sandboxagent.fleet.gateway.ingest import LEASE_TIMEOUT, MAX_RATE_BYTES, Ingest
from sandboxagent.fleet.gateway.intake import Intake
from sandboxagent.fleet.gateway.owners import Owners
from sandboxagent.fleet.gateway.placement import NodeProbe
from sandboxagent.fleet.gateway.registry import NodeRegistry, Orders
from sandboxagent.fleet.gateway.validate import Quotas
from sandboxagent.fleet.node import membership
from sandboxagent.fleet.node.membership import Gateways, Identity, Membership, Memory
from sandboxagent.protocol.errors import LogUnavailable
from sandboxagent.protocol.views import SessionView
from sandboxagent.server.log.event import Chunk, Direction, session_channel
from sandboxagent.server.log.journal import Group
from sandboxagent.server.log.log import Log
from tests.support.client import run
from tests.support.running import BOUND

View = Callable[[str], SessionView | None]


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


class World:
    """A gateway and nodes on one bus."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.bus = MemoryBus(self.cluster)
        self.ingest: Ingest
        self.tasks: list[asyncio.Task[None]] = []

    async def open(self) -> "World":
        events = await self.bus.stream("EV", [subjects.EVENTS], max_bytes=1 << 20, max_age=60)
        leases, listed, registry = await self.bus.table("nodes"), await self.bus.table("sess"), NodeRegistry()
        await registry.start(leases, listed)
        is_there = NodeProbe("g", self.bus).is_there
        known = (registry.leases, None, is_there)
        self.orders = Orders()
        tables = Owners(await self.bus.table("owners"), events), leases, listed
        quotas = Quotas(MAX_RATE_BYTES, time.monotonic)
        self.ingest = Ingest("g", events, *tables, *known, registry=registry, quotas=quotas, orders=self.orders)
        self.intake = Intake("g", self.bus, self.ingest.take, quotas, registry, leases, time.monotonic, LEASE_TIMEOUT)
        await self.intake.start()
        return self

    def join(
        self,
        log: Shaky,
        path: Path | None = None,
        view: Callable[[str], object] = lambda _: None,
        connect: Callable[[], Awaitable[Bus]] | None = None,
    ) -> Membership:
        """A node called n1."""

        async def reach() -> Bus:
            return MemoryBus(self.cluster)

        identity, memory = Identity("n1", {}, list, lambda: 0), Memory(path, "n1")
        way = connect or reach
        node = Membership(identity, way, cast("Log", log), cast("View", view), lambda: (), memory, 1 << 20, 0.01)
        self.tasks.append(asyncio.create_task(node.run()))
        return node

    async def until(self, condition: Callable[[], bool], oldest: int = messages.OLDEST, newest: int = 0) -> None:
        """Show a gateway of these versions until something is true."""
        announcement = msgspec.msgpack.encode(messages.GatewayAnnouncement("g", oldest, newest or messages.PROTOCOL))
        while not condition():
            await self.bus.publish(subjects.GATEWAY_ANNOUNCEMENTS, announcement)
            await asyncio.sleep(0.01)

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def lines(self) -> list[bytes]:
        return [record.body for record in self.cluster.streams["EV"].records if record.body]


def say(node: Membership, log: Shaky, text: bytes, at: float = 0.0) -> None:
    log.chunks.append(Chunk(log.position + 1, [text], Direction.FROM_AGENT, "s", session_channel("s"), at))
    node.committed(Group(chunks=log.chunks[-1:]))


def test_a_log_that_cannot_be_read_for_a_moment_keeps_no_node_out_of_its_fleet() -> None:
    async def main() -> None:
        world, log = await World().open(), Shaky()
        node = world.join(log)
        assert node.failure_reason == "not connected yet"
        say(node, log, b"{}")
        await world.until(lambda: node.published == 1 and node.failure_reason is None)
        assert log.failures == 0
        assert node.failure_reason is None
        await world.close()

    run(main())


def test_a_node_that_is_there_answers_the_gateway_that_knocks() -> None:
    async def main() -> None:
        world = await World().open()
        world.join(Shaky())
        nodes = world.cluster.tables["nodes"].entries
        await world.until(lambda: "n1" in nodes)
        lease = msgspec.json.decode(nodes["n1"].value or b"", type=messages.Lease)
        assert await NodeProbe("g", world.bus).answers("n1", lease.nonce)
        await world.close()

    run(main())


def test_session_made_while_others_wait_is_listed_once_its_events_are_there() -> None:
    async def main() -> None:
        world, log = await World().open(), Shaky()
        node = world.join(log, view=lambda session_id: {"sessionId": session_id})
        log.failures = 0
        world.cluster.appends_to_refuse = 5
        say(node, log, b"1")
        await world.until(lambda: world.cluster.appends_to_refuse <= 2)
        late = Chunk(2, [b"2"], Direction.FROM_AGENT, "late", session_channel("late"), 0.0)
        node.committed(Group(chunks=[late]))
        table = world.cluster.tables["sess"]
        await world.until(lambda: subjects.token("s") in table.entries or node.published == 1)
        log.chunks.append(late)
        node.committed(Group())
        await world.until(lambda: subjects.token("late") in table.entries)
        assert subjects.token("s") in table.entries
        await world.close()

    run(main())


def test_session_deleted_without_nats_is_delisted_by_the_next_run(tmp_path: Path) -> None:
    async def main() -> None:
        world, log, path = await World().open(), Shaky(), tmp_path / "fleet.json"
        node = world.join(log, path, view=lambda session_id: {"sessionId": session_id})
        say(node, log, b"1")
        entries = world.cluster.tables["sess"].entries
        await world.until(lambda: subjects.token("s") in entries)
        await world.close()

        async def connect() -> Bus:
            raise Unreachable("no answer")

        away = world.join(log, path, connect=connect)
        await world.until(lambda: away.failure_reason == "no answer")
        away.committed(Group(deleted={"s": 1}))
        await world.close()
        world.join(log, path)
        await world.until(lambda: entries[subjects.token("s")].value is None and not Memory(path, "n1").deleted)
        await world.close()

    run(main())


def test_a_connection_that_is_gone_for_good_is_made_anew() -> None:
    async def main() -> None:
        world, log = await World().open(), Shaky()
        node = world.join(log)
        say(node, log, b"1")
        await world.until(lambda: node.published == 1)
        world.cluster.closed.set()
        await world.until(lambda: node.failure_reason == "the cluster is gone")
        world.cluster.closed.clear()
        say(node, log, b"2")
        await world.until(lambda: node.published == 2)
        assert world.lines() == [b"1", b"2"]
        await world.close()

    run(main())


def test_credentials_that_are_refused_are_named_until_there_are_others() -> None:
    async def main() -> None:
        world, log = await World().open(), Shaky()
        log.failures = 0
        good = False

        async def connect() -> Bus:
            if not good:
                raise BusRefused("the NATS servers do not accept the credentials in n1.nk")
            return MemoryBus(world.cluster)

        node = world.join(log, connect=connect)
        say(node, log, b"1")
        await world.until(lambda: node.failure_reason == "the NATS servers do not accept the credentials in n1.nk")
        say(node, log, b"2")
        good = True
        await world.until(lambda: node.published == 2)
        assert node.failure_reason is None
        assert b"".join(world.lines()) in (b"12", b"1\n2")
        await world.close()

    run(main())


def test_forgotten_node_is_told_at_any_request_then_asks_for_a_lease_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        world, log = await World().open(), Shaky()
        node = world.join(log, view=lambda session_id: {"sessionId": session_id})
        say(node, log, b"1")
        await world.until(lambda: node.published == 1)
        world.orders.forgotten.add("n1")
        verbs: list[str] = []
        unanswered: list[str] = []
        take = world.ingest.take

        async def note(subject: str, body: bytes) -> bytes | None:
            _, verb = subjects.sender(subject)
            verbs.append(verb)
            answer = await take(subject, body)
            if answer is None:
                unanswered.append(verb)
            return answer

        world.cluster.served = [
            (pattern, note if handler == take else handler, bus) for pattern, handler, bus in world.cluster.served
        ]
        node.committed(Group(sessions={"s": b"{}"}))
        await world.until(lambda: messages.FACTS in verbs or node.clash is not None)
        say(node, log, b"2")
        monkeypatch.setattr(membership, "BEAT_INTERVAL", 0.01)
        await world.until(lambda: node.clash is not None)
        assert "n1 was removed from this fleet" in (node.failure_reason or "")
        verbs.clear()
        await world.until(lambda: len(verbs) > 1)
        assert set(verbs) == {messages.BEAT}
        # A node takes silence for a gateway that is not there.
        assert unanswered == []
        assert world.lines() == [b"1"]
        await world.close()

    run(main())


def test_a_node_asks_for_its_lease_as_soon_as_a_gateway_shows_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not when the next beat is due: by then, another request may have left that gateway."""
    monkeypatch.setattr(membership, "BEAT_INTERVAL", 0.01)

    async def main() -> None:
        world, log = await World().open(), Shaky()
        node = world.join(log)
        say(node, log, b"1")
        await world.until(lambda: node.published == 1)
        served = world.cluster.served

        async def be_silent(subject: str, body: bytes) -> None:
            # The next beat is due in an hour.
            monkeypatch.setattr(membership, "BEAT_INTERVAL", 3600)

        world.cluster.served = [(pattern, be_silent, bus) for pattern, _, bus in served]
        while node.failure_reason is None:  # noqa: ASYNC110 - a node's health has no events
            await asyncio.sleep(0.01)
        world.cluster.served = served
        world.orders.forgotten.add("n1")
        await world.until(lambda: node.clash is not None)
        await world.close()

    run(main())


def test_a_copy_of_a_nodes_disk_publishes_nothing_and_says_why(tmp_path: Path) -> None:
    async def main() -> None:
        world, log, copied = await World().open(), Shaky(), Shaky()
        path = tmp_path / "fleet.json"
        node = world.join(log, path)
        say(node, log, b"1")
        await world.until(lambda: node.published == 1)
        clone = world.join(copied, Path(shutil.copy(path, tmp_path / "copy.json")))
        copied.chunks.append(log.chunks[0])
        say(clone, copied, b"of the clone")
        await world.until(lambda: clone.clash is not None)
        assert clone.failure_reason == "another node is called n1; join this one under another name"
        say(node, log, b"2")
        await world.until(lambda: node.published == 2)
        assert world.lines() == [b"1", b"2"]
        assert node.failure_reason is None
        await world.close()

    run(main())


def test_a_node_that_is_started_again_on_its_disk_has_its_lease_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        world, log = await World().open(), Shaky()
        path = tmp_path / "fleet.json"
        node = world.join(log, path)
        say(node, log, b"1")
        await world.until(lambda: node.published == 1)
        await world.close()
        # Its lease is still there: it holds for longer than this test may take.
        again = world.join(log, path)
        say(again, log, b"2")
        await world.until(lambda: again.published == 2)
        assert again.clash is None
        assert world.lines() == [b"1", b"2"]
        await world.close()

    run(main())


def test_a_node_that_comes_back_without_its_disk_has_its_lease_at_once() -> None:
    async def main() -> None:
        world, log = await World().open(), Shaky()
        node = world.join(log)
        say(node, log, b"1")
        await world.until(lambda: node.published == 1)
        await world.close()
        # As above; and nothing tells this one which revision the lease has.
        again = world.join(log)
        say(again, log, b"2")
        await world.until(lambda: again.published == 2)
        assert again.clash is None
        await world.close()

    run(main())


def test_a_run_of_a_node_that_does_not_answer_may_still_be_there() -> None:
    async def main() -> None:
        world = await World().open()
        asking = NodeProbe("g", world.bus)
        assert not await asking.is_there("n1", "nonce")
        assert not await asking.answers("n1", "nonce")
        frozen = MemoryBus(world.cluster)
        await frozen.subscribe(subjects.run_of_node("n1", "nonce"), lambda subject, body: None)
        assert await asking.is_there("n1", "nonce")
        assert not await asking.answers("n1", "nonce")
        assert not await asking.is_there("n1", "*")
        world.bus.cut = True
        assert await asking.is_there("n1", "of another run")

    run(main())


def test_a_lease_that_the_servers_have_no_room_for_is_named_and_costs_no_event() -> None:
    async def main() -> None:
        world, log = await World().open(), Shaky()
        log.failures = 0
        world.cluster.puts_to_refuse = 1
        node = world.join(log)
        say(node, log, b"1")
        await world.until(lambda: node.failure_reason == "the table is full")
        assert node.published == 0
        await world.until(lambda: node.published == 1)
        assert node.failure_reason is None
        assert world.lines() == [b"1"]
        await world.close()

    run(main())


def test_a_clock_that_jumps_changes_no_order_and_loses_nothing() -> None:
    async def main() -> None:
        world, log = await World().open(), Shaky()
        node = world.join(log)
        for place, at in enumerate((1e9, 2e9, 0.0, 1.5e9, -5.0, 1e9)):
            say(node, log, b"%d" % place, at)
        await world.until(lambda: node.published == 6)
        assert b"".join(world.lines()).replace(b"\n", b"") == b"012345"
        await world.close()

    run(main())


def test_gateway_one_version_ahead_is_joined_and_one_two_ahead_is_named() -> None:
    async def main() -> None:
        world, log = await World().open(), Shaky()
        node = world.join(log)
        say(node, log, b"1")
        two = messages.PROTOCOL + 2
        await world.until(lambda: "speaks protocol" in (node.failure_reason or ""), two - 1, two)
        wanted = (
            f"gateway g speaks protocol {two - 1} to {two}, this node {messages.PROTOCOL}; upgrade the older of them"
        )
        assert node.failure_reason == wanted
        assert node.published == 0
        await world.until(lambda: node.published == 1, messages.PROTOCOL, messages.PROTOCOL + 1)
        assert node.failure_reason is None
        await world.close()

    run(main())


def test_a_node_that_says_more_than_its_gateway_knows_is_understood() -> None:
    async def main() -> None:
        world = await World().open()
        beat = {"nonce": "x", "revision": 0, "version": "9", "labels": {}, "agents": [], "running": 0, "mood": "good"}
        subject = subjects.request_to_gateway("n1", messages.BEAT, "g")
        answer = await world.ingest.take(subject, msgspec.msgpack.encode(beat))
        assert answer is not None
        assert msgspec.msgpack.decode(answer, type=messages.BeatReply).clash is None

    run(main())


def test_a_gateway_that_does_not_answer_is_left_for_another_one() -> None:
    now = 0.0
    gateways = Gateways(lambda: now)
    assert gateways.choose() is None
    for name in ("a", "b"):
        assert gateways.take_announcement(messages.GatewayAnnouncement(name, messages.PROTOCOL, messages.PROTOCOL))
    first = gateways.choose()
    assert first is not None
    assert gateways.choose() == first
    gateways.leave(first)
    assert gateways.choose() == ({"a", "b"} - {first}).pop()
    now = 10.0
    assert gateways.choose() is None


@pytest.mark.parametrize("versions", [(messages.PROTOCOL + 1, messages.PROTOCOL + 2), (0, messages.PROTOCOL - 1)])
def test_a_gateway_of_another_protocol_is_not_asked(versions: tuple[int, int]) -> None:
    gateways = Gateways(lambda: 0.0)
    assert not gateways.take_announcement(messages.GatewayAnnouncement("g", *versions))
    assert gateways.choose() is None


def test_what_a_node_remembers_is_of_its_own_name(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "fleet.json"
        memory = Memory(path, "n1")
        memory.save(7)
        memory.save_revision(3)
        await memory.written()
        again = Memory(path, "n1")
        assert (again.position, again.revision) == (7, 3)
        assert Memory(path, "n2").position == 0
        path.write_bytes(b"\xff")
        assert Memory(path, "n1").position == 0

    asyncio.run(main())


def test_a_disk_that_hangs_at_what_a_node_remembers_does_not_hold_the_event_loop(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "fleet.json"
        # Opening one to write waits for a reader.
        os.mkfifo(tmp_path / "fleet.json.new")
        memory = Memory(path, "n1")
        for revision in range(1, 6):
            memory.save_revision(revision)
        assert not path.exists()
        first = await asyncio.to_thread((tmp_path / "fleet.json.new").read_bytes)
        assert b'"revision":1' in first
        await memory.written()
        # What came meanwhile was written once, as it was at last.
        assert Memory(path, "n1").revision == 5

    asyncio.run(main())


def test_a_node_that_stops_ends_also_when_what_is_cancelled_fails() -> None:
    async def main() -> None:
        connecting = asyncio.Event()

        async def connect() -> Bus:
            connecting.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise Unreachable("no server answers") from None
            raise AssertionError

        identity, memory = Identity("n1", {}, list, lambda: 0), Memory(None, "n1")
        view = cast("View", lambda _: None)
        node = Membership(identity, connect, cast("Log", Shaky()), view, lambda: (), memory, 1 << 20, 0.01)
        running = asyncio.create_task(node.run())
        await connecting.wait()
        running.cancel()
        done, _ = await asyncio.wait({running}, timeout=BOUND)
        assert done == {running}

    run(main())
