"""Open the log's file, and salvage its readable rows when acknowledged data is missing.

Salvaging copies all readable rows into a new file. Only this module combines the witness file, the inspection and the
database.
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
from sandboxagent.server.log.rows import PAGE_BYTES, checksum, encode_chunk, gap_for

UNKNOWN = 1 << 40
"""Number of positions to skip when no file says which were given out."""

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
"""Suffixes of the log's name in the names of its files."""
MAX_SMALL_FILE_BYTES = 8 << 20
"""Maximum bytes of a file that is inspected before it is used. A larger file is inspected while it is in use."""


def finish_interrupted(path: Path) -> None:
    """Finish or discard a salvage that a crash interrupted. Raises OSError."""
    new = _new_path(path)
    if new.exists() and not path.exists():
        # The old file is moved away only when the new one is complete.
        for case in sorted(path.parent.glob(f"{path.name}.damaged-*"))[-1:]:
            _put_aside(path, case)
        new.rename(path)
    for left in (new, _scratch_path(path)):
        _remove(left)


def salvage(path: Path, case: Path, known: Statement | None) -> str:
    """Copy all readable rows into a new file, and move the old files into the directory of the case.

    Return a summary of the result. Raises OSError and DatabaseError, for example when the disk is full.
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
    """Make a copy of the file, with all committed pages of its write-ahead log in it.

    SQLite stops at the first page that fails its checksum. The other pages are good, and rows have checksums of their
    own.
    """
    scratch.touch()
    with suppress(FileNotFoundError):
        shutil.copyfile(path, scratch)
    try:
        wal = _wal_path(path).read_bytes()
    except FileNotFoundError:
        wal = b""
    with scratch.open("r+b") as file:
        pages = file.seek(0, os.SEEK_END) // PAGE_BYTES
        for number, page in _committed_pages(wal, pages):
            file.seek((number - 1) * PAGE_BYTES)
            file.write(page)
        # Set both format versions in the header to 1: the copy has no write-ahead log.
        file.seek(18)
        file.write(b"\x01\x01")


def _committed_pages(wal: bytes, pages: int) -> list[tuple[int, memoryview]]:
    """Return page numbers and pages up to the last commit, in order."""
    step = _FRAME_HEADER.size + PAGE_BYTES
    starts = range(_WAL_HEADER.size, len(wal) - step + 1, step)
    if not starts:
        return []
    salt, first = _WAL_HEADER.unpack_from(wal)[4], _FRAME_HEADER.unpack_from(wal, starts[0])[2]
    view, found, committed = memoryview(wal), list[tuple[int, memoryview]](), 0
    for start in starts:
        number, commit, frame_salt, _, _ = _FRAME_HEADER.unpack_from(wal, start)
        # Frames of an earlier generation of the file have another salt. An impossible page number is damaged.
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
    """Copy the intact rows of a table, and return the number of damaged ones.

    Readers get a gap in place of damaged events.
    """
    damaged = 0
    for _, *row in _rows(source, table):
        # A damaged name may not be valid text, and cannot be written then.
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
    # Keep the commit number, which the journal's records follow: a start that is interrupted here can be repeated.
    values = (1, commits, max(reserved, last), seconds or time.time(), ticks, boot, settled)
    target.execute("insert into state values (?, ?, ?, ?, ?, ?, ?, ?)", (*values, checksum(*values)))


def _rows(source: sqlite3.Connection, table: str) -> Generator[tuple[object, ...]]:
    """Yield all rows that can be reached, from both sides of unreadable ones."""
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
    """Return the id of a row beyond the unreadable ones; None when there is none."""
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
    """An open database, with the damage that is known."""

    database: Database
    damage: Damage
    inspection: Thread | None = None
    """Thread that inspects a large file."""


def open_database(path: Path | None, small: int = MAX_SMALL_FILE_BYTES) -> Opened:
    """Open the log's file, and salvage it first if it is damaged. A path of None means a log in memory.

    Raises DatabaseError.
    """
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
        # The number of commits is unknown, but the content of the file can be served.
        damage.open_case(f"{place.name} is damaged, so that a loss at the end of the log would not be noticed")
        place.unlink()
        # All that is known is that the log is one of this server.
        known = Statement(SCHEMA_VERSION, commits=0, reserved=0)
    thoroughly = path.exists() and path.stat().st_size <= small
    _mend(path, known, damage, thoroughly=thoroughly)
    large = path.exists() and not thoroughly
    journal = path.with_name(f"{path.name}.journal")
    kept = read_journal(journal)
    if known is not None and known.journaled:
        # Written by a server whose journal had no halves.
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
    """Write to the database the journal's records that it lacks, and report the records that are missing."""
    # Ignore the tallies of older transactions: the database has all of their records.
    lacking = {number: count for number, count in tallies.items() if number > database.commits}
    # At most two halves follow the newest transaction. Other halves belong to an earlier log.
    kept = [half for half in kept if 0 < half.number - database.commits <= 2]
    found = {half.number: len(half.groups) for half in kept}
    lost = sum(max(count - found.get(number, 0), 0) for number, count in lacking.items())
    if lost:
        # Report the loss before the commit, because nothing shows it afterwards.
        case = damage.open_case(f"{journal.name} lacks {lost} writes that were acknowledged")
        with suppress(OSError):
            shutil.copyfile(journal, case / journal.name)
    if found or lost:
        groups = [group for half in kept for group in half.groups]
        database.restore(groups, max([*found, *lacking]))


def _mend(path: Path, known: Statement | None, damage: Damage, *, thoroughly: bool) -> None:
    """Inspect the file, and salvage it if it is damaged."""
    case = damage.pending
    try:
        if case is None:
            _inspect(path, known, thoroughly=thoroughly)
            return
    except DamagedLog as found:
        case = damage.open_case(str(found))
        if known is None:
            # Without a witness file, the journal may belong to another log. It is not restored, and will be
            # overwritten.
            journal = path.with_name(f"{path.name}.journal")
            with suppress(OSError):
                shutil.copyfile(journal, case / journal.name)
    try:
        result = salvage(path, case, known)
    except (OSError, DatabaseError) as error:
        raise DatabaseError(
            f"{path} is damaged (see {case / REASON}), and its readable part cannot be written to a new file "
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
        raise DamagedLog(f"{path.name} is {state}, although {known.commits} writes were acknowledged")
    if is_empty and (_has_content(_wal_path(path)) or read_journal(path.with_name(f"{path.name}.journal"))):
        raise DamagedLog(f"{path.name} is empty, but its write-ahead log or its journal is not")
