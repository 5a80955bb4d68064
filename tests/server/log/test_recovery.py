"""A log whose files were damaged: what was acknowledged is there, or the loss is reported; no position comes twice."""

import itertools
import logging
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandboxagent.server.log.damage import PENDING, REASON, Damage
from sandboxagent.server.log.database import SCHEMA, SCHEMA_VERSION, Database, DatabaseError, prepare
from sandboxagent.server.log.event import Chunk, Direction, session_channel
from sandboxagent.server.log.journal import HALF_BYTES, Group
from sandboxagent.server.log.recovery import open_database

ALL = 1 << 62
RESERVED = 5000
JOURNALED = 170
"""After this position all is in the journal alone."""
SESSIONS = [f"session-{number}" for number in range(6)]
FILES = ("log.db", "log.db-wal", "log.db.witness", "log.db.journal")

KILLED = """
import os, sys
from pathlib import Path
from tests.server.log.test_recovery import fill
fill(Path(sys.argv[1]))
os.kill(os.getpid(), 9)
"""


def line(position: int) -> bytes:
    return b'{"jsonrpc":"2.0","method":"x","params":{"n":%d,"text":"%b"}}' % (position, b"text " * (position % 40))


def fill(directory: Path) -> Database:
    """A log as a server leaves it: some of it in the file, some in the write-ahead log, some in the journal."""
    database = open_database(directory / "log.db").database
    database.write(Group(reserve=RESERVED))
    for position in range(1, 181):
        session = SESSIONS[position % len(SESSIONS)]
        chunk = Chunk(position, [line(position)], Direction.FROM_AGENT, session, session_channel(session), 1.0)
        group = Group([chunk], {session: b'{"n":%d}' % position})
        journal = database.journal
        assert journal is not None
        if position <= JOURNALED:
            database.write(group)
        elif position in (JOURNALED + 1, JOURNALED + 5):
            # As when the database was about to get what is in the one half.
            assert journal.begin(database.commits + 1 + (position > JOURNALED + 1), group)
        else:
            assert journal.append(group)
        if position == 120:
            with closing(sqlite3.connect(directory / "log.db")) as other:
                other.execute("pragma wal_checkpoint(truncate)")
    return database


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a server that was killed."""
    directory = tmp_path_factory.mktemp("killed")
    subprocess.run([sys.executable, "-c", KILLED, str(directory)], check=False)
    assert (directory / "log.db-wal").stat().st_size > 100_000
    assert (directory / "log.db").stat().st_size > 50_000
    return directory


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


def copied(killed: Path, directory: Path) -> Path:
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(killed, directory)
    return directory / "log.db"


def everything(database: Database) -> tuple[dict[str, bytes], dict[int, bytes]]:
    found: dict[int, bytes] = {}
    for session in SESSIONS:
        for chunk in database.history(session, 0, ALL, 1000, ALL):
            found |= dict(enumerate(chunk.lines, chunk.first))
    records = database.index.records(SESSIONS)
    return {session: record for session, record in records.items() if record is not None}, found


WHOLE = (
    {SESSIONS[position % len(SESSIONS)]: b'{"n":%d}' % position for position in range(175, 181)},
    {position: line(position) for position in range(1, 181)},
)


def reopened(path: Path) -> tuple[tuple[dict[str, bytes], dict[int, bytes]], Damage, int]:
    database, damage, _ = open_database(path)
    found = everything(database), damage, database.load().reserved
    database.close()
    return found


def flip(path: Path, at: int, mask: int = 1) -> None:
    content = bytearray(path.read_bytes())
    if path.suffix == ".journal":
        # Where there is something, in both halves.
        first, second = (len(half.rstrip(b"\0")) for half in (content[:HALF_BYTES], content[HALF_BYTES:]))
        at %= first + second
        content[at if at < first else HALF_BYTES + at - first] ^= mask
    else:
        content[at % len(content)] ^= mask
    path.write_bytes(content)


def test_a_server_that_was_killed_has_lost_nothing_and_nothing_is_said(killed: Path, tmp_path: Path) -> None:
    found, damage, reserved = reopened(copied(killed, tmp_path / "data"))

    assert found == WHOLE
    assert damage.reason is None
    assert reserved == RESERVED


def test_what_a_killed_server_was_about_to_write_is_no_damage(killed: Path, tmp_path: Path) -> None:
    path = copied(killed, tmp_path / "data")
    with (tmp_path / "data" / "log.db-wal").open("ab") as file:
        file.write(os.urandom(10_000))

    found, damage, _ = reopened(path)

    assert found == WHOLE
    assert damage.reason is None


def test_flipped_byte_of_the_write_ahead_log_is_noticed_and_costs_little(killed: Path, tmp_path: Path) -> None:
    path = copied(killed, tmp_path / "data")
    flip(tmp_path / "data" / "log.db-wal", 32 + 24 + 100)

    (sessions, events), damage, reserved = reopened(path)

    assert damage.reason is not None
    assert "acknowledged" in damage.reason
    assert sessions.keys() == WHOLE[0].keys()
    assert len(WHOLE[1].items() - events.items()) < 40
    assert reserved >= RESERVED
    (case,) = tmp_path.glob("data/log.db.damaged-*")
    assert {each.name for each in case.iterdir()} == {"log.db", "log.db-wal", REASON}


def test_damage_is_reported_until_its_directory_is_gone(killed: Path, tmp_path: Path) -> None:
    path = copied(killed, tmp_path / "data")
    flip(tmp_path / "data" / "log.db-wal", 5000)
    reopened(path)

    _, damage, _ = reopened(path)
    assert damage.reason is not None
    (case,) = tmp_path.glob("data/log.db.damaged-*")
    shutil.move(case, tmp_path / "looked at")

    assert damage.reason is None
    assert reopened(path)[1].reason is None


@given(
    file=st.sampled_from(FILES),
    flips=st.lists(st.tuples(st.integers(0, 1 << 24), st.integers(1, 255)), min_size=1, max_size=3),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_changed_bytes_lose_nothing_silently_and_repeat_no_position(
    killed: Path, tmp_path: Path, file: str, flips: list[tuple[int, int]]
) -> None:
    path = copied(killed, tmp_path / "data")
    for at, mask in flips:
        flip(path.with_name(file), at, mask)

    (sessions, events), damage, reserved = reopened(path)

    if damage.reason is None:
        assert (sessions, events) == WHOLE
    for position, found in events.items():
        assert found == line(position) or b"_sandboxagent/stream/gap" in found
    assert sessions.items() <= WHOLE[0].items() or damage.reason is not None
    assert reserved >= RESERVED
    # And what was salvaged is whole by itself.
    again, still, reserved_again = reopened(path)
    assert again == (sessions, events)
    assert reserved_again >= reserved
    assert (still.reason is None) == (damage.reason is None)


@pytest.mark.parametrize("keep", [0, 1000, 9000])
@pytest.mark.parametrize("file", ["log.db", "log.db-wal"])
def test_a_file_that_was_cut_is_noticed(killed: Path, tmp_path: Path, file: str, keep: int) -> None:
    path = copied(killed, tmp_path / "data")
    os.truncate(path.with_name(file), keep)

    _, damage, reserved = reopened(path)

    assert damage.reason is not None
    assert reserved >= RESERVED


def test_a_log_that_is_gone_is_reported_and_its_positions_are_not_used_again(killed: Path, tmp_path: Path) -> None:
    path = copied(killed, tmp_path / "data")
    for name in ("log.db", "log.db-wal", "log.db-shm"):
        path.with_name(name).unlink()

    (sessions, events), damage, reserved = reopened(path)

    assert sessions == WHOLE[0], "the journal has them"
    assert events == {position: line(position) for position in range(JOURNALED + 1, 181)}
    assert damage.reason is not None
    assert "gone" in damage.reason
    assert reserved >= RESERVED


def make_empty(path: Path, how: str) -> None:
    if how == "no bytes":
        os.truncate(path, 0)
        return
    path.unlink()
    path.with_name("log.db-wal").unlink()
    with closing(sqlite3.connect(path)) as sqlite:
        if how == "no rows":
            prepare(sqlite)
            sqlite.executescript(f"{SCHEMA}; pragma user_version = {SCHEMA_VERSION}")
        else:
            sqlite.executescript("create table any(thing); drop table any")


@pytest.mark.parametrize("how", ["no bytes", "no tables", "no rows"])
def test_a_log_that_was_emptied_is_kept_aside_and_its_positions_are_not_used_again(
    killed: Path, tmp_path: Path, how: str
) -> None:
    path = copied(killed, tmp_path / "data")
    make_empty(path, how)
    left = path.read_bytes()

    (sessions, events), damage, reserved = reopened(path)

    assert sessions == WHOLE[0], "the journal has them"
    assert events.items() >= {position: line(position) for position in range(JOURNALED + 1, 181)}.items()
    assert events.items() <= WHOLE[1].items()
    assert damage.reason is not None
    (case,) = path.parent.glob("log.db.damaged-*")
    assert (case / "log.db").stat().st_size == len(left)
    assert len((case / REASON).read_text().splitlines()) == 2
    assert reserved >= RESERVED
    # What follows is told as well, and nothing is told anew.
    assert reopened(path)[2] >= RESERVED
    assert list(path.parent.glob("log.db.damaged-*")) == [case]


def test_the_write_ahead_log_of_a_log_that_was_emptied_is_salvaged_and_kept(killed: Path, tmp_path: Path) -> None:
    path = copied(killed, tmp_path / "data")
    written = path.with_name("log.db-wal").read_bytes()
    os.truncate(path, 0)

    (_, events), _, _ = reopened(path)

    assert set(range(150, 181)) <= set(events)
    (case,) = path.parent.glob("log.db.damaged-*")
    assert (case / "log.db-wal").read_bytes() == written


@pytest.mark.parametrize("left", ["log.db-wal", "log.db.journal"])
def test_a_log_that_was_emptied_with_its_witness_gives_no_position_twice(
    killed: Path, tmp_path: Path, left: str
) -> None:
    path = copied(killed, tmp_path / "data")
    os.truncate(path, 0)
    for name in {"log.db-wal", "log.db.witness", "log.db.journal"} - {left}:
        path.with_name(name).unlink()
    content = path.with_name(left).read_bytes()

    _, damage, reserved = reopened(path)

    assert damage.reason is not None
    assert reserved >= RESERVED
    (case,) = path.parent.glob("log.db.damaged-*")
    assert (case / left).read_bytes() == content


def test_an_empty_file_of_which_nothing_is_known_is_a_new_log(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    path.touch()

    found, damage, _ = reopened(path)

    assert found == ({}, {})
    assert damage.reason is None


def test_a_log_that_was_deleted_with_its_witness_is_a_new_log(killed: Path, tmp_path: Path) -> None:
    path = copied(killed, tmp_path / "data")
    for each in (tmp_path / "data").glob("log.db*"):
        each.unlink()

    found, damage, _ = reopened(path)

    assert found == ({}, {})
    assert damage.reason is None


def test_positions_are_not_used_again_when_neither_log_nor_witness_knows_them(killed: Path, tmp_path: Path) -> None:
    path = copied(killed, tmp_path / "data")
    reopened(path)
    path.with_name("log.db.witness").write_bytes(b"?" * 256)
    with sqlite3.connect(path) as sqlite:
        sqlite.execute("update state set reserved = 1, commits = 1")
    sqlite.close()

    (sessions, events), damage, reserved = reopened(path)

    assert (sessions, events) == WHOLE
    assert damage.reason is not None
    assert reserved >= RESERVED


def damage_row(path: Path) -> None:
    with sqlite3.connect(path) as sqlite:
        sqlite.execute("update events set lines = ? where first = 7", (b'{"other": 1}',))
        sqlite.execute("update sessions set record = ? where session_id = ?", (b"\xff", SESSIONS[0]))
    sqlite.close()


def test_a_large_log_is_looked_through_while_it_is_used_and_mended_at_the_next_start(
    killed: Path, tmp_path: Path
) -> None:
    path = copied(killed, tmp_path / "data")
    reopened(path)
    damage_row(path)

    database, damage, inspection = open_database(path, small=0)
    assert inspection is not None
    inspection.join()
    assert damage.reason is not None
    (sessions, events) = everything(database)
    database.close()

    assert sessions.keys() == set(SESSIONS[1:])
    assert b"_sandboxagent/stream/gap" in events.pop(7)
    assert events == {position: text for position, text in WHOLE[1].items() if position != 7}
    (case,) = tmp_path.glob("data/log.db.damaged-*")
    assert (case / PENDING).exists()

    (sessions, events), damage, _ = reopened(path)

    assert not (case / PENDING).exists()
    assert (case / "log.db").exists()
    assert sessions.keys() == set(SESSIONS[1:])
    assert b"_sandboxagent/stream/gap" in events[7]
    assert damage.reason is not None


@pytest.mark.parametrize("step", range(4))
def test_a_salvage_that_was_interrupted_is_brought_to_its_end(killed: Path, tmp_path: Path, step: int) -> None:
    path = copied(killed, tmp_path / "data")
    flip(path.with_name("log.db-wal"), 5000)
    expected = reopened(copied(killed, tmp_path / "other"))[0] if step == 0 else None
    commit_record = path.with_name("log.db.witness").read_bytes()
    whole = reopened(path)[0]
    (case,) = tmp_path.glob("data/log.db.damaged-*")
    # Back to the moments before.
    moments: list[Callable[[], object]] = [
        lambda: path.rename(path.with_name("log.db.new")),
        lambda: (case / "log.db-wal").rename(path.with_name("log.db-wal")),
        lambda: (case / "log.db").rename(path),
    ]
    for moment in moments[:step]:
        moment()
        path.with_name("log.db.witness").write_bytes(commit_record)

    found, damage, _ = reopened(path)

    assert found == whole or expected is not None
    assert damage.reason is not None
    assert not path.with_name("log.db.new").exists()


class Killed(BaseException):
    """The process ends here."""


def interrupt(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Let the process end before this step of a start."""
    steps = itertools.count()

    def interrupted(change: Callable[..., object]) -> Callable[..., object]:
        def run(*arguments: object, **options: object) -> object:
            if next(steps) == step:
                raise Killed
            return change(*arguments, **options)

        return run

    for owner, name in ((Path, "rename"), (Path, "unlink"), (Damage, "add"), (Database, "restore")):
        monkeypatch.setattr(owner, name, interrupted(getattr(owner, name)))


def interrupted_starts(path: Path) -> Iterator[int]:
    """Starts on the same files, each of which ends one step later, until one does not end early."""
    before = path.parent.with_name("before")
    shutil.copytree(path.parent, before)
    for step in range(100):
        copied(before, path.parent)
        with pytest.MonkeyPatch.context() as monkeypatch:
            interrupt(monkeypatch, step)
            try:
                open_database(path).database.close()
            except Killed:
                pass
            else:
                return
        yield step


@pytest.mark.parametrize("is_found_by_a_running_server", [False, True])
def test_a_start_that_mends_may_be_interrupted_anywhere_and_the_journal_is_kept(
    killed: Path, tmp_path: Path, *, is_found_by_a_running_server: bool
) -> None:
    path = copied(killed, tmp_path / "data")
    damage_row(path)
    if is_found_by_a_running_server:
        Damage(path).report("a row is damaged")

    step = 0
    for step in interrupted_starts(path):
        (_, events), damage, _ = reopened(path)

        assert b"_sandboxagent/stream/gap" in events.pop(7)
        assert events == {position: text for position, text in WHOLE[1].items() if position != 7}, step
        assert damage.reason is not None
        assert reopened(path)[0][1].keys() == WHOLE[1].keys()
    assert step > 5


def test_a_full_disk_after_a_salvage_costs_nothing_of_the_journal(
    killed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = copied(killed, tmp_path / "data")
    damage_row(path)

    def fail(*_: object) -> None:
        raise DatabaseError("database or disk is full")

    with monkeypatch.context() as full:
        full.setattr(Database, "restore", fail)
        for _ in range(2):
            with pytest.raises(DatabaseError, match="full"):
                open_database(path)

    assert reopened(path)[0][1].keys() == WHOLE[1].keys()


@pytest.mark.parametrize("is_row_damaged", [False, True])
def test_journal_loss_is_reported_wherever_a_start_is_interrupted(
    killed: Path, tmp_path: Path, *, is_row_damaged: bool
) -> None:
    """Later starts do not report it again."""
    path = copied(killed, tmp_path / "data")
    flip(path.with_name("log.db.journal"), -1)
    if is_row_damaged:
        damage_row(path)

    def told() -> int:
        cases = [case / REASON for case in path.parent.glob("log.db.damaged-*")]
        return sum("log.db.journal lacks 1 write" in each.read_text() for each in cases if each.exists())

    step = 0
    for step in interrupted_starts(path):
        (_, events), _, _ = reopened(path)

        # It was the last of its half.
        assert events.keys() == set(range(1, 181)) - {JOURNALED + 4}, step
        before = told()
        assert before > 0, step
        reopened(path)
        assert told() == before, step
    assert step > 1


def test_a_damaged_log_that_cannot_be_salvaged_says_what_to_do(killed: Path, tmp_path: Path) -> None:
    path = copied(killed, tmp_path / "data")
    flip(path.with_name("log.db-wal"), 5000)
    path.with_name("log.db.new").mkdir()

    with pytest.raises(DatabaseError, match=r"log\.db"):
        open_database(path)


def test_a_file_of_the_first_version_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with sqlite3.connect(path) as sqlite:
        sqlite.executescript(
            """
            create table events(first integer primary key, last integer not null, session_id text,
                channel text not null, exclude text not null, direction text not null, at real not null,
                history integer not null, request integer, size integer not null, lines blob not null);
            create index events_by_size on events(size);
            create index events_by_age on events(at);
            create table sessions(session_id text primary key, record blob not null);
            create table trims(channel text primary key, through integer not null);
            create table outcomes(scope text not null, key text not null, digest blob not null, response blob,
                at real not null, primary key(scope, key));
            create table positions(reserved integer not null);
            insert into positions values (99);
            insert into sessions values ('s', '{}');
            insert into events values (1, 2, 's', 'session:s', '', 'fromAgent', 5.0, 1, null, 9,
                cast('{}' || char(10) || '{}' as blob));
            pragma user_version = 1;
            """
        )
    sqlite.close()

    database, damage, _ = open_database(path)

    assert damage.reason is None
    assert database.load().reserved == 99
    (chunk,) = database.history("s", 0, ALL, 10, ALL)
    assert (chunk.first, chunk.lines) == (1, [b"{}", b"{}"])
    assert set(database.trim(ALL, 86400.0, [])) == {"session:s", "history:s"}
    database.close()
    assert reopened(path)[1].reason is None


def test_random_damage_of_all_files_at_once_never_keeps_the_log_from_opening(killed: Path, tmp_path: Path) -> None:
    dice = random.Random(1)
    for _ in range(5):
        path = copied(killed, tmp_path / "data")
        for file in FILES:
            for _ in range(dice.randrange(1, 30)):
                flip(path.with_name(file), dice.randrange(1 << 24), dice.randrange(1, 256))

        _, damage, reserved = reopened(path)

        assert damage.reason is not None
        assert reserved >= RESERVED
