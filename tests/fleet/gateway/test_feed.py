"""A gateway's feed: what streams read of it is the session's log, once and in order."""

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxagent.fleet import records
from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.bus.interface import MAX_BODY_BYTES, Append, BusStream, StreamMessage, StreamRecord
from sandboxagent.fleet.bus.memory import Cluster, MemoryBus, MemoryStream
from sandboxagent.fleet.gateway import feed as feed_module
from sandboxagent.fleet.gateway.feed import Feed
from sandboxagent.fleet.gateway.methods import find_prompt
from sandboxagent.fleet.gateway.registry import NodeRegistry
from sandboxagent.protocol.errors import LogUnavailable
from sandboxagent.server.log.event import Chunk, Direction, session_channel
from tests.support.client import run


@dataclass
class Writer:
    """Appends events of sessions, as gateways do for nodes."""

    stream: BusStream
    said: dict[str, list[bytes]] = field(default_factory=dict[str, list[bytes]])
    ends: dict[str, int] = field(default_factory=dict[str, int])

    async def say(self, session_id: str, *lines: bytes, public: bool = True) -> None:
        """Without `public`, it is history alone: clients that follow the session do not see it."""
        subject = subjects.session_events(session_id)
        channel = session_channel(session_id) if public else "elsewhere"
        chunk = Chunk(1, list(lines), Direction.FROM_AGENT, session_id, channel, 0.0)
        for message in records.outgoing(chunk, subject):
            headers = {records.NODE: "n", records.EPOCH: "1", records.LAST: "1", records.META: message.meta}
            if message.part:
                headers[records.PART] = message.part
            append = Append([StreamMessage(subject, message.body, headers)], {subject: self.ends.get(subject, 0)})
            self.ends[subject] = await self.stream.append(append)
        self.said.setdefault(session_id, []).extend(lines)


@dataclass(eq=False)
class Reader:
    """Reads as a stream does: pages until memory has the rest, then what comes."""

    feed: Feed
    channels: list[str]
    after: int
    got: list[tuple[int, bytes]] = field(default_factory=list[tuple[int, bytes]])
    live: bool = False

    def appended(self, chunk: Chunk) -> None:
        if self.live:
            self.take([chunk])

    def take(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            self.got += enumerate(chunk.lines, chunk.first)
            self.after = chunk.last

    async def catch_up(self) -> None:
        while not self.live:
            found = self.feed.in_memory(self.channels, self.after, 100)
            if found is not None:
                self.take(found[0])
                self.live = found[1]
                continue
            reach = self.feed.reach(self.channels)
            chunks = await self.feed.page(self.channels, self.after, reach)
            self.take(chunks)
            if not chunks:
                self.after = max(self.after, reach)


async def open_feed(tail: int = 1 << 20, most_untaken: int = 32 << 20) -> tuple[Feed, Writer, MemoryStream]:
    cluster = Cluster()
    stream = await MemoryBus(cluster).stream("EV", [subjects.EVENTS], max_bytes=1 << 30, max_age=3600)
    feed = Feed(stream, tail, most_untaken)
    await feed.start()
    return feed, Writer(stream), cluster.streams["EV"]


async def got(reader: Reader, number: int) -> list[bytes]:
    """So many lines, when they are there."""
    while len(reader.got) < number:  # noqa: ASYNC110 - what is tested has no events
        await asyncio.sleep(0)
    return [line for _, line in reader.got]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("say"), st.sampled_from("ab"), st.integers(1, 4)),
        st.tuples(st.just("read"), st.sampled_from(["a", "b", "ab"]), st.integers(0, 3)),
        st.tuples(st.just("pause"), st.just(""), st.just(0)),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.sampled_from([1, 3000, 1 << 20]))
def test_readers_that_come_at_any_time_get_everything_once(steps: list[tuple[str, str, int]], tail: int) -> None:
    async def main() -> None:
        feed, writer, _ = await open_feed(tail)
        readers: list[tuple[Reader, asyncio.Task[None]]] = []
        number = 0
        for kind, name, count in steps:
            if kind == "say":
                await writer.say(name, *(b"%d" % (number + place) for place in range(count)))
                number += count
            elif kind == "read":
                reader = Reader(feed, [session_channel(each) for each in name], 0)
                for channel in reader.channels:
                    feed.follow(channel, reader)
                readers.append((reader, asyncio.create_task(reader.catch_up())))
            else:
                await asyncio.sleep(0)
        await asyncio.gather(*(task for _, task in readers))
        await writer.say("a", b"end a")
        await writer.say("b", b"end b")
        for reader, _ in readers:
            wanted = [line for each in reader.channels for line in writer.said[each.removeprefix(session_channel(""))]]
            while len(reader.got) < len(wanted):  # noqa: ASYNC110 - what is tested has no events
                await asyncio.sleep(0)
            positions = [position for position, _ in reader.got]
            assert positions == sorted(set(positions))
            assert sorted(line for _, line in reader.got) == sorted(wanted)
        await feed.close()

    run(main())


def test_history_comes_in_pages_by_position() -> None:
    async def main() -> None:
        feed, writer, _ = await open_feed()
        for place in range(30):
            await writer.say("a", b"%d" % place, b"%d+" % place)
            await writer.say("b", b"other")
        position = await feed.refresh()
        chunks, trimmed = await feed.history("a", 0, position + 1, 1000)
        events = [(chunk.first + place, line) for chunk in chunks for place, line in enumerate(chunk.lines)]
        assert [line for _, line in events] == writer.said["a"]
        assert trimmed == 0
        middle = events[20][0]
        chunks, _ = await feed.history("a", middle, position + 1, 1000)
        assert [line for chunk in chunks for line in chunk.lines] == writer.said["a"][21:]
        await feed.close()

    run(main())


def test_what_the_stream_has_dropped_is_a_gap() -> None:
    async def main() -> None:
        feed, writer, stream = await open_feed()
        for place in range(10):
            await writer.say("a", b"%d" % place)
        stream.trim(4)
        chunks, trimmed = await feed.history("a", 0, await feed.refresh() + 1, 1000)
        assert [line for chunk in chunks for line in chunk.lines] == [b"%d" % place for place in range(4, 10)]
        assert trimmed == records.end_of(4)
        # What is noted of it is forgotten with the last one that follows it.
        reader = Reader(feed, [session_channel("a")], 0)
        assert not feed.trims
        feed.follow(session_channel("a"), reader)
        await reader.catch_up()
        assert feed.trims == {session_channel("a"): records.end_of(4)}
        feed.unfollow(session_channel("a"), reader)
        while feed.trims:  # noqa: ASYNC110 - what is tested has no events
            await asyncio.sleep(0)
        await feed.close()

    run(main())


def test_a_line_of_several_messages_is_read_whole() -> None:
    async def main() -> None:
        feed, writer, _ = await open_feed()
        long = b"x" * 2_000_000
        reader = Reader(feed, [session_channel("a")], 0)
        feed.follow(session_channel("a"), reader)
        await writer.say("a", b"before", long)
        await reader.catch_up()
        await writer.say("a", long, b"after")
        while len(reader.got) < 4:  # noqa: ASYNC110 - what is tested has no events
            await asyncio.sleep(0)
        assert [line for _, line in reader.got] == [b"before", long, long, b"after"]
        await feed.close()

    run(main())


def test_a_feed_that_falls_behind_says_so_and_loses_nothing() -> None:
    async def main() -> None:
        feed, writer, _ = await open_feed(most_untaken=20_000)
        reader = Reader(feed, [session_channel("a")], 0)
        fell = asyncio.Event()

        def begin_anew() -> None:
            reader.live = False
            fell.set()

        feed.fell_behind = begin_anew
        feed.follow(session_channel("a"), reader)
        await reader.catch_up()
        # More than may wait, with no turn for the feed in between.
        for place in range(30):
            await writer.say("a", b"%02d" % place + b"x" * 2000)
        await fell.wait()
        await reader.catch_up()
        await writer.say("a", b"end")
        while not reader.got or reader.got[-1][1] != b"end":  # noqa: ASYNC110 - what is tested has no events
            await asyncio.sleep(0)
        assert [line for _, line in reader.got] == writer.said["a"]
        await feed.close()

    run(main())


def test_lost_deliveries_are_fetched_even_from_a_server_that_lags() -> None:
    async def main() -> None:
        feed, writer, stream = await open_feed()
        reader = Reader(feed, [session_channel("a")], 0)
        feed.follow(session_channel("a"), reader)
        await writer.say("a", b"0")
        await reader.catch_up()
        stream.cluster.deliveries_to_lose = 3
        for place in range(1, 4):
            await writer.say("a", b"%d" % place)
        stream.cluster.pages_to_miss = 2
        await writer.say("a", b"4")
        assert await got(reader, 5) == writer.said["a"]
        # Trimmed before it came: that is no reason to wait.
        stream.cluster.deliveries_to_lose = 2
        await writer.say("a", b"5")
        await writer.say("a", b"6")
        stream.records.clear()
        await writer.say("a", b"7")
        assert (await got(reader, 6))[-1] == b"7"
        await feed.close()

    run(main())


def test_attaching_is_not_behind_what_another_gateway_has_shown() -> None:
    async def main() -> None:
        feed, writer, stream = await open_feed()
        channel = session_channel("a")
        await writer.say("a", b"0")
        await feed.attach(channel, Reader(feed, [channel], 0), lambda _: None)
        stream.cluster.held = []
        await writer.say("a", b"1")
        shown_elsewhere = records.end_of(stream.position)
        attaching = asyncio.create_task(feed.attach(channel, Reader(feed, [channel], 0), lambda _: None))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not attaching.done()
        for deliver in stream.cluster.held:
            deliver()
        assert await attaching == shown_elsewhere
        await feed.close()

    run(main())


def test_a_page_leaves_nothing_out_that_the_reader_has_still_to_bring() -> None:
    async def main() -> None:
        feed, writer, stream = await open_feed()
        channels = [session_channel("a"), session_channel("b")]
        feed.follow(channels[0], Reader(feed, channels[:1], 0))
        await feed.complete(channels[:1])
        stream.cluster.held = []
        await writer.say("a", b"1")
        await writer.say("b", b"2")
        # It begins where the leader has it, and the reader has not come there with the other one.
        feed.follow(channels[1], Reader(feed, channels[1:], 0))
        await feed.complete(channels[1:])
        stream.cluster.pages_to_miss = 1
        reader = Reader(feed, channels, 0)
        await reader.catch_up()
        assert [line for _, line in reader.got] == [b"1", b"2"]
        await feed.close()

    run(main())


def test_a_change_that_took_long_does_not_hold_up_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "GATHER", 1e9)

    async def main() -> None:
        feed, _, _ = await open_feed()
        for name in "ab":
            channel = session_channel(name)
            feed.follow(channel, Reader(feed, [channel], 0))
            await feed.complete([channel])
        await feed.close()

    run(main())


def test_much_that_clients_do_not_see_hides_nothing_that_they_do() -> None:
    async def main() -> None:
        feed, writer, _ = await open_feed()
        for _ in range(5):
            await writer.say("a", b"x" * 300_000, public=False)
        for place in range(3):
            await writer.say("a", b"%d" % place)
        reader = Reader(feed, [session_channel("a")], 0)
        feed.follow(session_channel("a"), reader)
        await reader.catch_up()
        assert await got(reader, 3) == [b"0", b"1", b"2"]
        await feed.close()

    run(main())


def test_private_record_is_not_the_last_one_meant_for_a_client() -> None:
    async def main() -> None:
        feed, writer, _ = await open_feed()
        channel = session_channel("a")
        await writer.say("a", b"seen")
        await writer.say("a", b"a request, which is in the history alone", public=False)
        reader = Reader(feed, [channel], 0)
        feed.follow(channel, reader)
        last = await feed.last_meant(channel, 0, lambda chunk: True)
        await reader.catch_up()
        assert await got(reader, 1) == [b"seen"]
        assert [chunk.last for chunk in await feed.page([channel], 0, feed.position)] == [last]
        assert await feed.last_meant(channel, last, lambda chunk: True) == 0
        await feed.close()

    run(main())


def test_many_new_channels_ask_the_stream_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        feed, _, _ = await open_feed()
        asked, most, last = 0, 0, feed.last

        async def count(subject: str) -> StreamRecord | None:
            nonlocal asked, most
            asked += 1
            most = max(most, asked)
            await asyncio.sleep(0)
            asked -= 1
            return await last(subject)

        monkeypatch.setattr(feed, "last", count)
        channels = [session_channel(str(place)) for place in range(3 * feed_module.AT_ONCE)]
        for channel in channels:
            feed.follow(channel, Reader(feed, [channel], 0))
        await feed.complete(channels)
        assert most == feed_module.AT_ONCE
        await feed.close()

    run(main())


def test_waiting_in_vain_leaves_nothing_behind() -> None:
    async def main() -> None:
        feed, _, _ = await open_feed()
        registry = NodeRegistry()
        for _ in range(2):
            for waiting in (feed.progress.kept("n", 10**18), registry.until(lambda: False)):
                task = asyncio.ensure_future(waiting)
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
        assert not feed.progress._awaited  # pyright: ignore[reportPrivateUsage]
        assert not registry._waiting  # pyright: ignore[reportPrivateUsage]
        await feed.close()

    run(main())


def test_nothing_waits_for_ever_for_a_stream_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "CHANGE_TIMEOUT", 0.05)

    async def main() -> None:
        bus = MemoryBus(Cluster())
        feed = Feed(await bus.stream("EV", [subjects.EVENTS], max_bytes=1 << 30, max_age=3600), 1 << 20)
        await feed.start()
        bus.cut = True
        channel = session_channel("a")
        feed.follow(channel, Reader(feed, [channel], 0))
        with pytest.raises(LogUnavailable, match="cannot follow"):
            await feed.complete([channel])
        await feed.close()

    run(main())


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5)), min_size=1, max_size=12))
@settings(max_examples=40)
def test_a_prompt_is_found_by_the_position_that_it_has_at_its_node(said: list[tuple[bool, int]]) -> None:
    """Between messages of other sessions, in messages of several events, and in parts."""

    async def main() -> None:
        bus = MemoryBus(Cluster())
        stream = await bus.stream("EV", [subjects.EVENTS], max_bytes=1 << 30, max_age=3600)
        feed, subject, last = Feed(stream, 1 << 20), subjects.session_events("s"), 0
        prompts: dict[int, bytes] = {}
        for begins, count in said:
            await Writer(stream).say(f"other{last}", b"{}")
            prompt = b'{"jsonrpc":"2.0","id":%d,"method":"session/prompt","params":{"x":"%s"}}'
            large = b"." * (MAX_BODY_BYTES * 2 if count == 5 else 1)
            lines = [prompt % (last, large)] if begins else [b'{"jsonrpc":"2.0","method":"a"}'] * count
            chunk = Chunk(last + 1, lines, Direction.FROM_CLIENT, "s", session_channel("s"), 0.0)
            prompts |= {chunk.last: lines[0]} if begins else {}
            for message in records.outgoing(chunk, subject):
                headers = {
                    records.NODE: "n",
                    records.EPOCH: "1",
                    records.LAST: str(message.last),
                    records.META: message.meta,
                }
                headers |= {records.PART: message.part} if message.part else {}
                before = await stream.last(subject)
                expected = {subject: before.sequence if before else 0}
                await stream.append(Append([StreamMessage(subject, message.body, headers)], expected))
            last = chunk.last
        for position in range(last + 3):
            found = await find_prompt(feed, "s", position)
            assert (None if found is None else found.lines) == ([prompts[position]] if position in prompts else None)

    run(main())
