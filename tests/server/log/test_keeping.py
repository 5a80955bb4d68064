"""The journal in front of the database: what callers wait for is safe there, and is in the database soon after."""

import asyncio
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandboxagent.protocol.errors import LogUnavailable
from sandboxagent.server.log.damage import CommitRecord, Statement
from sandboxagent.server.log.database import Database, DatabaseError
from sandboxagent.server.log.event import Chunk, Direction, connection_channel, session_channel
from sandboxagent.server.log.journal import HALF_BYTES, Group, Journal
from sandboxagent.server.log.log import Limits, Log
from sandboxagent.server.log.recovery import open_database
from tests.support.logs import S, run, say, until
from tests.support.running import BOUND

EVERYTHING = (0, 1 << 62, 1 << 30)


class WatchedJournal(Journal):
    """A journal on a disk that can be slow or full."""

    def __init__(self, path: Path, commit_record: CommitRecord) -> None:
        super().__init__(path, commit_record)
        self.is_disk_full = False
        self.is_disk_slow = False
        self.records = 0
        self.go = threading.Event()
        self.go.set()

    @property
    def is_ready(self) -> bool:
        return super().is_ready and self.go.is_set() and not self.is_disk_full

    def prepare(self) -> None:
        assert self.go.wait(BOUND)
        if self.is_disk_full:
            raise OSError("no space left")
        super().prepare()

    def _write(self, record: bytes) -> None:
        super()._write(record)
        self.records += 1
        self.waited = 1.0 if self.is_disk_slow else 0.0


class Watched(Database):
    """A database that waits before each transaction, or fails, at the test's word."""

    def __init__(self, path: Path) -> None:
        commit_record = CommitRecord(path.with_name("log.db.witness"))
        super().__init__(path, commit_record)
        commit_record.note(Statement(2, 0, 0))
        self.records = self.journal = WatchedJournal(path.with_name("log.db.journal"), commit_record)
        # Now: on a busy machine the event loop would not wait for as long as the thread takes.
        self.journal.prepare()
        self.transactions = 0
        self.is_broken = False
        self.go = threading.Event()
        self.go.set()

    def write(self, group: Group, number: int | None = None) -> dict[str, int]:
        assert self.go.wait(BOUND)
        if self.is_broken:
            raise DatabaseError("the disk is full")
        self.transactions += 1
        return super().write(group, number)


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
        opened.append(open_killed(data, tmp_path / f"copy-{len(opened)}"))
        return opened[-1]

    yield open_copy
    for each in opened:
        each.close()


def open_killed(data: Path, copy: Path) -> Database:
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(data.parent, copy)
    database, damage, _ = open_database(copy / data.name)
    assert damage.reason is None
    return database


def positions(database: Database) -> list[int]:
    return [each.first for each in database.follow([S], *EVERYTHING)]


def truncate(path: Path) -> None:
    os.truncate(path, 0)


def shorten(path: Path) -> None:
    """To a part of a page, so that what is written behind it is lost and not refused."""
    os.truncate(path, 100)


def delete(path: Path) -> None:
    path.unlink()


def replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    other.rename(path)


def make_read_only(path: Path) -> None:
    path.chmod(0o400)


def size_of(path: Path) -> int:
    return path.stat().st_size


def move(path: Path, to: Path) -> None:
    path.rename(to)


HARM = [truncate, shorten, delete, replace, make_read_only]


@pytest.mark.parametrize("name", ["log.db.journal", "log.db.witness"])
@pytest.mark.parametrize("harm", HARM)
def test_harm_to_the_journal_of_a_running_server_loses_nothing_acknowledged(
    data: Path, after_a_kill: Callable[[], Database], harm: Callable[[Path], None], name: str
) -> None:
    async def main() -> None:
        database = open_database(data).database
        log = Log(database, Limits(), gather=3600)
        said = [await kept(log) for _ in range(3)]
        harm(data.with_name(name))
        said += [await kept(log) for _ in range(3)]
        # As after half a minute, in which the database takes everything.
        await log._read(lambda _: None)
        log._writer._try_journal()
        await log._read(lambda _: None)
        said += [await kept(log) for _ in range(3)]

        assert positions(after_a_kill()) == said
        assert size_of(data.with_name("log.db.journal")) == 2 * HALF_BYTES
        log.close()

    run(main())


def test_a_loss_in_a_journal_that_was_truncated_just_before_a_kill_is_reported(data: Path, tmp_path: Path) -> None:
    async def main() -> None:
        log = Log(open_database(data).database, Limits(), gather=3600)
        await log._read(lambda _: None)
        await kept(log)
        truncate(data.with_name("log.db.journal"))
        shutil.copytree(data.parent, tmp_path / "copy")
        log.close()

    run(main())
    damage = open_database(tmp_path / "copy" / data.name).damage
    assert "lacks 1 writes that were acknowledged" in str(damage.reason)


@pytest.mark.parametrize("name", ["log.db", "log.db-wal"])
@pytest.mark.parametrize("harm", [delete, replace])
def test_deleted_or_replaced_database_stops_acknowledging_and_is_reported(
    data: Path, tmp_path: Path, harm: Callable[[Path], None], name: str
) -> None:
    async def main() -> None:
        log = Log(open_database(data).database, Limits(), gather=3600)
        await kept(log)
        await log._read(lambda _: None)
        harm(data.with_name(name))
        with pytest.raises(LogUnavailable, match="deleted or replaced"):
            await kept_and_stored(log)
        assert log.failure is not None
        assert name in log.failure
        with pytest.raises(LogUnavailable):
            await kept(log)
        shutil.copytree(data.parent, tmp_path / "copy")
        log.close()

    run(main())
    if harm is delete:
        assert open_database(tmp_path / "copy" / data.name).damage.reason is not None


def test_a_database_that_was_moved_away_and_put_back_takes_everything(
    data: Path, after_a_kill: Callable[[], Database]
) -> None:
    async def main() -> None:
        log = Log(open_database(data).database, Limits(), gather=3600)
        said = [await kept(log)]
        away = data.with_name("away")
        move(data, away)
        lost = say(log).last
        with pytest.raises(LogUnavailable):
            await kept_and_stored(log)
        move(away, data)
        await until(lambda: log.failure is None)
        said.append(await kept(log))

        found = positions(after_a_kill())
        assert {*said, lost} <= set(found)
        log.close()

    run(main())


async def kept_and_stored(log: Log) -> None:
    """The journal takes what it gets until the database has failed for the first time."""
    for _ in range(3):
        await kept(log)
        await log._read(lambda _: None)


async def kept(log: Log, session: str = "s", *lines: bytes) -> int:
    position = say(log, session, *lines).last
    await log.committed(position)
    return position


def test_what_was_kept_is_in_the_database_of_the_next_server_once(
    data: Path, after_a_kill: Callable[[], Database]
) -> None:
    def chunk(first: int, *, history: bool = True, channel: str = S) -> Chunk:
        return Chunk(first, [b"{}"], Direction.FROM_AGENT, "s", channel, 1.5, history=history)

    database = open_database(data).database
    database.write(Group([chunk(1)], {"s": b"old"}))
    journal = database.journal
    assert journal is not None
    journal.begin(database.commits + 1, Group([chunk(2)], {"s": b"new"}))
    delivery = chunk(4, history=False, channel=connection_channel("c"))
    journal.append(Group([chunk(3), delivery], outcomes={("scope", "key"): (b"digest", None)}))

    killed = after_a_kill()
    assert positions(killed) == [1, 2, 3]
    assert killed.index.records(["s"]).get("s") == b"new"
    assert killed.outcome("scope", "key") == (b"digest", None)
    assert killed.follow([connection_channel("c")], *EVERYTHING) == [], "that connection died with the server"
    assert killed.load().reserved >= 4

    database.write(Group([chunk(2), chunk(3)], {"s": b"newest"}))
    assert after_a_kill().index.records(["s"]).get("s") == b"newest", "the transaction with that number has outdated it"
    journal.begin(database.commits + 1, Group([chunk(4)]))
    assert positions(after_a_kill()) == [1, 2, 3, 4], "what is left behind a new record is not read"
    database.close()


def test_callers_wait_for_the_journal_and_many_of_them_share_a_transaction(
    data: Path, after_a_kill: Callable[[], Database]
) -> None:
    async def main() -> None:
        database = Watched(data)
        log = Log(database, Limits())
        before = database.transactions
        expected = [await kept(log) for _ in range(20)]
        assert positions(after_a_kill()) == expected
        assert database.transactions - before < len(expected)

        history = await log.history("s", 0, 1 << 62, 100)
        assert [each.first for each in history] == expected, "a read sees what was kept before it"
        log.close()
        assert positions(after_a_kill()) == expected

    run(main())


def test_callers_go_on_while_the_database_is_written_until_both_halves_are_full(
    data: Path, after_a_kill: Callable[[], Database]
) -> None:
    async def main() -> None:
        database = Watched(data)
        log = Log(database, Limits())
        expected = [await kept(log)]
        database.go.clear()
        stored = asyncio.create_task(log.history("s", 0, 1 << 62, 100))
        await asyncio.sleep(0)
        line = b"x" * (HALF_BYTES // 10)
        while True:
            position = say(log, "s", line).last
            expected.append(position)
            waiting = asyncio.create_task(log.committed(position))
            for _ in range(10):
                await asyncio.sleep(0)
            if not waiting.done():
                break
        assert len(expected) > 10
        assert positions(after_a_kill()) == expected[:-1], "from both halves"
        assert not stored.done()
        database.go.set()
        await waiting
        assert expected[0] in [each.first for each in await stored]
        assert [each.first for each in await log.history("s", 0, 1 << 62, 100)] == expected
        log.close()
        assert positions(after_a_kill()) == expected

    run(main())


def test_deletion_comes_after_what_was_kept_before_it(data: Path, after_a_kill: Callable[[], Database]) -> None:
    async def main() -> None:
        database = Watched(data)
        log = Log(database, Limits())
        log.save_session("s", b"{}")
        await kept(log)
        database.go.clear()
        stored = asyncio.create_task(log.history("s", 0, 1 << 62, 100))
        log.save_session("s", b"[]")
        await kept(log)
        log.delete_session("s")
        deleted = asyncio.create_task(log.flushed())
        later = asyncio.create_task(kept(log, "t"))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not deleted.done()
        assert not later.done(), "a position is safe when all before it are"
        database.go.set()
        await asyncio.gather(stored, deleted, later)
        killed = after_a_kill()
        assert positions(killed) == []
        assert killed.index.records(["s"]).get("s") is None
        assert len(killed.follow([session_channel("t")], *EVERYTHING)) == 1
        log.close()

    run(main())


def test_a_disk_that_stalls_keeps_no_reader_waiting(data: Path) -> None:
    async def main() -> None:
        database = Watched(data)
        log = Log(database, Limits())
        database.records.go.clear()
        stalled = asyncio.create_task(log.committed(say(log).last))
        for _ in range(10):
            # If the event loop waited for the disk, it would wait for this test to end.
            await asyncio.sleep(0)
        assert not stalled.done()
        database.records.go.set()
        await stalled
        log.close()

    run(main())


def test_a_caller_that_hurries_a_write_under_way_delays_no_later_read(data: Path) -> None:
    async def main() -> None:
        database = Watched(data)
        log = Log(database, Limits())
        database.records.go.clear()
        position = say(log).last
        first = asyncio.create_task(log.committed(position))
        for _ in range(10):
            await asyncio.sleep(0)
        # It is being written, and there is nothing else to write.
        second = asyncio.create_task(log.committed(position))
        for _ in range(10):
            await asyncio.sleep(0)
        database.records.go.set()
        await asyncio.gather(first, second)
        chunks = await asyncio.wait_for(log.history("s", 0, position + 1, 10), BOUND)
        assert [chunk.last for chunk in chunks] == [position]
        log.close()

    run(main())


def test_what_the_journal_does_not_take_the_database_does(
    data: Path, after_a_kill: Callable[[], Database], caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        database = Watched(data)
        log = Log(database, Limits())
        database.records.is_disk_full = True
        expected = [await kept(log), await kept(log)]
        assert log.failure is None
        assert positions(after_a_kill()) == expected
        assert database.records.records == 0
        log.close()

    run(main())
    assert caplog.text.count("journal of the log not written") == 1, "it is tried again later"


def test_a_journal_that_had_to_wait_for_the_disk_is_left_alone(
    data: Path, after_a_kill: Callable[[], Database]
) -> None:
    async def main() -> None:
        database = Watched(data)
        log = Log(database, Limits())
        database.records.is_disk_slow = True
        expected = [await kept(log) for _ in range(5)]
        assert database.records.records == 1
        assert positions(after_a_kill()) == expected
        log.close()

    run(main())


def test_a_trim_leaves_what_is_in_the_journal(data: Path, after_a_kill: Callable[[], Database]) -> None:
    async def main() -> None:
        database = Watched(data)
        log = Log(database, Limits(max_age=0.02))
        trimmed = asyncio.Event()
        trim, loop = database.trim, asyncio.get_running_loop()
        database.go.clear()
        position = await kept(log)

        def trim_and_say(*arguments: Any) -> dict[str, int]:
            trims = trim(*arguments)
            loop.call_soon_threadsafe(trimmed.set)
            return trims

        database.trim = trim_and_say
        await trimmed.wait()
        assert position in positions(after_a_kill())
        database.go.set()
        log.close()

    run(main())


def test_what_both_halves_have_is_written_when_the_disk_takes_it_again(
    data: Path, after_a_kill: Callable[[], Database]
) -> None:
    async def main() -> None:
        database = Watched(data)
        log = Log(database, Limits())
        database.is_broken = True
        log.save_session("s", b"old")
        expected = [await kept(log)]
        database.go.clear()
        stored = asyncio.create_task(log.history("s", 0, 1 << 62, 100))
        await asyncio.sleep(0)
        log.save_session("s", b"new")
        expected.append(await kept(log))
        database.go.set()
        assert await stored == []
        await until(lambda: log.failure is not None)
        expected.append(say(log).last)
        with pytest.raises(LogUnavailable, match="full"):
            await log.committed(log.position)
        assert positions(after_a_kill()) == expected[:2]
        assert after_a_kill().index.records(["s"]).get("s") == b"new"

        database.is_broken = False
        await until(lambda: log.failure is None)
        expected.append(await kept(log))
        assert positions(after_a_kill()) == expected
        assert [each.first for each in await log.history("s", 0, 1 << 62, 100)] == expected
        log.close()

    run(main())


STEPS = ("say", "say much", "save", "delete", "remember", "read", "hold", "let go", "break", "mend", "kill")


@given(steps=st.lists(st.sampled_from(STEPS), min_size=5, max_size=40))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whenever_it_is_killed_what_was_acknowledged_is_there_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    directory = tmp_path_factory.mktemp("kept")
    data = directory / "data" / "log.db"
    data.parent.mkdir()
    run(take(steps, data, directory / "copy"))
    shutil.rmtree(directory)


class Model:
    """What was said, and what of it was acknowledged."""

    def __init__(self) -> None:
        self.said: list[int] = []
        self.safe = 0
        """The last position that is."""
        self.records: list[bytes | None] = [None]
        """All that the session had."""
        self.safe_records = 0
        """The newest of them that is."""

    def check(self, data: Path, copy: Path) -> list[int]:
        """What the next server has, if this one is killed now."""
        database = open_killed(data, copy)
        found, record = positions(database), database.index.records(["s"]).get("s")
        database.close()
        assert found == self.said[: len(found)], "in order, once each, and none left out"
        assert all(position in found for position in self.said if position <= self.safe)
        assert record in self.records[self.safe_records :]
        return found


async def take(steps: list[str], data: Path, copy: Path) -> None:
    database = Watched(data)
    log, model, reads = Log(database, Limits()), Model(), list[asyncio.Task[list[Chunk]]]()
    for step in [*steps, "mend", "let go", "kill"]:
        match step:
            case "say" | "say much":
                lines = [b"x" * 20_000] * 3 if step == "say much" else [b"{}"]
                model.said.append(log.append(lines[:1], Direction.FROM_AGENT, "t", S).first)
                for line in lines[1:]:
                    model.said.append(log.append([line], Direction.FROM_AGENT, "t", S).first)
                log.when_committed(log.position, acknowledge_position(model, log.position))
            case "save" | "delete":
                model.records.append(b"%d" % len(model.records) if step == "save" else None)
                record = model.records[-1]
                log.delete_session("s") if record is None else log.save_session("s", record)
                log.when_flushed(acknowledge_record(model, len(model.records) - 1))
            case "remember":
                log.save_outcome("scope", "key", b"digest", b"%d" % log.position)
            case "hold":
                database.go.clear()
            case "let go":
                database.go.set()
            case "break" | "mend":
                database.is_broken = step == "break"
            case "read":
                reading = asyncio.create_task(log.history("t", 0, 1 << 62, 1000))
                reads.append(reading)
            case _:
                if database.go.is_set():
                    # The files of a transaction under way cannot be copied.
                    await log.history("t", 0, 1 << 62, 1000)
                model.check(data, copy)
        for _ in range(3):
            await asyncio.sleep(0)
    await log.flushed()
    await asyncio.gather(*reads)
    log.close()
    assert model.check(data, copy) == model.said


def acknowledge_position(model: Model, position: int) -> Callable[[Exception | None], None]:
    def acknowledge(failure: Exception | None) -> None:
        if failure is None:
            model.safe = max(model.safe, position)

    return acknowledge


def acknowledge_record(model: Model, number: int) -> Callable[[Exception | None], None]:
    def acknowledge(failure: Exception | None) -> None:
        if failure is None:
            model.safe_records = max(model.safe_records, number)

    return acknowledge
