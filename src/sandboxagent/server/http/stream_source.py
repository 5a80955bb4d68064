"""Read what one stream has of a log: the events that its connection sees, or a part of these."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from msgspec import Struct

from sandboxagent.core.cursor import Gap, Page
from sandboxagent.server.log.event import Chunk
from sandboxagent.server.sessions.connection import Connection

CATCH_UP_BYTES = 1 << 20
"""How much a reader that fell behind takes from memory at a time."""


class StreamPart(Struct, frozen=True):
    """The events that one stream of a connection has: those of a session, or those of no session's own stream."""

    session_id: str | None

    def has(self, connection: Connection, chunk: Chunk) -> bool:
        return connection.stream_of(chunk) == self.session_id


class EventLog(Protocol):
    """What streams read: a server's log, or a gateway's feed."""

    @property
    def trims(self) -> dict[str, int]:
        """Channel → last position that is no longer kept."""
        ...

    def reach(self, channels: Iterable[str]) -> int:
        """Everything after this position is in memory."""
        ...

    def postpone(self, write: Callable[[], None]) -> bool:
        """Call back when all that happens now is known, to write it together; False when it is."""
        ...

    def in_memory(self, channels: Iterable[str], after: int, limit: int) -> tuple[list[Chunk], bool] | None: ...
    async def page(self, channels: Sequence[str], after: int, through: int) -> list[Chunk]: ...


class StreamSource:
    """Where the cursor of one stream reads."""

    __slots__ = ("_connection", "_log", "_part")

    def __init__(self, connection: Connection, part: StreamPart | None, log: EventLog) -> None:
        self._connection = connection
        self._part = part
        self._log = log

    def in_memory(self, after: int) -> Page[Chunk] | None:
        found = self._log.in_memory(self._connection.channels(), after, CATCH_UP_BYTES)
        if found is None:
            return None
        chunks, are_all = found
        return Page(self._select(chunks), chunks[-1].last if chunks else after, are_all)

    async def page(self, after: int) -> Page[Chunk]:
        """A page from disk, or a gap if events have been trimmed."""
        if lost := self._find_lost(after):
            return Page((Gap(after, lost + 1),), lost)
        # Read before the await, with the channels: those may be others when the page is there. What is no longer in
        # memory is on disk, and what is not on disk yet is in memory.
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
