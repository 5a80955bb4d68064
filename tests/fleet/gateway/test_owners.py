"""Whose a session is holds as long as the session, whatever is left of its events; and what is gone of it is told."""

import asyncio
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxagent.fleet import messages, records
from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.bus.interface import Append, StreamMessage
from sandboxagent.fleet.bus.memory import Cluster, MemoryBus, MemoryStream
from sandboxagent.fleet.gateway.feed import Feed
from sandboxagent.fleet.gateway.ingest import Ingest
from sandboxagent.fleet.gateway.owners import Owners
from sandboxagent.fleet.messages import FactsReply, FactsRequest, LogReply, LogRequest
from sandboxagent.fleet.records import end_of, position_of
from sandboxagent.server.log.event import Chunk, Direction, session_channel
from tests.fleet.gateway.test_feed import Reader
from tests.support.client import run

SUBJECT = subjects.session_events("s")
CHANNEL = session_channel("s")


@dataclass
class World:
    """A fleet in memory, with gateways that know nothing of each other."""

    cluster: Cluster = field(default_factory=Cluster)
    last: int = 0
    """The node's own position."""

    @property
    def stream(self) -> MemoryStream:
        return self.cluster.streams["EV"]

    async def gateway(self) -> tuple[Ingest, Owners, Feed]:
        bus = MemoryBus(self.cluster)
        events = await bus.stream("EV", [subjects.EVENTS], max_bytes=1 << 20, max_age=60)
        owners = Owners(await bus.table("owners"), events)
        leases = {name: messages.Lease(name, f"of {name}", "", {}, [], 0) for name in ("n1", "n2")}
        tables = owners, await bus.table("nodes"), await bus.table("sess")
        feed = Feed(events, 1 << 20, dropped=owners.dropped)
        await feed.start()
        return Ingest("g", events, *tables, leases), owners, feed

    async def say(self, gateway: Ingest, node: str, line: bytes, session: str = "s") -> LogReply:
        """As an honest node does: where its subject ends it learns of the gateway."""
        self.last += 1
        subject = subjects.session_events(session)
        chunk = Chunk(self.last, [line], Direction.FROM_AGENT, session, session_channel(session), 0.0)
        expected = 0
        while True:
            request = LogRequest(list(records.outgoing(chunk, subject)), {subject: expected}, f"of {node}")
            reply = msgspec.msgpack.decode(await ask(gateway, node, messages.LOG, request), type=LogReply)
            if reply.ends is None or reply.ends[subject].owner != node:
                return reply
            expected = reply.ends[subject].sequence

    async def crowd_out(self) -> None:
        """Drop all there is, as the servers do with the oldest when others need the room."""
        other = subjects.session_events("of another node")
        last = self.stream.newest(other)
        self.stream.append(Append([StreamMessage(other, b"x")], {other: 0 if last is None else last.sequence}))
        self.stream.trim(len(self.stream.records) - 1)


async def ask(gateway: Ingest, node: str, verb: str, request: object) -> bytes:
    answer = await gateway.take(subjects.request_to_gateway(node, verb, "g"), msgspec.msgpack.encode(request))
    assert answer is not None
    return answer


async def show(gateway: Ingest, node: str, view: bytes | None = b'{"sessionId":"s"}') -> FactsReply:
    return msgspec.msgpack.decode(await ask(gateway, node, messages.FACTS, FactsRequest({"s": view})), type=FactsReply)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_session_of_which_nothing_is_left_is_granted_to_no_other_node(restarted: bool) -> None:
    async def main() -> None:
        world = World()
        gateway, owners, _ = await world.gateway()
        assert (await world.say(gateway, "n1", b"mine")).published
        await world.crowd_out()
        if restarted:
            gateway, owners, _ = await world.gateway()
        reply = await world.say(gateway, "n2", b"taken over")
        assert reply.ends is not None
        assert reply.ends[SUBJECT].owner == "n1"
        assert (await show(gateway, "n2")).refused == {"s": "the session belongs to n1"}
        # Its own node goes on where it was.
        assert (await world.say(gateway, "n1", b"more")).published
        assert (await show(gateway, "n1")).refused == {}
        owner = await owners.find(SUBJECT)
        assert owner is not None
        assert owner.node == "n1"
        assert b"taken over" not in [record.body for record in world.stream.records]

    run(main())


def test_session_granted_before_the_owners_table_stays_with_its_node() -> None:
    async def main() -> None:
        for left in ("its events", "its line in the list"):
            world = World()
            gateway, owners, _ = await world.gateway()
            assert (await world.say(gateway, "n1", b"mine")).published
            assert (await show(gateway, "n1")).refused == {}
            await owners.forget(SUBJECT)
            if left == "its line in the list":
                await world.crowd_out()
            gateway, owners, _ = await world.gateway()
            reply = await world.say(gateway, "n2", b"taken over")
            assert reply.ends is not None, left
            assert reply.ends[SUBJECT].owner == "n1", left
            owner = await owners.find(SUBJECT)
            assert owner is not None, left
            assert owner.node == "n1", left

    run(main())


def test_of_two_nodes_that_claim_one_session_one_gets_it() -> None:
    async def main() -> None:
        world = World()
        one, owners, _ = await world.gateway()
        two, *_ = await world.gateway()
        replies = await asyncio.gather(world.say(one, "n1", b"1"), world.say(two, "n2", b"2"))
        assert [reply.published is not None for reply in replies].count(True) == 1
        owner = await owners.find(SUBJECT)
        assert owner is not None
        assert {records.ownership(record.headers).node for record in world.stream.records} == {owner.node}

    run(main())


def test_a_grant_whose_answer_is_lost_is_taken_up_again() -> None:
    async def main() -> None:
        world = World()
        gateway, *_ = await world.gateway()
        world.cluster.answers_to_lose = 1
        assert (await world.say(gateway, "n1", b"1")).slow is not None
        assert (await world.say(gateway, "n1", b"2")).published
        assert (await world.say(gateway, "n2", b"3")).ends is not None

    run(main())


def test_a_session_that_its_node_deletes_may_be_another_ones() -> None:
    async def main() -> None:
        world = World()
        gateway, owners, _ = await world.gateway()
        assert (await world.say(gateway, "n1", b"mine")).published
        assert (await show(gateway, "n1")).refused == {}
        assert (await show(gateway, "n2", None)).refused == {"s": "the session belongs to n1"}
        # The table hears of its own change a moment later.
        while (await show(gateway, "n1", None)).failed is not None:
            pass
        assert await owners.find(SUBJECT) is None
        assert (await world.say(gateway, "n2", b"another")).published

    run(main())


def test_readers_of_a_session_of_which_nothing_is_left_are_told() -> None:
    async def main() -> None:
        for followed in (False, True):
            world = World()
            gateway, _, feed = await world.gateway()
            reader = Reader(feed, [CHANNEL], position_of(0))
            if followed:
                feed.follow(CHANNEL, reader)
                await feed.complete([CHANNEL])
            assert (await world.say(gateway, "n1", b"1")).published
            last = world.stream.newest(SUBJECT)
            assert last is not None
            await feed.catch_up(CHANNEL)
            await world.crowd_out()
            if not followed:
                feed.follow(CHANNEL, reader)
            await feed.complete([CHANNEL])
            late = Reader(feed, [CHANNEL], position_of(last.sequence) - 1)
            await late.catch_up()
            if followed:
                # It is in memory still: nothing is missing.
                assert [line for _, line in late.got] == [b"1"]
                assert not feed.trims.get(CHANNEL)
            else:
                assert late.got == []
                assert feed.trims[CHANNEL] >= end_of(last.sequence)
            chunks, trimmed = await feed.history("s", 0, end_of(1 << 30), 10)
            assert chunks == []
            assert trimmed >= end_of(last.sequence)
            # Also when there is something new behind the gap.
            assert (await world.say(gateway, "n1", b"2")).published
            chunks, trimmed = await feed.history("s", 0, end_of(1 << 30), 10)
            assert [chunk.lines for chunk in chunks] == [[b"2"]]
            assert end_of(last.sequence) <= trimmed < chunks[0].first
            await feed.close()

    run(main())


def test_a_session_without_any_events_has_no_gap() -> None:
    async def main() -> None:
        world = World()
        await world.gateway()
        await world.crowd_out()
        await world.crowd_out()
        gateway, owners, feed = await world.gateway()
        assert await feed.history("s", 0, end_of(1 << 30), 10) == ([], 0)
        await owners.claim(SUBJECT, "n1")
        assert await feed.history("s", 0, end_of(1 << 30), 10) == ([], 0)
        assert (await world.say(gateway, "n1", b"1")).published
        chunks, trimmed = await feed.history("s", 0, end_of(1 << 30), 10)
        assert ([chunk.lines for chunk in chunks], trimmed) == ([[b"1"]], 0)
        await feed.close()

    run(main())


STEPS = st.lists(st.sampled_from(["say", "take over", "trim", "crowd out", "read", "restart"]), max_size=25)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_whatever_is_trimmed_a_session_stays_its_nodes_and_a_gap_is_told(steps: list[str]) -> None:
    async def main() -> None:
        world = World()
        gateway, _, feed = await world.gateway()
        said: list[bytes] = []
        for step in steps:
            match step:
                case "say":
                    said.append(b"%d" % len(said))
                    assert (await world.say(gateway, "n1", said[-1])).published
                case "take over" if said:
                    assert not (await world.say(gateway, "n2", b"taken over")).published
                case "trim" if world.stream.records:
                    world.stream.trim(1)
                case "crowd out":
                    await world.crowd_out()
                case "read":
                    chunks, trimmed = await feed.history("s", 0, end_of(1 << 30), 100)
                    got = [line for chunk in chunks for line in chunk.lines]
                    assert got == said[len(said) - len(got) :]
                    assert bool(trimmed) >= (got != said)
                case "restart":
                    await feed.close()
                    gateway, _, feed = await world.gateway()
                case _:
                    pass
        await feed.close()

    run(main())
