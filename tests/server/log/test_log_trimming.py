"""What the log drops, when it does, and how it says so."""

import asyncio
import threading
from pathlib import Path

import pytest

from sandboxagent.server.log.database import Database
from sandboxagent.server.log.event import Chunk, Direction, connection_channel, session_channel
from sandboxagent.server.log.journal import Group
from sandboxagent.server.log.log import Limits
from sandboxagent.server.log.session_index import IndexEntry
from tests.support.logs import S, opened, page, run, say, trim, until


def test_too_large_log_is_trimmed_unasked_and_says_what_is_gone() -> None:
    async def main() -> None:
        database = Database(None)
        async with opened(database, Limits(max_bytes=400_000, tail_bytes=0)) as log:
            start = log.position
            for _ in range(1000):
                say(log, "s", b"x" * 2000)
            await log.committed(log.position)
            await until(lambda: S in log.trims)

            assert database.size <= 400_000
            kept = await page(log, S, after=start)
            assert kept == list(range(log.trims[S] + 1, log.position + 1))

    run(main())


LIMIT = 2 << 20
SIZES = {
    "small": [300],
    "pages": [5_000],
    "mixed": [100, 9_000, 300, 5_000, 200],
    "chunks": [60_000],
    # A fifth of what may be kept, nearly: what is dropped comes in large pieces.
    "large": [400_000],
}


@pytest.mark.parametrize("ended", [0, 2, 10], ids=["none ended", "half ended", "a tenth ended"])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("where", ["memory", "disk"])
def test_at_least_four_fifths_of_the_limit_are_kept_and_no_more_than_all_of_it(
    tmp_path: Path, where: str, sizes: list[int], ended: int
) -> None:
    database = Database(tmp_path / "log.db" if where == "disk" else None)
    gone = [f"s{number}" for number in range(0, 20, ended)] if ended else []
    position = written = trims = 0
    while written < 5 * LIMIT:
        chunks: list[Chunk] = []
        while sum(chunk.size for chunk in chunks) < LIMIT // 100:
            position += 1
            session, line = f"s{position % 20}", b"x" * sizes[position % len(sizes)]
            chunks.append(Chunk(position, [line], Direction.FROM_AGENT, session, session_channel(session), 1.0))
        database.write(Group(chunks))
        written += sum(chunk.size for chunk in chunks)
        for _ in range(3):
            if database.size > LIMIT:
                database.trim(LIMIT, 1e9, gone)
                trims += 1
        assert database.size <= LIMIT
        if trims:
            assert database.size >= LIMIT * 8 // 10
            # Pages that are half empty are not what was to be kept.
            assert bytes_of_rows(database) >= LIMIT * 8 // 10
    assert trims > 3
    database.close()


def bytes_of_rows(database: Database) -> int:
    """What all rows take, side by side."""
    (found,) = database._sqlite.execute("select sum(size) from events").fetchone()
    return found


def test_a_log_stays_near_its_limit_while_it_is_flooded() -> None:
    """Or `--no-persist` would hold many times its limit in memory until the next round of trimming."""

    async def main() -> None:
        database = Database(None)
        limit = 1 << 20
        async with opened(database, Limits(max_bytes=limit, tail_bytes=0)) as log:
            largest = 0
            for _ in range(200):
                for _ in range(20):
                    say(log, "s", b"x" * 5_000)
                await log.committed(log.position)
                largest = max(largest, database.size)

            assert largest < 4 * limit

    run(main())


def test_what_is_too_old_is_trimmed_without_being_asked() -> None:
    async def main() -> None:
        now = 1000.0
        database = Database(None, ticking=lambda: now)
        async with opened(database, Limits(max_age=60, tail_bytes=0)) as log:
            old = say(log)
            await log.committed(old.last)
            await trim(log)
            now += 50
            new = say(log)
            await log.committed(new.last)
            now += 20
            await trim(log)

            assert await page(log, S) == [new.first]

    run(main())


def test_last_trimmed_position_never_goes_back() -> None:
    async def main() -> None:
        channel = connection_channel("c1")
        now = 0.0
        limits = Limits(max_bytes=30_000, tail_bytes=0, max_age=1e6)
        async with opened(Database(None, ticking=lambda: now), limits) as log:
            log.save_session("t", b"{}", IndexEntry("t", "a", "t", None, "/", None, 0.0, None))
            say(log, "s", b"x" * 10_000, channel=channel)
            gone = say(log, "t", b"x" * 30_000, channel=channel)
            await trim(log)
            assert log.trims[channel] == gone.last
            now += 2e6
            await trim(log)

            assert await page(log, channel) == []
            assert log.trims[channel] == gone.last

    run(main())


def test_events_of_a_deleted_session_are_known_to_be_gone() -> None:
    async def main() -> None:
        async with opened() as log:
            channel = connection_channel("c1")
            last, delivered = say(log), say(log, channel=channel, history=False)
            await log.committed(log.position)
            log.delete_session("s")
            await log.flushed()
            await asyncio.sleep(0)

            kept = await page(log, S, channel)
            assert last.first in kept or log.trims.get(S, 0) >= last.last
            assert delivered.first in kept or log.trims.get(channel, 0) >= delivered.last

    run(main())


def test_what_was_trimmed_is_noted_by_the_event_loop_alone_and_before_any_later_read() -> None:
    async def main() -> None:
        threads: set[int] = set()

        class Noted(dict[str, int]):
            def __setitem__(self, channel: str, through: int) -> None:
                threads.add(threading.get_ident())
                super().__setitem__(channel, through)

        async with opened(Database(None), Limits(max_bytes=400_000, tail_bytes=0)) as log:
            log.trims = Noted()
            for _ in range(300):
                say(log, "s", b"x" * 2000)
            await log.committed(log.position)
            log._writer._trim_now()
            # Asked for before anything is trimmed, and answered after.
            assert S not in log.trims
            kept = await page(log, S, after=0)
            assert kept[0] == log.trims[S] + 1
            assert threads == {threading.get_ident()}

    run(main())
