"""The journal: what callers wait for, until the database has it.

A transaction writes every page that it touches, however little has changed there; a record here is one write of its own
bytes. Records follow a commit of the database, and the next commit has all that they have: then the file is written
from its beginning again. What is left of older records behind the newest is never read, because each record says which
commit it follows, and its number since. Knows nothing of SQL.
"""

import os
import struct
from dataclasses import dataclass, field
from pathlib import Path
from zlib import crc32

import msgspec

from sandbox_agent.log.cards import Card
from sandbox_agent.log.event import Chunk, Direction
from sandbox_agent.log.group import Group

_HEAD = struct.Struct("<QIII")
"""The commit that a record follows, its number since, its length, its checksum."""
_FLAGS = os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW

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
    """The open file. One thread uses it."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self._file = os.open(path, os.O_WRONLY | _FLAGS, 0o600)
        self._end = 0
        self.count = 0
        """Records since the last commit."""

    def append(self, commits: int, group: Group) -> None:
        """Write a record behind those that follow this commit. Raises OSError, ValueError for what it cannot hold."""
        record = _encode(commits, self.count, group)
        written = os.pwrite(self._file, record, self._end)
        if written < len(record):
            raise OSError("the journal was written in part")
        self._end += written
        self.count += 1

    def start_over(self) -> None:
        """The database has everything."""
        self._end = self.count = 0

    def close(self) -> None:
        os.close(self._file)


@dataclass(slots=True)
class Kept:
    """What a journal has: the records that follow one commit."""

    commits: int = 0
    groups: list[Group] = field(default_factory=list[Group])


def is_fit(group: Group) -> bool:
    """Whether a record can hold a group: it holds what is added, not what is taken away."""
    return not (group.deleted or group.forgotten_channels or group.reserve)


def read_journal(path: Path) -> Kept:
    """The records at the beginning of the file, as far as they are whole and belong together. Raises OSError."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), "rb") as file:
            content = file.read()
    except FileNotFoundError:
        return Kept()
    kept, at = Kept(), 0
    while at + _HEAD.size <= len(content):
        commits, number, length, check = _HEAD.unpack_from(content, at)
        body = content[at + _HEAD.size : at + _HEAD.size + length]
        is_next = number == len(kept.groups) and (number == 0 or commits == kept.commits)
        if not is_next or len(body) < length or check != _checksum(commits, number, body):
            break
        try:
            group = _decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            # Of another version of the server.
            break
        kept.commits = commits
        kept.groups.append(group)
        at += _HEAD.size + length
    return kept


def _encode(commits: int, number: int, group: Group) -> bytes:
    assert is_fit(group)
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
    body = _encoder.encode((events, group.sessions, [card.row() for card in group.cards.values()], outcomes))
    return _HEAD.pack(commits, number, len(body), _checksum(commits, number, body)) + body


def _checksum(commits: int, number: int, body: bytes) -> int:
    return crc32(body, crc32(b"%d %d" % (commits, number)))


def _decode(body: bytes) -> Group:
    events, sessions, cards, outcomes = _decoder.decode(body)
    return Group(
        [Chunk(*event) for event in events],
        sessions,
        {card[0]: Card(*card) for card in cards},
        outcomes={(scope, key): outcome for scope, key, outcome in outcomes},
    )
