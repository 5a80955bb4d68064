"""A cursor gives each item once and in order, or says that it is gone, whatever happens in whichever order."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from sandboxagent.core.cursor import Cursor, Gap, Page
from tests.support.client import run
from tests.support.running import BOUND


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
        self.end: int | None = None
        """The end of the log when the cursor was closed."""
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
        if self.end is not None:
            return  # The reader of a closed cursor is not owed it.
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

    def close(self) -> None:
        if self.end is None:
            self.end = self.log.end
        self.cursor.close()

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

    async def play(self, steps: Sequence[str], closes_at: int) -> None:
        for number, step in enumerate(steps):
            if number == closes_at:
                self.close()
            done = getattr(self, step)()
            if done is not None:
                await done
            await asyncio.sleep(0)
            assert self.cursor.queued == sum(each.size for each in self.cursor.queue)
            assert self.cursor.queued <= self.limit or len(self.cursor.queue) == 1
        self.close()
        while not self.is_over:
            self.let_page_arrive()
            await self.read()
        assert self.end is not None
        left = [each.last for each in self.log.after(self.at, self.end)]
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
    closes_at=st.integers(0, 120),
)
def test_whatever_happens_each_item_comes_once_and_in_order_or_its_gap_is_told(
    limit: int, page_size: int, has_memory: bool, in_batches: bool, steps: list[str], closes_at: int
) -> None:
    run(Scene(limit, page_size, has_memory=has_memory, in_batches=in_batches).play(steps, closes_at))


class QuickLog(Log):
    """A log whose pages come by themselves, and the cursor of a reader that is live from the beginning."""

    def __init__(self, limit: int, page_size: int = 3) -> None:
        super().__init__(page_size, has_memory=False)
        self.cursor: Cursor[Entry] = Cursor(self, 0, limit, is_live=True)
        self.reads = 0
        self.late = 0
        """How many items come while the next page is on its way."""
        self.failing = 0

    def push(self, size: int = 10, count: int = 1) -> None:
        for _ in range(count):
            self.cursor.push(self.append(size))

    async def page(self, after: int) -> Page[Entry]:
        self.reads += 1
        if self.failing:
            self.failing -= 1
            raise ConnectionError("away")
        page = self.read(after)
        late, self.late = self.late, 0
        self.push(count=late)
        await asyncio.sleep(0)
        return page

    async def read_all(self) -> None:
        """Read to the last item; each must come once and in order."""
        seen: list[Entry | Gap | None] = []
        async with asyncio.timeout(BOUND):
            while len(seen) < len(self.entries):
                seen.append(await self.cursor.next())
        assert seen == self.entries


def test_reader_that_keeps_up_never_reads_the_log() -> None:
    async def scenario() -> None:
        log = QuickLog(100)
        for _ in range(50):
            log.push()
            assert await log.cursor.next() == log.entries[-1]
        assert log.reads == 0

    run(scenario())


def test_slow_reader_gets_from_the_log_what_it_had_no_room_for() -> None:
    async def scenario() -> None:
        log = QuickLog(50)
        log.push(count=20)
        await log.read_all()
        reads = log.reads
        assert reads > 0
        log.push()
        assert await log.cursor.next() == log.entries[-1]
        assert log.reads == reads, "it is live again"

    run(scenario())


def test_what_comes_while_a_page_is_read_follows_it() -> None:
    async def scenario() -> None:
        log = QuickLog(30, page_size=100)
        log.push(count=10)
        log.late = 2
        await log.read_all()
        assert (len(log.entries), log.reads) == (12, 1)

    run(scenario())


def test_one_item_that_is_larger_than_the_buffer_is_kept() -> None:
    async def scenario() -> None:
        log = QuickLog(5)
        log.push(1000)
        await log.read_all()
        assert log.reads == 0

    run(scenario())


def test_closed_cursor_still_gives_what_it_has_and_what_the_log_has() -> None:
    async def scenario() -> None:
        log = QuickLog(30)
        log.push(count=10)
        log.cursor.close()
        log.cursor.push(Entry(1000, 10))
        await log.read_all()
        assert await log.cursor.next() is None

    run(scenario())


def test_cursor_that_was_closed_with_a_failure_raises_it_at_its_end() -> None:
    async def scenario() -> None:
        log = QuickLog(30)
        log.push()
        log.cursor.close(ValueError("lost"))
        await log.read_all()
        with pytest.raises(ValueError, match="lost"):
            await log.cursor.next()

    run(scenario())


def test_cursor_that_came_to_its_end_does_not_fail_later() -> None:
    async def scenario() -> None:
        log = QuickLog(30)
        log.push()
        log.cursor.close()
        log.cursor.close(ValueError("lost"))
        await log.read_all()
        assert await log.cursor.next() is None

    run(scenario())


def test_page_that_cannot_be_read_is_read_again() -> None:
    async def scenario() -> None:
        log = QuickLog(20)
        log.push(count=10)
        log.failing = 1
        first = [await log.cursor.next(), await log.cursor.next()]
        with pytest.raises(ConnectionError):
            await log.cursor.next()
        rest = [await log.cursor.next() for _ in range(8)]
        assert first + rest == log.entries

    run(scenario())


def test_concurrent_readers_take_turns_and_all_learn_of_the_end() -> None:
    async def scenario() -> None:
        log = QuickLog(20)
        first, cancelled, last = (asyncio.ensure_future(log.cursor.next()) for _ in range(3))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        log.push()
        async with asyncio.timeout(BOUND):
            assert await first == log.entries[0]
            log.cursor.close()
            assert await last is None

    run(scenario())
