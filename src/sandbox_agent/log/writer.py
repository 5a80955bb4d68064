"""The way to the disk: changes are gathered into groups, and each group is one transaction.

A group is written when a caller waits for it, else a little later. One that could not be written is tried again, with
what has come since. A read sees everything that was handed over before it. Knows nothing of sessions or of who reads.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from sandbox_agent.log.database import Database, DatabaseError, Group
from sandbox_agent.log.worker import Worker

logger = logging.getLogger(__name__)
T = TypeVar("T")

GATHER = 0.02
"""How long a group waits for more, unless a caller waits for it: fewer, larger transactions under load."""
MOMENT = 0.005
"""How long the event loop waits for a small group to be written."""
SMALL_CHUNKS, SMALL_BYTES = 256, 64 << 10
"""What a small group has at most."""
GROUP_BYTES = 8 << 20
"""How much goes into one transaction, so that none takes long."""
RETRY = 0.5
"""How long to wait before a group that could not be written (a full disk) is tried again."""


class Writer:
    """Gathers, writes, trims, and answers reads. All methods are the event loop's."""

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
        self._worker = Worker(database, loop)
        self._committed = committed
        self._failed = failed
        self._trim = trim
        self._trim_every = trim_every
        self._trim_above = trim_above
        self._next_trim: asyncio.TimerHandle | None = loop.call_later(trim_every, self._trim_now)
        """None while it trims."""
        self._group = Group()
        self._waiting: list[asyncio.Future[None]] = []
        """Callers that wait for the group."""
        self._due: asyncio.Handle | None = None
        """When the group is written."""
        self._is_hurried = False
        self._is_retrying = False
        self._written: Group | None = None
        """The group that is being written."""
        self._waiting_for_written: list[asyncio.Future[None]] = []
        self._unwritten = Group()
        """What the thread could not write, until the event loop knows."""

    @property
    def group(self) -> Group:
        """The group that is written next. What is added to it is on its way."""
        if self._due is None:
            self._due = self._loop.call_later(GATHER, self._write)
        return self._group

    def hurry(self) -> None:
        """Write the group at the end of this turn of the event loop, because a caller waits for it."""
        if not self._is_hurried and not self._is_retrying:
            self._is_hurried = True
            self._schedule(self._loop.call_soon(self._write))

    async def flush(self) -> None:
        """Wait until everything that was added so far is on disk. Raises DatabaseError."""
        if not self._group and self._written is None:
            return
        future: asyncio.Future[None] = self._loop.create_future()
        if self._group:
            self._waiting.append(future)
            self.hurry()
        else:
            self._waiting_for_written.append(future)
        await future

    async def read(self, query: Callable[[Database], T], *, fresh: bool = True) -> T:
        """Run a query: after everything that was added so far was written, or, if not `fresh`, at once."""
        if fresh:
            with suppress(DatabaseError):
                await self.flush()
        if self._worker.is_closed:
            raise DatabaseError("the log is closed")
        future: asyncio.Future[T] = self._loop.create_future()
        self._worker.submit(query, partial(_resolve, future))
        return await future

    def close(self) -> None:
        """Write what is left and end the thread."""
        self._schedule(None)
        if self._next_trim is not None:
            self._next_trim.cancel()
        self._worker.submit(self._commit_rest, lambda _: None)
        self._worker.close()

    def _schedule(self, due: asyncio.Handle | None) -> None:
        if self._due is not None:
            self._due.cancel()
        self._due = due

    def _write(self) -> None:
        """Have the group written; the event loop waits a moment for a small one."""
        self._due = None
        if self._written is not None or not self._group:
            return
        self._is_hurried = self._is_retrying = False
        self._written, self._group = self._group, Group()
        rest = self._written.split(GROUP_BYTES)
        if rest is None:
            self._waiting_for_written, self._waiting = self._waiting, []
        else:
            self._group, self._is_hurried = rest, True
        patience = MOMENT if _is_small(self._written) else 0
        self._worker.submit(partial(self._commit, self._written), self._on_written, patience)

    def _commit(self, group: Group, database: Database) -> dict[str, int]:
        """On the thread."""
        try:
            return database.write(group)
        except Exception:
            self._unwritten = group
            raise

    def _commit_rest(self, database: Database) -> None:
        """On the thread."""
        self._unwritten.merge(self._group)
        if self._unwritten:
            try:
                database.write(self._unwritten)
            except Exception as error:
                logger.error("log not written reason=%s events=%d", error, len(self._unwritten.chunks))

    def _on_written(self, outcome: dict[str, int] | Exception) -> None:
        group, self._written = self._written, None
        waiting, self._waiting_for_written = self._waiting_for_written, []
        assert group is not None
        if isinstance(outcome, Exception):
            self._on_failed(group, waiting, outcome)
            return
        self._committed(group, outcome)
        for future in waiting:
            _resolve(future, None)
        if self._group and (self._is_hurried or self._due is None):
            self._schedule(self._loop.call_soon(self._write))
        if self._database.size > self._trim_above:
            # Soon, not now: reads that waited for this group come first.
            self._loop.call_soon(self._trim_now)

    def _on_failed(self, group: Group, waiting: list[asyncio.Future[None]], error: Exception) -> None:
        reason = str(error)
        logger.error("log not written reason=%s events=%d", reason, len(group.chunks), exc_info=_unexpected(error))
        group.merge(self._group)
        self._group, self._unwritten = group, Group()
        self._is_hurried, self._is_retrying = False, True
        self._schedule(self._loop.call_later(RETRY, self._write))
        waiting += self._waiting
        self._waiting = []
        for future in waiting:
            _resolve(future, DatabaseError(reason))
        self._failed(reason)

    def _trim_now(self) -> None:
        if self._next_trim is not None:
            self._next_trim.cancel()
            self._next_trim = None
            self._worker.submit(self._trim, self._on_trimmed)

    def _on_trimmed(self, outcome: Exception | None) -> None:
        if outcome is not None:
            logger.error("log not trimmed", exc_info=outcome)
        self._next_trim = self._loop.call_later(self._trim_every, self._trim_now)


def _is_small(group: Group) -> bool:
    if group.deleted or group.forgotten_channels or len(group.chunks) > SMALL_CHUNKS:
        return False
    return sum(chunk.size for chunk in group.chunks) <= SMALL_BYTES


def _resolve(future: asyncio.Future[T], outcome: T | Exception) -> None:
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def _unexpected(error: Exception) -> Exception | None:
    return None if isinstance(error, DatabaseError) else error
