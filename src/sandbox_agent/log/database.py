"""The SQLite file: schema and queries. Nothing else in the project imports sqlite3, and no SQL leaves this module.

Used from one thread at a time (see writer.py), but for `cards`: these are read by the event loop. `--no-persist` is the
same code on a database in memory.
"""

import heapq
import sqlite3
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from sandbox_agent.log import cards
from sandbox_agent.log.cards import Card, Cards, Rows
from sandbox_agent.log.event import Chunk, Direction

SCHEMA = """
create table if not exists events(
    first integer primary key, last integer not null, session_id text, channel text not null, exclude text not null,
    direction text not null, at real not null, history integer not null, request integer, size integer not null,
    lines blob not null);
create index if not exists events_by_channel on events(channel, last);
create index if not exists events_by_session on events(session_id, history, last, at);
create index if not exists events_by_size on events(size);
create index if not exists events_by_age on events(at);
create table if not exists sessions(session_id text primary key, record blob not null);
create table if not exists trims(channel text primary key, through integer not null);
create table if not exists outcomes(
    scope text not null, key text not null, digest blob not null, response blob, at real not null,
    primary key(scope, key));
create table if not exists positions(reserved integer not null)
"""

SCHEMA_VERSION = 1
_EVENT = "first, lines, direction, session_id, channel, at, exclude, history, request"


class DatabaseError(Exception):
    """The file cannot be read or written; the text says why."""


@dataclass(slots=True)
class Group:
    """What is written in one transaction."""

    chunks: list[Chunk] = field(default_factory=list[Chunk])
    sessions: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """Session id → its record."""
    cards: dict[str, Card] = field(default_factory=dict[str, Card])
    """Session id → its card, when that has changed."""
    deleted: dict[str, int] = field(default_factory=dict[str, int])
    """Session id → the position up to which its events go, with it."""
    outcomes: dict[tuple[str, str], tuple[bytes, bytes | None, float] | None] = field(
        default_factory=dict[tuple[str, str], tuple[bytes, bytes | None, float] | None]
    )
    """Scope and idempotency key → digest, response and time; None forgets the key."""
    forgotten_channels: list[str] = field(default_factory=list[str])
    reserve: int = 0

    def __bool__(self) -> bool:
        changes = (self.chunks, self.sessions, self.deleted, self.outcomes, self.forgotten_channels, self.reserve)
        return any(changes)

    def split(self, size: int) -> "Group | None":
        """Keep about so many bytes of it; gives the rest, which goes into the next transaction."""
        for count, chunk in enumerate(self.chunks, 1):
            size -= chunk.size
            if size <= 0 and count < len(self.chunks):
                # What is not an event stays with the last of the events it came with.
                rest = replace(self, chunks=self.chunks[count:])
                self.chunks = self.chunks[:count]
                self.sessions, self.deleted, self.outcomes, self.forgotten_channels = {}, {}, {}, []
                self.cards = {}
                return rest
        return None

    def merge(self, later: "Group") -> None:
        """Take in what came after this group."""
        self.chunks += later.chunks
        self.sessions = {id: record for id, record in self.sessions.items() if id not in later.deleted}
        self.sessions |= later.sessions
        self.cards = {id: card for id, card in self.cards.items() if id not in later.deleted} | later.cards
        self.deleted |= later.deleted
        self.outcomes |= later.outcomes
        self.forgotten_channels += later.forgotten_channels
        self.reserve = max(self.reserve, later.reserve)


@dataclass(frozen=True, slots=True)
class Stored:
    """What a server finds when it starts."""

    reserved: int


class Database:
    """The open file, or the database in memory."""

    def __init__(self, path: Path | None) -> None:
        try:
            if path is not None:
                # Whatever the directory allows: what agents and people said is the user's alone.
                path.touch(mode=0o600)
            self._sqlite = sqlite3.connect(path or ":memory:", check_same_thread=False, isolation_level=None)
            # A connection of its own, so that no read of the event loop waits for a transaction. A database in memory
            # has only one, whose statements SQLite lets through one at a time.
            self._reading = self._sqlite if path is None else _connect_reader(path)
            # Without auto_vacuum a trimmed log would never give its disk back.
            self._sqlite.executescript(
                "pragma page_size = 8192; pragma auto_vacuum = incremental;"
                "pragma journal_mode = wal; pragma synchronous = normal;"
                # Fewer, larger checkpoints: a third more throughput, and half the time for a small commit.
                "pragma wal_autocheckpoint = 4000;"
            )
            self._check_version(path)
            self._sqlite.executescript(SCHEMA)
            self._sqlite.executescript(cards.SCHEMA)
            # Deliveries to a connection are of use only as long as that connection lives, and those died with us.
            self._sqlite.execute("delete from events where not history")
            # No connection is left that could be told of a gap; what was dropped from a history stays known.
            self._sqlite.execute(
                "delete from trims where channel not like 'history:%'"
                " or substr(channel, 9) not in (select session_id from sessions)"
            )
            self._size = self._measure()
        except (sqlite3.Error, OSError) as error:
            raise DatabaseError(f"{path}: {error}") from error
        self.cards = Cards(self._ask)
        """Read by the event loop, at any time."""

    def _ask(self, query: str, values: Sequence[object]) -> Rows:
        with _reading():
            return self._reading.execute(query, values).fetchall()

    def _check_version(self, path: Path | None) -> None:
        (version,) = self._sqlite.execute("pragma user_version").fetchone()
        if version not in (0, SCHEMA_VERSION):
            raise DatabaseError(f"{path} was written by another version of sandbox-agent (schema {version})")
        self._sqlite.execute(f"pragma user_version = {SCHEMA_VERSION}")

    def _measure(self) -> int:
        (size,) = self._sqlite.execute("select coalesce(sum(size), 0) from events").fetchone()
        return int(size)

    def load(self) -> Stored:
        """What was kept; raises DatabaseError."""
        with _reading():
            return self._load()

    def _load(self) -> Stored:
        (reserved,) = self._sqlite.execute("select coalesce(max(reserved), 0) from positions").fetchone()
        return Stored(reserved)

    def write(self, group: Group) -> dict[str, int]:
        """Write a group whole, or not at all; gives the last dropped position per channel. Raises DatabaseError."""
        with self._transaction():
            trims = self._write(group)
        self._size += sum(chunk.size for chunk in group.chunks)
        if group.forgotten_channels or group.deleted:
            self._size = self._measure()
        return trims

    def _write(self, group: Group) -> dict[str, int]:
        many = self._sqlite.executemany
        many("insert into events values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", map(_row, group.chunks))
        trims: dict[str, int] = {}
        for session_id, through in group.deleted.items():
            for channel, last in self._delete_session(session_id, through).items():
                trims[channel] = max(last, trims.get(channel, 0))
        many("insert or replace into sessions values (?, ?)", group.sessions.items())
        many(cards.WRITE, [card.row() for card in group.cards.values()])
        # A closed connection leaves deliveries that nobody can ask for any more; what is history stays.
        forgotten = [(channel,) for channel in group.forgotten_channels]
        many("delete from events where channel = ? and not history", forgotten)
        many("delete from trims where channel = ?", forgotten)
        kept = [(*name, *outcome) for name, outcome in group.outcomes.items() if outcome is not None]
        many("insert or replace into outcomes values (?, ?, ?, ?, ?)", kept)
        many("delete from outcomes where scope = ? and key = ?", [n for n, o in group.outcomes.items() if o is None])
        if group.reserve:
            self._sqlite.execute("delete from positions")
            self._sqlite.execute("insert into positions values (?)", (group.reserve,))
        return trims

    def _delete_session(self, session_id: str, through: int) -> dict[str, int]:
        self._sqlite.execute("delete from sessions where session_id = ?", (session_id,))
        self._sqlite.execute(cards.DELETE, (session_id,))
        rows = self._sqlite.execute(
            "select channel, max(last) from events where session_id = ? and last <= ? group by channel",
            (session_id, through),
        )
        # Whoever comes back for what was here is told that it is gone.
        trims: dict[str, int] = dict(rows.fetchall())
        self._keep_trims(trims)
        self._sqlite.execute("delete from events where session_id = ? and last <= ?", (session_id, through))
        return trims

    def _keep_trims(self, trims: dict[str, int]) -> None:
        self._sqlite.executemany(
            "insert into trims values (?, ?)"
            " on conflict(channel) do update set through = max(through, excluded.through)",
            trims.items(),
        )

    def follow(self, channels: Sequence[str], after: int, through: int, limit: int) -> list[Chunk]:
        """Chunks of these channels between two positions, oldest first, until they come to about `limit` bytes."""
        # One walk along the index for each channel: a query for all of them would sort everything after the position.
        query = f"select {_EVENT} from events where channel = ? and last > ? and last <= ? order by last"
        with _reading():
            walks = [self._sqlite.execute(query, (channel, after, through)) for channel in channels]
            return [chunk.after(after) for chunk in _until(heapq.merge(*walks), limit)]

    def history(self, session_id: str, after: int, before: int, limit: int, size: int) -> list[Chunk]:
        """Chunks of a session's history between two positions, enough for `limit` events or about `size` bytes."""
        query = (
            f"select {_EVENT} from events where session_id = ? and history = 1 and last > ? and first < ?"
            " order by last limit ?"
        )
        with _reading():
            rows = self._sqlite.execute(query, (session_id, after, before, limit))
            return [chunk.after(after) for chunk in _until(rows, size)]

    def outcome(self, scope: str, key: str) -> tuple[bytes, bytes | None] | None:
        """Digest of the body and the response kept under an idempotency key."""
        query = "select digest, response from outcomes where scope = ? and key = ?"
        with _reading():
            return self._sqlite.execute(query, (scope, key)).fetchone()

    def trim(self, max_bytes: int, oldest: float, ended: Sequence[str]) -> dict[str, int]:
        """Drop what is too old or too much, ended sessions first; gives the last dropped position per channel."""
        if self._size > max_bytes:
            # A tenth more than necessary, so that not every group has to trim.
            excess = self._size - max_bytes * 9 // 10
        else:
            excess = 0
        with self._transaction():
            doomed = self._sqlite.execute("select first, size from events where at < ?", (oldest,)).fetchall()
            excess -= sum(size for _, size in doomed)
            if excess > 0:
                doomed += self._excess(excess, oldest, ended)
            trims = self._drop([first for first, _ in doomed])
            self._sqlite.execute("delete from outcomes where at < ?", (oldest,))
        self._size -= sum(size for _, size in doomed)
        with _reading():
            # As a script: a statement would be stepped once, and free one page.
            self._sqlite.executescript("pragma incremental_vacuum(1000)")
        return trims

    def _excess(self, excess: int, oldest: float, ended: Sequence[str]) -> list[tuple[int, int]]:
        self._sqlite.execute("create temp table if not exists ended(session_id text primary key)")
        self._sqlite.execute("delete from ended")
        self._sqlite.executemany("insert or ignore into ended values (?)", [(id,) for id in ended])
        rows = self._sqlite.execute(
            "select first, size from events where at >= ?"
            # What was delivered to one connection alone is nowhere else: it goes last, whatever became of its session.
            " order by not history or session_id is null or session_id not in (select session_id from ended), first",
            (oldest,),
        )
        doomed: list[tuple[int, int]] = []
        for first, size in rows:
            if excess <= 0:
                break
            doomed.append((first, size))
            excess -= size
        return doomed

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
    def _transaction(self) -> Generator[None]:
        """All of it or nothing; raises DatabaseError."""
        try:
            self._sqlite.execute("begin immediate")
            try:
                yield
                self._sqlite.execute("commit")
            except BaseException:
                # A full disk has rolled back already.
                if self._sqlite.in_transaction:
                    self._sqlite.execute("rollback")
                raise
        except sqlite3.Error as error:
            raise DatabaseError(str(error)) from error

    def ended_sessions(self) -> list[str]:
        """Sessions that no process holds: their events go first when room is needed."""
        with _reading():
            return [id for (id,) in self._sqlite.execute(cards.ENDED)]

    @property
    def size(self) -> int:
        """Bytes of all events kept."""
        return self._size

    def close(self) -> None:
        self._reading.close()
        self._sqlite.close()


def _connect_reader(path: Path) -> sqlite3.Connection:
    reader = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    reader.execute("pragma query_only = 1")
    return reader


@contextmanager
def _reading() -> Generator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise DatabaseError(str(error)) from error


def _row(chunk: Chunk) -> tuple[object, ...]:
    return (
        chunk.first,
        chunk.last,
        chunk.session_id,
        chunk.channel,
        chunk.exclude,
        chunk.direction,
        chunk.at,
        chunk.history,
        chunk.request,
        chunk.size,
        b"\n".join(chunk.lines),
    )


def _until(
    rows: Iterable[tuple[int, bytes, str, str | None, str, float, str, int, int | None]], limit: int
) -> list[Chunk]:
    chunks: list[Chunk] = []
    for first, lines, direction, session_id, channel, at, exclude, history, request in rows:
        chunks.append(
            Chunk(
                first,
                lines.split(b"\n"),
                Direction(direction),
                session_id,
                channel,
                at,
                exclude,
                bool(history),
                request,
            )
        )
        limit -= len(lines)
        if limit <= 0:
            break
    return chunks
