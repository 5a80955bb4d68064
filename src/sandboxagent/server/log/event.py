"""Represent events: envelopes with a position in the log, and their SSE frames.

Events that arrive together, of one session, direction and audience, form one Chunk. A chunk has one row on disk, one
entry in memory, and one set of SSE frames that all its readers share. This module knows nothing of where chunks are
kept.
"""

import logging
from collections import deque
from enum import StrEnum
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

logger = logging.getLogger(__name__)


class Direction(StrEnum):
    """The sender of an envelope."""

    FROM_CLIENT = "fromClient"
    FROM_AGENT = "fromAgent"
    FROM_SERVER = "fromServer"


FROM_CLIENT, FROM_AGENT, FROM_SERVER = Direction
"""The members as constants, for code that runs for every message: Python 3.11 looks a member up in an enumeration
slowly."""

NO_CLIENT = ""
"""Channel of events that no client gets: prompts, answers, and responses that a POST carries back. Only the log has
them."""


def session_channel(session_id: str) -> str:
    """Return the channel for every connection that is attached to a session."""
    return f"session:{session_id}"


def connection_channel(tag: str) -> str:
    """Return the channel for one connection."""
    return f"connection:{tag}"


def attachment_channel(tag: str) -> str:
    """Return the channel that tells a connection's gateways which sessions the connection is attached to."""
    return f"attachment:{tag}"


def agent_channel(agent: str) -> str:
    """Return the channel for every connection of an agent."""
    return f"agent:{agent}"


_FRAME = b"event: message\nid: %d\ndata: %b\n\n"
_FRAME_OVERHEAD = 40
LONG_LINE_BYTES = 1024
"""Average bytes of a line above which lines are handled one by one, because batch operations would be slower."""
CHUNK_COST_BYTES = 600
"""Bytes of memory that a chunk takes besides its lines and frames: its own objects, and its entry in a channel."""


class Chunk(Struct):
    """Events `first` to `last`: consecutive positions, one session, one direction, one audience."""

    first: int
    lines: list[bytes]
    """The envelopes of the events, one each, without a line break."""
    direction: Direction
    session_id: str | None
    channel: str
    """The audience: NO_CLIENT, or the channel of a session, a connection or an agent."""
    at: float
    exclude: str = ""
    """Tag of the one connection on the channel that does not get the chunk: the sender of a prompt."""
    history: bool = True
    """Whether the chunk is part of the session's history. False for a chunk that only repeats history to one client."""
    request: int | None = None
    """Key of the pending request, if the chunk is an agent's request. Such a chunk has one event, rendered for each
    reader."""
    last: int = 0
    size: int = 0
    """Bytes that the chunk may take in memory, frames included."""
    shared: bytes | None = None
    """SSE frames of all events, once a reader has asked for them. Dropped as soon as the readers that keep up have
    them."""

    def __post_init__(self) -> None:
        lines = self.lines
        count = len(lines)
        self.last = self.first + count - 1
        # One line is a special case for speed: each line that is not part of a burst is a chunk.
        self.size = (len(lines[0]) if count == 1 else sum(map(len, lines))) * 2 + count * _FRAME_OVERHEAD
        # `replace` hands the frames of the whole chunk to a part of it.
        self.shared = None

    def after(self, position: int) -> "Chunk":
        """Return the part of the chunk after a position."""
        if position < self.first:
            return self
        return replace(self, first=position + 1, lines=self.lines[position - self.first + 1 :])

    def frames(self) -> bytes:
        """Return all events as server-sent events, which are made once and shared."""
        if self.shared is None:
            lines = self.lines
            self.shared = _FRAME % (self.first, lines[0]) if len(lines) == 1 else frames(self.first, lines)
        return self.shared


def split_lines(blob: bytes, about: int) -> list[bytes]:
    """Split a blob into its lines, without the line breaks. `about` is the expected number of lines."""
    if len(blob) < LONG_LINE_BYTES * about:
        return blob.split(b"\n")
    # `split` looks at each byte, and `find` does not: it is faster when lines are long.
    lines: list[bytes] = []
    start = 0
    while (end := blob.find(b"\n", start)) >= 0:
        lines.append(blob[start:end])
        start = end + 1
    lines.append(blob[start:])
    return lines


def newer_than(position: int, tail: deque[Chunk] | tuple[()]) -> list[Chunk]:
    """Return the chunks of a tail that have events after a position."""
    newer: list[Chunk] = []
    for chunk in reversed(tail):
        if chunk.last <= position:
            break
        newer.append(chunk)
    newer.reverse()
    return newer


def frames(first: int, lines: list[bytes]) -> bytes:
    """Return envelopes as server-sent events with consecutive ids."""
    if len(lines) == 1:
        return _FRAME % (first, lines[0])
    if sum(map(len, lines)) > LONG_LINE_BYTES * len(lines):
        # `join` copies long lines once, into a buffer of the right size. Formatting would move them as its buffer
        # grows.
        parts: list[bytes] = []
        for position, line in enumerate(lines, first):
            parts += (b"event: message\nid: %d\ndata: " % position, line, b"\n\n")
        return b"".join(parts)
    values: list[object] = [None] * (2 * len(lines))
    values[::2] = range(first, first + len(lines))
    values[1::2] = lines
    return _FRAME * len(lines) % tuple(values)


class Follower(Protocol):
    """A reader that gets each new chunk of the channels that it follows."""

    def appended(self, chunk: Chunk) -> None: ...


def report_failed(chunk: Chunk, error: Exception) -> None:
    """Log that a follower has raised. The chunk still reaches the other followers and the log."""
    logger.error("follower failed position=%d", chunk.first, exc_info=error)
