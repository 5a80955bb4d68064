"""Write changes that callers wait for to mapped memory, until the database has them.

A transaction of the database writes every page that it touches, however little has changed there. A record of the
journal is only its own bytes, copied into mapped memory of the file. From then on the kernel has the bytes, and they
outlive the process. No disk can delay the copy, so the event loop writes records itself.

The file has two halves. While the database gets the records of one half, new records go into the other. The records in
a half have the number of the transaction that will have them all, so that a start knows which ones the database lacks.
This module knows nothing of SQL.
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

from sandboxagent.server.log.damage import TALLY_BYTES, CommitRecord, encode_tally
from sandboxagent.server.log.event import Chunk, Direction
from sandboxagent.server.log.mapped import MappedFile, Stage
from sandboxagent.server.log.session_index import IndexEntry

KeptOutcome = tuple[bytes, bytes | None]
"""Outcome of a request with an idempotency key: a digest of its body, and the response, once there is one."""

EVERYTHING = 1 << 62
"""A position after all others."""


class Group(Struct):
    """Changes that are written in one transaction."""

    chunks: list[Chunk] = field(default_factory=list)
    sessions: dict[str, bytes] = field(default_factory=dict)
    """Session id → its record."""
    index: dict[str, IndexEntry] = field(default_factory=dict)
    """Session id → its entry in the index, when that has changed."""
    deleted: dict[str, int] = field(default_factory=dict)
    """Session id → the position up to which its events are deleted with the session."""
    unpublished_after: int = EVERYTHING
    """Deliveries to single clients after this position outlive their session, because they have still to be
    published."""
    outcomes: dict[tuple[str, str], KeptOutcome | None] = field(default_factory=dict)
    """Scope and idempotency key → digest and response; None forgets the key."""
    forgotten_channels: dict[str, int] = field(default_factory=dict)
    """Channel → the position up to which its deliveries are deleted."""
    reserve: int = 0

    def __bool__(self) -> bool:
        return bool(
            self.chunks or self.sessions or self.outcomes or self.deleted or self.forgotten_channels or self.reserve
        )

    def split(self, size: int) -> "Group | None":
        """Keep about `size` bytes of chunks, and return the rest for the next transaction.

        Return None when there is no rest.
        """
        for count, chunk in enumerate(self.chunks, 1):
            size -= chunk.size
            if size <= 0 and count < len(self.chunks):
                # Changes that are not events stay with the last of the events they came with.
                rest = replace(self, chunks=self.chunks[count:])
                self.chunks = self.chunks[:count]
                self.sessions, self.deleted, self.outcomes, self.forgotten_channels = {}, {}, {}, {}
                self.index = {}
                return rest
        return None

    def merge(self, later: "Group") -> None:
        """Add the changes of a later group."""
        self.chunks += later.chunks
        # Each is checked for speed: most groups have chunks alone, and there is a group for every few messages.
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
    """A publisher that sends the log to a fleet's stream, after the disk has it."""

    @property
    def published(self) -> int:
        """Position up to which everything is published, and may be trimmed."""
        ...

    @property
    def is_idle(self) -> bool:
        """Whether all safe events are published, so that the next ones should be safe soon."""
        ...

    @property
    def full(self) -> bool:
        """Whether too much waits to be published, so that producers should pause."""
        ...

    @property
    def failure_reason(self) -> str | None:
        """Reason why nothing is published at the moment; None while all is well."""
        ...

    def committed(self, group: Group) -> None:
        """Note that a group is safe. It may repeat changes of an earlier group."""
        ...

    async def drained(self, position: int) -> None:
        """Wait until everything up to a position is published."""
        ...


logger = logging.getLogger(__name__)

HALF_BYTES = 512 << 10
"""Bytes of each half."""
FRESH_TIMEOUT = 5.0
"""Seconds for which prepared pages stay writable. The kernel writes them to the disk, and protects them, later."""
_MIN_PREPARED_BYTES = 64 << 10
"""Minimum bytes of a half that are prepared."""
_MIN_FREE_BYTES = 16 << 20
"""Bytes that must be free on the disk. A copy-on-write file system needs room even to overwrite a file. Without room,
it would end the process with a signal."""
_STALL_TIMEOUT = 0.001
"""Seconds from which on the write of a record may have waited for the disk."""

_HEAD = struct.Struct("<QIII")
"""Head of a record: the transaction's number, the record's index in the half, its length and its checksum."""
_END = bytes(_HEAD.size)
"""Zeros after the newest record, which are no head. So older records behind it are not read."""
_ROOM = HALF_BYTES - len(_END)

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
    """The open journal. Call all methods but `prepare` from the event loop."""

    def __init__(self, path: Path, commit_record: CommitRecord) -> None:
        """Open the file, and keep its content.

        Raises OSError if it cannot be mapped, or the disk has no room for it.
        """
        with ExitStack() as opened:
            self._file = MappedFile(path, 2 * HALF_BYTES)
            opened.callback(self._file.close)
            self._tallies = commit_record.map_tallies()
            opened.callback(self._tallies.close)
            self._stage = Stage(HALF_BYTES + TALLY_BYTES)
            opened.callback(self._stage.close)
            self._opened = opened.pop_all()
        self._half = 0
        """Number of the half that records go to."""
        self._end = 0
        self._prepared, self._prepared_at = 0, float("-inf")
        """Number of prepared bytes in each half, and the time when they were prepared."""
        self._number = 0
        """Number of the transaction that will have the records in this half."""
        self._count = 0
        """Number of records in this half."""
        self.waited = 0.0
        """Seconds that the last record had to wait for the disk, if that was long; otherwise 0."""

    @property
    def is_ready(self) -> bool:
        """Whether a record can be written without waiting for the disk, as far as the process can know."""
        return time.monotonic() - self._prepared_at < FRESH_TIMEOUT

    @property
    def wants_more(self) -> bool:
        """Whether records will soon reach pages that are not prepared."""
        return self._end > self._prepared // 2 and self._prepared < HALF_BYTES

    def prepare(self) -> None:
        """Have the kernel make more of the journal writable. This may wait long for the disk. Runs on the thread.

        Raises OSError, also when a file was replaced or shortened.
        """
        try:
            self.check()
        except OSError:
            self._prepared_at = float("-inf")
            raise
        length = min(HALF_BYTES, max(_MIN_PREPARED_BYTES, 4 * self._end))
        if length <= self._prepared and time.monotonic() - self._prepared_at < FRESH_TIMEOUT / 5:
            return
        disk = os.fstatvfs(self._file.descriptor)
        if disk.f_blocks and disk.f_bavail * disk.f_frsize < _MIN_FREE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        for half in (0, HALF_BYTES):
            self._file.populate(half, length)
        self._prepared, self._prepared_at = length, time.monotonic()

    def check(self) -> None:
        """Raise OSError if a start would not find new records, because a file was replaced or shortened."""
        self._file.check()
        self._tallies.check()

    def begin(self, number: int, group: Group) -> bool:
        """Write the first record of a transaction into the other half. The database has the old records of that half.

        Return False if there is no room for it. Raises what `append` raises.
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
        """Write one more record. Return False if there is no room for it.

        Raises ValueError for a group that a record cannot hold, and OSError when a file was shortened.
        """
        record = _encode(self._number, self._count, group)
        if self._end + len(record) > _ROOM:
            return False
        self._write(record)
        return True

    def _write(self, record: bytes) -> None:
        start, length = self._half * HALF_BYTES + self._end, len(record)
        waits, began = _count_waits(), time.monotonic()
        slot, tally = encode_tally(self._half, self._number, self._count + 1)
        self._stage.copy(record + _END, self._file.address + start, tally, self._tallies.address + slot)
        self._end += length
        self._count += 1
        took = time.monotonic() - began
        # A busy machine may take the processor away, which is no wait for the disk.
        self.waited = took if took > _STALL_TIMEOUT and _count_waits() > waits else 0.0

    def close(self) -> None:
        self._opened.close()


def _count_waits() -> int:
    """Return how often this thread has given up the processor voluntarily."""
    return getrusage(RUSAGE_THREAD).ru_nvcsw


def open_journal(path: Path, commit_record: CommitRecord) -> Journal | None:
    """Open the journal. Return None if that fails: the database works without it."""
    try:
        return Journal(path, commit_record)
    except OSError as error:
        logger.warning("log has no journal reason=%s", error)
        return None


class Half(Struct):
    """The records of one half."""

    number: int
    """Number of the transaction that has all of the records."""
    groups: list[Group] = field(default_factory=list[Group])


def is_fit(group: Group) -> bool:
    """Whether a record can hold a group: a record holds additions, and neither deletions nor reservations."""
    return not (group.deleted or group.forgotten_channels or group.reserve)


def read_journal(path: Path) -> list[Half]:
    """Return the records of both halves, oldest first, as far as they are whole and belong together. Raises OSError."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), "rb") as file:
            content = file.read()
    except FileNotFoundError:
        return []
    halves = [_read_half(content, 0), _read_half(content, HALF_BYTES)]
    return sorted((kept for kept in halves if kept.groups), key=lambda kept: kept.number)


def _read_half(content: bytes, at: int) -> Half:
    kept = Half(0)
    while at + _HEAD.size <= len(content):
        number, place, length, check = _HEAD.unpack_from(content, at)
        body = content[at + _HEAD.size : at + _HEAD.size + length]
        if place != len(kept.groups) or len(body) < length:
            break
        if check == _first_checksum(number, place, body):
            # Written by a server whose journal had no halves: the number is of the transaction before the record.
            number += 1
        elif check != _checksum(number, place, body):
            break
        if kept.groups and number != kept.number:
            break
        try:
            group = _decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            # Written by another version of the server.
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
