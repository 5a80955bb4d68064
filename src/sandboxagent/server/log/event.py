"""Represent events: envelopes with a position in the log, with their frames.

Events that arrive together and go the same way are kept together as one Chunk: it has one row on disk, one entry in
memory, and one set of SSE frames that all its readers share. Knows nothing of where chunks are kept.
"""

import logging
from collections import deque
from enum import StrEnum
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

logger = logging.getLogger(__name__)


class Direction(StrEnum):
    """Who said it."""

    FROM_CLIENT = "fromClient"
    FROM_AGENT = "fromAgent"
    FROM_SERVER = "fromServer"


FROM_CLIENT, FROM_AGENT, FROM_SERVER = Direction
"""By themselves, for what runs for every message: Python 3.11 takes long to look a member up in its enumeration."""

NO_CLIENT = ""
"""Audience: kept in the log only. Prompts, answers, and responses that a POST carries back."""


def session_channel(session_id: str) -> str:
    """Audience: every connection attached to the session."""
    return f"session:{session_id}"


def connection_channel(tag: str) -> str:
    """Audience: one connection."""
    return f"connection:{tag}"


def attachment_channel(tag: str) -> str:
    """Audience: the gateways of a connection, which learn here what it is attached to."""
    return f"attachment:{tag}"


def agent_channel(agent: str) -> str:
    """Audience: every connection of the agent."""
    return f"agent:{agent}"


_FRAME = b"event: message\nid: %d\ndata: %b\n\n"
_FRAME_OVERHEAD = 40
LONG_LINE = 1024
"""Bytes from which on a line is better handled by itself than in a batch."""
CHUNK_COST = 600
"""Bytes that a chunk in memory takes besides its lines and frames: its own objects, and its place in a channel."""


class Chunk(Struct):
    """Events `first` … `last`: consecutive positions, one session, one direction, one audience."""

    first: int
    lines: list[bytes]
    """One envelope each, without a line break."""
    direction: Direction
    session_id: str | None
    channel: str
    """Who sees it: NO_CLIENT, or the channel of a session, a connection or an agent."""
    at: float
    exclude: str = ""
    """Tag of the one connection on the channel that does not see it: the sender of a prompt."""
    history: bool = True
    """Part of the session's history; False for what only repeats history to one client."""
    request: int | None = None
    """For an agent's request: the pending request's key. Such a chunk holds one event, rendered for each reader."""
    last: int = 0
    size: int = 0
    """Bytes it may take in memory, frames included."""
    shared: bytes | None = None
    """Its frames, once a reader has asked for them. Let go of as soon as those that keep up have them."""

    def __post_init__(self) -> None:
        lines = self.lines
        count = len(lines)
        self.last = self.first + count - 1
        # There is one for every line that is not part of a burst.
        self.size = (len(lines[0]) if count == 1 else sum(map(len, lines))) * 2 + count * _FRAME_OVERHEAD
        # Those of the whole, where this is a part.
        self.shared = None

    def after(self, position: int) -> "Chunk":
        """The part of it that comes after a position."""
        if position < self.first:
            return self
        return replace(self, first=position + 1, lines=self.lines[position - self.first + 1 :])

    def frames(self) -> bytes:
        """All its events as server-sent events, made once and shared."""
        if self.shared is None:
            lines = self.lines
            self.shared = _FRAME % (self.first, lines[0]) if len(lines) == 1 else frames(self.first, lines)
        return self.shared


def split_lines(blob: bytes, about: int) -> list[bytes]:
    """The lines of a blob, of which there are about so many, without the line breaks between them."""
    if len(blob) < LONG_LINE * about:
        return blob.split(b"\n")
    # `split` looks at each byte by itself; `find` does not, which is what counts when lines are long.
    lines: list[bytes] = []
    start = 0
    while (end := blob.find(b"\n", start)) >= 0:
        lines.append(blob[start:end])
        start = end + 1
    lines.append(blob[start:])
    return lines


def newer_than(position: int, tail: deque[Chunk] | tuple[()]) -> list[Chunk]:
    """The chunks at the end of a tail that have events after a position."""
    newer: list[Chunk] = []
    for chunk in reversed(tail):
        if chunk.last <= position:
            break
        newer.append(chunk)
    newer.reverse()
    return newer


def frames(first: int, lines: list[bytes]) -> bytes:
    """Envelopes as server-sent events with consecutive ids."""
    if len(lines) == 1:
        return _FRAME % (first, lines[0])
    if sum(map(len, lines)) > LONG_LINE * len(lines):
        # Long lines are copied once, into a place of the right size; formatting would move them as it grows.
        parts: list[bytes] = []
        for position, line in enumerate(lines, first):
            parts += (b"event: message\nid: %d\ndata: " % position, line, b"\n\n")
        return b"".join(parts)
    values: list[object] = [None] * (2 * len(lines))
    values[::2] = range(first, first + len(lines))
    values[1::2] = lines
    return _FRAME * len(lines) % tuple(values)


class Follower(Protocol):
    """Gets each new chunk of the channels that it follows."""

    def appended(self, chunk: Chunk) -> None: ...


def report_failed(chunk: Chunk, error: Exception) -> None:
    """A follower has raised: that keeps a chunk neither from the others nor from the log."""
    logger.error("follower failed position=%d", chunk.first, exc_info=error)
