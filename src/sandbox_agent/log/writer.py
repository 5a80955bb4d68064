"""The way to the disk: changes are gathered into groups, and each group is one write.

A group is written when a caller waits for it, else a little later. A small one goes to the journal, where it is safe,
and later into the database, with others. One that could not be written is tried again, with what has come since. A read
sees everything that was handed over before it. Knows nothing of sessions or of who reads.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol, TypeVar

from sandbox_agent.log.database import Database, DatabaseError
from sandbox_agent.log.group import Group
from sandbox_agent.log.journal import is_fit
from sandbox_agent.log.worker import Worker

logger = logging.getLogger(__name__)
T = TypeVar("T")

GATHER = 0.02
"""How long a group waits for more, unless a caller waits for it: fewer, larger writes under load."""
STORE = 0.25
"""How long what is in the journal waits for more, before the database gets it."""
MOMENT = 0.005
"""How long the event loop waits for a small group to be written."""
SMALL_CHUNKS, SMALL_BYTES = 256, 128 << 10
"""What a small group has at most, and what the journal has before the database gets it."""
RECORD_CHUNKS = 128
"""What goes to the journal at once: a larger group is worth a transaction of its own."""
GROUP_BYTES = 8 << 20
"""How much goes into one transaction, so that none takes long."""
RETRY = 0.5
"""How long to wait before a group that could not be written (a full disk) is tried again."""

JOURNAL_RETRY = 30.0
"""How long the database takes everything after the journal has failed."""


class _Waiter(Protocol):
    """Waits for a group: a future, or what calls back."""

    def done(self) -> bool: ...
    def set_result(self, result: None, /) -> None: ...
    def set_exception(self, exception: Exception, /) -> None: ...


class _Callback:
    __slots__ = ("_call",)

    def __init__(self, call: Callable[[Exception | None], None]) -> None:
        self._call = call

    def done(self) -> bool:
        return False

    def set_result(self, result: None, /) -> None:
        call_back(self._call, None)

    def set_exception(self, exception: Exception, /) -> None:
        call_back(self._call, exception)


class Writer:
    """Gathers, writes, trims, and answers reads. All methods are the event loop's."""

    def __init__(
        self,
        database: Database,
        loop: asyncio.AbstractEventLoop,
        kept: Callable[[Group], None],
        stored: Callable[[Group, dict[str, int]], None],
        failed: Callable[[str], None],
        trim: Callable[[Database], None],
        trim_every: float,
        trim_above: int,
        gather: float,
    ) -> None:
        """`kept` is called when a group is safe, `stored` when the database has it, too."""
        self._gather = gather
        self._database = database
        self._loop = loop
        self._worker = Worker(database, loop)
        self._on_kept = kept
        self._on_stored = stored
        self._failed = failed
        self._trim = trim
        self._trim_every = trim_every
        self._trim_above = trim_above
        self._next_trim: asyncio.TimerHandle | None = loop.call_later(trim_every, self._trim_now)
        """None while it trims."""
        self._is_trim_due = False
        self._group = Group()
        self._waiting: list[_Waiter] = []
        """Callers that wait for the group to be safe."""
        self._readers: list[_Waiter] = []
        """Callers that wait for the database to have the group."""
        self._due: asyncio.Handle | None = None
        """When the group is written."""
        self._is_hurried = False
        self._is_awaited = False
        """A caller waits for the group. Otherwise the event loop does not: readers get what comes meanwhile at once."""
        self._is_retrying = False
        self._journaled = Group()
        """What the journal has, and the database has not."""
        self._journaled_size = 0
        self._store_due: asyncio.TimerHandle | None = None
        """When the database gets that."""
        self._has_journal = database.has_journal
        self._must_store = False
        """The journal does not do for the next write."""
        self._written: Group | None = None
        """The group that is being written."""
        self._is_storing = False
        """It goes into the database, with what the journal has."""
        self._waiting_for_written: list[_Waiter] = []
        self._unwritten = Group()
        """What the thread could not write to the database, until the event loop knows."""

    @property
    def group(self) -> Group:
        """The group that is written next. What is added to it is on its way."""
        if self._due is None:
            self._due = self._loop.call_later(self._gather, self._write)
        return self._group

    def hurry(self) -> None:
        """Write the group at the end of this turn of the event loop, because a caller waits for it."""
        self._is_awaited = True
        self.write_soon()

    def write_soon(self) -> None:
        """Write the group at the end of this turn of the event loop, which does not wait for it."""
        if not self._is_hurried and not self._is_retrying:
            self._is_hurried = True
            self._schedule(self._loop.call_soon(self._write))

    async def flush(self) -> None:
        """Wait until everything that was added so far is safe. Raises DatabaseError."""
        if self._group:
            await self._wait(self._waiting)
        elif self._written is not None:
            await self._wait(self._waiting_for_written)

    def when_flushed(self, callback: Callable[[Exception | None], None]) -> None:
        """Call back when everything that was added so far is safe, or could not be written. It must not raise."""
        if not self._group and self._written is None:
            callback(None)
            return
        (self._waiting if self._group else self._waiting_for_written).append(_Callback(callback))
        self.hurry()

    async def store(self) -> None:
        """Wait until the database has everything that was added so far. Raises DatabaseError."""
        if self._is_storing and not self._group:
            await self._wait(self._waiting_for_written)
        elif self._group or self._journaled or self._written is not None:
            self._must_store = True
            await self._wait(self._readers)

    async def _wait(self, waiting: list[_Waiter]) -> None:
        future: asyncio.Future[None] = self._loop.create_future()
        waiting.append(future)
        self.hurry()
        await future

    async def read(self, query: Callable[[Database], T], *, fresh: bool = True) -> T:
        """Run a query: after everything that was added so far was written, or, if not `fresh`, at once."""
        if fresh:
            with suppress(DatabaseError):
                await self.store()
        if self._worker.is_closed:
            raise DatabaseError("the log is closed")
        future: asyncio.Future[T] = self._loop.create_future()
        self._worker.submit(query, partial(_resolve, future))
        return await future

    def close(self) -> None:
        """Write what is left and end the thread."""
        self._schedule(None)
        for timer in (self._next_trim, self._store_due):
            if timer is not None:
                timer.cancel()
        left = Group()
        if not self._is_storing:
            left.merge(self._journaled)
            left.merge(self._written or Group())
        left.merge(self._group)
        self._worker.submit(partial(self._commit_rest, left), lambda _: None)
        self._worker.close()

    def _schedule(self, due: asyncio.Handle | None) -> None:
        if self._due is not None:
            self._due.cancel()
        self._due = due

    def _write(self) -> None:
        """Have the group written; the event loop waits a moment for a small one."""
        self._due = None
        if self._written is not None:
            # It goes on when that is written.
            return
        self._is_hurried = self._is_retrying = False
        if not (self._group or self._journaled):
            return
        patience, self._is_awaited = (MOMENT if self._is_awaited else 0), False
        if self._must_store or not self._fits_journal():
            self._store(patience)
        elif self._group:
            self._written, self._group = self._group, Group()
            self._waiting_for_written, self._waiting = self._waiting, []
            self._worker.submit(partial(_keep, self._written), self._on_journaled, patience)

    def _fits_journal(self) -> bool:
        if not self._has_journal or len(self._group.chunks) > RECORD_CHUNKS:
            return False
        return is_fit(self._group) and self._is_small()

    def _is_small(self) -> bool:
        """Whether the group, with what the journal has, is written in a moment."""
        chunks, size = len(self._journaled.chunks) + len(self._group.chunks), self._journaled_size + _size(self._group)
        return chunks <= SMALL_CHUNKS and size <= SMALL_BYTES

    def _store(self, patience: float) -> None:
        """Have what the journal has written to the database, and the group with it, if that does not make it large."""
        self._is_storing, self._written = True, Group()
        is_small = self._is_small()
        if is_small or not self._journaled:
            self._written, self._group = self._group, Group()
        rest = None if self._journaled else self._written.split(GROUP_BYTES)
        if rest is not None:
            self._group = rest
        if self._group:
            # What is left is next.
            self._is_hurried = True
        else:
            self._waiting_for_written = [*self._waiting, *self._readers]
            self._waiting, self._readers, self._must_store = [], [], False
        whole = Group()
        whole.merge(self._journaled)
        whole.merge(self._written)
        patience = patience if is_small and is_fit(whole) else 0
        self._worker.submit(partial(self._commit, whole), partial(self._on_written, whole), patience)

    def _store_soon(self) -> None:
        """The journal has waited for long enough, or has to be empty."""
        self._must_store = True
        self.write_soon()

    def _commit(self, group: Group, database: Database) -> dict[str, int]:
        """On the thread."""
        try:
            return database.write(group)
        except Exception:
            self._unwritten = group
            raise

    def _commit_rest(self, left: Group, database: Database) -> None:
        """On the thread."""
        self._unwritten.merge(left)
        if self._unwritten:
            try:
                database.write(self._unwritten)
            except Exception as error:
                logger.error("log not written reason=%s events=%d", error, len(self._unwritten.chunks))

    def _on_journaled(self, outcome: Exception | None) -> None:
        group, self._written = self._written, None
        waiting, self._waiting_for_written = self._waiting_for_written, []
        assert group is not None
        if outcome is not None:
            # Whatever is wrong with the journal: the database may take it.
            logger.warning("journal of the log not written reason=%s", outcome)
            self._has_journal = False
            self._loop.call_later(JOURNAL_RETRY, self._try_journal)
            group.merge(self._group)
            self._group, self._waiting = group, [*waiting, *self._waiting]
            self._must_store = True
            self._schedule(self._loop.call_soon(self._write))
            return
        self._journaled.merge(group)
        self._journaled_size += _size(group)
        if self._store_due is None:
            self._store_due = self._loop.call_later(STORE, self._store_soon)
        self._on_kept(group)
        self._go_on(waiting)

    def _try_journal(self) -> None:
        self._has_journal = True

    def _on_written(self, whole: Group, outcome: dict[str, int] | Exception) -> None:
        group, self._written, self._is_storing = self._written, None, False
        waiting, self._waiting_for_written = self._waiting_for_written, []
        assert group is not None
        if isinstance(outcome, Exception):
            self._on_failed(group, waiting, outcome)
            return
        self._journaled, self._journaled_size = Group(), 0
        if self._store_due is not None:
            self._store_due.cancel()
            self._store_due = None
        self._on_kept(whole)
        self._on_stored(whole, outcome)
        self._go_on(waiting)
        if self._is_trim_due:
            self._trim_now()
        elif self._database.size > self._trim_above:
            # Soon, not now: reads that waited for this group come first.
            self._loop.call_soon(self._trim_now)

    def _go_on(self, waiting: list[_Waiter]) -> None:
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
        if self._must_store or (self._group and (self._is_hurried or self._due is None)):
            self._schedule(self._loop.call_soon(self._write))
        else:
            # Those that hurried have what they waited for: the next one has to be heard.
            self._is_hurried = False

    def _on_failed(self, group: Group, waiting: list[_Waiter], error: Exception) -> None:
        reason = str(error)
        logger.error("log not written reason=%s events=%d", reason, len(group.chunks), exc_info=_unexpected(error))
        group.merge(self._group)
        self._group, self._unwritten = group, Group()
        self._is_hurried, self._is_retrying, self._must_store = False, True, True
        self._schedule(self._loop.call_later(RETRY, self._write))
        waiting += [*self._waiting, *self._readers]
        self._waiting, self._readers = [], []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_exception(DatabaseError(reason))
        self._failed(reason)

    def _trim_now(self) -> None:
        if self._next_trim is None:
            return
        self._is_trim_due = bool(self._journaled) or self._written is not None
        if self._is_trim_due:
            # What the journal has must be in the database first: a commit outdates it.
            self._store_soon()
            return
        self._next_trim.cancel()
        self._next_trim = None
        self._worker.submit(self._trim, self._on_trimmed)

    def _on_trimmed(self, outcome: Exception | None) -> None:
        if outcome is not None:
            logger.error("log not trimmed", exc_info=outcome)
        self._next_trim = self._loop.call_later(self._trim_every, self._trim_now)


def call_back(callback: Callable[[Exception | None], None], failure: Exception | None) -> None:
    """Call one of several that wait: one that fails must not keep the others, or the next group, from going on."""
    try:
        callback(failure)
    except Exception:
        logger.exception("callback after a write failed")


def _keep(group: Group, database: Database) -> None:
    """On the thread."""
    database.keep(group)


def _size(group: Group) -> int:
    return sum([chunk.size for chunk in group.chunks])


def _resolve(future: asyncio.Future[T], outcome: T | Exception) -> None:
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def _unexpected(error: Exception) -> Exception | None:
    return None if isinstance(error, DatabaseError) else error
