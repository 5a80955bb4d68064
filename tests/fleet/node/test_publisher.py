"""From a node's log into the stream: everything once and in order, whatever gets lost on the way."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxagent.fleet import messages, records
from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.bus.interface import MAX_BODY_BYTES, Unreachable
from sandboxagent.fleet.bus.memory import Cluster, MemoryBus, MemoryStream
from sandboxagent.fleet.gateway.ingest import Ingest
from sandboxagent.fleet.gateway.owners import Owners
from sandboxagent.fleet.messages import LogReply, LogRequest
from sandboxagent.fleet.node.publisher import NodePublisher
from sandboxagent.server.log.event import Chunk, Direction, connection_channel, session_channel
from tests.support.client import run


@dataclass
class Node:
    """A log in memory, and where it was published up to."""

    chunks: list[Chunk] = field(default_factory=list[Chunk])
    position: int = 0

    def append(self, session_id: str, lines: list[bytes], *, history: bool = True) -> None:
        first = self.chunks[-1].last + 1 if self.chunks else 1
        channel = session_channel(session_id) if history else connection_channel("c1")
        self.chunks.append(Chunk(first, lines, Direction.FROM_AGENT, session_id, channel, 0.0, history=history))

    async def since(self, position: int) -> list[Chunk]:
        return [chunk.after(position) for chunk in self.chunks if chunk.last > position]

    def save(self, position: int) -> None:
        self.position = position


HOLDERS = {name: messages.Lease(name, "", "", {}, [], 0) for name in ("n1", "n2")}


@dataclass
class Fleet:
    """Two gateways in memory."""

    cluster: Cluster = field(default_factory=Cluster)
    gateways: list[Ingest] = field(default_factory=list[Ingest])

    async def open(self) -> "Fleet":
        for name in ("g1", "g2"):
            bus = MemoryBus(self.cluster)
            events = await bus.stream("EV", [subjects.EVENTS], max_bytes=1 << 30, max_age=3600)
            tables = await bus.table("nodes"), await bus.table("sess")
            owners = Owners(await bus.table("owners"), events)
            self.gateways.append(Ingest(name, events, owners, *tables, HOLDERS))
        return self

    async def ask(self, gateway: int, node: str, verb: str, body: bytes) -> bytes:
        answer = await self.gateways[gateway].take(subjects.request_to_gateway(node, verb, "g"), body)
        if answer is None:
            raise Unreachable("dropped")
        return answer

    @property
    def stream(self) -> MemoryStream:
        return self.cluster.streams["EV"]

    def lines(self, session_id: str) -> list[bytes]:
        subject = subjects.session_events(session_id)
        assembly = records.ChunkAssembly(session_channel(session_id))
        found: list[bytes] = []
        last = 0
        for record in self.stream.records:
            if record.subject == subject:
                assert record.predecessor == last
                last = record.sequence
                if chunk := assembly.take(record):
                    found += chunk.lines
        return found


FAULTS = st.lists(st.sampled_from(["", "", "lose", "other", "restart", "stale"]), min_size=1, max_size=30)
SAID = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 3)), min_size=1, max_size=40)


@settings(max_examples=60, deadline=None)
@given(SAID, FAULTS)
def test_lost_answers_other_gateways_and_restarts_neither_lose_nor_repeat_an_event(
    said: list[tuple[str, int]], faults: list[str]
) -> None:
    async def main() -> None:
        node, net = Node(), await Fleet().open()
        gateway, step = 0, 0
        restarting = asyncio.Event()

        async def ask(request: LogRequest) -> LogReply:
            nonlocal gateway, step
            fault = faults[step] if step < len(faults) else ""
            step += 1
            if fault == "other":
                gateway = 1 - gateway
            net.cluster.answers_to_lose = 1 if fault == "lose" else 0
            answer = await net.ask(gateway, "n1", messages.LOG, msgspec.msgpack.encode(request))
            if fault in ("restart", "stale"):
                if fault == "stale":
                    node.position = 0
                restarting.set()
                raise Unreachable("the node dies here")
            return msgspec.msgpack.decode(answer, type=LogReply)

        number = 0
        for session_id, count in said:
            node.append(session_id, [b'{"n":%d}' % (number + place) for place in range(count)])
            number += count
        node.append("a", [b"repeated to one client"], history=False)
        end = node.chunks[-1].last
        while True:
            outbox = NodePublisher("n1", node, node, ask)
            running = asyncio.create_task(outbox.run())
            waits = [asyncio.create_task(outbox.drained(end)), asyncio.create_task(restarting.wait())]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for task in (running, *waits):
                task.cancel()
            with suppress(asyncio.CancelledError):
                await running
            if outbox.published >= end:
                break
            restarting.clear()
        for session_id in "abc":
            expected = [
                line
                for chunk in node.chunks
                if chunk.session_id == session_id and chunk.history
                for line in chunk.lines
            ]
            assert net.lines(session_id) == expected
        # In the log's order over all sessions, too.
        published = [line for record in net.stream.records if record.body for line in record.body.split(b"\n")]
        assert published == [b'{"n":%d}' % place for place in range(number)]

    run(main())


def publish(node: Node, net: Fleet, name: str = "n1") -> NodePublisher:
    async def ask(request: LogRequest) -> LogReply:
        return msgspec.msgpack.decode(
            await net.ask(0, name, messages.LOG, msgspec.msgpack.encode(request)), type=LogReply
        )

    return NodePublisher(name, node, node, ask)


async def drain(outbox: NodePublisher, node: Node) -> None:
    running = asyncio.create_task(outbox.run())
    await outbox.drained(node.chunks[-1].last)
    running.cancel()


def test_a_long_line_is_published_in_parts_and_an_interrupted_one_again() -> None:
    async def main() -> None:
        node, net = Node(), await Fleet().open()
        node.append("s", [b"first", b"x" * (3 * MAX_BODY_BYTES), b"last"])
        await drain(publish(node, net), node)
        assert net.lines("s") == node.chunks[0].lines
        # As if it had died after the second part.
        other = await Fleet().open()
        await drain(publish(node := Node(node.chunks), other), node)
        other.stream.forget_after(4)
        again = await Fleet(other.cluster).open()
        await drain(publish(node := Node(node.chunks), again), node)
        assert again.lines("s") == node.chunks[0].lines

    run(main())


def test_requests_are_as_large_as_every_server_takes_and_not_larger() -> None:
    async def main() -> None:
        node, net = Node(), await Fleet().open()
        for place in range(40):
            node.append(f"s{place % 3}", [b"%d" % place, b"x" * (MAX_BODY_BYTES // 5)])
        node.append("s1", [b"y" * (3 * MAX_BODY_BYTES)])
        sizes: list[int] = []

        async def ask(request: LogRequest) -> LogReply:
            body = msgspec.msgpack.encode(request)
            sizes.append(len(body))
            return msgspec.msgpack.decode(await net.ask(0, "n1", messages.LOG, body), type=LogReply)

        await drain(NodePublisher("n1", node, node, ask), node)
        assert MAX_BODY_BYTES < max(sizes) < 2 * MAX_BODY_BYTES
        assert net.lines("s1") == [line for chunk in node.chunks if chunk.session_id == "s1" for line in chunk.lines]

    run(main())


def test_a_session_of_another_node_is_left_alone() -> None:
    async def main() -> None:
        net = await Fleet().open()
        first, second = Node(), Node()
        first.append("same", [b"1"])
        second.append("same", [b"2"])
        second.append("own", [b"3"])
        await drain(publish(first, net, "n1"), first)
        outbox = publish(second, net, "n2")
        await drain(outbox, second)
        assert net.lines("same") == [b"1"]
        assert net.lines("own") == [b"3"]
        assert outbox.foreign == {subjects.session_events("same"): "n1"}

    run(main())


def test_a_full_stream_costs_no_event() -> None:
    async def main() -> None:
        node, net = Node(), await Fleet().open()
        for place in range(3):
            node.append("s", [b"%d" % place])
        net.cluster.appends_to_refuse = 2
        outbox = publish(node, net)
        running = asyncio.create_task(outbox.run())
        while outbox.failure is None:  # noqa: ASYNC110 - what is tested has no events
            await asyncio.sleep(0)
        assert outbox.failure == "the stream is full"
        await outbox.drained(node.chunks[-1].last)
        running.cancel()
        assert net.lines("s") == [b"0", b"1", b"2"]
        assert outbox.failure is None

    run(main())


def test_a_session_that_cannot_be_published_costs_no_other_one() -> None:
    async def main() -> None:
        node, net = Node(), await Fleet().open()
        node.append("one", [b"1"])
        node.append("x" * records.MAX_META_BYTES, [b"2"])
        node.append("other", [b"3"])
        await drain(publish(node, net), node)
        assert (net.lines("one"), net.lines("other")) == ([b"1"], [b"3"])
        assert net.lines("x" * records.MAX_META_BYTES) == []

    run(main())
