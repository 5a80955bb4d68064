"""Store the log in SQLite: its schema and its queries.

No SQL leaves this module, but for looking for damage and mending it.

Used by one thread (see worker.py), but for `index`, which the event loop reads. `--no-persist` is
the same code on a database in memory.
"""

import heapq
import sqlite3
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TypeVar, cast

from msgspec import Struct

from sandboxagent.server.log import session_index
from sandboxagent.server.log.clock import Age, AgeClock, boot_id, boot_ticks
from sandboxagent.server.log.damage import CommitRecord, Damage, Statement
from sandboxagent.server.log.event import Chunk, session_channel
from sandboxagent.server.log.journal import Group, Journal, KeptOutcome, open_journal
from sandboxagent.server.log.rows import (
    NO_REQUEST,
    PAGE_SIZE,
    DamagedRow,
    EventRow,
    checksum,
    decode_row,
    encode_chunk,
    encode_outcome,
    encode_session,
    gap_for,
)
from sandboxagent.server.log.session_index import IndexEntry, Rows, SessionIndex

T = TypeVar("T")

SCHEMA = f"""{session_index.SCHEMA};
create table if not exists events(
    first integer primary key, last integer not null, session_id text, channel text not null, exclude text not null,
    direction text not null, at real not null, history integer not null, request integer, size integer not null,
    lines blob not null, checksum integer);
create index if not exists events_by_channel on events(channel, last);
create index if not exists events_by_session on events(session_id, history, last, at);
create table if not exists sessions(session_id text primary key, record blob not null, checksum integer);
create table if not exists trims(channel text primary key, through integer not null, checksum integer);
create table if not exists outcomes(
    scope text not null, key text not null, digest blob not null, response blob, at real not null, checksum integer,
    primary key(scope, key));
create table if not exists ages(position integer primary key, seconds real not null, checksum integer);
create table if not exists state(
    id integer primary key, commits integer not null, reserved integer not null, seconds real not null,
    ticks real not null, boot text not null, settled integer not null, checksum integer)
"""
"""`ages`: everything up to a position is at least as old as the log was at that age. `state` has one row."""

_FROM_VERSION_1 = """
alter table events add column checksum integer;
alter table sessions add column checksum integer;
alter table trims add column checksum integer;
alter table outcomes add column checksum integer;
drop index events_by_size;
drop index events_by_age;
insert into ages select max(last), max(at), null from events group by cast(at / 86400 as integer);
insert into state select 1, 0, coalesce(max(reserved), 0), unixepoch(), 0, '', 1, null from positions;
drop table positions
"""

_DELIVERIES = "create index if not exists deliveries on events(first) where not history"
"""Those that a start drops: it must not look at all events to find them. Files without it are whole all the same."""

SCHEMA_VERSION = 2
_EVENT = "first, last, session_id, channel, exclude, direction, at, history, request, size, lines, checksum"
_LAST = (1 << 63) - 1
"""No position comes after it."""
NEW_EVENT = f"(?, ?, ?, ?, ?, ?, ?, ?, nullif(?, {NO_REQUEST}), ?, ?, ?)"
"""Stands for a row that is written."""
BATCHES = (32, 8)
"""How many rows one statement inserts. With more of them SQLite takes longer for each."""
_MARKS = 50
"""How many marks of age there are in the time for which events are kept."""


_WORTH = 8
"""How many rows may be written anew for one that was dropped between them."""
_TOGETHER = 16 << 20
"""Bytes of rows that a trim writes anew, so that none takes long."""


class DatabaseError(Exception):
    """The file cannot be read or written; the text says why, and what to do."""

    @classmethod
    def of(cls, error: sqlite3.Error) -> "DatabaseError":
        """What SQLite says of a file that is open: most often the disk is full."""
        return cls(f"{error}; free space in the data directory and retry")


class Stored(Struct, frozen=True):
    """What a server finds when it starts."""

    reserved: int


class _Place:
    """Where an open file is."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found = self._look()

    def _look(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def check(self) -> None:
        """Raises DatabaseError when there is another file, or none: what is written would be gone at the next start."""
        if self._look() != self._found:
            raise DatabaseError(
                f"{self._path.name} was deleted or replaced while the server runs, so nothing more is written: "
                "put it back, or restart the server, which reports what is lost"
            )


class Database:
    """The open file, or the database in memory."""

    def __init__(
        self,
        path: Path | None,
        commit_record: CommitRecord | None = None,
        damage: Damage | None = None,
        *,
        reserved: int = 0,
        wall: Callable[[], float] = time.time,
        ticking: Callable[[], float] = boot_ticks,
        boot: str | None = None,
    ) -> None:
        """`reserved` are positions that may have been given out, whatever the file says."""
        self._commit_record = commit_record
        self.journal: Journal | None = None
        """Written by the event loop. Closed with the file."""
        self._journal_path: Path | None = None
        self._gaps: tuple[int, int, int] | None = None
        """From which row to which one pages have room that no row will take, and how many were dropped there."""
        self._damage = damage or Damage(None)
        try:
            if path is not None:
                # Whatever the directory allows: what agents and people said is the user's alone.
                path.touch(mode=0o600)
            self._sqlite = sqlite3.connect(path or ":memory:", check_same_thread=False, isolation_level=None)
            # A connection of its own, so that no read of the event loop waits for a transaction. A database in memory
            # has only one, whose statements SQLite lets through one at a time.
            self._reading = self._sqlite if path is None else _connect_reader(path)
            # One for what is asked with every group: SQLite's module remembers each that is made for a while.
            self._cursor = self._sqlite.cursor()
            prepare(self._sqlite)
            self._upgrade(path)
            self._sqlite.execute(_DELIVERIES)
            # A page for each table and index, for their list, and for where pages are.
            self._empty = 2 + self._sqlite.execute("select count(*) from sqlite_schema").fetchone()[0]
            self.drop_deliveries()
            # No connection is left that could be told of a gap; what was dropped from a history stays known.
            self._sqlite.execute(
                "delete from trims where channel not like 'history:%'"
                " or substr(channel, 9) not in (select session_id from sessions)"
            )
            self._commits, self._reserved, saved = self._load_state()
            self._reserved = max(self._reserved, reserved, self._last())
            self._size = self._measure()
        except (sqlite3.Error, OSError) as error:
            raise DatabaseError(f"{path}: {error}") from error
        self._places = [] if path is None else [_Place(path), _Place(path.with_name(f"{path.name}-wal"))]
        self.age = AgeClock(saved, wall, ticking, boot_id() if boot is None else boot)
        self.index = SessionIndex(self._ask)
        """Read by the event loop, at any time."""

    def _ask(self, query: str, values: Sequence[object]) -> Rows:
        try:
            return self._reading.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise DatabaseError.of(error) from error

    @contextmanager
    def reading(self) -> Generator[None]:
        """Let several questions of the event loop be one read: alone, each locks the file and lets go of it."""
        if self._reading is self._sqlite:
            yield
            return
        with _translate_errors():
            self._reading.execute("begin")
        try:
            yield
        finally:
            with _translate_errors():
                self._reading.execute("rollback")

    def drop_deliveries(self) -> None:
        """Drop what was delivered to single connections: these died with the server before this one."""
        self._sqlite.execute("delete from events where not history")

    def _last(self) -> int:
        """The last position. Events do not overlap, so that it is that of the row that begins last."""
        row = self._sqlite.execute("select last from events order by first desc limit 1").fetchone()
        return 0 if row is None else row[0]

    def _upgrade(self, path: Path | None) -> None:
        (version,) = self._sqlite.execute("pragma user_version").fetchone()
        if version not in (0, 1, SCHEMA_VERSION):
            raise DatabaseError(f"{path} was written by another version of sandbox-agent (schema {version})")
        self._sqlite.executescript(SCHEMA if version != 1 else f"begin; {SCHEMA}; {_FROM_VERSION_1}; commit")
        self._sqlite.execute(f"pragma user_version = {SCHEMA_VERSION}")

    def _load_state(self) -> tuple[int, int, Age | None]:
        row = self._sqlite.execute("select * from state").fetchone()
        if row is None:
            return 0, 0, None
        _, commits, reserved, seconds, ticks, boot, settled, _ = row
        return commits, reserved, Age(seconds, ticks, boot, bool(settled))

    def load(self) -> Stored:
        """What was kept."""
        return Stored(self._reserved)

    @property
    def commits(self) -> int:
        """The number of the newest transaction."""
        return self._commits

    def open_journal(self, path: Path) -> None:
        """Let a journal stand before the database, if there can be one; what it has must be written by now."""
        if self._commit_record is not None:
            self._journal_path = path
            self._commit_record.note(Statement(SCHEMA_VERSION, self._commits, self._reserved))
            self.journal = open_journal(path, self._commit_record)

    def renew_journal(self) -> None:
        """Begin a new one if its files are not what was opened; what it has must be written by now. Raises OSError."""
        if self._commit_record is None or self._journal_path is None:
            return
        try:
            if self.journal is not None:
                self.journal.check()
                return
        except OSError:
            if self.journal is not None:
                self.journal.close()
                self.journal = None
        self._commit_record.renew()
        self.open_journal(self._journal_path)

    def restore(self, groups: Sequence[Group], number: int) -> None:
        """Write what a server before this one has kept. Raises DatabaseError."""
        whole = Group()
        for group in groups:
            whole.merge(group)
        with self._transaction(number, whole.chunks[-1].last if whole.chunks else 0):
            # Of a file that was damaged, some of them may be there.
            self._cursor.executemany("delete from events where first = ?", [(each.first,) for each in whole.chunks])
            # Deliveries to a connection are of use only as long as that connection lives.
            whole.chunks = [chunk for chunk in whole.chunks if chunk.history]
            self._write(whole)

    def write(self, group: Group, number: int | None = None) -> dict[str, int]:
        """Write a group whole, or not at all; gives the last dropped position per channel. Raises DatabaseError.

        `number` is that of the transaction, for which the journal may have some of the group; else it is the next.
        """
        with self._transaction(self._commits + 1 if number is None else number, group.reserve):
            return self._write(group)

    def _write(self, group: Group) -> dict[str, int]:
        self._insert("insert or fail into events", NEW_EVENT, group.chunks, encode_chunk)
        many, trims = self._cursor.executemany, dict[str, int]()
        for session_id, through in group.deleted.items():
            for channel, last in self._delete_session(session_id, through, group.unpublished_after).items():
                trims[channel] = max(last, trims.get(channel, 0))
        if group.sessions:
            self._insert("insert or replace into sessions", "(?, ?, ?)", list(group.sessions.items()), encode_session)
        if group.index:
            self._insert(
                "insert or replace into cards", "(?, ?, ?, ?, ?, ?, ?, ?)", list(group.index.values()), IndexEntry.row
            )
        if group.forgotten_channels:
            # No client can ask for the deliveries of a closed connection any more; what is history stays.
            forgotten = group.forgotten_channels
            many("delete from events where channel = ? and last <= ? and not history", forgotten.items())
            many("delete from trims where channel = ?", [(channel,) for channel in forgotten])
        if group.outcomes:
            self._write_outcomes(group.outcomes)
        return trims

    def _insert(self, into: str, row: str, values: list[T], encode: Callable[[T], tuple[object, ...]]) -> None:
        """Insert many rows with few statements: each gives the interpreter away, and waits to get it back."""
        at, count = 0, len(values)
        for size in BATCHES:
            while count - at >= size:
                rows = map(encode, values[at : at + size])
                self._cursor.execute(_insertion(into, row, size), [*chain.from_iterable(rows)])
                at += size
        if at < count:
            self._cursor.executemany(_insertion(into, row, 1), map(encode, values[at:]))

    def _write_outcomes(self, outcomes: dict[tuple[str, str], KeptOutcome | None]) -> None:
        now = self.age.now().seconds
        kept = [(*name, *outcome, now) for name, outcome in outcomes.items() if outcome is not None]
        self._insert("insert or replace into outcomes", "(?, ?, ?, ?, ?, ?)", kept, encode_outcome)
        dropped = [name for name, outcome in outcomes.items() if outcome is None]
        self._cursor.executemany("delete from outcomes where scope = ? and key = ?", dropped)

    def _delete_session(self, session_id: str, through: int, unpublished_after: int) -> dict[str, int]:
        self._sqlite.execute("delete from sessions where session_id = ?", (session_id,))
        self._sqlite.execute(session_index.DELETE, (session_id,))
        doomed = "session_id = ? and last <= ? and (history or last <= ? or channel = ?)"
        which = (session_id, through, unpublished_after, session_channel(session_id))
        rows = self._sqlite.execute(f"select channel, max(last) from events where {doomed} group by channel", which)
        # A client that comes back for what was here gets an explicit gap.
        trims: dict[str, int] = dict(rows.fetchall())
        self._keep_trims(trims)
        self._sqlite.execute(f"delete from events where {doomed}", which)
        return trims

    def _keep_trims(self, trims: dict[str, int]) -> None:
        for channel, through in trims.items():
            known = self._sqlite.execute("select through from trims where channel = ?", (channel,)).fetchone()
            row = channel, through if known is None else max(through, known[0])
            self._sqlite.execute("insert or replace into trims values (?, ?, ?)", (*row, checksum(*row)))

    def follow(self, channels: Sequence[str], after: int, through: int, limit: int) -> list[Chunk]:
        """Chunks of these channels between two positions, oldest first, until they come to about `limit` bytes."""
        # One walk along the index for each channel: a query for all of them would sort everything after the position.
        query = f"select {_EVENT} from events where channel = ? and last > ? and last <= ? order by last"
        with _translate_errors():
            walks = [self._sqlite.execute(query, (channel, after, through)) for channel in channels]
            # By their last positions, as each walk is.
            rows = heapq.merge(*walks, key=lambda row: row[1])
            return [chunk.after(after) for chunk in self._until(rows, limit)]

    def since(self, after: int, limit: int) -> list[Chunk]:
        """All chunks after a position, in order, until they come to about `limit` bytes."""
        query = (
            f"select {_EVENT} from events where last > ?"
            " and first >= coalesce((select max(first) from events where first <= ?), 0) order by first"
        )
        with _translate_errors():
            rows = self._sqlite.execute(query, (after, after))
            return [chunk.after(after) for chunk in self._until(rows, limit)]

    def history(self, session_id: str, after: int, before: int, limit: int, size: int) -> list[Chunk]:
        """Chunks of a session's history between two positions, enough for `limit` events or about `size` bytes."""
        query = (
            f"select {_EVENT} from events where session_id = ? and history = 1 and last > ? and first < ?"
            " order by last limit ?"
        )
        with _translate_errors():
            rows = self._sqlite.execute(query, (session_id, after, before, limit))
            return [chunk.after(after) for chunk in self._until(rows, size)]

    def _until(self, rows: Iterable[EventRow], limit: int) -> list[Chunk]:
        chunks: list[Chunk] = []
        for row in rows:
            try:
                chunks.append(decode_row(row))
            except DamagedRow:
                self._damage.report(f"events {row[0]} to {row[1]} of session {row[2]!r} are damaged")
                chunks.append(gap_for(row))
            limit -= sum(map(len, chunks[-1].lines))
            if limit <= 0:
                break
        return chunks

    def names_of_outcomes(self, after: int, limit: int) -> list[tuple[int, str, str]]:
        """Scopes and keys under which something is kept, with their places, those after one."""
        query = "select rowid, scope, key from outcomes where rowid > ? order by rowid limit ?"
        with _translate_errors():
            return self._sqlite.execute(query, (after, limit)).fetchall()

    def count_outcomes(self) -> int:
        """About how many are kept."""
        with _translate_errors():
            return self._sqlite.execute("select coalesce(max(rowid) - min(rowid) + 1, 0) from outcomes").fetchone()[0]

    def outcome(self, scope: str, key: str) -> KeptOutcome | None:
        """What is kept under an idempotency key."""
        with _translate_errors():
            row = self._sqlite.execute("select * from outcomes where scope = ? and key = ?", (scope, key)).fetchone()
        if row is None:
            return None
        *values, check = row
        if check is not None and check != checksum(*values):
            # Not "unknown": the request would run a second time.
            self._damage.report(f"what came of the request with the idempotency key {key!r} is damaged")
            raise DatabaseError(f"what came of the request with the idempotency key {key!r} is damaged")
        return cast(KeptOutcome, (values[2], values[3]))

    def trim(self, max_bytes: int, max_age: float, ended: Sequence[str], through: int | None = None) -> dict[str, int]:
        """Drop what is too old or too much, ended sessions first; gives the last dropped position per channel.

        Nothing after `through` is dropped.
        """
        if self.size > max_bytes:
            # Perhaps it has room enough, in pages that are half empty.
            self._close_gaps()
        before = self.size if self.size > max_bytes else 0
        now = self.age.now().seconds
        with self._transaction(self._commits):
            most = _LAST if through is None else through
            old = min(self._too_old(now, max_age), most)
            query = "select first, size from events where first <= ? and last <= ?"
            doomed = self._sqlite.execute(query, (old, old)).fetchall()
            left = before - sum(size for _, size in doomed)
            if left > max_bytes:
                doomed += self._excess(left, max_bytes, old, most, ended)
            trims = self._drop([first for first, _ in doomed])
            self._sqlite.execute("delete from outcomes where at < ?", (now - max_age,))
            self._note_gaps([first for first, _ in doomed])
        with _translate_errors():
            # As a script: a statement would be stepped once, and free one page.
            self._sqlite.executescript("pragma incremental_vacuum(1000)")
        return trims

    def _too_old(self, now: float, max_age: float) -> int:
        """The position up to which everything is too old. Marks how old the log is now."""
        query, last = self._sqlite.execute, self._last()
        marks = [(at, age) for at, age, check in query("select * from ages") if check in (None, checksum(at, age))]
        marked, seconds = max(marks, default=(0, 0.0))
        if last > marked and now - seconds >= max_age / _MARKS:
            query("insert or replace into ages values (?, ?, ?)", (last, now, checksum(last, now)))
        through = max((position for position, age in marks if age < now - max_age), default=0)
        query("delete from ages where position <= ?", (through,))
        return through

    def _excess(
        self, left: int, max_bytes: int, after: int, through: int, ended: Sequence[str]
    ) -> list[tuple[int, int]]:
        """What to drop of so many bytes: as much as is too much, and of what is kept no more than a fifth."""
        self._sqlite.execute("create temp table if not exists ended(session_id text primary key)")
        self._sqlite.execute("delete from ended")
        self._sqlite.executemany("insert or ignore into ended values (?)", [(id,) for id in ended])
        rows = self._sqlite.execute(
            "select first, size from events where last > ? and last <= ?"
            # What was delivered to one connection alone is nowhere else: it goes last, whatever became of its session.
            " order by not history or session_id is null or session_id not in (select session_id from ended), first",
            (after, through),
        )
        doomed: list[tuple[int, int]] = []
        for first, size in rows:
            # A tenth more than necessary, so that not every group has to trim.
            if left <= max_bytes * 9 // 10 or (left <= max_bytes and left - size < max_bytes * 8 // 10):
                break
            doomed.append((first, size))
            left -= size
        return doomed

    def _note_gaps(self, dropped: list[int]) -> None:
        """Remember from where to where rows were dropped between others: these stand in pages with room left."""
        (oldest,) = self._sqlite.execute("select coalesce(min(first), 0) from events").fetchone()
        between = [first for first in dropped if first > oldest]
        if between:
            begin, end, count = self._gaps or (between[0], between[0], 0)
            self._gaps = min(begin, *between), max(end, *between), count + len(between)

    def _close_gaps(self) -> None:
        """Write some of those rows anew, side by side, if it is worth it: half empty pages count like full ones."""
        if self._gaps is None:
            return
        begin, end, dropped = self._gaps
        query = self._sqlite.execute
        with self._transaction(self._commits):
            (kept,) = query("select count(*) from events where first between ? and ?", (begin, end)).fetchone()
            if kept > _WORTH * dropped:
                return
            size, last = 0, begin
            rows = query("select first, size from events where first between ? and ? order by first", (begin, end))
            while size < _TOGETHER and (row := rows.fetchone()) is not None:
                last, size = row[0], size + row[1]
            rows.close()
            query("create temp table if not exists moved as select * from events where 0")
            query("insert into moved select * from events where first between ? and ?", (begin, last))
            query("delete from events where first between ? and ?", (begin, last))
            query("insert into events select * from moved order by first")
            query("delete from moved")
        self._gaps = (last + 1, end, dropped) if size >= _TOGETHER else None

    def _drop(self, firsts: list[int]) -> dict[str, int]:
        trims: dict[str, int] = {}
        for at in range(0, len(firsts), 500):
            some = firsts[at : at + 500]
            marks = ", ".join("?" * len(some))
            rows = self._sqlite.execute(
                f"select channel, session_id, max(last) from events where first in ({marks}) group by 1, 2", some
            )
            for channel, session_id, last in rows:
                for name in {channel, f"history:{session_id}"}:
                    trims[name] = max(trims.get(name, 0), last)
        self._sqlite.executemany("delete from events where first = ?", [(first,) for first in firsts])
        self._keep_trims(trims)
        return trims

    @contextmanager
    def _transaction(self, number: int, reserve: int = 0) -> Generator[None]:
        """All of it or nothing, and then the witness knows; raises DatabaseError.

        A new number says that the database has everything which the journal has for transactions up to it.
        """
        for place in self._places:
            place.check()
        try:
            self._cursor.execute("begin immediate")
            before = self._sqlite.total_changes
            try:
                yield
                state = Statement(SCHEMA_VERSION, number, max(self._reserved, reserve))
                is_new = (number, state.reserved) != (self._commits, self._reserved)
                if is_new or self._sqlite.total_changes > before:
                    self._save_state(state)
                size = self._measure()
                self._cursor.execute("commit")
                self._size = size
            except BaseException:
                # A full disk has rolled back already.
                if self._sqlite.in_transaction:
                    self._cursor.execute("rollback")
                raise
        except sqlite3.Error as error:
            raise DatabaseError.of(error) from error
        self._commits, self._reserved = state.commits, state.reserved
        if is_new and self._commit_record is not None:
            self._commit_record.note(state)

    def _save_state(self, state: Statement) -> None:
        age = self.age.now()
        values = (1, state.commits, state.reserved, age.seconds, age.ticks, age.boot, int(age.settled))
        row = (*values, checksum(*values))
        self._cursor.execute("insert or replace into state values (?, ?, ?, ?, ?, ?, ?, ?)", row)

    def ended_sessions(self) -> list[str]:
        """Sessions that no process holds: their events go first when room is needed."""
        with _translate_errors():
            return [id for (id,) in self._sqlite.execute(session_index.ENDED)]

    @property
    def size(self) -> int:
        """Bytes of the file that are in use, but for those of an empty one."""
        return self._size

    def _measure(self) -> int:
        (pages,) = self._cursor.execute("pragma page_count").fetchone()
        (free,) = self._cursor.execute("pragma freelist_count").fetchone()
        return (pages - free - self._empty) * PAGE_SIZE

    def close(self) -> None:
        self._reading.close()
        self._sqlite.close()
        if self.journal is not None:
            self.journal.close()
        if self._commit_record is not None:
            self._commit_record.close()


@cache
def _insertion(into: str, row: str, rows: int) -> str:
    return f"{into} values {', '.join([row] * rows)}"


def prepare(sqlite: sqlite3.Connection) -> None:
    """Settings of the file, which come before its tables."""
    sqlite.text_factory = read_text
    # Without auto_vacuum a trimmed log would never give its disk back.
    sqlite.executescript(
        f"pragma page_size = {PAGE_SIZE}; pragma auto_vacuum = incremental;"
        "pragma journal_mode = wal; pragma synchronous = normal;"
        # Fewer, larger checkpoints: a third more throughput, and half the time for a small commit.
        "pragma wal_autocheckpoint = 4000;"
        # What undoes a statement that inserts many rows would be a file of its own, for each of them.
        "pragma temp_store = memory;"
    )


def _connect_reader(path: Path) -> sqlite3.Connection:
    reader = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    reader.execute("pragma query_only = 1")
    reader.text_factory = read_text
    return reader


def read_text(text: bytes) -> str:
    """A text that the disk has changed is a damaged row, and no failure to read all the others."""
    return text.decode("utf-8", "surrogateescape")


@contextmanager
def _translate_errors() -> Generator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise DatabaseError.of(error) from error
