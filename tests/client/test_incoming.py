"""A feed gives each event once and in order, however slow its reader is, and keeps no more than it may."""

import asyncio
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_agent.client.incoming import Feed, Notification, Page
from tests.support.client import run
from tests.support.running import BOUND


class Log:
    """A log that can be read in pages, as the server's can."""

    def __init__(self, page: int = 3) -> None:
        self.events: list[Notification] = []
        self.page_size = page
        self.reads = 0
        self.late = 0
        """How many events come while the next page is on its way."""
        self.feed: Feed | None = None
        self.failing = 0

    def append(self, size: int = 10) -> None:
        # Positions of others lie in between.
        event = Notification(3 * len(self.events) + 3, "session/update", {}, size)
        self.events.append(event)
        assert self.feed is not None
        self.feed.push(event)

    async def read(self, after: int) -> Page:
        self.reads += 1
        if self.failing:
            self.failing -= 1
            raise ConnectionError("away")
        newer = [event for event in self.events if event.id > after]
        page = newer[: self.page_size]
        # The server has answered; before that arrives, more happens.
        late, self.late = self.late, 0
        for _ in range(late):
            self.append()
        await asyncio.sleep(0)
        return Page(page, page[-1].id if page else after, more=len(newer) > len(page))


def fed(limit: int, log: Log) -> Feed:
    log.feed = Feed(limit, 0, log.read)
    return log.feed


async def read_all(feed: Feed, log: Log) -> None:
    """Read until the log's last event; each must come once and in order."""
    ids: list[int] = []
    async with asyncio.timeout(BOUND):
        while len(ids) < len(log.events):
            event = await feed.next()
            assert event is not None
            ids.append(event.id)
    assert ids == [event.id for event in log.events]


def test_reader_that_keeps_up_never_reads_the_log() -> None:
    async def scenario() -> None:
        log = Log()
        feed = fed(100, log)
        for _ in range(50):
            log.append()
            event = await feed.next()
            assert event == log.events[-1]
        assert log.reads == 0

    run(scenario())


def test_slow_reader_gets_from_the_log_what_it_had_no_room_for() -> None:
    async def scenario() -> None:
        log = Log()
        feed = fed(50, log)
        for _ in range(20):
            log.append()
        await read_all(feed, log)
        reads = log.reads
        assert reads > 0
        log.append()
        assert await feed.next() == log.events[-1]
        assert log.reads == reads, "it is live again"

    run(scenario())


def test_what_comes_while_a_page_is_read_follows_it() -> None:
    async def scenario() -> None:
        log = Log(page=100)
        feed = fed(30, log)
        for _ in range(10):
            log.append()
        log.late = 2
        await read_all(feed, log)
        assert len(log.events) == 12

    run(scenario())


def test_one_event_that_is_larger_than_the_buffer_is_kept() -> None:
    async def scenario() -> None:
        log = Log()
        feed = fed(5, log)
        log.append(size=1000)
        await read_all(feed, log)
        assert log.reads == 0

    run(scenario())


def test_closed_feed_still_gives_what_it_has_and_what_the_log_has() -> None:
    async def scenario() -> None:
        log = Log()
        feed = fed(30, log)
        for _ in range(10):
            log.append()
        feed.close()
        await read_all(feed, log)
        assert await feed.next() is None

    run(scenario())


def test_feed_that_was_closed_with_a_failure_raises_it_at_its_end() -> None:
    async def scenario() -> None:
        log = Log()
        feed = fed(30, log)
        log.append()
        feed.close(ValueError("lost"))
        await read_all(feed, log)
        with pytest.raises(ValueError, match="lost"):
            await feed.next()

    run(scenario())


def test_feed_that_came_to_its_end_does_not_fail_later() -> None:
    async def scenario() -> None:
        log = Log()
        feed = fed(30, log)
        log.append()
        feed.close()
        feed.close(ValueError("lost"))
        await read_all(feed, log)
        assert await feed.next() is None

    run(scenario())


def test_page_that_cannot_be_read_is_read_again() -> None:
    async def scenario() -> None:
        log = Log()
        feed = fed(20, log)
        for _ in range(10):
            log.append()
        log.failing = 1
        first = [await feed.next(), await feed.next()]
        with pytest.raises(ConnectionError):
            await feed.next()
        rest = [await feed.next() for _ in range(8)]
        assert first + rest == log.events

    run(scenario())


@given(
    limit=st.integers(1, 60),
    page=st.integers(1, 5),
    steps=st.lists(st.sampled_from(["append", "append", "read", "late", "behind", "fail"]), max_size=60),
)
def test_whatever_happens_each_event_comes_once_and_in_order(limit: int, page: int, steps: list[str]) -> None:
    async def scenario() -> None:
        log = Log(page)
        feed = fed(limit, log)
        seen: list[Notification | None] = []

        async def read_one() -> None:
            with suppress(ConnectionError):
                seen.append(await feed.next())

        for step in steps:
            match step:
                case "append":
                    log.append()
                case "late":
                    log.late += 1
                case "behind":
                    feed.fall_behind()
                case "fail":
                    log.failing = 1
                case _:
                    if len(seen) < len(log.events):
                        await read_one()
        log.failing = 0
        while len(seen) < len(log.events):
            await read_one()
        assert seen == log.events

    run(scenario())
