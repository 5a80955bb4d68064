"""A reader of the whole log: each safe event once and in order, a sleep at the end, and what was deleted unread."""

import asyncio
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxagent.server.log.database import Database
from sandboxagent.server.log.event import Chunk
from sandboxagent.server.log.log import Limits, Log
from sandboxagent.server.log.reader import Deleted, LogReader
from sandboxagent.server.log.session_index import IndexEntry
from tests.support.logs import FragileDatabase, opened, positions, run, say, trim


async def read(reader: LogReader, through: int) -> list[int]:
    """The positions of the events up to one, of all channels."""
    found: list[int] = []
    async for item in reader:
        assert isinstance(item, Chunk)
        found += positions([item])
        if found[-1] >= through:
            break
    return found


def test_a_reader_gets_what_is_there_and_then_what_comes() -> None:
    async def main() -> None:
        async with opened() as log:
            start = log.position
            before = [say(log, "s"), say(log, "t", b"{}", b"{}"), say(log, "s", channel="")]
            reader = log.reader(start)
            assert await read(reader, before[-1].last) == positions(before)

            reading = asyncio.create_task(anext(reader))
            await asyncio.sleep(0)
            assert not reading.done()
            new = say(log, "u")
            assert await reading == new
            assert reader.position == new.last

    run(main())


def test_a_reader_does_not_get_what_is_not_safe() -> None:
    async def main() -> None:
        database = FragileDatabase()
        async with opened(database) as log:
            reader = log.reader(log.position)
            database.go.clear()
            chunk = say(log)
            reading = asyncio.create_task(anext(reader))
            assert (await asyncio.wait([reading], timeout=0.05))[0] == set()
            database.go.set()
            assert await reading == chunk

    run(main())


def test_a_reader_that_is_cancelled_leaves_the_others_waiting() -> None:
    async def main() -> None:
        async with opened() as log:
            one, other = (asyncio.create_task(anext(log.reader(log.position))) for _ in range(2))
            await asyncio.sleep(0)
            one.cancel()
            await asyncio.wait([one])
            chunk = say(log)
            assert await other == chunk

    run(main())


def test_a_reader_that_is_too_late_hears_what_was_deleted_and_gets_what_is_left() -> None:
    async def main() -> None:
        async with opened(Database(None), Limits(max_bytes=30_000, tail_bytes=0)) as log:
            start = log.position
            log.save_session("t", b"{}", IndexEntry("t", "a", "t", None, "/", None, 0.0, None))
            first = say(log, "s", b"x" * 10_000)
            gone = say(log, "t", b"x" * 30_000)
            last = say(log, "s", b"x" * 5_000)
            await log.committed(last.last)
            await trim(log)

            reader = log.reader(start)
            assert await anext(reader) == Deleted(start, gone.last)
            assert await read(reader, last.last) == [first.first, last.first]

            # A reader that had them all hears nothing of it.
            on_time = log.reader(gone.last)
            assert await read(on_time, last.last) == [last.first]

    run(main())


def test_a_reader_continues_after_a_restart_at_the_position_that_it_kept(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(Database(tmp_path / "log.db")) as log:
            chunks = [say(log) for _ in range(4)]
            reader = log.reader(chunks[0].first - 1)
            await read(reader, chunks[1].last)
        async with opened(Database(tmp_path / "log.db")) as log:
            assert await read(log.reader(reader.position), chunks[3].last) == positions(chunks[2:])

    run(main())


@given(st.lists(st.lists(st.integers(1, 4), max_size=4), max_size=8), st.sampled_from([0, 300, 32 << 20]))
@settings(max_examples=30, deadline=None)
def test_a_reader_gets_each_event_once_and_in_order(rounds: list[list[int]], tail: int) -> None:
    async def append(log: Log) -> None:
        for counts in rounds:
            for number, lines in enumerate(counts):
                say(log, f"s{number}", *[b"{}"] * lines)
            await log.committed(log.position)

    async def main() -> None:
        async with opened(limits=Limits(tail_bytes=tail)) as log:
            start = log.position
            end = start + sum(map(sum, rounds))
            reading = asyncio.create_task(read(log.reader(start), end)) if end > start else None
            await append(log)
            assert log.position == end
            assert reading is None or await reading == [*range(start + 1, end + 1)]

    run(main())
