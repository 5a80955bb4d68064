"""Keep a reader's place in a log: catch up with what is kept, then follow what is new.

Its reader gets each item once and in order. A reader that is too slow falls behind and catches up again, so that a
cursor holds a bounded number of bytes, and pushing to it never waits. Knows nothing of what the items are.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from msgspec import Struct


class Item(Protocol):
    """What can be read: one position of a log, or several in a row."""

    @property
    def last(self) -> int:
        """Its last position."""
        ...

    @property
    def size(self) -> int:
        """How many bytes it takes while it waits for its reader."""
        ...


T = TypeVar("T", bound=Item)


class Gap(Struct, frozen=True):
    """Stands for items that are no longer kept: those between two positions, both exclusive."""

    after: int
    resumes_at: int


class Page(Struct, Generic[T], frozen=True):
    """A part of a log."""

    items: Sequence[T | Gap]
    upto: int
    """There is nothing else up to this position."""
    is_last: bool = False
    """It has everything that had been written when it was asked for."""


class Source(Protocol[T]):
    """Where a cursor reads what was not pushed to it, or what it had no room for."""

    def in_memory(self, after: int) -> Page[T] | None:
        """The page after a position; None when it has to be read. The last one has all that was pushed by now."""
        ...

    async def page(self, after: int) -> Page[T]:
        """The page after a position; it begins with a `Gap` where items are no longer kept."""
        ...


class Cursor(Generic[T]):
    """One reader's place. What is new is pushed to it, in the order of the log."""

    __slots__ = (
        "__weakref__",
        "_failure",
        "_is_keeping",
        "_is_stale",
        "_keeps",
        "_limit",
        "_page",
        "_source",
        "is_closed",
        "is_live",
        "known",
        "position",
        "queue",
        "queued",
        "waiting",
    )

    def __init__(
        self, source: Source[T], after: int, limit: int, *, is_live: bool = False, has_memory: bool = False
    ) -> None:
        """Begin after a position.

        Args:
            source: where to catch up.
            after: the reader has everything up to this position.
            limit: how many bytes may wait; one item may be larger, alone.
            is_live: everything after the position will be pushed.
            has_memory: the source has a memory, which has what is pushed while a page is read; else the cursor keeps
                it, and is live after the last page.
        """
        self.position = after
        """Everything up to here was taken."""
        self.known = after
        """The reader, or a page, has everything up to here, and some of it may still be pushed."""
        self.is_live = is_live
        """Everything after the position waits in the queue, or will be pushed."""
        self.is_closed = False
        self.queue: deque[T] | tuple[()] = ()
        """What was pushed and waits. A deque while there is something: an empty one takes 600 bytes."""
        self.queued = 0
        """The bytes of the queue."""
        self._limit = limit
        self._source = source
        self._keeps = not has_memory
        self._is_keeping = False
        """What is pushed waits for the page that is on its way."""
        self._is_stale = False
        """The page that is on its way is of no use any more."""
        self._page: deque[T | Gap] | tuple[()] = ()
        """The rest of a page, for `next`."""
        self.waiting: asyncio.Future[None] | None = None
        """The reader sleeps, unless this is done."""
        self._failure: Exception | None = None

    # What the log does

    def push(self, item: T) -> None:
        """Something new in the log."""
        # Of one that is behind, it is in the log, and the cursor will come to it there.
        if (self.is_live or self._is_keeping) and item.last > self.known and not self.is_closed:
            self.enqueue(item)
            if self.waiting is not None:
                self.wake()

    def enqueue(self, item: T) -> None:
        """Put something new into the queue of a cursor that is live, and leave the reader asleep."""
        queue = self.queue
        if not isinstance(queue, deque):
            self.queue = deque((item,))
        elif self.queued + item.size > self._limit:
            self.fall_behind()
            return
        else:
            queue.append(item)
        self.queued += item.size

    def fall_behind(self) -> None:
        """Some of what is new may not be pushed from here on: read on in the log, after what waits already."""
        self.is_live = self._is_keeping = False
        self.wake()

    def read_again(self) -> None:
        """Something may be there that was not pushed: read again from the last position that was taken."""
        self.clear()
        self._is_stale = True
        self.fall_behind()

    def close(self, failure: Exception | None = None) -> None:
        """Nothing new will come; `next` still gives what is there, and what the log has."""
        if not self.is_closed:
            self.is_closed, self._failure = True, failure
            self.wake()

    # What the reader does

    async def next(self) -> T | Gap | None:
        """The next item; None when the cursor was closed and all is read. Raises what it was closed with."""
        while True:
            if self._page:
                item = self._page.popleft()
                self._page = self._page or ()
                return item
            if self.queue:
                return self.take(0)[0]
            if not self.is_live:
                self._page = deque(await self.catch_up())
            elif not self.is_closed:
                # Others may wait, too: one that is cancelled leaves them asleep.
                await asyncio.shield(self.wait())
            elif self._failure is not None:
                raise self._failure
            else:
                return None

    def take(self, most: int) -> Sequence[T]:
        """What waits longest: about `most` bytes of it, and at least one item."""
        queue = self.queue
        if not isinstance(queue, deque):
            return ()
        if self.queued <= most or len(queue) == 1:
            self.clear()
            self.position = queue[-1].last
            return queue
        taken: list[T] = []
        size = 0
        while queue and (size < most or not taken):
            taken.append(queue.popleft())
            size += taken[-1].size
        self.queue = queue or ()
        self.queued -= size
        self.position = taken[-1].last
        return taken

    async def catch_up(self) -> Sequence[T | Gap]:
        """Read a page when nothing waits, perhaps an empty one; the cursor is live after the last one.

        Raises what the source raises; then nothing was read.
        """
        # Between the look into memory and being live, nothing is awaited: what is new then is pushed.
        page = self._source.in_memory(self.position)
        if page is not None:
            self.position, self.is_live = page.upto, page.is_last
            return page.items
        return await self._read()

    async def _read(self) -> Sequence[T | Gap]:
        # From here on what is pushed is kept: the page is read later than this, so nothing falls in between.
        self._is_stale, self._is_keeping = False, self._keeps
        try:
            page = await self._source.page(self.position)
        except BaseException:
            self._is_keeping = False
            self.clear()
            raise
        if self._is_stale:
            return ()
        self.position = self.known = page.upto
        if page.is_last:
            self._drop_known()
            self.is_live = self._is_keeping
        else:
            # It lies beyond pages that are still to be read.
            self.clear()
        self._is_keeping = False
        return page.items

    def _drop_known(self) -> None:
        while self.queue and self.queue[0].last <= self.known:
            self.queued -= self.queue.popleft().size
        self.queue = self.queue or ()

    def clear(self) -> None:
        """Drop what waits: it was taken in another way, or comes from the log."""
        self.queue = ()
        self.queued = 0

    def wait(self) -> "asyncio.Future[None]":
        """Done when something is there, or `wake` is called."""
        if self.waiting is None or self.waiting.done():
            self.waiting = asyncio.get_running_loop().create_future()
        return self.waiting

    def wake(self) -> None:
        """Let the reader look again."""
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_result(None)
