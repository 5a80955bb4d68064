"""Streams over a real log: what a client receives is what its connection should have seen, exactly once and in order,
whatever else happens. Contract, section 4."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any, cast

import pytest

from sandboxagent.server.http.stream import StreamLimits
from sandboxagent.server.log.event import session_channel
from sandboxagent.server.log.log import Limits
from tests.support import sse
from tests.support.running import BOUND
from tests.support.streams import StreamWorld, open_client, say


@pytest.fixture
def world() -> Iterator[StreamWorld]:
    """Hardly anything stays in memory."""
    built = StreamWorld(Limits(tail_bytes=0), StreamLimits(buffer=10_000, stall_timeout=1, heartbeat=15))
    yield built
    built.close()


def test_a_stream_begins_with_a_comment(world: StreamWorld) -> None:
    client = open_client(world, "s")

    async def step() -> None:
        await say(world, "s")
        await client.connect(0)
        assert client.stream is not None
        first = await client.stream.next()
        assert first is not None
        assert first.startswith(b":")
        assert sse.parse(first)[0] == []

    world.run(step())


def test_a_stream_that_fails_at_an_event_reads_it_from_the_log(world: StreamWorld) -> None:
    client = open_client(world, "s")

    async def step() -> None:
        await client.connect(0)
        assert client.stream is not None
        await client.drain()
        taken = client.stream._encoding

        class Failing:
            def __getattr__(self, name: str) -> object:
                raise ZeroDivisionError("injected")

        client.stream._encoding = cast("Any", Failing())
        client.stream.direct = lambda _: True
        writer = asyncio.ensure_future(client.stream.next())
        await asyncio.sleep(0)
        first = await say(world, "s")
        client.stream._encoding, client.stream.direct = taken, None
        second = await say(world, "s")
        data = await writer
        assert data is not None
        assert [event.id for event in sse.parse(data)[0]] == [str(first), str(second)]

    world.run(step())


@pytest.mark.requirement("4.silent")
def test_a_client_that_takes_nothing_for_too_long_is_cut_off_though_it_is_not_behind(world: StreamWorld) -> None:
    client = open_client(world, "s")

    async def step() -> None:
        await client.connect(0)
        assert client.stream is not None
        now = time.monotonic()
        client.unsent = 100
        client.stream.tick(now + 50)
        client.unsent = 90
        client.stream.tick(now + 100)
        client.stream.tick(now + 155)
        assert not client.cut_off, "it took something, slowly"
        client.stream.tick(now + 161)
        assert client.cut_off

    world.run(step())


def test_attaching_while_a_page_is_read_loses_nothing(world: StreamWorld) -> None:
    client = open_client(world, "s")

    async def step() -> None:
        expected = [await say(world, "s"), await say(world, "s")]
        await world.release()
        assert world.log.evicted == expected[-1], "all of it has left the memory"
        await client.connect(0)
        await client.read()
        await world.hold()
        assert not await client.read(patient=False), "the page waits for the disk"
        world.hub.attach(client.connection, world.session("t"))
        expected += [await say(world, "t"), await say(world, "s")]
        await world.release()
        await client.drain()

        assert list(client.received) == expected

    world.run(step())


def test_detaching_while_a_page_is_read_loses_nothing_and_adds_nothing(world: StreamWorld) -> None:
    client = open_client(world, "s")

    async def step() -> None:
        expected = [await say(world, "s")]
        await world.release()
        await client.connect(0)
        await client.read()
        await world.hold()
        await client.read(patient=False)
        expected.append(await say(world, "s"))
        world.hub.detach(client.connection, world.session("s"))
        await say(world, "s")
        await world.release()
        await client.drain()

        assert list(client.received) == expected

    world.run(step())


def test_a_gap_covers_everything_that_is_lost_also_when_ended_sessions_went_first() -> None:
    world = StreamWorld(Limits(max_bytes=60_000, tail_bytes=0))
    client = open_client(world, "kept", "ended")

    async def step() -> None:
        await world.end("ended")
        positions = [await say(world, ["kept", "ended"][index % 2], "x" * 6_000) for index in range(10)]
        await world.release()
        await world.trim()
        assert world.log.trims.keys() >= {session_channel("ended")}
        assert session_channel("kept") not in world.log.trims
        await client.connect(0)
        await client.drain()

        for position in positions:
            assert position in client.received or client.announced(position), f"{position} is missing silently"
        assert len(client.gaps) == 1

    world.run(step())
    world.close()


def test_what_is_trimmed_while_a_page_waits_for_the_disk_is_announced() -> None:
    world = StreamWorld(Limits(max_bytes=40_000, tail_bytes=0))
    client = open_client(world, "s")

    async def step() -> None:
        positions = [await say(world, "s", "x" * 6_000)]
        await world.release()
        await client.connect(0)
        await client.read()
        # Both in one go: it is written, then the disk is busy, and trims what is too much when that is over.
        positions += [await say(world, "s", "x" * 6_000) for _ in range(10)]
        await world.hold()
        assert not await client.read(patient=False), "the page waits for the disk"
        await world.release()
        await client.drain()

        assert world.log.trims
        for position in positions:
            assert position in client.received or client.announced(position), f"{position} is missing silently"

    world.run(step())
    world.close()


def test_what_memory_still_holds_is_delivered_after_a_gap_while_the_disk_is_behind() -> None:
    world = StreamWorld(Limits(max_bytes=10_000, tail_bytes=0))
    client = open_client(world, "s")

    async def step() -> None:
        for _ in range(5):
            await say(world, "s", "x" * 6_000)
        await world.release()
        await world.trim()
        await world.hold()
        last = await say(world, "s", "new")
        await client.connect(0)
        await client.read()
        await client.read(patient=False)
        await world.release()
        await client.drain()

        assert client.gaps
        assert last in client.received

    world.run(step())
    world.close()


def test_a_stream_that_is_behind_and_takes_nothing_is_cut_off(world: StreamWorld) -> None:
    client = open_client(world, "s")

    async def step() -> None:
        await client.connect(0)
        await client.drain()
        assert client.stream is not None
        await say(world, "s")
        assert await client.stream.next()
        client.stream.tick(time.monotonic() + 60)
        assert not client.cut_off, "one that is merely slow to take what it was handed is not behind"
        await say(world, "s", "x" * 20_000)
        client.stream.tick(time.monotonic() + 0.5)
        assert not client.cut_off, "it has a second to begin"
        client.stream.tick(time.monotonic() + 1.5)
        assert client.cut_off

    world.run(step())


@pytest.mark.parametrize("how", ["taken over", "closed"])
def test_a_stream_that_has_to_end_and_takes_nothing_is_cut_off(world: StreamWorld, how: str) -> None:
    """Or a dead socket would stay for as long as TCP waits."""
    client = open_client(world, "s")

    async def step() -> None:
        await client.connect(0)
        await client.drain()
        first = client.stream
        assert first is not None
        await say(world, "s")
        assert await first.next()
        if how == "closed":
            world.hub.close_connection(client.connection, "the client closed the connection")
        else:
            await client.connect(0)
        first.tick(time.monotonic() + 60)

        assert client.cut_off

    world.run(step())


def test_an_idle_stream_gets_a_comment_after_a_while_and_no_sooner(world: StreamWorld) -> None:
    client = open_client(world, "s")

    async def step() -> None:
        await client.connect(0)
        await client.drain()
        assert client.stream is not None
        reading = asyncio.ensure_future(client.stream.next())
        await asyncio.sleep(0)
        client.stream.tick(time.monotonic() + 14)
        await asyncio.sleep(0)
        assert not reading.done()
        client.stream.tick(time.monotonic() + 16)
        assert (await reading or b"").startswith(b":")

    world.run(step())


def test_an_answer_waits_until_its_client_was_handed_the_events_before_it(world: StreamWorld) -> None:
    client = open_client(world, "s")

    async def step() -> None:
        await client.connect(0)
        await client.drain()
        assert client.stream is not None
        position = await say(world, "s")
        waiting = asyncio.ensure_future(client.stream.wait_sent(position))
        await asyncio.sleep(0)
        assert not waiting.done()
        await client.read()
        await client.read()
        await asyncio.sleep(0)
        assert waiting.done()

    world.run(step())


def test_an_answer_does_not_wait_long_for_a_client_that_does_not_read(world: StreamWorld) -> None:
    client = open_client(world, "s")

    async def step() -> None:
        await client.connect(0)
        assert client.stream is not None
        position = await say(world, "s")
        async with asyncio.timeout(BOUND):
            await client.stream.wait_sent(position)
        assert position not in client.received

    world.run(step())
