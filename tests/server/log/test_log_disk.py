"""What the log does while its disk fails or stalls, and when it takes writes again."""

import asyncio
from pathlib import Path

import pytest

from sandboxagent.protocol.errors import LogUnavailable
from sandboxagent.server.log.database import Database, DatabaseError
from sandboxagent.server.log.event import Chunk
from sandboxagent.server.log.log import Limits, Log
from tests.support.logs import Follower, FragileDatabase, S, T, opened, page, positions, run, say, until
from tests.support.running import BOUND


def test_every_caller_that_waits_for_a_failing_disk_gets_the_failure() -> None:
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
            assert await log._read(lambda database: database.index.records(["s"]).get("s")) == b"new"

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


def test_producers_pause_for_a_slow_disk_and_are_called_back_when_it_has_caught_up() -> None:
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
            assert await log.outcome("s", "key") == (b"digest", None)
            log.forget_outcome("s", "key")
            assert await log.outcome("s", "key") is None
            log.save_outcome("s", "key", b"digest", b"answer")
            database.go.set()
            await log.flushed()
            other = Database(tmp_path / "log.db")

            assert other.outcome("s", "key") == await log.outcome("s", "key") == (b"digest", b"answer")
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


def test_a_failed_read_is_reported_as_such() -> None:
    class Unreadable(Database):
        def follow(self, *_: object) -> list[Chunk]:
            raise DatabaseError("the disk is gone")

    async def main() -> None:
        async with opened(Unreadable(None)) as log:
            with pytest.raises(LogUnavailable, match="the disk is gone"):
                await log.page([S], 0, log.position)
            assert await log.history("s", 0, 1, 1) == []

    run(main())
