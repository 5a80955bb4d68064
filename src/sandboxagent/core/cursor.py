"""Keep a reader's position in a log: catch up with stored items, then follow new ones.

The reader gets each item once and in order. A reader that is too slow falls behind and catches up again. So a cursor
holds a bounded number of bytes, and a push to it never waits. The cursor does not interpret the items.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from msgspec import Struct


class Item(Protocol):
    """An entry of a log: one position, or several consecutive ones."""

    @property
    def last(self) -> int:
        """The last position of the item."""
        ...

    @property
    def size(self) -> int:
        """The number of bytes that the item takes while it waits for its reader."""
        ...


T = TypeVar("T", bound=Item)


class Gap(Struct, frozen=True):
    """A placeholder for deleted items: all between two positions, both exclusive."""

    after: int
    resumes_at: int


class Page(Struct, Generic[T], frozen=True):
    """A contiguous part of a log."""

    items: Sequence[T | Gap]
    upto: int
    """The position up to which `items` is complete."""
    is_last: bool = False
    """Whether the page has everything that had been written when it was requested."""


class Source(Protocol[T]):
    """The source from which a cursor reads items that were not pushed to it, or did not fit into its queue."""

    def in_memory(self, after: int) -> Page[T] | None:
        """Return the page after a position; None if it must be read with `page`. The last page has all pushed items."""
        ...

    async def page(self, after: int) -> Page[T]:
        """Return the page after a position. It begins with a `Gap` if items there were deleted."""
        ...


class Cursor(Generic[T]):
    """The position of one reader. The log pushes new items to it, in order."""

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
        """Start after a position.

        Args:
            source: the source from which the cursor catches up.
            after: the position up to which the reader has everything.
            limit: the number of bytes that may wait; a single item may be larger.
            is_live: whether everything after the position will be pushed.
            has_memory: whether the source remembers the items that are pushed while a page is read. If it does not, the
                cursor keeps them, and is live after the last page.
        """
        self.position = after
        """The position up to which everything was taken from the cursor."""
        self.known = after
        """The position up to which the reader, or a page, has everything. Items up to here may still be pushed."""
        self.is_live = is_live
        """Whether everything after the position is in the queue or will be pushed."""
        self.is_closed = False
        self.queue: deque[T] | tuple[()] = ()
        """The pushed items that wait. A tuple if there are none, because an empty deque takes 600 bytes."""
        self.queued = 0
        """The number of bytes in the queue."""
        self._limit = limit
        self._source = source
        self._keeps = not has_memory
        self._is_keeping = False
        """Whether pushed items are queued behind the page that is being read."""
        self._is_stale = False
        """Whether the page that is being read must be discarded."""
        self._page: deque[T | Gap] | tuple[()] = ()
        """The rest of a page, for `next`."""
        self.waiting: asyncio.Future[None] | None = None
        """The reader waits for this future, unless it is done."""
        self._failure: Exception | None = None

    # Called by the log

    def push(self, item: T) -> None:
        """Take a new item of the log."""
        # A cursor that is behind skips the item, because it will read it from the log.
        if (self.is_live or self._is_keeping) and item.last > self.known and not self.is_closed:
            self.enqueue(item)
            if self.waiting is not None:
                self.wake()

    def enqueue(self, item: T) -> None:
        """Put a new item into the queue of a live cursor, without waking the reader."""
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
        """Read on from the log after the waiting items, because some new items may not be pushed."""
        self.is_live = self._is_keeping = False
        self.wake()

    def read_again(self) -> None:
        """Read again from the last taken position, because there may be items that were not pushed."""
        self.clear()
        self._is_stale = True
        self.fall_behind()

    def close(self, failure: Exception | None = None) -> None:
        """Take no new items. `next` still returns the waiting items and the items of the log."""
        if not self.is_closed:
            self.is_closed, self._failure = True, failure
            self.wake()

    # Called by the reader

    async def next(self) -> T | Gap | None:
        """Return the next item; None if the cursor is closed and everything is read.

        Raises the failure with which the cursor was closed.
        """
        while True:
            item = await self.next_stored()
            if item is not None:
                return item
            if not self.is_closed:
                # Several readers may wait: without the shield, one that is cancelled would leave the others asleep.
                await asyncio.shield(self.wait())
            elif self._failure is not None:
                raise self._failure
            else:
                return None

    async def next_stored(self) -> T | Gap | None:
        """Return the next item; None if everything that has been written by now is read."""
        while True:
            if self._page:
                item = self._page.popleft()
                self._page = self._page or ()
                return item
            if self.queue:
                return self.take(0)[0]
            if self.is_live:
                return None
            self._page = deque(await self.catch_up())

    def take(self, most: int) -> Sequence[T]:
        """Return the oldest waiting items: about `most` bytes of them, and at least one item."""
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
        """Read a page, which may be empty, if nothing waits. The cursor is live after the last page.

        Raises the source's exceptions; nothing was read then.
        """
        # Nothing is awaited between the read from memory and `is_live`, so all later items are pushed.
        page = self._source.in_memory(self.position)
        if page is not None:
            self.position, self.is_live = page.upto, page.is_last
            return page.items
        return await self._read()

    async def _read(self) -> Sequence[T | Gap]:
        # Pushed items are queued from this point. The page is read later than this, so no item is lost in between.
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
            # The queue is beyond pages that are still to be read.
            self.clear()
        self._is_keeping = False
        return page.items

    def _drop_known(self) -> None:
        while self.queue and self.queue[0].last <= self.known:
            self.queued -= self.queue.popleft().size
        self.queue = self.queue or ()

    def clear(self) -> None:
        """Drop the waiting items, because the caller has them or will read them from the log."""
        self.queue = ()
        self.queued = 0

    def wait(self) -> "asyncio.Future[None]":
        """Return a future that is done when there is an item, or when `wake` is called."""
        if self.waiting is None or self.waiting.done():
            self.waiting = asyncio.get_running_loop().create_future()
        return self.waiting

    def wake(self) -> None:
        """Wake the reader, so that it checks again."""
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_result(None)
