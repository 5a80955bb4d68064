"""The thread that owns the database: the order of its work, and how long the event loop waits for it."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from sandboxagent.server.log.database import Database
from sandboxagent.server.log.worker import Worker
from tests.support.running import BOUND

MOMENT = 0.01
LONG = float(BOUND)


def run(main: Callable[[Worker], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        worker = Worker(Database(None), asyncio.get_running_loop())
        try:
            async with asyncio.timeout(BOUND):
                await main(worker)
        finally:
            worker.close()

    asyncio.run(bounded())


def test_work_that_is_short_is_done_before_the_caller_goes_on() -> None:
    async def main(worker: Worker) -> None:
        outcomes: list[object] = []
        worker.submit(lambda _: threading.current_thread().name, outcomes.append, LONG)

        assert outcomes == ["log-writer"]

    run(main)


def test_what_fails_is_an_outcome_too_and_the_thread_goes_on() -> None:
    async def main(worker: Worker) -> None:
        outcomes: list[object] = []
        worker.submit(lambda _: 1 // 0, outcomes.append, LONG)
        worker.submit(lambda _: 1, outcomes.append, LONG)

        assert isinstance(outcomes[0], ZeroDivisionError)
        assert outcomes[1] == 1

    run(main)


def test_a_database_that_stalls_keeps_the_event_loop_for_a_moment_once() -> None:
    async def main(worker: Worker) -> None:
        go, done = threading.Event(), asyncio.Event()
        outcomes: list[object] = []

        def stall(_: Database) -> bool:
            return go.wait(BOUND)

        def note(outcome: object) -> None:
            outcomes.append(outcome)
            if len(outcomes) == 2:
                done.set()

        worker.submit(stall, note, MOMENT)
        assert outcomes == [], "it goes on without it"
        # Behind it nothing is waited for, whatever the timeout: the test would fail by its own bound.
        worker.submit(lambda _: "later", note, LONG)
        assert outcomes == []
        go.set()
        await done.wait()
        assert outcomes == [True, "later"]

        # The last work was done in time, so the next is waited for again.
        worker.submit(lambda _: "soon", outcomes.append, LONG)
        assert outcomes[-1] == "soon"

    run(main)


def test_work_that_was_too_slow_is_not_waited_for_until_some_was_quick() -> None:
    async def main(worker: Worker) -> None:
        never, stalled = threading.Event(), asyncio.Event()
        # Twice as long as it may take, whenever the thread comes to it.
        worker.submit(lambda _: never.wait(2 * MOMENT), lambda _: stalled.set(), MOMENT)
        await stalled.wait()
        again = asyncio.Event()
        release = threading.Event()
        worker.submit(lambda _: release.wait(BOUND), lambda _: again.set(), LONG)
        # With a timeout for it, this line would not be reached before the bound.
        release.set()
        await again.wait()

    run(main)


def test_closing_does_what_is_left() -> None:
    done: list[object] = []

    async def main(worker: Worker) -> None:
        for number in range(100):
            worker.submit(lambda _, number=number: done.append(number), lambda _: None)

    run(main)
    assert done == list(range(100))
