"""The log in front of its file: positions, followers, the tail in memory, groups on disk, and what happens when the
disk does not take them."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sandbox_agent.errors import LogUnavailable
from sandbox_agent.log.cards import Card
from sandbox_agent.log.database import Database, DatabaseError
from sandbox_agent.log.event import NO_CLIENT, Chunk, Direction, connection_channel, session_channel
from sandbox_agent.log.group import Group
from sandbox_agent.log.log import RESERVE, Limits, Log
from tests.support.running import BOUND

S, T = session_channel("s"), session_channel("t")


def run(main: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(4 * BOUND):
            await main

    asyncio.run(bounded())


class FragileDatabase(Database):
    """A database whose disk can be full or slow, at the test's word."""

    def __init__(self, path: Path | None = None) -> None:
        super().__init__(path)
        self.broken = False
        self.failures = 0
        self.groups: list[Group] = []
        self.go = threading.Event()
        self.go.set()

    def write(self, group: Group) -> dict[str, int]:
        assert self.go.wait(BOUND)
        if self.broken:
            self.failures += 1
            raise DatabaseError("the disk is full")
        trims = super().write(group)
        self.groups.append(group)
        return trims


class Follower:
    def __init__(self) -> None:
        self.chunks: list[Chunk] = []

    def appended(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)

    @property
    def positions(self) -> list[int]:
        return positions(self.chunks)


@asynccontextmanager
async def opened(
    database: Database | None = None, limits: Limits | None = None, clock: Callable[[], float] = lambda: 1.0
) -> AsyncGenerator[Log]:
    log = Log(database or Database(None), limits or Limits(), clock)
    try:
        yield log
    finally:
        log.close()


def positions(chunks: list[Chunk]) -> list[int]:
    return [at for chunk in chunks for at in range(chunk.first, chunk.last + 1)]


def say(log: Log, session: str = "s", *lines: bytes, channel: str | None = None, history: bool = True) -> Chunk:
    where = session_channel(session) if channel is None else channel
    return log.append(list(lines) or [b"{}"], Direction.FROM_AGENT, session, where, history=history)


async def page(log: Log, *channels: str, after: int = 0) -> list[int]:
    """Positions on disk."""
    await log.committed(log.position)
    return positions(await log.page(channels, after, log.position))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND):
        while not condition():  # noqa: ASYNC110 - what is waited for happens on another thread
            await asyncio.sleep(0.005)


# Appending


def test_positions_are_one_sequence_over_all_sessions() -> None:
    async def main() -> None:
        async with opened() as log:
            start = log.position
            chunks = [say(log, "s"), say(log, "t", b"1", b"2", b"3"), say(log, "s", channel=NO_CLIENT), say(log, "s")]

            assert positions(chunks) == list(range(start + 1, start + 7))
            assert log.position == start + 6

    run(main())


def test_a_follower_hears_of_its_channel_at_once_and_of_no_other() -> None:
    async def main() -> None:
        async with opened() as log:
            follower = Follower()
            before = say(log)
            log.follow(S, follower)
            mine = say(log)
            say(log, "t")
            say(log, channel=NO_CLIENT)
            log.unfollow(S, follower)
            say(log)

            assert follower.positions == [mine.first]
            assert mine.first == before.first + 1

    run(main())


def test_a_follower_may_leave_while_it_is_told() -> None:
    class Leaver(Follower):
        def appended(self, chunk: Chunk) -> None:
            super().appended(chunk)
            log.unfollow(S, self)

    async def main() -> None:
        nonlocal log
        async with opened() as log:
            leavers = [Leaver(), Leaver()]
            for leaver in leavers:
                log.follow(S, leaver)
            first = say(log)
            say(log)

            assert [leaver.positions for leaver in leavers] == [[first.first], [first.first]]

    log: Log
    run(main())


def test_the_time_of_an_event_is_the_clock_s() -> None:
    async def main() -> None:
        async with opened(clock=lambda: 1234.5) as log:
            assert say(log).at == 1234.5

    run(main())


# Reading


def test_a_page_has_everything_that_is_on_disk() -> None:
    async def main() -> None:
        async with opened() as log:
            expected = [say(log, "st"[at % 2]).first for at in range(50)]

            assert await page(log, S, T) == expected

    run(main())


def test_memory_and_disk_give_the_same_events() -> None:
    async def main() -> None:
        async with opened() as log:
            for at in range(20):
                say(log, "stu"[at % 3], *[b"{}"] * (at % 4 + 1))
            start, end = log.evicted, log.position
            for after in range(start, end + 1):
                in_memory = log.in_memory([S, T], after, 1 << 30)
                assert in_memory is not None
                assert in_memory[1] is True
                assert positions(in_memory[0]) == await page(log, S, T, after=after)

    run(main())


def test_memory_is_read_in_parts_when_there_is_more_than_the_limit() -> None:
    async def main() -> None:
        async with opened() as log:
            expected = [say(log).first for _ in range(10)]
            read: list[int] = []
            after, parts, complete = log.evicted, 0, False
            while not complete:
                in_memory = log.in_memory([S], after, say(log, "t").size * 3)
                assert in_memory is not None
                chunks, complete = in_memory
                read += positions(chunks)
                after, parts = read[-1], parts + 1

            assert read == expected
            assert parts > 2

    run(main())


def test_memory_says_so_when_it_does_not_reach_back_far_enough() -> None:
    async def main() -> None:
        async with opened(limits=Limits(tail_bytes=500)) as log:
            start = log.position
            for _ in range(50):
                say(log)
            await log.committed(log.position)

            assert log.in_memory([S], start, 1 << 30) is None
            assert log.evicted > start
            kept = log.in_memory([S], log.evicted, 1 << 30)
            assert kept is not None
            assert positions(kept[0]) == list(range(log.evicted + 1, log.position + 1))
            assert await page(log, S, after=start) == list(range(start + 1, log.position + 1))

    run(main())


def test_what_is_not_on_disk_yet_is_never_dropped_from_memory() -> None:
    async def main() -> None:
        database = FragileDatabase()
        async with opened(database, Limits(tail_bytes=100)) as log:
            start = log.position
            database.go.clear()
            for _ in range(100):
                say(log)
            kept = log.in_memory([S], start, 1 << 30)
            assert kept is not None
            assert len(positions(kept[0])) == 100
            database.go.set()
            await log.committed(log.position)

            assert log.in_memory([S], start, 1 << 30) is None

    run(main())


def test_history_is_a_session_without_what_only_repeats_it() -> None:
    async def main() -> None:
        async with opened() as log:
            first = say(log)
            say(log, channel=connection_channel("c1"), history=False)
            say(log, "t")
            recorded = say(log, channel=NO_CLIENT)

            read = await log.history("s", 0, log.position + 1, 100)

            assert positions(read) == [first.first, recorded.first]

    run(main())


def test_forgetting_a_channel_drops_its_deliveries_from_disk() -> None:
    async def main() -> None:
        async with opened() as log:
            channel = connection_channel("c1")
            say(log, channel=channel, history=False)
            kept = say(log, channel=channel)
            log.forget(channel)
            await log.flushed()

            assert await page(log, channel) == [kept.first]

    run(main())


# Committing


def test_committed_returns_when_the_event_is_on_disk(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(Database(tmp_path / "log.db")) as log:
            chunk = say(log, "s", b'{"a":1}')
            await log.committed(chunk.last)
            other = Database(tmp_path / "log.db")

            assert other.follow([S], 0, 1 << 30, 1 << 30) == [chunk]
            other.close()

    run(main())


def test_committed_does_not_return_before() -> None:
    async def main() -> None:
        database = FragileDatabase()
        async with opened(database) as log:
            database.go.clear()
            chunk = say(log)
            waiting = asyncio.create_task(log.committed(chunk.last))
            follower = Follower()
            log.follow(S, follower)
            later = say(log)
            await asyncio.sleep(0)

            assert follower.positions == [later.first], "delivery does not wait for the disk"
            assert not waiting.done()
            database.go.set()
            await waiting
            assert any(chunk in group.chunks for group in database.groups)

    run(main())


def test_what_is_already_on_disk_is_committed_at_once() -> None:
    async def main() -> None:
        database = FragileDatabase()
        async with opened(database) as log:
            chunk = say(log)
            await log.committed(chunk.last)
            database.go.clear()

            await asyncio.wait_for(log.committed(chunk.last), 1)
            database.go.set()

    run(main())


def test_events_that_come_together_are_written_together() -> None:
    async def main() -> None:
        database = FragileDatabase()
        async with opened(database) as log:
            written = len(database.groups)
            for _ in range(500):
                say(log)
            await log.committed(log.position)

            assert len(database.groups) - written < 50
            assert positions([chunk for group in database.groups for chunk in group.chunks]) == await page(log, S)

    run(main())


def test_a_session_s_record_and_outcomes_are_kept_with_the_events_before_them(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(Database(tmp_path / "log.db")) as log:
            say(log)
            log.save_session("s", b"{}")
            log.save_outcome("s", "key", b"digest", None)
            assert log.outcome("s", "key") == (b"digest", None)
            log.save_outcome("s", "key", b"digest", b"answer")
            assert log.outcome("s", "key") == (b"digest", b"answer")
            await log.flushed()
            other = Database(tmp_path / "log.db")

            assert other.cards.record("s") == b"{}"
            other.close()

    run(main())


def test_closing_writes_what_is_left(tmp_path: Path) -> None:
    async def main() -> None:
        log = Log(Database(tmp_path / "log.db"), Limits())
        expected = [say(log).first for _ in range(100)]
        log.save_session("s", b"{}")
        log.close()
        other = Database(tmp_path / "log.db")

        assert positions(other.follow([S], 0, 1 << 30, 1 << 30)) == expected
        assert other.cards.record("s") == b"{}"
        other.close()

    run(main())


def test_a_closed_log_refuses_to_be_read() -> None:
    async def main() -> None:
        async with opened() as log:
            say(log)
        with pytest.raises(LogUnavailable):
            await log.page([S], 0, log.position)

    run(main())


# Positions over restarts and crashes


def test_positions_go_on_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        last = 0
        for _ in range(3):
            async with opened(Database(tmp_path / "log.db")) as log:
                assert log.position >= last
                last = say(log, "s", b"{}", b"{}").last
        async with opened(Database(tmp_path / "log.db")) as log:
            assert len(await page(log, S)) == 6

    run(main())


def test_a_position_that_a_crash_lost_is_never_given_out_again(tmp_path: Path) -> None:
    async def main() -> None:
        database = FragileDatabase(tmp_path / "log.db")
        async with opened(database) as crashed:
            database.go.clear()
            seen = say(crashed, "s", *[b"{}"] * 1000).last
            async with opened(Database(tmp_path / "log.db")) as log:
                assert say(log).first > seen
            database.go.set()

    run(main())


def test_more_positions_are_reserved_before_the_reserved_ones_are_used_up(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(Database(tmp_path / "log.db"), Limits(tail_bytes=1 << 20)) as log:
            lines = [b"{}"] * 200_000
            first_block = log.position + RESERVE
            while log.position < first_block * 2:
                seen = say(log, "s", *lines, channel=NO_CLIENT).last
                found_after_a_crash = Database(tmp_path / "log.db")
                assert found_after_a_crash.load().reserved >= seen
                found_after_a_crash.close()
                await log.committed(seen)

    run(main())


# A disk that does not take it


def test_a_failing_disk_is_told_to_whoever_waits_for_it() -> None:
    async def main() -> None:
        database = FragileDatabase()
        async with opened(database) as log:
            database.broken = True
            chunk = say(log)
            with pytest.raises(LogUnavailable, match="the disk is full"):
                await log.committed(chunk.last)
            assert log.failure == "the disk is full"
            with pytest.raises(LogUnavailable, match="the disk is full"):
                await log.flushed()

    run(main())


def test_events_that_could_not_be_written_are_written_when_the_disk_takes_them_again() -> None:
    async def main() -> None:
        database = FragileDatabase()
        async with opened(database) as log:
            database.broken = True
            expected = [say(log).first for _ in range(10)]
            log.save_session("s", b"old")
            with pytest.raises(LogUnavailable):
                await log.committed(log.position)
            expected += [say(log).first for _ in range(10)]
            log.save_session("s", b"new")
            database.broken = False
            await until(lambda: log.failure is None)
            await log.committed(log.position)

            assert database.failures
            assert await page(log, S) == expected
            assert await log._read(lambda database: database.cards.record("s")) == b"new"

    run(main())


def test_readers_go_on_from_memory_while_the_disk_fails() -> None:
    async def main() -> None:
        database = FragileDatabase()
        async with opened(database, Limits(tail_bytes=100)) as log:
            follower = Follower()
            log.follow(S, follower)
            start = log.position
            database.broken = True
            for _ in range(20):
                say(log)
            await until(lambda: log.failure is not None)

            in_memory = log.in_memory([S], start, 1 << 30)
            assert in_memory is not None
            assert positions(in_memory[0]) == follower.positions == list(range(start + 1, start + 21))

    run(main())


def test_whoever_produces_is_told_to_pause_and_called_back_when_the_disk_has_caught_up() -> None:
    async def main() -> None:
        database = FragileDatabase()
        async with opened(database, Limits(backlog_bytes=1000)) as log:
            drained = asyncio.Event()
            assert not log.full
            database.go.clear()
            while not log.full:
                say(log)
            log.when_drained(drained.set)
            await asyncio.sleep(0)
            assert not drained.is_set()
            database.go.set()
            async with asyncio.timeout(BOUND):
                await drained.wait()

            assert not log.full

    run(main())


def test_a_disk_that_stalls_keeps_no_reader_waiting() -> None:
    """Only those wait that wait for the disk: everything else goes on, and the event loop with it."""

    async def main() -> None:
        database = FragileDatabase()
        async with opened(database) as log:
            follower = Follower()
            log.follow(T, follower)
            database.go.clear()
            stalled = asyncio.create_task(log.committed(say(log, "s").last))
            for _ in range(10):
                # If the event loop waited for the disk, it would wait for this test to end.
                await asyncio.sleep(0)
                say(log, "t")
            assert len(follower.positions) == 10
            assert not stalled.done()
            database.go.set()
            await stalled
            await log.committed(log.position)
            assert len(await page(log, T)) == 10

    run(main())


def test_an_outcome_is_known_at_once_and_is_on_disk_after_a_flush(tmp_path: Path) -> None:
    async def main() -> None:
        database = FragileDatabase(tmp_path / "log.db")
        async with opened(database) as log:
            database.go.clear()
            log.save_outcome("s", "key", b"digest", None)
            assert log.outcome("s", "key") == (b"digest", None)
            log.forget_outcome("s", "key")
            assert log.outcome("s", "key") is None
            log.save_outcome("s", "key", b"digest", b"answer")
            database.go.set()
            await log.flushed()
            other = Database(tmp_path / "log.db")

            assert other.outcome("s", "key") == log.outcome("s", "key") == (b"digest", b"answer")
            other.close()

    run(main())


def test_what_could_not_be_written_when_the_log_closes_is_tried_once_more(tmp_path: Path) -> None:
    async def main() -> None:
        database = FragileDatabase(tmp_path / "log.db")
        log = Log(database, Limits())
        database.broken = True
        expected = [say(log).first]
        await until(lambda: log.failure is not None)
        expected.append(say(log).first)
        database.broken = False
        log.close()
        other = Database(tmp_path / "log.db")

        assert positions(other.follow([S], 0, 1 << 30, 1 << 30)) == expected
        other.close()

    run(main())


def test_a_read_that_fails_is_told_as_such() -> None:
    class Unreadable(Database):
        def follow(self, *_: object) -> list[Chunk]:
            raise DatabaseError("the disk is gone")

    async def main() -> None:
        async with opened(Unreadable(None)) as log:
            with pytest.raises(LogUnavailable, match="the disk is gone"):
                await log.page([S], 0, log.position)
            assert await log.history("s", 0, 1, 1) == []

    run(main())


# Trimming


def test_a_log_that_is_too_large_is_trimmed_without_being_asked_and_says_what_is_gone() -> None:
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
            await log._read(log._trim)
            now += 50
            new = say(log)
            await log.committed(new.last)
            now += 20
            await log._read(log._trim)

            assert await page(log, S) == [new.first]

    run(main())


def test_what_is_known_to_be_gone_never_becomes_less() -> None:
    async def main() -> None:
        channel = connection_channel("c1")
        now = 0.0
        limits = Limits(max_bytes=30_000, tail_bytes=0, max_age=1e6)
        async with opened(Database(None, ticking=lambda: now), limits) as log:
            log.save_session("t", b"{}", Card("t", "a", "t", None, "/", None, 0.0, None))
            say(log, "s", b"x" * 10_000, channel=channel)
            gone = say(log, "t", b"x" * 30_000, channel=channel)
            await log._read(log._trim)
            assert log.trims[channel] == gone.last
            now += 2e6
            await log._read(log._trim)

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
