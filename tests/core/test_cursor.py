"""A cursor gives each item once and in order, or says that it is gone, whatever happens in whichever order."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from sandbox_agent.core.cursor import Cursor, Gap, Page
from tests.support.client import run


class Entry(Struct, frozen=True):
    """An item of the log."""

    last: int
    size: int


class Log:
    """A log that can be read in pages; with a memory, the newest items are there."""

    def __init__(self, page_size: int, *, has_memory: bool) -> None:
        self.page_size = page_size
        self.has_memory = has_memory
        self.entries: list[Entry] = []
        self.end = 0
        self.trimmed = 0
        """Nothing is kept up to here."""
        self.evicted = 0
        """Memory has everything after this position."""
        self.asked: asyncio.Future[bool] | None = None
        """The page that is on its way: done with whether the log was read late."""

    def append(self, size: int) -> Entry:
        # Positions of others lie in between.
        self.end += 3
        self.entries.append(Entry(self.end, size))
        return self.entries[-1]

    def after(self, position: int, through: int) -> list[Entry]:
        return [each for each in self.entries if max(position, self.trimmed) < each.last <= through]

    def in_memory(self, after: int) -> Page[Entry] | None:
        if not self.has_memory or after < self.evicted:
            return None
        found = self.after(after, self.end)
        items = found[: self.page_size]
        return Page(items, items[-1].last if items else after, is_last=len(items) == len(found))

    async def page(self, after: int) -> Page[Entry]:
        page = self.read(after)
        self.asked = asyncio.get_running_loop().create_future()
        try:
            is_late = await self.asked
        finally:
            self.asked = None
        if after < self.trimmed:
            return Page([Gap(after, self.trimmed + 1)], self.trimmed)
        return self.read(after) if is_late and not self.has_memory else page

    def read(self, after: int) -> Page[Entry]:
        through = self.evicted if self.has_memory else self.end
        found = self.after(after, through)
        items = found[: self.page_size]
        if len(items) < len(found):
            return Page(items, items[-1].last)
        return Page(items, max(after, through), is_last=not self.has_memory)


class Scene:
    """A log, a cursor and its reader, and all that they can do."""

    def __init__(self, limit: int, page_size: int, *, has_memory: bool, in_batches: bool) -> None:
        self.limit, self.in_batches = limit, in_batches
        self.log = Log(page_size, has_memory=has_memory)
        self.cursor: Cursor[Entry] = Cursor(self.log, 0, limit, is_live=not in_batches, has_memory=has_memory)
        self.reading: asyncio.Task[Sequence[Entry | Gap | None]] | None = None
        self.at = 0
        """Up to here the reader has everything."""
        self.is_over = False
        self.hidden: list[Entry] = []
        """What the reader may not see yet."""

    # The log

    def push(self, size: int = 10) -> None:
        self.cursor.push(self.log.append(size))

    def push_something_large(self) -> None:
        self.push(70)

    def append_what_is_not_pushed(self) -> None:
        self.log.append(10)
        self.cursor.fall_behind()

    def append_what_is_hidden(self) -> None:
        self.log.append(10)
        self.hidden.append(self.log.entries.pop())

    def show_what_was_hidden(self) -> None:
        shown = [each for each in self.hidden if each.last > self.cursor.position]
        self.hidden = []
        self.log.entries = sorted([*self.log.entries, *shown], key=lambda entry: entry.last)
        self.cursor.read_again()

    def evict(self) -> None:
        newer = [each.last for each in self.log.entries if each.last > self.log.evicted]
        self.log.evicted = max([self.log.evicted, *newer[:2]])

    def trim(self) -> None:
        """What memory has is not trimmed."""
        through = self.log.evicted if self.log.has_memory else self.log.end
        self.log.trimmed = max([self.log.trimmed, *(each.last for each in self.log.after(0, through)[:2])])

    def let_page_arrive(self) -> None:
        if self.log.asked is not None and not self.log.asked.done():
            self.log.asked.set_result(False)

    def let_newer_page_arrive(self) -> None:
        if self.log.asked is not None and not self.log.asked.done():
            self.log.asked.set_result(True)

    def let_page_fail(self) -> None:
        if self.log.asked is not None and not self.log.asked.done():
            self.log.asked.set_exception(ConnectionError("away"))

    # The reader

    async def read(self) -> None:
        if self.reading is None:
            self.reading = asyncio.ensure_future(self.take())
        for _ in range(3):
            await asyncio.sleep(0)
        if self.reading.done():
            reading, self.reading = self.reading, None
            with suppress(ConnectionError):
                for item in reading.result():
                    self.see(item)

    async def take(self) -> Sequence[Entry | Gap | None]:
        """One by one, or as streams do: much at a time."""
        cursor = self.cursor
        if not self.in_batches:
            return [await cursor.next()]
        if cursor.queue:
            return cursor.take(25)
        if not cursor.is_live:
            return await cursor.catch_up()
        if not cursor.is_closed:
            await cursor.wait()
            return []
        return [None]

    async def leave(self) -> None:
        if self.reading is not None and self.reading.cancel():
            await asyncio.wait([self.reading])
            self.reading = None

    def see(self, item: Entry | Gap | None) -> None:
        if item is None:
            assert self.cursor.is_closed
            self.is_over = True
            return
        first, last = (item.after + 1, item.resumes_at - 1) if isinstance(item, Gap) else (item.last, item.last)
        assert last > self.at, f"{item} after {self.at}"
        missed = [each.last for each in self.log.entries if self.at < each.last < first]
        assert not missed, f"{missed} before {item}"
        if isinstance(item, Gap):
            assert item.after >= self.at, "a gap over what was read"
            assert last <= self.log.trimmed, "a gap over what is kept"
        self.at = last

    # All of it

    async def play(self, steps: Sequence[str]) -> None:
        for step in steps:
            done = getattr(self, step)()
            if done is not None:
                await done
            await asyncio.sleep(0)
            assert self.cursor.queued == sum(each.size for each in self.cursor.queue)
            assert self.cursor.queued <= self.limit or len(self.cursor.queue) == 1
        self.cursor.close()
        while not self.is_over:
            self.let_page_arrive()
            await self.read()
        left = [each.last for each in self.log.after(self.at, self.log.end)]
        assert not left, "something is missing at the end"


STEPS = [
    *(["push", "push", "push_something_large", "append_what_is_not_pushed"]),
    *(["append_what_is_hidden", "show_what_was_hidden", "evict", "trim"]),
    *(["read", "read", "read", "leave"]),
    *(["let_page_arrive", "let_newer_page_arrive", "let_newer_page_arrive", "let_page_fail"]),
]


@settings(max_examples=300)
@given(
    limit=st.integers(1, 60),
    page_size=st.integers(1, 8),
    has_memory=st.booleans(),
    in_batches=st.booleans(),
    steps=st.lists(st.sampled_from(STEPS), min_size=30, max_size=60),
)
def test_whatever_happens_each_item_comes_once_and_in_order_or_its_gap_is_told(
    limit: int, page_size: int, has_memory: bool, in_batches: bool, steps: list[str]
) -> None:
    run(Scene(limit, page_size, has_memory=has_memory, in_batches=in_batches).play(steps))
