"""Write in mapped memory what callers wait for, until the database has it.

A group is written in one transaction, which writes every page that it touches, however little has changed there. A
record here is its own bytes, copied into memory that is a part of the file: from then on they are the kernel's, and
outlive the process. There is nothing in it that a disk could hold up, so the event loop writes records by itself.

The file has two halves. While the database gets what is in one of them, records go into the other. Those in one half
have the number of the transaction that will have them all, so that a start knows what the database lacks. Knows nothing
of SQL.
"""

import errno
import logging
import os
import struct
import time
from contextlib import ExitStack
from pathlib import Path
from resource import RUSAGE_THREAD, getrusage
from typing import Protocol
from zlib import crc32

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from sandboxagent.server.log.damage import TALLY, CommitRecord, encode_tally
from sandboxagent.server.log.event import Chunk, Direction
from sandboxagent.server.log.mapped import MappedFile, Stage
from sandboxagent.server.log.session_index import IndexEntry

KeptOutcome = tuple[bytes, bytes | None]
"""Of a request under an idempotency key: a digest of its body, and the response, once there is one."""

EVERYTHING = 1 << 62
"""After every position."""


class Group(Struct):
    """What is written in one transaction."""

    chunks: list[Chunk] = field(default_factory=list)
    sessions: dict[str, bytes] = field(default_factory=dict)
    """Session id → its record."""
    index: dict[str, IndexEntry] = field(default_factory=dict)
    """Session id → its card, when that has changed."""
    deleted: dict[str, int] = field(default_factory=dict)
    """Session id → the position up to which its events go, with it."""
    unpublished_after: int = EVERYTHING
    """What was delivered to one client after this position outlives its session: it has still to be published."""
    outcomes: dict[tuple[str, str], KeptOutcome | None] = field(default_factory=dict)
    """Scope and idempotency key → digest and response; None forgets the key."""
    forgotten_channels: dict[str, int] = field(default_factory=dict)
    """Channel → the position up to which its deliveries go."""
    reserve: int = 0

    def __bool__(self) -> bool:
        return bool(
            self.chunks or self.sessions or self.outcomes or self.deleted or self.forgotten_channels or self.reserve
        )

    def split(self, size: int) -> "Group | None":
        """Keep about so many bytes of it; gives the rest, which goes into the next transaction."""
        for count, chunk in enumerate(self.chunks, 1):
            size -= chunk.size
            if size <= 0 and count < len(self.chunks):
                # What is not an event stays with the last of the events it came with.
                rest = replace(self, chunks=self.chunks[count:])
                self.chunks = self.chunks[:count]
                self.sessions, self.deleted, self.outcomes, self.forgotten_channels = {}, {}, {}, {}
                self.index = {}
                return rest
        return None

    def merge(self, later: "Group") -> None:
        """Take in what came after this group."""
        self.chunks += later.chunks
        # Most groups have little else, and there is one for every few messages.
        if later.deleted:
            for session_id in later.deleted:
                self.sessions.pop(session_id, None)
                self.index.pop(session_id, None)
            self.deleted |= later.deleted
        if later.sessions:
            self.sessions |= later.sessions
        if later.index:
            self.index |= later.index
        if later.unpublished_after < self.unpublished_after:
            self.unpublished_after = later.unpublished_after
        if later.outcomes:
            self.outcomes |= later.outcomes
        if later.forgotten_channels:
            self.forgotten_channels |= later.forgotten_channels
        if later.reserve > self.reserve:
            self.reserve = later.reserve


class Publisher(Protocol):
    """What carries the log elsewhere, after it is on disk."""

    @property
    def published(self) -> int:
        """Everything up to here is elsewhere, and may be trimmed."""
        ...

    @property
    def is_idle(self) -> bool:
        """It has published all that is safe: what comes next should be safe soon."""
        ...

    @property
    def full(self) -> bool:
        """Too much waits to be published: producers should pause."""
        ...

    @property
    def trouble(self) -> str | None:
        """Why nothing is published at the moment."""
        ...

    def committed(self, group: Group) -> None:
        """A group is safe. It may hold what another held before."""
        ...

    async def drained(self, position: int) -> None:
        """Wait until everything up to a position is elsewhere."""
        ...


logger = logging.getLogger(__name__)

HALF = 512 << 10
"""Bytes of each half."""
FRESH_TIMEOUT = 5.0
"""Seconds for which pages that were prepared stay so: the kernel writes them to the disk, and protects them, later."""
_AHEAD = 64 << 10
"""Bytes of a half that are prepared, at least."""
_SPARE = 16 << 20
"""Bytes that must be free on the disk. A file system that writes nothing in place needs room even for a file that is
there, and would end the process if it found none."""
_LONG = 0.001
"""Seconds from which on a record is looked at more closely."""

_HEAD = struct.Struct("<QIII")
"""The transaction that has a record, its number among those, its length, its checksum."""
_END = bytes(_HEAD.size)
"""Behind the newest record: no head. What an older one left there is not read."""
_ROOM = HALF - len(_END)

_Event = tuple[int, list[bytes], Direction, str | None, str, float, str, bool, int | None]
_Content = tuple[
    list[_Event],
    dict[str, bytes],
    list[tuple[str, str, str, str | None, str, str | None, float, float | None]],
    list[tuple[str, str, tuple[bytes, bytes | None] | None]],
]
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Content)


class Journal:
    """The open file. All methods are the event loop's, but for `prepare`."""

    def __init__(self, path: Path, commit_record: CommitRecord) -> None:
        """What the file has stays there. Raises OSError where it cannot be mapped, or the disk has no room for it."""
        with ExitStack() as opened:
            self._file = MappedFile(path, 2 * HALF)
            opened.callback(self._file.close)
            self._tallies = commit_record.map_tallies()
            opened.callback(self._tallies.close)
            self._stage = Stage(HALF + TALLY)
            opened.callback(self._stage.close)
            self._opened = opened.pop_all()
        self._half = 0
        """Where records go."""
        self._end = 0
        self._prepared, self._prepared_at = 0, float("-inf")
        """How many bytes of each half were, and when."""
        self._number = 0
        """The transaction that will have the records in this half."""
        self._count = 0
        """Records in this half."""
        self.waited = 0.0
        """Seconds that the last record had to wait for the disk, if that was long."""

    @property
    def is_ready(self) -> bool:
        """Whether it can be written without waiting for the disk, as far as one can know."""
        return time.monotonic() - self._prepared_at < FRESH_TIMEOUT

    @property
    def wants_more(self) -> bool:
        """Whether records will soon be where nothing is prepared."""
        return self._end > self._prepared // 2 and self._prepared < HALF

    def prepare(self) -> None:
        """Have the kernel make it writable, which may take as long as the disk likes. Runs on the thread.

        Raises OSError, also when the files are not what was opened.
        """
        try:
            self.check()
        except OSError:
            self._prepared_at = float("-inf")
            raise
        length = min(HALF, max(_AHEAD, 4 * self._end))
        if length <= self._prepared and time.monotonic() - self._prepared_at < FRESH_TIMEOUT / 5:
            return
        disk = os.fstatvfs(self._file.descriptor)
        if disk.f_blocks and disk.f_bavail * disk.f_frsize < _SPARE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        for half in (0, HALF):
            self._file.populate(half, length)
        self._prepared, self._prepared_at = length, time.monotonic()

    def check(self) -> None:
        """Raises OSError when a start would not find what is written."""
        self._file.check()
        self._tallies.check()

    def begin(self, number: int, group: Group) -> bool:
        """Go on in the other half, whose records the database has, with those of the transaction with this number.

        Raises what `append` raises.
        """
        record = _encode(number, 0, group)
        if len(record) > _ROOM:
            return False
        self._half ^= 1
        self._end = self._count = 0
        self._number = number
        self._write(record)
        return True

    def append(self, group: Group) -> bool:
        """Write one more record, if there is room for it.

        Raises ValueError for what a record cannot hold, and OSError when a file was made shorter.
        """
        record = _encode(self._number, self._count, group)
        if self._end + len(record) > _ROOM:
            return False
        self._write(record)
        return True

    def _write(self, record: bytes) -> None:
        start, length = self._half * HALF + self._end, len(record)
        waits, began = _count_waits(), time.monotonic()
        slot, tally = encode_tally(self._half, self._number, self._count + 1)
        self._stage.copy(record + _END, self._file.address + start, tally, self._tallies.address + slot)
        self._end += length
        self._count += 1
        took = time.monotonic() - began
        # A busy machine may take the processor away, which says nothing of the disk.
        self.waited = took if took > _LONG and _count_waits() > waits else 0.0

    def close(self) -> None:
        self._opened.close()


def _count_waits() -> int:
    """How often this thread gave the processor away by itself."""
    return getrusage(RUSAGE_THREAD).ru_nvcsw


def open_journal(path: Path, commit_record: CommitRecord) -> Journal | None:
    """None where there can be none; the database does without."""
    try:
        return Journal(path, commit_record)
    except OSError as error:
        logger.warning("log has no journal reason=%s", error)
        return None


class Half(Struct):
    """The records of one half."""

    number: int
    """The transaction that has them all."""
    groups: list[Group] = field(default_factory=list[Group])


def is_fit(group: Group) -> bool:
    """Whether a record can hold a group: it holds what is added, not what is taken away."""
    return not (group.deleted or group.forgotten_channels or group.reserve)


def read_journal(path: Path) -> list[Half]:
    """The records of both halves, as far as they are whole and belong together, oldest first. Raises OSError."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), "rb") as file:
            content = file.read()
    except FileNotFoundError:
        return []
    halves = [_read_half(content, 0), _read_half(content, HALF)]
    return sorted((kept for kept in halves if kept.groups), key=lambda kept: kept.number)


def _read_half(content: bytes, at: int) -> Half:
    kept = Half(0)
    while at + _HEAD.size <= len(content):
        number, place, length, check = _HEAD.unpack_from(content, at)
        body = content[at + _HEAD.size : at + _HEAD.size + length]
        if place != len(kept.groups) or len(body) < length:
            break
        if check == _first_checksum(number, place, body):
            # Of a server whose file had no halves: it says which transaction a record follows.
            number += 1
        elif check != _checksum(number, place, body):
            break
        if kept.groups and number != kept.number:
            break
        try:
            group = _decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            # Of another version of the server.
            break
        kept.number = number
        kept.groups.append(group)
        at += _HEAD.size + length
    return kept


def _encode(number: int, place: int, group: Group) -> bytes:
    events = [
        (
            chunk.first,
            chunk.lines,
            chunk.direction,
            chunk.session_id,
            chunk.channel,
            chunk.at,
            chunk.exclude,
            chunk.history,
            chunk.request,
        )
        for chunk in group.chunks
    ]
    outcomes = [(*name, outcome) for name, outcome in group.outcomes.items()]
    body = _encoder.encode((events, group.sessions, [entry.row() for entry in group.index.values()], outcomes))
    return _HEAD.pack(number, place, len(body), _checksum(number, place, body)) + body


def _checksum(number: int, place: int, body: bytes) -> int:
    return crc32(body, crc32(b"half %d %d" % (number, place)))


def _first_checksum(commits: int, place: int, body: bytes) -> int:
    return crc32(body, crc32(b"%d %d" % (commits, place)))


def _decode(body: bytes) -> Group:
    events, sessions, index, outcomes = _decoder.decode(body)
    return Group(
        [Chunk(*event) for event in events],
        sessions,
        {entry[0]: IndexEntry(*entry) for entry in index},
        outcomes={(scope, key): outcome for scope, key, outcome in outcomes},
    )
