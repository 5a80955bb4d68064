"""The thread that owns the database: writes in groups, and answers reads between them.

A read sees everything that was handed over before it. Knows nothing of sessions or of who reads.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from sandbox_agent.log.database import Database, DatabaseError, Group

logger = logging.getLogger(__name__)
T = TypeVar("T")

GATHER = 0.005
"""How long a group waits for more, unless a caller waits for it: fewer, larger transactions under load."""
GROUP_BYTES = 8 << 20
"""How much goes into one transaction, so that none takes long."""
RETRY = 0.5
"""How long to wait before a group that could not be written (a full disk) is tried again."""


class Writer:
    """The thread and its queue."""

    def __init__(
        self,
        database: Database,
        loop: asyncio.AbstractEventLoop,
        committed: Callable[[Group, dict[str, int]], None],
        failed: Callable[[str], None],
        trim: Callable[[Database], None],
        trim_every: float,
        trim_above: int,
    ) -> None:
        self._database = database
        self._loop = loop
        self._committed = committed
        self._failed = failed
        self._trim = trim
        self._trim_every = trim_every
        self._trim_above = trim_above
        self._next_trim = time.monotonic() + trim_every
        self._changed = threading.Condition()
        self._group = Group()
        self._reads: deque[tuple[Callable[[Database], object], Future[object]]] = deque()
        self._old_reads: deque[tuple[Callable[[Database], object], Future[object]]] = deque()
        self._urgent = False
        self._idle = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    def write(self, change: Callable[[Group], None]) -> None:
        """Add something to the group that is written next."""
        with self._changed:
            change(self._group)
            # Once it gathers it needs no waking: each would cost the event loop a switch of threads.
            if self._idle:
                self._changed.notify()

    def hurry(self) -> None:
        """Write what there is now, because a caller waits for it."""
        with self._changed:
            self._urgent = True
            self._changed.notify()

    async def read(self, query: Callable[[Database], T], *, fresh: bool = True) -> T:
        """Run a query on the writer's thread: after everything handed over so far, or, if not `fresh`, at once."""
        future: Future[object] = Future()
        with self._changed:
            if self._stopping:
                raise DatabaseError("the log is closed")
            (self._reads if fresh else self._old_reads).append((query, future))
            self._urgent = True
            self._changed.notify()
        return await asyncio.wrap_future(future)  # pyright: ignore[reportReturnType]

    def close(self) -> None:
        """Write what is left and end the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._idle = True
                self._changed.wait_for(self._busy, timeout=max(0.0, self._next_trim - time.monotonic()))
                self._idle = False
                self._changed.wait_for(lambda: self._urgent or self._stopping, timeout=GATHER)
                group, self._group, self._urgent = self._group, Group(), False
                reads, self._reads = self._reads, deque()
                stopping = self._stopping
            self._write_all(group, stopping)
            self._answer(reads)
            if time.monotonic() >= self._next_trim or self._database.size > self._trim_above:
                self._next_trim = time.monotonic() + self._trim_every
                self._trim(self._database)
            if stopping:
                self._database.close()
                return

    def _busy(self) -> bool:
        return bool(self._group or self._reads or self._old_reads or self._stopping)

    def _write_all(self, group: Group, stopping: bool) -> None:
        rest: Group | None = group
        while rest is not None:
            self._answer_old()
            group, rest = rest, rest.split(GROUP_BYTES)
            if group and not self._write(group, rest):
                if not stopping:
                    with self._changed:
                        self._changed.wait_for(lambda: self._stopping, timeout=RETRY)
                return

    def _write(self, group: Group, rest: Group | None) -> bool:
        try:
            trims = self._database.write(group)
        except Exception as error:
            # Whatever it is: if this thread ended, all callers would wait for ever.
            reason = str(error)
            logger.error(
                "log not written reason=%s events=%d", reason, len(group.chunks), exc_info=not _is_expected(error)
            )
            with self._changed:
                if rest is not None:
                    group.merge(rest)
                group.merge(self._group)
                self._group = group
            self._tell(lambda: self._failed(reason))
            return False
        self._tell(lambda: self._committed(group, trims))
        return True

    def _answer_old(self) -> None:
        with self._changed:
            reads, self._old_reads = self._old_reads, deque()
        self._answer(reads)

    def _answer(self, reads: deque[tuple[Callable[[Database], object], Future[object]]]) -> None:
        for query, future in reads:
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(query(self._database))
            except Exception as error:
                future.set_exception(error)

    def _tell(self, callback: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            logger.debug("event loop is gone")


def _is_expected(error: Exception) -> bool:
    return isinstance(error, DatabaseError)
