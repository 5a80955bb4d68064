"""Those that are called back when the log is safe: in order, all of them, and with the reason when it is not."""

import asyncio

import pytest

from sandboxagent.protocol.errors import LogUnavailable
from tests.support.logs import FragileDatabase, opened, run, say


class Calls:
    """What was called, in order."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.failures: list[Exception] = []
        self._news = asyncio.Event()

    def as_(self, name: str):
        def call(failure: Exception | None) -> None:
            self.names.append(name)
            self.failures += [] if failure is None else [failure]
            self._news.set()

        return call

    async def number(self, count: int) -> None:
        """Wait until there were so many; `run` bounds it."""
        while len(self.names) < count:
            self._news.clear()
            await self._news.wait()


def test_positions_are_called_back_in_their_order() -> None:
    async def main() -> None:
        async with opened() as log:
            calls = Calls()
            first, second = say(log).last, say(log).last
            log.when_committed(second, calls.as_("second"))
            log.when_committed(first, calls.as_("first"))
            assert not calls.names
            await calls.number(2)
            log.when_committed(first, calls.as_("at once"))

            assert calls.names == ["first", "second", "at once"]
            assert not calls.failures

    run(main())


def test_what_was_handed_over_is_safe_when_it_is_called_back() -> None:
    async def main() -> None:
        async with opened() as log:
            calls = Calls()
            log.when_flushed(calls.as_("nothing to write"))
            assert calls.names == ["nothing to write"]
            log.save_outcome("scope", "key", b"digest", b"answer")
            log.when_flushed(calls.as_("an outcome"))
            await calls.number(2)

            assert not calls.failures
            assert await log.outcome("scope", "key") == (b"digest", b"answer")

    run(main())


def test_what_is_added_in_a_callback_is_written_too() -> None:
    async def main() -> None:
        async with opened() as log:
            calls = Calls()

            def go_on(failure: Exception | None) -> None:
                calls.as_("begun")(failure)
                log.when_committed(say(log).last, calls.as_("event"))
                log.save_outcome("scope", "key", b"digest", b"answer")
                log.when_flushed(calls.as_("outcome"))

            log.save_outcome("scope", "key", b"digest", None)
            log.when_flushed(go_on)
            await calls.number(3)
            await log.committed(log.position)

            assert calls.names == ["begun", "event", "outcome"]

    run(main())


def test_one_that_fails_keeps_no_other_from_going_on(caplog: pytest.LogCaptureFixture) -> None:
    def fail(failure: Exception | None) -> None:
        raise RuntimeError

    async def main() -> None:
        async with opened() as log:
            calls = Calls()
            position = say(log).last
            for wait in (lambda call: log.when_committed(position, call), log.when_flushed):
                wait(fail)
                wait(calls.as_("other"))
            await calls.number(2)
            await log.committed(say(log).last)

    run(main())
    assert len([one for one in caplog.records if one.message == "callback after a write failed"]) == 2


def test_all_callers_get_the_failure_of_a_disk() -> None:
    async def main() -> None:
        database = FragileDatabase()
        async with opened(database) as log:
            calls = Calls()
            database.broken = True
            log.when_committed(say(log).last, calls.as_("event"))
            log.when_flushed(calls.as_("group"))
            await calls.number(2)
            database.broken = False

            assert {type(each) for each in calls.failures} == {LogUnavailable}

    run(main())
