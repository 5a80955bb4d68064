"""How much a gateway takes of one node: what goes beyond is left out and told, and no other node notices."""

import asyncio
import json
import tracemalloc

import msgspec
import pytest

from sandboxagent.fleet import messages as fleet
from sandboxagent.fleet import records
from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.bus.interface import MAX_BODY_BYTES, Append, StreamMessage
from sandboxagent.fleet.bus.memory import Cluster, MemoryBus
from sandboxagent.fleet.gateway.feed import Feed
from sandboxagent.fleet.gateway.ingest import Ingest
from sandboxagent.fleet.gateway.limits import KEEP_TIMEOUT, MAX_DESCRIPTION_BYTES, ExcessReports, NodeLimits, Unfinished
from sandboxagent.fleet.gateway.owners import Owners
from sandboxagent.fleet.gateway.registry import NodeRegistry
from sandboxagent.fleet.messages import BeatReply, BeatRequest, FactsReply, FactsRequest, LogReply, LogRequest
from sandboxagent.server.log.event import Chunk, Direction, session_channel
from tests.fleet.gateway.test_feed import Reader
from tests.fleet.gateway.test_rights import said
from tests.fleet.gateway.test_validate import Clock
from tests.support.client import run
from tests.support.running import BOUND


class Limited:
    """A gateway, and the nodes `evil` and `good`."""

    def __init__(self, ingest: Ingest, registry: NodeRegistry, marks: ExcessReports, bus: MemoryBus) -> None:
        self.ingest = ingest
        self.registry = registry
        self.marks = marks
        self.bus = bus

    async def ask(self, node: str, verb: str, request: object) -> bytes:
        body = msgspec.msgpack.encode(request)
        answer = await self.ingest.take(subjects.request_to_gateway(node, verb, "g"), body)
        assert answer is not None
        return answer

    async def say(self, node: str, session_id: str) -> LogReply:
        messages = said(session_id)
        request = LogRequest(messages, {each.subject: 0 for each in messages}, f"of {node}")
        return msgspec.msgpack.decode(await self.ask(node, fleet.LOG, request), type=LogReply)

    async def show(self, node: str, session_id: str, size: int = 0) -> dict[str, str]:
        """List a session with so much metadata; returns what was refused."""
        view = {"sessionId": session_id, "createdAt": session_id, "cwd": "/", "metadata": {"x": "x" * size}}
        request = FactsRequest({session_id: msgspec.json.encode(view)})
        return msgspec.msgpack.decode(await self.ask(node, fleet.FACTS, request), type=FactsReply).refused

    async def open(self, node: str, session_id: str, size: int = 0) -> dict[str, str]:
        assert (await self.say(node, session_id)).published is not None
        return await self.show(node, session_id, size)

    async def beat(self, node: str, *labels: str) -> BeatReply:
        request = BeatRequest(f"of {node}", 0, "", dict.fromkeys(labels, ""), [], 0)
        return msgspec.msgpack.decode(await self.ask(node, fleet.BEAT, request), type=BeatReply)

    async def until_known(self, session_id: str) -> None:
        async with asyncio.timeout(BOUND):
            await self.registry.until(lambda: self.registry.find(session_id) is not None)


async def open_limited(limits: NodeLimits, clock: Clock | None = None) -> Limited:
    bus, marks = MemoryBus(Cluster()), ExcessReports(clock or Clock())
    events = await bus.stream("EV", [subjects.EVENTS], max_bytes=1 << 30, max_age=60)
    leases, listed = await bus.table("nodes"), await bus.table("sess")
    registry = NodeRegistry(most=limits.sessions)
    await registry.start(leases, listed)
    holders = {name: fleet.Lease(name, f"of {name}", "", {}, [], 0) for name in ("evil", "good")}
    tables = Owners(await bus.table("owners"), events), leases, listed
    ingest = Ingest("g", events, *tables, holders, registry=registry, limits=limits, marks=marks)
    return Limited(ingest, registry, marks, bus)


def test_too_large_facts_are_refused_and_their_node_is_marked_for_a_while() -> None:
    async def main() -> None:
        clock = Clock()
        own = await open_limited(NodeLimits(view=10_000), clock)
        assert await own.open("evil", "small") == {}
        refused = await own.open("evil", "large", 10_000)
        assert "--session-view" in refused["large"]
        # What is listed of one that has grown stays as it was.
        await own.until_known("small")
        assert "--session-view" in (await own.show("evil", "small", 10_000))["small"]
        assert own.registry.usage["evil"].views < 1000
        assert own.registry.find("large") is None

        assert (await own.beat("evil")).clash is None
        assert await own.open("good", "of good") == {}
        await own.beat("good")
        async with asyncio.timeout(BOUND):
            await own.registry.until(lambda: len(own.registry.leases) == 2)
        limited = {each.node: each.limited for each in own.registry.nodes()}
        assert "--session-view" in str(limited["evil"])
        assert limited["good"] is msgspec.UNSET
        clock.now = KEEP_TIMEOUT
        assert own.marks.of("evil") == ""

    run(main())


@pytest.mark.parametrize("is_heard", [True, False])
def test_a_node_lists_so_many_sessions_and_gets_no_others_until_it_deletes_some(is_heard: bool) -> None:
    async def main() -> None:
        own = await open_limited(NodeLimits(sessions=3))
        for number in range(3):
            assert await own.open("evil", f"s{number}") == {}
            if is_heard:
                await own.until_known(f"s{number}")
        assert "--node-sessions" in (await own.open("evil", "one more"))["one more"]
        # Those that it has may change.
        assert await own.show("evil", "s1", 100) == {}
        assert await own.open("good", "of good") == {}
        await own.until_known("of good")
        await own.beat("good")
        await own.beat("evil")
        async with asyncio.timeout(BOUND):
            await own.registry.until(lambda: len(own.registry.leases) == 2)
        assert list(own.registry.closed()) == ["evil"]
        assert "--node-sessions" in own.registry.closed()["evil"]

        await own.ask("evil", fleet.FACTS, FactsRequest({"s0": None}))
        async with asyncio.timeout(BOUND):
            await own.registry.until(lambda: own.registry.find("s0") is None)
        assert own.registry.closed() == {}
        assert await own.show("evil", "one more") == {}

    run(main())


def test_three_hundred_large_facts_of_one_node_take_no_more_memory_than_it_may_have() -> None:
    async def main() -> None:
        own = await open_limited(NodeLimits(views=2 << 20))
        await own.open("good", "of good")
        tracemalloc.start()
        refused: dict[str, str] = {}
        for number in range(300):
            refused |= await own.open("evil", f"s{number}", 200_000)
        own_bytes, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert all("--node-views" in reason for reason in refused.values())
        assert len(refused) > 280
        await own.until_known("s0")
        # In the list, and as often in the table, which is in the same memory here.
        assert own.registry.usage["evil"].views <= 2 << 20
        assert own_bytes < 12 << 20
        assert await own.show("good", "of good", 200_000) == {}

    run(main())


def test_a_line_that_is_longer_than_a_node_may_write_is_refused_part_by_part() -> None:
    async def main() -> None:
        own = await open_limited(NodeLimits(line=2 * MAX_BODY_BYTES))
        subject = subjects.session_events("s")

        async def say(count: int) -> list[LogReply]:
            chunk = Chunk(1, [b"x" * count * MAX_BODY_BYTES], Direction.FROM_AGENT, "s", session_channel("s"), 0.0)
            end, replies = 0, list[LogReply]()
            for message in records.outgoing(chunk, subject):
                request = LogRequest([message], {subject: end}, "of evil")
                replies.append(msgspec.msgpack.decode(await own.ask("evil", fleet.LOG, request), type=LogReply))
                end = (replies[-1].published or {}).get(subject, end)
            return replies

        assert all("--node-line" in str(reply.refused) for reply in await say(5))
        assert "--node-line" in own.marks.of("evil")
        assert all(reply.published for reply in await say(2))

    run(main())


def test_a_node_that_describes_itself_at_length_gets_no_lease_and_the_reason() -> None:
    async def main() -> None:
        own = await open_limited(NodeLimits())
        reply = await own.beat("evil", *(f"label-{number}" for number in range(MAX_DESCRIPTION_BYTES // 8)))
        assert "fewer labels" in str(reply.failed)
        assert (await own.beat("good", "zone")).failed is None

    run(main())


def test_a_node_that_is_marked_again_and_again_is_reported_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    marks = ExcessReports(clock)
    with caplog.at_level("WARNING"):
        for _ in range(1000):
            marks.note("evil", "too much")
        clock.now = KEEP_TIMEOUT
        marks.note("evil", "too much")
    assert [record.getMessage().partition("count=")[2] for record in caplog.records] == [
        "1 reason=too much",
        "1000 reason=too much",
    ]


def test_unfinished_lines_of_each_node_have_a_limit_of_their_own() -> None:
    unfinished = Unfinished(100)
    assert unfinished.note("good", "of good", 90) == []
    assert unfinished.note("evil", "a", 40) == []
    assert unfinished.note("evil", "b", 40) == []
    assert unfinished.note("evil", "a", 60) == []
    # The one that was added to last is kept.
    assert unfinished.note("evil", "c", 10) == ["b"]
    unfinished.forget("a")
    assert unfinished.note("evil", "d", 90) == []
    # A single line may be as long as lines may be.
    assert unfinished.note("evil", "e", 200) == ["c", "d"]
    for line in ("e", "of good", "never there"):
        unfinished.forget(line)
    assert not unfinished._sizes
    assert not unfinished._totals


def test_lines_that_a_node_begins_and_does_not_end_cost_others_nothing() -> None:
    async def main() -> None:
        stream = await MemoryBus(Cluster()).stream("EV", [subjects.EVENTS], max_bytes=1 << 30, max_age=3600)
        feed = Feed(stream, 1 << 20, 1 << 30, longest=4 * MAX_BODY_BYTES)
        gave_up: list[str] = []
        feed.gave_up = gave_up.append
        await feed.start()
        names = [f"s{number}" for number in range(30)]
        channels = [session_channel(name) for name in (*names, "of good")]
        reader = Reader(feed, channels, 0)
        for channel in channels:
            feed.follow(channel, reader)
        await feed.complete(channels)
        await reader.catch_up()

        async def write(node: str, session_id: str, line: bytes, but_last: int = 0) -> None:
            chunk = Chunk(1, [line], Direction.FROM_AGENT, session_id, session_channel(session_id), 0.0)
            subject = subjects.session_events(session_id)
            messages = list(records.outgoing(chunk, subject))
            for message in messages[: len(messages) - but_last]:
                last = await stream.last(subject)
                headers = {
                    records.NODE: node,
                    records.LAST: "1",
                    records.META: message.meta,
                    records.PART: message.part,
                }
                expected = {subject: 0 if last is None else last.sequence}
                await stream.append(Append([StreamMessage(subject, message.body, headers)], expected))

        whole = json.dumps({"x": "x" * 3 * MAX_BODY_BYTES}).encode()
        await write("good", "of good", whole, but_last=1)
        for name in names:
            await write("evil", name, whole, but_last=1)
        last = await stream.last(subjects.session_events("of good"))
        assert last is not None
        good = list(records.outgoing(Chunk(1, [whole], Direction.FROM_AGENT, "of good", "x", 0.0), last.subject))[-1]
        headers = {records.NODE: "good", records.LAST: "1", records.META: good.meta, records.PART: good.part}
        headers[records.META] = last.headers[records.META]
        await stream.append(Append([StreamMessage(last.subject, good.body, headers)], {last.subject: last.sequence}))
        for channel in channels:
            await feed.catch_up(channel)
        assert [line for _, line in reader.got] == [whole]
        assert set(gave_up) == {"evil"}
        kept = sum(len(part) for name in names for part in feed._channels[session_channel(name)].parts)
        assert kept <= 8 * MAX_BODY_BYTES
        await feed.close()

    run(main())
