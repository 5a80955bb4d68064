"""Read the events of one stream from a log: those that its connection sees, or a part of these."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from msgspec import Struct

from sandboxagent.core.cursor import Gap, Page
from sandboxagent.server.log.event import Chunk
from sandboxagent.server.sessions.connection import Connection

MAX_CATCH_UP_BYTES = 1 << 20
"""Maximum bytes that a reader that fell behind takes from memory at a time."""


class StreamPart(Struct, frozen=True):
    """The part of a connection's events that one stream gets: a session's, or those without a stream of their own."""

    session_id: str | None

    def has(self, connection: Connection, chunk: Chunk) -> bool:
        return connection.stream_of(chunk) == self.session_id


class EventLog(Protocol):
    """The log that streams read: a server's log, or a gateway's feed."""

    @property
    def trims(self) -> dict[str, int]:
        """Channel → last position that was dropped."""
        ...

    def reach(self, channels: Iterable[str]) -> int:
        """Return the position after which everything is in memory."""
        ...

    def postpone(self, write: Callable[[], None]) -> bool:
        """Queue a write, to write all events of the moment together.

        Return False if the caller should write at once.
        """
        ...

    def in_memory(self, channels: Iterable[str], after: int, limit: int) -> tuple[list[Chunk], bool] | None: ...
    async def page(self, channels: Sequence[str], after: int, through: int) -> list[Chunk]: ...


class StreamSource:
    """The source from which the cursor of one stream reads."""

    __slots__ = ("_connection", "_log", "_part")

    def __init__(self, connection: Connection, part: StreamPart | None, log: EventLog) -> None:
        self._connection = connection
        self._part = part
        self._log = log

    def in_memory(self, after: int) -> Page[Chunk] | None:
        found = self._log.in_memory(self._connection.channels(), after, MAX_CATCH_UP_BYTES)
        if found is None:
            return None
        chunks, are_all = found
        return Page(self._select(chunks), chunks[-1].last if chunks else after, are_all)

    async def page(self, after: int) -> Page[Chunk]:
        """Return a page from disk, or a gap if events have been trimmed."""
        if lost := self._find_lost(after):
            return Page((Gap(after, lost + 1),), lost)
        # Read the channels and `reach` before the await, because the channels may change meanwhile. Events that have
        # left memory are on disk, and events that are not on disk yet are in memory.
        channels = self._connection.channels()
        reach = self._log.reach(channels)
        chunks = await self._log.page(channels, after, reach)
        if self._find_lost(after):
            # Trimmed while we waited: the gap comes first.
            return Page((), after)
        return Page(self._select(chunks), chunks[-1].last if chunks else max(after, reach))

    def _find_lost(self, after: int) -> int:
        return self._connection.lost(self._log.trims, after, None if self._part is None else self._part.session_id)

    def _select(self, chunks: list[Chunk]) -> list[Chunk]:
        connection, part = self._connection, self._part
        return [each for each in chunks if connection.sees(each) and (part is None or part.has(connection, each))]
