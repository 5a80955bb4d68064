"""Open the log's file, and salvage what can be read when acknowledged data is missing.

To salvage is to copy all readable rows into a new file. The one place that puts witness, inspection and database
together.
"""

import os
import shutil
import sqlite3
import struct
import time
from collections.abc import Generator
from contextlib import closing, suppress
from pathlib import Path
from threading import Thread
from typing import NamedTuple

from sandboxagent.server.log.check import DamagedLog, inspect, inspect_meanwhile, is_intact
from sandboxagent.server.log.damage import (
    PENDING,
    REASON,
    CommitRecord,
    CommitRecordUnreadable,
    Damage,
    Statement,
    read_statement,
    read_tallies,
)
from sandboxagent.server.log.database import (
    NEW_EVENT,
    SCHEMA,
    SCHEMA_VERSION,
    Database,
    DatabaseError,
    prepare,
    read_text,
)
from sandboxagent.server.log.journal import Half, read_journal
from sandboxagent.server.log.rows import PAGE_SIZE, checksum, encode_chunk, gap_for

UNKNOWN = 1 << 40
"""Positions to leave out when nothing is left that says which were given out."""

_WAL_HEADER, _FRAME_HEADER = struct.Struct(">IIII8sII"), struct.Struct(">II8sII")
_TABLES = ("sessions", "events", "outcomes", "trims", "ages")
_MAX_ROWID = (1 << 63) - 1
_UNREADABLE = (sqlite3.Error, UnicodeDecodeError)

FILE_SUFFIXES = (
    "",
    "-wal",
    "-shm",
    ".witness",
    ".journal",
    ".new",
    ".new-wal",
    ".new-shm",
    ".scratch",
    ".scratch-journal",
)
"""What may follow the log's name in the names of its files."""
SMALL = 8 << 20
"""Bytes up to which a file is looked through before it is used; a larger one is looked through meanwhile."""


def finish_interrupted(path: Path) -> None:
    """Bring to its end what a crash interrupted, or forget it. Raises OSError."""
    new = _new_path(path)
    if new.exists() and not path.exists():
        # Only a whole one is ever without the old one beside it.
        for case in sorted(path.parent.glob(f"{path.name}.damaged-*"))[-1:]:
            _put_aside(path, case)
        new.rename(path)
    for left in (new, _scratch_path(path)):
        _remove(left)


def salvage(path: Path, case: Path, known: Statement | None) -> str:
    """Make a new file of what can be read, and move the old ones into the directory of the case; says what came of it.

    Raises OSError and DatabaseError, when the disk is full, say.
    """
    scratch, new = _scratch_path(path), _new_path(path)
    for left in (scratch, new):
        _remove(left)
    if path.exists() or _wal_path(path).exists():
        _merge(path, scratch)
    try:
        found = _copy(scratch, new, known)
    except sqlite3.Error as error:
        raise DatabaseError(str(error)) from error
    with new.open("rb") as file:
        os.fsync(file.fileno())
    _remove(scratch)
    if path.exists():
        path.rename(case / path.name)
    _put_aside(path, case)
    new.rename(path)
    return found


def _put_aside(path: Path, case: Path) -> None:
    with suppress(FileNotFoundError):
        _wal_path(path).rename(case / _wal_path(path).name)
    path.with_name(f"{path.name}-shm").unlink(missing_ok=True)


# --- the write-ahead log ----------------------------------------------------------------------------------------------


def _merge(path: Path, scratch: Path) -> None:
    """A copy of the file with all pages of its write-ahead log in it.

    SQLite stops at the first page that fails its checksum. All others are good, and rows have checksums of their own.
    """
    scratch.touch()
    with suppress(FileNotFoundError):
        shutil.copyfile(path, scratch)
    try:
        wal = _wal_path(path).read_bytes()
    except FileNotFoundError:
        wal = b""
    with scratch.open("r+b") as file:
        pages = file.seek(0, os.SEEK_END) // PAGE_SIZE
        for number, page in _committed_pages(wal, pages):
            file.seek((number - 1) * PAGE_SIZE)
            file.write(page)
        # There is no write-ahead log beside the copy.
        file.seek(18)
        file.write(b"\x01\x01")


def _committed_pages(wal: bytes, pages: int) -> list[tuple[int, memoryview]]:
    """Page numbers and pages, in order, up to the last commit."""
    step = _FRAME_HEADER.size + PAGE_SIZE
    starts = range(_WAL_HEADER.size, len(wal) - step + 1, step)
    if not starts:
        return []
    salt, first = _WAL_HEADER.unpack_from(wal)[4], _FRAME_HEADER.unpack_from(wal, starts[0])[2]
    view, found, committed = memoryview(wal), list[tuple[int, memoryview]](), 0
    for start in starts:
        number, commit, frame_salt, _, _ = _FRAME_HEADER.unpack_from(wal, start)
        # Frames of an earlier turn of the file have another salt; a number that cannot be is damaged.
        if frame_salt in (salt, first) and 0 < number <= pages + len(starts):
            found.append((number, view[start + _FRAME_HEADER.size : start + step]))
            committed = len(found) if commit else committed
    return found[:committed]


# --- rows -------------------------------------------------------------------------------------------------------------


def _copy(scratch: Path, new: Path, known: Statement | None) -> str:
    new.touch(mode=0o600)
    with closing(sqlite3.connect(scratch)) as source, closing(sqlite3.connect(new, isolation_level=None)) as target:
        source.text_factory = read_text
        prepare(target)
        target.executescript(SCHEMA)
        target.execute("begin")
        damaged = sum(_copy_table(source, target, table) for table in _TABLES)
        _copy_state(source, target, known)
        target.execute("commit")
        target.execute(f"pragma user_version = {SCHEMA_VERSION}")
        sessions, events = (target.execute(f"select count(*) from {name}").fetchone()[0] for name in _TABLES[:2])
    return f"salvaged: sessions={sessions} records of events={events}; damaged records that could be named: {damaged}"


def _copy_table(source: sqlite3.Connection, target: sqlite3.Connection, table: str) -> int:
    """Copy what is intact; gives the number of rows that are not. Readers get a gap in place of damaged events."""
    damaged = 0
    for _, *row in _rows(source, table):
        # A name that is no text any more cannot be written.
        with suppress(UnicodeEncodeError, sqlite3.IntegrityError):
            if is_intact(table, row):
                _insert(target, table, tuple(row))
                continue
            damaged += 1
            if table == "events":
                gap = gap_for(tuple(row))  # pyright: ignore[reportArgumentType]
                target.execute(f"insert into events values {NEW_EVENT}", encode_chunk(gap))
    return damaged


def _insert(target: sqlite3.Connection, table: str, row: tuple[object, ...]) -> None:
    target.execute(f"insert into {table} values ({', '.join('?' * len(row))})", row)


def _copy_state(source: sqlite3.Connection, target: sqlite3.Connection, known: Statement | None) -> None:
    (last,) = target.execute("select coalesce(max(last), 0) from events").fetchone()
    (seconds,) = target.execute("select max(seconds) from ages").fetchone()
    commits, reserved, ticks, boot, settled = 0, last, 0.0, "", 0
    found = False
    with suppress(*_UNREADABLE):
        for row in source.execute("select * from state"):
            *values, check = row
            if check is None or check == checksum(*values):
                _, commits, reserved, seconds, ticks, boot, settled = values
                found = True
    if known is not None:
        commits, reserved = max(commits, known.commits), max(reserved, known.reserved)
    if not found and (known is None or not known.reserved):
        reserved += UNKNOWN
    # It stays the same commit, which the journal follows: a start that is interrupted here can be repeated.
    values = (1, commits, max(reserved, last), seconds or time.time(), ticks, boot, settled)
    target.execute("insert into state values (?, ?, ?, ?, ?, ?, ?, ?)", (*values, checksum(*values)))


def _rows(source: sqlite3.Connection, table: str) -> Generator[tuple[object, ...]]:
    """All rows that can be reached, from both sides of what cannot."""
    query = f"select rowid, * from {table} where rowid > ? and rowid <= ? order by rowid"
    after = -1
    while True:
        with suppress(*_UNREADABLE):
            for row in source.execute(query, (after, _MAX_ROWID)):
                # A damaged tree may lead in circles.
                if row[0] <= after:
                    break
                after = row[0]
                yield row
            else:
                return
        beyond = _next(source, table, after)
        if beyond is None:
            return
        before = list[tuple[object, ...]]()
        with suppress(*_UNREADABLE):
            expected = beyond
            for row in source.execute(f"{query} desc", (after, beyond)):
                if not after < row[0] <= expected:
                    break
                expected = row[0] - 1
                before.append(row)
        yield from reversed(before)
        after = beyond


def _next(source: sqlite3.Connection, table: str, after: int) -> int | None:
    """A row beyond those that cannot be read."""
    for power in range(62):
        with suppress(*_UNREADABLE):
            query = f"select rowid from {table} where rowid > ? order by rowid limit 1"
            row = source.execute(query, (after + (1 << power) - 1,)).fetchone()
            if row is None:
                return None
            if row[0] > after:
                return row[0]
    return None


def _has_content(path: Path) -> bool:
    with suppress(FileNotFoundError):
        return path.stat().st_size > 0
    return False


def _wal_path(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def _new_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.new")


def _scratch_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.scratch")


def _remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


class Opened(NamedTuple):
    """An open file, and what is known of its state."""

    database: Database
    damage: Damage
    inspection: Thread | None = None
    """Looks through a large file."""


def open_database(path: Path | None, small: int = SMALL) -> Opened:
    """The log's file, whatever has become of it; None is a log in memory. Raises DatabaseError."""
    if path is None:
        return Opened(Database(None), Damage(None))
    try:
        return _open(path, small)
    except OSError as error:
        raise DatabaseError(f"{path}: {error}") from error


def _open(path: Path, small: int) -> Opened:
    finish_interrupted(path)
    damage = Damage(path)
    place = path.with_name(f"{path.name}.witness")
    known: Statement | None = None
    tallies = read_tallies(place)
    try:
        known = read_statement(place)
    except CommitRecordUnreadable:
        # Nothing says how much was committed. What is in the file can be served all the same.
        damage.open_case(f"{place.name} is damaged, so that a loss at the end of the log would not be noticed")
        place.unlink()
        # Of the log it is known that it was ours, and nothing else.
        known = Statement(SCHEMA_VERSION, commits=0, reserved=0)
    thoroughly = path.exists() and path.stat().st_size <= small
    _mend(path, known, damage, thoroughly=thoroughly)
    large = path.exists() and not thoroughly
    journal = path.with_name(f"{path.name}.journal")
    kept = read_journal(journal)
    if known is not None and known.journaled:
        # Of a server whose journal had no halves.
        tallies[known.commits + 1] = known.journaled
    database = Database(path, CommitRecord(place), damage, reserved=known.reserved if known else 0)
    try:
        _restore(database, kept, tallies, damage, journal)
    except BaseException:
        database.close()
        raise
    database.open_journal(journal)
    return Opened(database, damage, inspect_meanwhile(path, damage.report) if large else None)


def _restore(database: Database, kept: list[Half], tallies: dict[int, int], damage: Damage, journal: Path) -> None:
    """Write what the journal has and the database lacks, and report the records that are missing."""
    # A tally of an older transaction is of no use: the database has what was journaled for it.
    lacking = {number: count for number, count in tallies.items() if number > database.commits}
    # Two halves follow the newest transaction. Others are of a log that was here before.
    kept = [half for half in kept if 0 < half.number - database.commits <= 2]
    found = {half.number: len(half.groups) for half in kept}
    lost = sum(max(count - found.get(number, 0), 0) for number, count in lacking.items())
    if lost:
        # Before the commit, after which nothing shows the loss any more.
        case = damage.open_case(f"{journal.name} lacks {lost} writes that were acknowledged")
        with suppress(OSError):
            shutil.copyfile(journal, case / journal.name)
    if found or lost:
        groups = [group for half in kept for group in half.groups]
        database.restore(groups, max([*found, *lacking]))


def _mend(path: Path, known: Statement | None, damage: Damage, *, thoroughly: bool) -> None:
    """Look for damage, and salvage what can be read if there is any."""
    case = damage.pending
    try:
        if case is None:
            _inspect(path, known, thoroughly=thoroughly)
            return
    except DamagedLog as found:
        case = damage.open_case(str(found))
        if known is None:
            # Nothing says that what the journal has is of this log: it is not restored, and will be written over.
            journal = path.with_name(f"{path.name}.journal")
            with suppress(OSError):
                shutil.copyfile(journal, case / journal.name)
    try:
        result = salvage(path, case, known)
    except (OSError, DatabaseError) as error:
        raise DatabaseError(
            f"{path} is damaged (see {case / REASON}), and what can be read of it cannot be written to a new file "
            f"({error}); make room in {path.parent}, or move {path.name} away to begin an empty log"
        ) from error
    damage.add(case, result)
    (case / PENDING).unlink(missing_ok=True)


def _inspect(path: Path, known: Statement | None, *, thoroughly: bool) -> None:
    is_empty = path.exists() and path.stat().st_size == 0
    if path.exists() and not is_empty:
        inspect(path, known, thoroughly=thoroughly)
        return
    # SQLite would take an empty file for a new one, and delete the write-ahead log beside it.
    if known is not None and known.commits:
        state = "empty" if is_empty else "gone"
        raise DamagedLog(f"{path.name} is {state}, with {known.commits} writes that were acknowledged")
    if is_empty and (_has_content(_wal_path(path)) or read_journal(path.with_name(f"{path.name}.journal"))):
        raise DamagedLog(f"{path.name} is empty, and what was written after it is not")
