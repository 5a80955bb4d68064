"""Store the log in SQLite: its schema and its queries.

All SQL is in this module, except the index of sessions (session_index.py) and the search for damage and its repair.

One thread uses the database (see worker.py), except `index`, which the event loop reads. `--no-persist` is the same
code on a database in memory.
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
    PAGE_BYTES,
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
"""Each row of `ages` says which position the log had reached at which age. `state` has one row."""

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
"""Index of the rows that a start drops, so that it need not scan all events. A file without this index is valid too."""

SCHEMA_VERSION = 2
_EVENT = "first, last, session_id, channel, exclude, direction, at, history, request, size, lines, checksum"
_LAST = (1 << 63) - 1
"""The largest possible position."""
NEW_EVENT = f"(?, ?, ?, ?, ?, ?, ?, ?, nullif(?, {NO_REQUEST}), ?, ?, ?)"
"""SQL of a row that is inserted into `events`."""
BATCHES = (32, 8)
"""Numbers of rows that one statement inserts. With more rows, SQLite takes longer for each."""
_MARKS = 50
"""Number of age marks in the time for which events are kept."""


_MAX_REWRITES = 8
"""Maximum number of rows to rewrite for each row that was dropped between them."""
_MAX_REWRITE_BYTES = 16 << 20
"""Maximum bytes of rows that a trim rewrites, so that no trim takes long."""


class DatabaseError(Exception):
    """The file cannot be read or written; the text says why, and what to do."""

    @classmethod
    def of(cls, error: sqlite3.Error) -> "DatabaseError":
        """Make the error for a failure of SQLite on an open file. Most often the disk is full."""
        return cls(f"{error}; free space in the data directory and retry")


class Stored(Struct, frozen=True):
    """The stored state that a server finds when it starts."""

    reserved: int


class _Place:
    """The path of an open file, and the identity of that file."""

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
        """Raise DatabaseError if the path leads to another file or none: the next start would not find new data."""
        if self._look() != self._found:
            raise DatabaseError(
                f"{self._path.name} was deleted or replaced while the server runs, so nothing more is written: "
                "put it back, or restart the server, which reports what is lost"
            )


class Database:
    """The log's database: an open file, or in memory."""

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
        """Open the database. Positions up to `reserved` may have been given out, whatever the file says."""
        self._commit_record = commit_record
        self.journal: Journal | None = None
        """The journal, which the event loop writes. It is closed with the database."""
        self._journal_path: Path | None = None
        self._gaps: tuple[int, int, int] | None = None
        """First and last row of a range of pages with unused room, and number of rows dropped in the range."""
        self._damage = damage or Damage(None)
        try:
            if path is not None:
                # Only the user may read what agents and people said, whatever the directory allows.
                path.touch(mode=0o600)
            self._sqlite = sqlite3.connect(path or ":memory:", check_same_thread=False, isolation_level=None)
            # The event loop reads on a connection of its own, so that no read waits for a transaction. A database in
            # memory has only one connection, and SQLite runs its statements one at a time.
            self._reading = self._sqlite if path is None else _connect_reader(path)
            # Statements of every group share one cursor: `sqlite3` remembers each cursor that is made for a while.
            self._cursor = self._sqlite.cursor()
            prepare(self._sqlite)
            self._upgrade(path)
            self._sqlite.execute(_DELIVERIES)
            # An empty file has a page for each table and index, one for the schema, and one that maps pages.
            self._empty = 2 + self._sqlite.execute("select count(*) from sqlite_schema").fetchone()[0]
            self.drop_deliveries()
            # After a start no connection is left that could be told of a gap. Trims of histories stay known.
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
        """The index of sessions. The event loop may read it at any time."""

    def _ask(self, query: str, values: Sequence[object]) -> Rows:
        try:
            return self._reading.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise DatabaseError.of(error) from error

    @contextmanager
    def reading(self) -> Generator[None]:
        """Run several queries of the event loop as one read: otherwise each locks and unlocks the file."""
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
        """Drop deliveries to single connections: the connections ended with the previous server."""
        self._sqlite.execute("delete from events where not history")

    def _last(self) -> int:
        """Return the last position. Events do not overlap, so the row that begins last has it."""
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
        """Return the stored state."""
        return Stored(self._reserved)

    @property
    def commits(self) -> int:
        """The number of the newest transaction."""
        return self._commits

    def open_journal(self, path: Path) -> None:
        """Open the journal, if there can be one. The database must already have all records of the file."""
        if self._commit_record is not None:
            self._journal_path = path
            self._commit_record.note(Statement(SCHEMA_VERSION, self._commits, self._reserved))
            self.journal = open_journal(path, self._commit_record)

    def renew_journal(self) -> None:
        """Open a new journal if there is none, or if its files were replaced or shortened. Raises OSError.

        The database must already have all records of the old one.
        """
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
        """Write the groups that an earlier server left in the journal. Raises DatabaseError."""
        whole = Group()
        for group in groups:
            whole.merge(group)
        with self._transaction(number, whole.chunks[-1].last if whole.chunks else 0):
            # A salvaged file may have some of these events.
            self._cursor.executemany("delete from events where first = ?", [(each.first,) for each in whole.chunks])
            # Deliveries are of no use after the connection has ended.
            whole.chunks = [chunk for chunk in whole.chunks if chunk.history]
            self._write(whole)

    def write(self, group: Group, number: int | None = None) -> dict[str, int]:
        """Write a group in one transaction, and return the last dropped position of each channel. Raises DatabaseError.

        `number` is the number of the transaction, under which the journal may have a part of the group. By default it
        is the next number.
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
            # No client can ask for deliveries of a closed connection. Events of a history stay.
            forgotten = group.forgotten_channels
            many("delete from events where channel = ? and last <= ? and not history", forgotten.items())
            many("delete from trims where channel = ?", [(channel,) for channel in forgotten])
        if group.outcomes:
            self._write_outcomes(group.outcomes)
        return trims

    def _insert(self, into: str, row: str, values: list[T], encode: Callable[[T], tuple[object, ...]]) -> None:
        """Insert many rows with few statements: each statement releases the interpreter, and waits to get it back."""
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
        # A client that asks for the deleted events gets an explicit gap.
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
        """Return chunks of some channels between two positions, oldest first, up to about `limit` bytes."""
        # Scan the index once for each channel: a query for all of them would sort everything after the position.
        query = f"select {_EVENT} from events where channel = ? and last > ? and last <= ? order by last"
        with _translate_errors():
            walks = [self._sqlite.execute(query, (channel, after, through)) for channel in channels]
            # Merge by last position, the order of each scan.
            rows = heapq.merge(*walks, key=lambda row: row[1])
            return [chunk.after(after) for chunk in self._until(rows, limit)]

    def since(self, after: int, limit: int) -> list[Chunk]:
        """Return all chunks after a position, in order, up to about `limit` bytes."""
        query = (
            f"select {_EVENT} from events where last > ?"
            " and first >= coalesce((select max(first) from events where first <= ?), 0) order by first"
        )
        with _translate_errors():
            rows = self._sqlite.execute(query, (after, after))
            return [chunk.after(after) for chunk in self._until(rows, limit)]

    def last_deleted(self, after: int) -> int:
        """Return the last position after another one from which an event was deleted; 0 if there is none."""
        with _translate_errors():
            row = self._sqlite.execute("select coalesce(max(through), 0) from trims where through > ?", (after,))
            return row.fetchone()[0]

    def history(self, session_id: str, after: int, before: int, limit: int, size: int) -> list[Chunk]:
        """Return chunks of a session's history between two positions, up to `limit` rows or about `size` bytes."""
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
        """Return row ids, scopes and keys of up to `limit` outcomes whose row ids are larger than `after`."""
        query = "select rowid, scope, key from outcomes where rowid > ? order by rowid limit ?"
        with _translate_errors():
            return self._sqlite.execute(query, (after, limit)).fetchall()

    def count_outcomes(self) -> int:
        """Return about how many outcomes are stored."""
        with _translate_errors():
            return self._sqlite.execute("select coalesce(max(rowid) - min(rowid) + 1, 0) from outcomes").fetchone()[0]

    def outcome(self, scope: str, key: str) -> KeptOutcome | None:
        """Return the outcome under an idempotency key, if there is one. Raises DatabaseError."""
        with _translate_errors():
            row = self._sqlite.execute("select * from outcomes where scope = ? and key = ?", (scope, key)).fetchone()
        if row is None:
            return None
        *values, check = row
        if check is not None and check != checksum(*values):
            # None would let the request run a second time.
            self._damage.report(f"the outcome of the request with the idempotency key {key!r} is damaged")
            raise DatabaseError(f"the outcome of the request with the idempotency key {key!r} is damaged")
        return cast(KeptOutcome, (values[2], values[3]))

    def trim(self, max_bytes: int, max_age: float, ended: Sequence[str], through: int | None = None) -> dict[str, int]:
        """Drop events that are too old or exceed `max_bytes`, those of `ended` sessions first.

        Events after `through` stay. Return the last dropped position of each channel.
        """
        if self.size > max_bytes:
            # Half-empty pages may have enough room.
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
        """Return the position up to which all events are too old. Store a mark of the log's current age."""
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
        """Choose rows to drop from a log with `left` bytes, so that at most `max_bytes` are left.

        About a tenth of `max_bytes` is freed beyond that, and never more than a fifth unless the log would be too
        large.
        """
        self._sqlite.execute("create temp table if not exists ended(session_id text primary key)")
        self._sqlite.execute("delete from ended")
        self._sqlite.executemany("insert or ignore into ended values (?)", [(id,) for id in ended])
        rows = self._sqlite.execute(
            "select first, size from events where last > ? and last <= ?"
            # Deliveries to one connection exist nowhere else. They go last, whatever has become of their session.
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
        """Remember the range in which rows were dropped between others: their pages have unused room."""
        (oldest,) = self._sqlite.execute("select coalesce(min(first), 0) from events").fetchone()
        between = [first for first in dropped if first > oldest]
        if between:
            begin, end, count = self._gaps or (between[0], between[0], 0)
            self._gaps = min(begin, *between), max(end, *between), count + len(between)

    def _close_gaps(self) -> None:
        """Rewrite some rows of the remembered range side by side, if worth it.

        Half-empty pages count like full ones.
        """
        if self._gaps is None:
            return
        begin, end, dropped = self._gaps
        query = self._sqlite.execute
        with self._transaction(self._commits):
            (kept,) = query("select count(*) from events where first between ? and ?", (begin, end)).fetchone()
            if kept > _MAX_REWRITES * dropped:
                return
            size, last = 0, begin
            rows = query("select first, size from events where first between ? and ? order by first", (begin, end))
            while size < _MAX_REWRITE_BYTES and (row := rows.fetchone()) is not None:
                last, size = row[0], size + row[1]
            rows.close()
            query("create temp table if not exists moved as select * from events where 0")
            query("insert into moved select * from events where first between ? and ?", (begin, last))
            query("delete from events where first between ? and ?", (begin, last))
            query("insert into events select * from moved order by first")
            query("delete from moved")
        self._gaps = (last + 1, end, dropped) if size >= _MAX_REWRITE_BYTES else None

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
        """Run a transaction, and note it in the witness file. Raises DatabaseError.

        A new number says that the database has all of the journal's records for transactions up to that number.
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
                # When the disk is full, SQLite has rolled back already.
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
        """Return the sessions that no process holds. Their events go first when room is needed."""
        with _translate_errors():
            return [id for (id,) in self._sqlite.execute(session_index.ENDED)]

    @property
    def size(self) -> int:
        """Bytes of the file that are in use, not counting those of an empty file."""
        return self._size

    def _measure(self) -> int:
        (pages,) = self._cursor.execute("pragma page_count").fetchone()
        (free,) = self._cursor.execute("pragma freelist_count").fetchone()
        return (pages - free - self._empty) * PAGE_BYTES

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
    """Apply the settings of the file, which must come before its tables."""
    sqlite.text_factory = read_text
    # Without auto_vacuum, a trimmed log would never free disk space.
    sqlite.executescript(
        f"pragma page_size = {PAGE_BYTES}; pragma auto_vacuum = incremental;"
        "pragma journal_mode = wal; pragma synchronous = normal;"
        # Fewer, larger checkpoints: a third more throughput, and half the time for a small commit.
        "pragma wal_autocheckpoint = 4000;"
        # Otherwise each statement that inserts many rows would make a temporary file for its rollback.
        "pragma temp_store = memory;"
    )


def _connect_reader(path: Path) -> sqlite3.Connection:
    reader = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    reader.execute("pragma query_only = 1")
    reader.text_factory = read_text
    return reader


def read_text(text: bytes) -> str:
    """Decode any bytes, so that a damaged text damages only its own row, and all others can be read."""
    return text.decode("utf-8", "surrogateescape")


@contextmanager
def _translate_errors() -> Generator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise DatabaseError.of(error) from error
