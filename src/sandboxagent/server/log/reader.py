"""Read the whole log in order, and wait for new events at its end."""

from collections import deque
from typing import Protocol

from msgspec import Struct

from sandboxagent.server.log.event import Chunk


class Deleted(Struct, frozen=True):
    """Events between two positions that were deleted before the reader came to them. Those that are left follow."""

    after: int
    through: int


class SafeEvents(Protocol):
    """The operations of a log that a reader needs."""

    async def read_safe(self, after: int) -> tuple[int, list[Chunk]]:
        """Return a page of the events after a position that are safe, and the last position that was deleted there."""
        ...

    async def wait_for_commit(self) -> None:
        """Wait until further events are safe."""
        ...


class LogReader:
    """One reader's position in the log: an asynchronous iterator without an end.

    It gets each event once it is safe, whatever its channel. The log holds nothing for it but the page that it reads.
    """

    def __init__(self, log: SafeEvents, after: int) -> None:
        self.position = after
        """The position of the last event that the reader got. A reader that begins there gets those that follow."""
        self._log = log
        self._page: deque[Chunk | Deleted] = deque()
        self._deleted = after

    def __aiter__(self) -> "LogReader":
        return self

    async def __anext__(self) -> Chunk | Deleted:
        """Return the next events, or which of them were deleted. Raises LogUnavailable; then it can be called again."""
        while not self._page:
            deleted, chunks = await self._log.read_safe(self.position)
            if deleted > max(self._deleted, self.position):
                self._page.append(Deleted(self.position, deleted))
                self._deleted = deleted
            self._page += chunks
            # Nothing is awaited between the read and this wait, so no commit is missed.
            if not self._page:
                await self._log.wait_for_commit()
        item = self._page.popleft()
        if isinstance(item, Chunk):
            self.position = item.last
        return item
