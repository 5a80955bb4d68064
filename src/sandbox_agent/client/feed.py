"""A feed: one consumer's view of a session, bounded in bytes. A slow consumer reads what it missed from the log.

Knows nothing of HTTP or of what an event means. Delivering an event never blocks.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sandbox_agent.envelope import Object


@dataclass(frozen=True, slots=True)
class Heard:
    """A notification of a session: its position in the log, and how many bytes it had."""

    id: int
    method: str
    params: Object
    size: int


@dataclass(frozen=True, slots=True)
class Page:
    """A part of the log: its notifications, the position up to which it reaches, and whether there is more."""

    heard: list[Heard]
    upto: int
    more: bool


Read = Callable[[int], Awaitable[Page]]
"""Reads the page after a position."""


class Feed:
    """What one consumer has still to read, in order, each event once."""

    def __init__(self, limit: int, after: int, read: Read) -> None:
        self._limit = limit
        self._read = read
        self._queue: deque[Heard] = deque()
        self._size = 0
        self._newest = after
        """Position of the last event that was queued, or is known not to concern us."""
        self._behind = False
        """Events were let go since then; they are in the log."""
        self._closed = False
        self._failure: Exception | None = None
        self._woken = asyncio.Event()

    def push(self, heard: Heard) -> None:
        """Deliver an event; one that does not fit is read from the log later."""
        if heard.id <= self._newest or self._behind or self._closed:
            return
        if self._queue and self._size + heard.size > self._limit:
            self.fall_behind()
            return
        self._newest = heard.id
        self._put(heard)

    def fall_behind(self) -> None:
        """Events may be missing from here on: continue from the log."""
        self._behind = True
        self._woken.set()

    def close(self, failure: Exception | None = None) -> None:
        """Nothing more will come; what is there, and what the log has, is still given out."""
        if not self._closed:
            self._closed, self._failure = True, failure
            self._woken.set()

    async def next(self) -> Heard | None:
        """The next event; None when the feed was closed and all is read. Raises what it was closed with."""
        while True:
            if self._queue:
                heard = self._queue.popleft()
                self._size -= heard.size
                return heard
            if self._behind:
                await self._catch_up()
            elif self._closed:
                if self._failure is not None:
                    raise self._failure
                return None
            else:
                self._woken.clear()
                await self._woken.wait()

    async def _catch_up(self) -> None:
        """Put the next page of the log into the queue, and whatever came live meanwhile after it."""
        # From here on live events are kept again: the page is read later than this, so nothing falls in between.
        self._behind = False
        start = self._newest
        try:
            page = await self._read(start)
        except BaseException:
            self._forget(start)
            raise
        live, self._queue, self._size = self._queue, deque(), 0
        for heard in page.heard:
            self._put(heard)
        self._newest = max(start, page.upto)
        if page.more:
            # What came live lies beyond pages that are still to be read.
            self._behind = True
            return
        for heard in live:
            if heard.id > self._newest:
                self._newest = heard.id
                self._put(heard)

    def _forget(self, start: int) -> None:
        self._queue.clear()
        self._size = 0
        self._newest = start
        self._behind = True

    def _put(self, heard: Heard) -> None:
        self._queue.append(heard)
        self._size += heard.size
        self._woken.set()
