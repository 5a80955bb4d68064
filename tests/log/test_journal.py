"""The journal in front of the database: what callers wait for is safe there, and is in the database soon after."""

import asyncio
import shutil
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox_agent.log.cards import Card
from sandbox_agent.log.database import Database
from sandbox_agent.log.event import Chunk, Direction, connection_channel, session_channel
from sandbox_agent.log.group import Group
from sandbox_agent.log.journal import Journal, read_journal
from sandbox_agent.log.log import Limits, Log
from sandbox_agent.log.recovery import open_database
from sandbox_agent.log.witness import Witness
from tests.support.running import BOUND

S = session_channel("s")
EVERYTHING = (0, 1 << 62, 1 << 30)


def chunk(first: int, *lines: bytes, history: bool = True, channel: str = S) -> Chunk:
    return Chunk(first, list(lines) or [b"{}"], Direction.FROM_AGENT, "s", channel, 1.5, "tag", history, 7)


def run(main: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(4 * BOUND):
            await main

    asyncio.run(bounded())


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.mkdir()
    return path / "log.db"


@pytest.fixture
def after_a_kill(data: Path, tmp_path: Path) -> Iterator[Callable[[], Database]]:
    """Opens the log as the next server would, if this one were killed now."""
    opened: list[Database] = []

    def open_copy() -> Database:
        copy = tmp_path / f"copy-{len(opened)}"
        shutil.copytree(data.parent, copy)
        database, damage, _ = open_database(copy / data.name)
        assert damage.reason is None
        opened.append(database)
        return database

    yield open_copy
    for each in opened:
        each.close()


def positions(database: Database) -> list[int]:
    return [each.first for each in database.follow([S], *EVERYTHING)]


def test_a_record_has_all_of_a_group(tmp_path: Path) -> None:
    card = Card("s", "mock", "s", None, "/", "holder", 1.0, None)
    outcomes = {("scope", "key"): (b"digest", b"answer"), ("scope", "begun"): (b"digest", None), ("scope", "x"): None}
    group = Group([chunk(3, b"{}", b"[]")], {"s": b"record"}, {"s": card}, outcomes=outcomes)
    journal = Journal(tmp_path / "journal")
    journal.append(5, group)
    journal.close()

    kept = read_journal(tmp_path / "journal")

    assert (kept.commits, kept.groups) == (5, [group])


def test_what_was_kept_is_in_the_database_of_the_next_server_once(
    data: Path, after_a_kill: Callable[[], Database]
) -> None:
    database = open_database(data).database
    database.write(Group([chunk(1)], {"s": b"old"}))
    database.keep(Group([chunk(2)], {"s": b"new"}))
    delivery = chunk(4, history=False, channel=connection_channel("c"))
    database.keep(Group([chunk(3), delivery], outcomes={("scope", "key"): (b"digest", None)}))

    killed = after_a_kill()
    assert positions(killed) == [1, 2, 3]
    assert killed.cards.record("s") == b"new"
    assert killed.outcome("scope", "key") == (b"digest", None)
    assert killed.follow([connection_channel("c")], *EVERYTHING) == [], "that connection died with the server"
    assert killed.load().reserved >= 4

    database.write(Group([chunk(2), chunk(3)], {"s": b"newest"}))
    assert after_a_kill().cards.record("s") == b"newest", "the next commit has outdated the journal"
    database.keep(Group([chunk(4)]))
    assert positions(after_a_kill()) == [1, 2, 3, 4], "what is left behind a new record is not read"
    database.close()


def test_a_record_that_was_not_acknowledged_is_no_loss_and_one_that_was_is_told(data: Path) -> None:
    database = open_database(data).database
    database.write(Group([chunk(1)]))
    database.keep(Group([chunk(2)]))
    journal = data.with_name("log.db.journal")
    whole = journal.read_bytes()
    database.close()
    journal.write_bytes(whole + whole[:20] + b"torn")

    database, damage, _ = open_database(data)
    assert damage.reason is None
    assert positions(database) == [1, 2]
    database.keep(Group([chunk(3)]))
    database.close()
    journal.write_bytes(b"x" + journal.read_bytes()[1:])

    database, damage, _ = open_database(data)
    assert damage.reason is not None
    assert "log.db.journal lacks 1 write" in damage.reason
    assert positions(database) == [1, 2]
    database.close()


class Watched(Database):
    """A database whose journal can be slow or full, and that counts its transactions."""

    def __init__(self, path: Path) -> None:
        witness, journal = Witness(path.with_name("log.db.witness")), Journal(path.with_name("log.db.journal"))
        super().__init__(path, witness, journal=journal)
        self.transactions = 0
        self.is_journal_full = False
        self.go = threading.Event()
        self.go.set()

    def keep(self, group: Group) -> None:
        assert self.go.wait(BOUND)
        if self.is_journal_full:
            raise OSError("no space left")
        super().keep(group)

    def write(self, group: Group) -> dict[str, int]:
        self.transactions += 1
        return super().write(group)


def say(log: Log) -> Chunk:
    return log.append([b"{}"], Direction.FROM_AGENT, "s", S)


def test_callers_wait_for_the_journal_and_many_of_them_share_a_transaction(
    data: Path, after_a_kill: Callable[[], Database]
) -> None:
    async def main() -> None:
        database = Watched(data)
        log = Log(database, Limits())
        before, expected = database.transactions, list[int]()
        for _ in range(20):
            expected.append(say(log).last)
            await log.committed(log.position)
        assert positions(after_a_kill()) == expected
        assert database.transactions - before < len(expected)

        history = await log.history("s", 0, 1 << 62, 100)
        assert [each.first for each in history] == expected, "a read sees what was kept before it"
        log.close()
        assert positions(after_a_kill()) == expected

    run(main())


def test_a_journal_that_stalls_keeps_no_reader_waiting(data: Path) -> None:
    async def main() -> None:
        database = Watched(data)
        log = Log(database, Limits())
        database.go.clear()
        stalled = asyncio.create_task(log.committed(say(log).last))
        for _ in range(10):
            # If the event loop waited for the disk, it would wait for this test to end.
            await asyncio.sleep(0)
        assert not stalled.done()
        database.go.set()
        await stalled
        log.close()

    run(main())


def test_a_caller_that_hurries_a_write_under_way_delays_no_later_read(data: Path) -> None:
    async def main() -> None:
        database = Watched(data)
        log = Log(database, Limits())
        database.go.clear()
        position = say(log).last
        first = asyncio.create_task(log.committed(position))
        for _ in range(10):
            await asyncio.sleep(0)
        # The journal is being written, and there is nothing else to write.
        second = asyncio.create_task(log.committed(position))
        for _ in range(10):
            await asyncio.sleep(0)
        database.go.set()
        await asyncio.gather(first, second)
        chunks = await asyncio.wait_for(log.history("s", 0, position + 1, 10), BOUND)
        assert [chunk.last for chunk in chunks] == [position]
        log.close()

    run(main())


def test_what_the_journal_does_not_take_the_database_does(data: Path, after_a_kill: Callable[[], Database]) -> None:
    async def main() -> None:
        database = Watched(data)
        log = Log(database, Limits())
        expected = [say(log).last]
        await log.committed(log.position)
        database.is_journal_full = True
        expected.append(say(log).last)
        await log.committed(log.position)
        assert log.failure is None
        assert positions(after_a_kill()) == expected
        log.close()

    run(main())


def test_a_trim_leaves_what_is_in_the_journal(data: Path, after_a_kill: Callable[[], Database]) -> None:
    async def main() -> None:
        database = Watched(data)
        log = Log(database, Limits(max_age=0.02))
        trimmed = asyncio.Event()
        trim, loop = database.trim, asyncio.get_running_loop()

        def trim_and_say(*arguments: Any) -> dict[str, int]:
            assert read_journal(data.with_name("log.db.journal")).commits != database.commits
            loop.call_soon_threadsafe(trimmed.set)
            return trim(*arguments)

        database.trim = trim_and_say
        while not trimmed.is_set():
            say(log)
            await log.committed(log.position)
        log.close()

    run(main())
