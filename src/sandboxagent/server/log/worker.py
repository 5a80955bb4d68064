"""Own the database in one thread, and let the event loop wait for it for a bounded time.

The event loop waits briefly for work that should be short. While it waits, the two threads do not compete for the
interpreter, which would cost more than the work itself. The event loop never waits behind other work. After a wait that
took too long, it waits again only once such work was done in time. This module knows nothing of the work's content.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

from sandboxagent.server.log.database import Database

logger = logging.getLogger(__name__)
T = TypeVar("T")

CLOSE_TIMEOUT = 5.0
"""Maximum seconds to wait for the thread to end."""


class _Job(Generic[T]):
    """A piece of work for the thread, with its outcome and the callback that gets the outcome."""

    __slots__ = ("_work", "done", "is_overdue", "is_settled", "outcome", "then", "timeout", "took")

    def __init__(
        self, work: Callable[[Database], T], then: Callable[[T | Exception], None], timeout: float, is_overdue: bool
    ) -> None:
        self._work = work
        self.then = then
        self.timeout = timeout
        self.outcome: T | Exception
        self.is_settled = False
        self.took = 0.0
        """Seconds that the work took on the thread."""
        self.is_overdue = is_overdue
        """Whether the event loop has stopped waiting for the job, or never waited."""
        self.done = threading.Lock()
        """Held until the thread has done the work."""
        self.done.acquire()

    def run(self, database: Database) -> None:
        """Do the work. Runs on the thread."""
        began = time.monotonic()
        try:
            self.outcome = self._work(database)
        except Exception as error:
            # Catch every exception: if the thread ended, all callers would wait for ever.
            self.outcome = error
        self.took = time.monotonic() - began
        self.done.release()


class Worker:
    """The thread and its queue of work, done in the order of submission.

    Call all public methods from the event loop.
    """

    def __init__(self, database: Database, loop: asyncio.AbstractEventLoop) -> None:
        self._database = database
        self._loop = loop
        self._jobs: SimpleQueue[_Job[object] | None] = SimpleQueue()
        self._unsettled = 0
        self._is_quick = True
        """Whether the last work that the event loop wanted to wait for was done in time."""
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def submit(
        self, work: Callable[[Database], T], then: Callable[[T | Exception], None], timeout: float = 0.0
    ) -> None:
        """Do some work on the thread, then call `then` on the event loop with the result or the exception.

        With `timeout`, the event loop may wait so many seconds for the work. If the work is done by then, `then` runs
        before this method returns.
        """
        waits = timeout > 0 and self._is_quick and self._unsettled == 0
        job = _Job(work, then, timeout, not waits)
        self._unsettled += 1
        self._jobs.put(job)  # pyright: ignore[reportArgumentType]
        if not waits:
            return
        if not job.done.acquire(timeout=timeout):
            job.is_overdue = True
            # From here on the thread schedules the callback, unless the work was done just before.
            if not job.done.acquire(blocking=False):
                self._is_quick = False
                return
        self._settle(job)

    def _settle(self, job: _Job[T]) -> None:
        if not job.is_settled:
            job.is_settled = True
            self._unsettled -= 1
            if job.timeout:
                self._is_quick = job.took <= job.timeout
            job.then(job.outcome)

    def close(self) -> None:
        """Do the work that is left, and end the thread."""
        self._is_closed = True
        self._jobs.put(None)
        self._thread.join(timeout=CLOSE_TIMEOUT)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.run(self._database)
            if job.is_overdue:
                try:
                    self._loop.call_soon_threadsafe(self._settle, job)
                except RuntimeError:
                    logger.debug("event loop is gone")
        self._database.close()
