"""Gather changes into groups, write each group to disk at once, and retry when that fails.

A group is written when a caller waits for it, otherwise a little later. The event loop writes a small group to the
journal, where it is safe. The thread writes it to the database later, with other groups, while the journal takes more.
A group that could not be written is retried together with later changes. A read sees everything that was handed over
before it. This module knows nothing of sessions or readers.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from sandboxagent.server.log.database import Database, DatabaseError
from sandboxagent.server.log.event import Chunk
from sandboxagent.server.log.journal import Group, Journal, is_fit
from sandboxagent.server.log.worker import Worker

logger = logging.getLogger(__name__)
T = TypeVar("T")

GATHER_TIMEOUT = 0.02
"""Seconds that a group waits for more, unless a caller waits for it: fewer, larger writes under load."""
STORE_TIMEOUT = 0.25
"""Seconds that the journal's records wait for more, before the database gets them."""
STORE_CHUNKS = 512
"""Number of chunks in the journal at which the database gets them without further delay. No caller waits for it."""
RECORD_TIMEOUT = 0.005
"""Maximum seconds that the event loop waits for the database to write a small group, or for a record of the journal."""
MAX_SMALL_CHUNKS, MAX_SMALL_BYTES = 256, 128 << 10
"""Maximum chunks and bytes of a small group, together with the journal's records."""
MAX_RECORD_CHUNKS, MAX_RECORD_BYTES = 128, 128 << 10
"""Maximum chunks and bytes of a group that goes to the journal: a larger group is worth a transaction. If a caller
waits, the maximum is STORE_CHUNKS."""
MAX_GROUP_BYTES = 8 << 20
"""Maximum bytes of chunks in one transaction, so that none takes long."""
RETRY_INTERVAL = 0.5
"""Seconds until the retry of a group that could not be written (a full disk)."""

JOURNAL_RETRY_INTERVAL = 30.0
"""Seconds for which the database takes everything after the journal has failed, or has had to wait for the disk."""


Callback = Callable[[Exception | None], None]
"""Called when something is safe, or with the reason why it is not."""


class Writer:
    """The writer of the log: gathers, writes, trims, and answers reads.

    Call all public methods from the event loop.
    """

    def __init__(
        self,
        database: Database,
        loop: asyncio.AbstractEventLoop,
        kept: Callable[[Group], None],
        stored: Callable[[Group, dict[str, int]], None],
        failed: Callable[[str], None],
        trimmed: Callable[[dict[str, int]], None],
        trim: Callable[[Database], dict[str, int]],
        trim_every: float,
        trim_above: int,
        gather: float,
    ) -> None:
        """Start the thread. `kept` is called when a group is safe, `stored` when the database has it too.

        `trim` runs on the thread. `trimmed` gets its result before any later read returns.
        """
        self._gather = gather
        self._database = database
        self._loop = loop
        self._worker = Worker(database, loop)
        self._on_kept = kept
        self._on_stored = stored
        self._failed = failed
        self._trimmed = trimmed
        self._trim = trim
        self._trim_every = trim_every
        self._trim_above = trim_above
        self._next_trim: asyncio.TimerHandle | None = loop.call_later(trim_every, self._trim_now)
        """Timer of the next trim; None during a trim."""
        self._group = Group()
        self._waiting: list[Callback] = []
        """Callers that wait for the group to be safe."""
        self._readers: list[Callback] = []
        """Callers that wait for the database to have the group."""
        self._journal_readers: list[Callback] = []
        """Callers that wait for the database to have the journal's changes."""
        self._gathering: asyncio.TimerHandle | None = None
        """Timer that writes the group if no caller waits for it. When a group is written earlier, its timer stays."""
        self._due: asyncio.Handle | None = None
        """Handle of a write that a caller waits for, or of a retry."""
        self._is_hurried = False
        self.is_held = False
        """Whether writes wait for `let_go`."""
        self._is_wanted = False
        """Whether a group waits for `let_go`."""
        self._is_awaited = False
        """Whether a caller waits for the group. If none does, the event loop does not wait either, and readers get
        later events at once."""
        self._is_retrying = False
        self._journal = database.journal
        self._is_journal_used = True
        self._is_preparing = False
        """Whether the thread is making the journal ready to be written."""
        self._number = database.commits
        """Number of the newest transaction, or of the one that will have the journal's records."""
        self._journaled = Group()
        """Changes that the journal has, and that the database neither has nor is getting."""
        self._store_due: asyncio.TimerHandle | None = None
        """Timer that writes the journal's changes to the database."""
        self._must_store = False
        """Whether the database should have everything as soon as possible."""
        self._is_failing = False
        """Whether the last transaction failed."""
        self._is_storing = False
        self._stored = Group()
        """Changes that the database is getting and the journal has."""
        self._written: Group | None = None
        """Changes that the database is getting and the journal has not. Until they are written, the journal takes
        nothing."""
        self._waiting_for_stored: list[Callback] = []
        self._unwritten = Group()
        """Changes that the thread could not write to the database, until the event loop knows."""

    @property
    def group(self) -> Group:
        """The group that is written next. Reading this property schedules the write, so changes may be added."""
        if self._gathering is None:
            self._gathering = self._loop.call_later(self._gather, self._on_gathered)
        return self._group

    def flush_soon(self) -> None:
        """Write the group at the end of this turn of the event loop, because a caller waits for it."""
        self._is_awaited = True
        self.write_soon()

    def write_soon(self) -> None:
        """Write the group at the end of this turn of the event loop, which does not wait for it."""
        if self.is_held:
            self._is_wanted = True
        elif not self._is_hurried and not self._is_retrying:
            self._is_hurried = True
            self._schedule(self._loop.call_soon(self._write))

    def let_go(self, *, at_once: bool) -> None:
        """Write the held group `at_once`, or at the end of this turn of the event loop.

        The delay lets others add to the group.
        """
        self.is_held = False
        if not self._is_wanted:
            return
        self._is_wanted = False
        if at_once and not self._is_hurried and not self._is_retrying:
            self._is_hurried = True
            self._schedule(None)
            self._write()
        else:
            self.write_soon()

    async def flush(self) -> None:
        """Wait until everything that was added so far is safe. Raises DatabaseError."""
        if self._group:
            await self._wait(self._waiting)
        elif self._written is not None:
            await self._wait(self._waiting_for_stored)

    def when_flushed(self, callback: Callback) -> None:
        """Call back when everything that was added so far is safe, or could not be written.

        The callback must not raise.
        """
        if not self._group and self._written is None:
            callback(None)
            return
        (self._waiting if self._group else self._waiting_for_stored).append(callback)
        self.flush_soon()

    async def store(self) -> None:
        """Wait until the database has everything that was added so far. Raises DatabaseError."""
        if self._group or self._journaled:
            self._must_store = True
            await self._wait(self._readers if self._group else self._journal_readers)
        elif self._is_storing:
            await self._wait(self._waiting_for_stored)

    async def _wait(self, waiting: list[Callback]) -> None:
        future: asyncio.Future[None] = self._loop.create_future()
        waiting.append(partial(_resolve, future))
        self.flush_soon()
        await future

    async def read(self, query: Callable[[Database], T], *, fresh: bool = True) -> T:
        """Run a query on the thread.

        With `fresh`, wait first until the database has everything that was added so far.
        """
        if fresh:
            with suppress(DatabaseError):
                await self.store()
        if self._worker.is_closed:
            raise DatabaseError("the log is closed")
        future: asyncio.Future[T] = self._loop.create_future()
        self._worker.submit(query, partial(_resolve, future))
        return await future

    def look_up(self, query: Callable[[Database], T], then: Callable[[T | Exception], None]) -> None:
        """Run a query on the database as it is, and call `then` with the result. The thread does all work in order."""
        if self._worker.is_closed:
            then(DatabaseError("the log is closed"))
        else:
            self._worker.submit(query, then)

    def close(self) -> None:
        """Write all remaining changes, and end the thread."""
        self._schedule(None)
        for timer in (self._gathering, self._next_trim, self._store_due):
            if timer is not None:
                timer.cancel()
        left = self._journaled
        left.merge(self._group)
        self._worker.submit(partial(self._commit_rest, left, self._number + 1), lambda _: None)
        self._worker.close()

    def _schedule(self, due: asyncio.Handle | None) -> None:
        if self._due is not None:
            self._due.cancel()
        self._due = due

    def _on_gathered(self) -> None:
        self._gathering = None
        if self._group and self._due is None:
            self._write()

    def _write(self) -> None:
        """Write the group to the journal, or to the database if the journal does not take it."""
        self._due = None
        if self._written is not None or self._worker.is_closed:
            # The end of the current transaction schedules the next write.
            return
        self._is_hurried = self._is_retrying = False
        timeout, self._is_awaited = (RECORD_TIMEOUT if self._is_awaited else 0), False
        most = STORE_CHUNKS if timeout else MAX_RECORD_CHUNKS
        if self._group and not (self._fits_journal(most) and self._keep()):
            self._store_all(timeout)
        elif self._must_store or len(self._journaled.chunks) >= STORE_CHUNKS:
            self._store_journaled()

    # The journal

    def _fits_journal(self, most: int) -> bool:
        if self._journal is None or not self._is_journal_used or self._is_failing:
            return False
        return (
            len(self._group.chunks) <= most and is_fit(self._group) and _size_of(self._group.chunks) <= MAX_RECORD_BYTES
        )

    def _keep(self) -> bool:
        """Write the group to the journal. Return False if the journal does not take it."""
        assert self._journal is not None
        try:
            if not self._append(self._journal):
                return False
        except (ValueError, OSError) as error:
            self._give_up_journal(error)
            return False
        if self._journal.waited > RECORD_TIMEOUT:
            self._give_up_journal(TimeoutError("the disk is slow"))
        elif self._journal.wants_more:
            self._prepare(self._journal, 0)
        group, self._group = self._group, Group()
        waiting, self._waiting = self._waiting, []
        self._journal_readers += self._readers
        self._readers = []
        self._journaled.merge(group)
        if self._store_due is None:
            self._store_due = self._loop.call_later(STORE_TIMEOUT, self._store_soon)
        self._on_kept(group)
        call_back(waiting, None)
        return True

    def _append(self, journal: Journal) -> bool:
        if self._journaled:
            if journal.append(self._group):
                return True
            if self._is_storing:
                # Both halves are full.
                return False
            self._store_journaled()
        if not (self._is_ready(journal) and journal.begin(self._number + 1, self._group)):
            return False
        self._number += 1
        return True

    def _is_ready(self, journal: Journal) -> bool:
        """Whether the journal's other half can be written. If not, wait briefly for the thread to prepare it."""
        if not journal.is_ready:
            self._prepare(journal, RECORD_TIMEOUT)
        return journal.is_ready

    def _prepare(self, journal: Journal, timeout: float) -> None:
        if not self._is_preparing:
            self._is_preparing = True
            self._worker.submit(lambda _: journal.prepare(), self._on_prepared, timeout)

    def _on_prepared(self, outcome: Exception | None) -> None:
        self._is_preparing = False
        if outcome is not None:
            self._give_up_journal(outcome)

    def _give_up_journal(self, reason: Exception) -> None:
        """Stop using the journal for a while.

        The database takes everything, and at once the changes that only the journal has.
        """
        logger.warning("journal of the log not written reason=%s", reason)
        self._is_journal_used = False
        self._loop.call_later(JOURNAL_RETRY_INTERVAL, self._try_journal)
        if self._journaled:
            self._must_store = True
            self.write_soon()

    def _try_journal(self) -> None:
        if self._worker.is_closed:
            return
        if self._journaled or self._is_storing:
            # The records are still needed.
            self._loop.call_later(RETRY_INTERVAL, self._try_journal)
        else:
            self._worker.submit(Database.renew_journal, self._on_renewed)

    def _on_renewed(self, outcome: Exception | None) -> None:
        self._journal = self._database.journal
        if outcome is not None or self._journal is None:
            self._loop.call_later(JOURNAL_RETRY_INTERVAL, self._try_journal)
        else:
            self._is_journal_used = True

    # The database

    def _store_journaled(self) -> None:
        """Write the journal's changes to the database, unless it is busy. The journal takes more meanwhile."""
        if not self._is_storing and self._journaled:
            self._waiting_for_stored, self._journal_readers = self._journal_readers, []
            self._must_store = bool(self._readers)
            self._submit(self._journaled, 0)

    def _store_all(self, timeout: float) -> None:
        """Write the group to the database, with the journal's changes unless these make it large."""
        is_small = self._is_small()
        if self._is_storing or (self._journaled and not is_small):
            # The group is written next.
            self._is_hurried, self._is_awaited = True, timeout > 0
            self._store_journaled()
            return
        self._written, self._group = self._group, Group()
        rest = self._written.split(MAX_GROUP_BYTES)
        self._waiting_for_stored, self._journal_readers = self._journal_readers, []
        if rest is not None:
            self._group, self._is_hurried = rest, True
        else:
            self._waiting_for_stored += [*self._waiting, *self._readers]
            self._waiting, self._readers, self._must_store = [], [], False
        whole = Group()
        whole.merge(self._journaled)
        whole.merge(self._written)
        self._submit(whole, timeout if is_small and is_fit(whole) else 0)

    def _is_small(self) -> bool:
        """Whether the group, together with the journal's changes, can be written in a moment."""
        chunks = [*self._journaled.chunks, *self._group.chunks]
        return len(chunks) <= MAX_SMALL_CHUNKS and _size_of(chunks) <= MAX_SMALL_BYTES

    def _submit(self, whole: Group, timeout: float) -> None:
        if not self._journaled and not self._is_failing:
            # Otherwise the transaction has the number of the journal's records, or of the transaction that failed.
            self._number += 1
        self._is_storing, self._stored, self._journaled = True, self._journaled, Group()
        if self._store_due is not None:
            self._store_due.cancel()
            self._store_due = None
        self._worker.submit(partial(self._commit, whole, self._number), partial(self._on_written, whole), timeout)

    def _store_soon(self) -> None:
        """Write the journal's changes to the database, because they have waited for long enough."""
        self._store_due = None
        self._must_store = True
        self.write_soon()

    def _commit(self, group: Group, number: int, database: Database) -> dict[str, int]:
        """Write a group to the database. Runs on the thread."""
        try:
            trims = database.write(group, number)
        except Exception:
            self._unwritten = group
            raise
        if self._journal is not None:
            # Prepare the half that is free after this commit. If that fails, the event loop tries again.
            with suppress(OSError):
                self._journal.prepare()
        return trims

    def _commit_rest(self, left: Group, number: int, database: Database) -> None:
        """Write the last changes to the database. Runs on the thread."""
        self._unwritten.merge(left)
        if self._unwritten:
            try:
                database.write(self._unwritten, number)
            except Exception as error:
                logger.error("log not written reason=%s events=%d", error, len(self._unwritten.chunks))

    def _on_written(self, whole: Group, outcome: dict[str, int] | Exception) -> None:
        stored, self._stored, self._is_storing = self._stored, Group(), False
        written, self._written = self._written or Group(), None
        waiting, self._waiting_for_stored = self._waiting_for_stored, []
        if isinstance(outcome, Exception):
            stored.merge(self._journaled)
            written.merge(self._group)
            self._journaled, self._group = stored, written
            self._on_failed(waiting, outcome)
            return
        self._is_failing = False
        self._on_kept(written)
        self._on_stored(whole, outcome)
        call_back(waiting, None)
        if self._must_store or (self._group and (self._is_hurried or self._gathering is None)):
            self._schedule(self._loop.call_soon(self._write))
        else:
            # The callers that hurried are served. The next caller can schedule a write again.
            self._is_hurried = False
        if self._database.size > self._trim_above:
            # Soon, not now: reads that waited for this group come first.
            self._loop.call_soon(self._trim_now)

    def _on_failed(self, waiting: list[Callback], error: Exception) -> None:
        reason, count = str(error), len(self._journaled.chunks) + len(self._group.chunks)
        logger.error("log not written reason=%s events=%d", reason, count, exc_info=_unexpected(error))
        self._unwritten = Group()
        self._is_failing = self._is_retrying = self._must_store = True
        self._is_hurried = False
        self._schedule(self._loop.call_later(RETRY_INTERVAL, self._write))
        waiting += [*self._waiting, *self._readers, *self._journal_readers]
        self._waiting, self._readers, self._journal_readers = [], [], []
        call_back(waiting, DatabaseError(reason))
        self._failed(reason)

    def _trim_now(self) -> None:
        if self._next_trim is None:
            return
        self._next_trim.cancel()
        self._next_trim = None
        self._worker.submit(self._trim, self._on_trimmed)

    def _on_trimmed(self, outcome: dict[str, int] | Exception) -> None:
        if isinstance(outcome, Exception):
            logger.error("log not trimmed", exc_info=outcome)
        else:
            self._trimmed(outcome)
        self._next_trim = self._loop.call_later(self._trim_every, self._trim_now)


def call_back(callbacks: Iterable[Callback], failure: Exception | None) -> None:
    """Call waiting callbacks and log their exceptions: one that raises keeps neither others nor the next group back."""
    for callback in callbacks:
        try:
            callback(failure)
        except Exception:
            logger.exception("callback after a write failed")


def _resolve(future: asyncio.Future[T], outcome: T | Exception) -> None:
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def _size_of(chunks: list[Chunk]) -> int:
    return sum([chunk.size for chunk in chunks])


def _unexpected(error: Exception) -> Exception | None:
    return None if isinstance(error, DatabaseError) else error
