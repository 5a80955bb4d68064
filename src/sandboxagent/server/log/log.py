"""Append events in order, hand them to followers, and read them back from memory or disk.

Clients see nothing that is not in the log.

`append` gives an envelope its position, and hands it to its channel's followers at once. The disk gets it in a group a
few milliseconds later, and `committed` waits for that. The newest chunks stay in memory (the tail), sorted by channel,
so that an event costs only the readers of its channel. This module knows nothing of agents, connections or HTTP.
"""

import asyncio
import heapq
import logging
import time
from collections import deque
from collections.abc import Callable, Container, Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate, count
from typing import TypeVar

from msgspec import Struct, field

from sandboxagent.protocol.errors import LogUnavailable
from sandboxagent.server.log.damage import Damage
from sandboxagent.server.log.database import Database, DatabaseError
from sandboxagent.server.log.event import (
    CHUNK_COST_BYTES,
    NO_CLIENT,
    Chunk,
    Direction,
    Follower,
    newer_than,
    report_failed,
)
from sandboxagent.server.log.journal import Group, KeptOutcome, Publisher
from sandboxagent.server.log.reader import LogReader
from sandboxagent.server.log.seen import KeyFilter
from sandboxagent.server.log.session_index import IndexEntry, SessionIndex
from sandboxagent.server.log.writer import GATHER_TIMEOUT, Callback, Writer, call_back

logger = logging.getLogger(__name__)
T = TypeVar("T")

RESERVE = 1 << 20
"""Number of positions reserved on disk ahead of use. A position that a client may have seen is never given out again
after a crash."""
PAGE_BYTES = 1 << 20
"""Bytes read from disk at a time for a reader that fell behind."""
MAX_PUBLISH_PAGE_BYTES = 8 << 20
"""Maximum bytes of chunks from memory that a publisher gets at a time."""
PUBLISH_TIMEOUT = 10.0
"""Maximum seconds that an answer to a fleet's client waits until the fleet's stream has all earlier events."""
LOOK_UP_TIMEOUT = 10.0
"""Maximum seconds that a request waits for the disk to look up its idempotency key."""
SEEN_AT_ONCE = 2000
"""Number of idempotency keys read from disk at a time."""
TRIM_INTERVAL = 5.0
"""Seconds between two searches for events that are too old. A log that is too large is trimmed at once."""


class _Channel(Struct):
    tail: deque[Chunk] | tuple[()] = ()
    """The newest chunks of the channel. A deque only while it has any: most channels of connections are empty."""
    followers: set[Follower] = field(default_factory=set[Follower])


class Limits(Struct, frozen=True):
    """Limits of the log, in bytes and seconds."""

    max_bytes: int = 1 << 30
    max_age: float = 30 * 86400.0
    tail_bytes: int = 32 << 20
    backlog_bytes: int = 32 << 20


class Log:
    """The log of one server."""

    def __init__(
        self,
        database: Database,
        limits: Limits,
        clock: Callable[[], float] = time.time,
        damage: Damage | None = None,
        gather: float = GATHER_TIMEOUT,
        beginning: int = 0,
        look_up_timeout: float = LOOK_UP_TIMEOUT,
    ) -> None:
        """Load the log's state from `database`, and start to write.

        `gather` is the number of seconds that events wait for more before they are written, unless a caller waits for
        them. A log that has not given out a position yet begins after `beginning`.
        """
        self.damage = damage or Damage(None)
        """Damage found on disk that has not been acknowledged."""
        self.trims: dict[str, int] = {}
        """Channel → last position dropped from it since the server started."""
        self.failure: str | None = None
        """Reason why the log cannot be written at the moment; None while it can."""
        self.publisher: Publisher | None = None
        """Publisher that sends the log to a fleet, if the server has joined one."""
        self.limits = limits
        self._clock = clock
        self._look_up_timeout = look_up_timeout
        given_out = database.load().reserved
        self.position = given_out or beginning
        self._reserved = self.position + RESERVE
        # Written before any position is given out, and not with the first group: readers do not wait for the disk.
        database.write(Group(reserve=self._reserved))
        self._committed = self._stored = self.position
        """Last position that outlives a crash, and last position that can be read from disk."""
        self._awaited = 0
        """The last position that clients of a fleet should see soon."""
        self._waiting: list[tuple[int, int, Callback]] = []
        self._numbers = count()
        self._next_commit: asyncio.Future[None] | None = None
        """The future for which readers wait that have all safe events."""
        self._waking = 0
        """Number of callers of `committed` whose position is safe, but which have not resumed yet."""
        self._channels: dict[str, _Channel] = {}
        self._historians: list[Follower] = []
        self._tail: deque[Chunk] = deque()
        self._tail_size = 0
        self._backlog = 0
        self._drained: list[Callable[[], None]] = []
        self._postponed: list[Callable[[], None]] | None = None
        """Writes to readers that wait for `let_go`; None while no writes are postponed."""
        self._database = database
        self._unsaved: dict[str, bytes] = {}
        """Session id → the record that is on its way to the disk."""
        self._undeleted: dict[str, int] = {}
        """Session id → the position up to which its events will be deleted on disk."""
        self._unwritten_outcomes: dict[tuple[str, str], KeptOutcome | None] = {}
        """Scope and key → the outcome that is on its way to the disk."""
        self._seen: KeyFilter | None = None
        """Idempotency keys that may be on disk; None while they are not known."""
        self._seen_since: list[tuple[str, str]] | None = None
        """Idempotency keys added while those on disk are being read; None at other times."""
        self.evicted = given_out
        """Position after which everything is in memory."""
        loop = asyncio.get_running_loop()
        trim_every = min(TRIM_INTERVAL, limits.max_age / 2)
        told = self._on_kept, self._on_stored, self._on_failed, self._note_trims
        self._writer = Writer(database, loop, *told, self._trim, trim_every, limits.max_bytes, gather)
        self._seen_since = []
        self._begin_seen(database.count_outcomes())

    def append(
        self,
        lines: list[bytes],
        direction: Direction,
        session_id: str | None,
        channel: str = NO_CLIENT,
        *,
        exclude: str = "",
        history: bool = True,
        is_request: bool = False,
        repeats: int | None = None,
        can_wait: bool = False,
    ) -> Chunk:
        """Give envelopes their positions, and hand them to the followers of the channel.

        `is_request` marks an agent's request. `repeats` is the position of an earlier request that this chunk delivers
        again. With `can_wait`, the chunk goes to a fleet with the chunk after it, or a little later. So do chunks that
        no client sees.
        """
        first = self.position + 1
        request = first if is_request else repeats
        chunk = Chunk(first, lines, direction, session_id, channel, self._clock(), exclude, history, request)
        self.position = chunk.last
        size = chunk.size
        self._tail.append(chunk)
        self._tail_size += size + CHUNK_COST_BYTES
        self._backlog += size
        # Added before any follower is called: whatever followers do, the disk gets all chunks in the order of their
        # positions.
        self._writer.group.chunks.append(chunk)
        if channel:
            entry = self._channels.get(channel) or self._channel(channel)
            tail = entry.tail
            if tail:
                tail.append(chunk)
            else:
                entry.tail = deque((chunk,))
            # Written inline, because this runs for every message.
            for follower in tuple(entry.followers):
                try:
                    follower.appended(chunk)
                except Exception as error:
                    report_failed(chunk, error)
            # Readers that keep up have written the frames by now.
            chunk.shared = None
        if self.publisher is not None and channel and not can_wait:
            self._awaited = chunk.last
            if self.publisher.is_idle:
                self._writer.write_soon()
        if self._tail_size > self.limits.tail_bytes:
            self._evict()
        if self.position > self._reserved - RESERVE // 2:
            self._reserved = self._writer.group.reserve = self.position + RESERVE
        if self._historians and history and session_id is not None:
            for historian in self._historians:
                try:
                    historian.appended(chunk)
                except Exception as error:
                    report_failed(chunk, error)
        return chunk

    def save_session(self, session_id: str, record: bytes, entry: IndexEntry | None = None) -> None:
        """Save a session's record together with the events before it. Give `entry` when it has changed."""
        self._unsaved[session_id] = record
        group = self._writer.group
        group.sessions[session_id] = record
        if entry is not None:
            group.index[session_id] = entry

    def delete_session(self, session_id: str) -> None:
        """Delete a session and its events, except deliveries to single clients that are still to be published."""
        through = self.position
        self._unsaved.pop(session_id, None)
        self._undeleted[session_id] = through
        group = self._writer.group
        group.sessions.pop(session_id, None)
        group.index.pop(session_id, None)
        group.deleted[session_id] = through
        if self.publisher is not None:
            group.unpublished_after = min(group.unpublished_after, self.publisher.published)

    def is_saved(self, session_id: str) -> bool:
        """Whether the disk has the newest record of a session."""
        return session_id not in self._unsaved

    def is_being_deleted(self, session_id: str) -> bool:
        """Whether a session was deleted in memory and is still on the disk."""
        return session_id in self._undeleted

    def ask(self, question: Callable[[SessionIndex], T]) -> T:
        """Query the index of sessions on disk at once. Raises LogUnavailable."""
        try:
            return question(self._database.index)
        except DatabaseError as error:
            raise LogUnavailable(str(error)) from error

    @contextmanager
    def reading(self) -> Generator[None]:
        """Run several queries as one read, without an await between them. Raises LogUnavailable."""
        try:
            with self._database.reading():
                yield
        except DatabaseError as error:
            raise LogUnavailable(str(error)) from error

    def keep_trims(self, channels: Container[str]) -> None:
        """Forget the trims of all but these channels: no connection can ask for the others."""
        for name in list(self.trims):
            if name not in channels:
                self.trims.pop(name, None)

    def save_outcome(self, scope: str, key: str, digest: bytes, response: bytes | None) -> None:
        """Save the outcome of a request under its idempotency key. `response` is None while the request runs."""
        self._write_outcome(scope, key, (digest, response))

    def forget_outcome(self, scope: str, key: str) -> None:
        """Forget an idempotency key whose request had no effect, so that the request may be repeated."""
        self._write_outcome(scope, key, None)

    def _write_outcome(self, scope: str, key: str, outcome: KeptOutcome | None) -> None:
        name = scope, key
        self._unwritten_outcomes[name] = outcome
        self._writer.group.outcomes[name] = outcome
        if self._seen_since is not None:
            self._seen_since.append(name)
        if self._seen is not None:
            self._seen.add(name)
            if self._seen.room <= 0 and self._seen_since is None:
                self._load_seen()

    def is_new(self, scope: str, key: str) -> bool:
        """Whether an idempotency key is certainly not in use, known without reading the disk."""
        return self._seen is not None and (scope, key) not in self._seen

    async def outcome(self, scope: str, key: str) -> KeptOutcome | None:
        """Return the outcome under an idempotency key, as of the moment when the caller resumes.

        Raises LogUnavailable.
        """
        name = scope, key
        if name in self._unwritten_outcomes:
            return self._unwritten_outcomes[name]
        future: asyncio.Future[KeptOutcome | None] = asyncio.get_running_loop().create_future()

        def then(found: KeptOutcome | Exception | None) -> None:
            if future.done():
                return
            if name in self._unwritten_outcomes:
                # The outcome was saved while the disk was read. One that has left this dict was on disk before, and was
                # found there.
                future.set_result(self._unwritten_outcomes[name])
            elif isinstance(found, Exception):
                future.set_exception(LogUnavailable(str(found)))
            else:
                future.set_result(found)

        self._writer.look_up(lambda database: database.outcome(scope, key), then)
        try:
            async with asyncio.timeout(self._look_up_timeout):
                return await future
        except TimeoutError:
            raise LogUnavailable("the disk is slow; repeat the request") from None

    def _load_seen(self) -> None:
        """Read the keys from disk, a batch at a time. Keys added meanwhile count in the old and in the new filter."""
        # Start with the keys that are not on disk yet, because the read does not find them.
        self._seen_since = list(self._unwritten_outcomes)
        self._writer.look_up(Database.count_outcomes, self._begin_seen)

    def _begin_seen(self, count: int | Exception) -> None:
        if isinstance(count, Exception):
            self._give_up_seen(count)
        elif count == 0:
            self._end_seen(KeyFilter())
        else:
            self._read_seen(KeyFilter(count), 0)

    def _read_seen(self, seen: KeyFilter, after: int) -> None:
        def then(names: list[tuple[int, str, str]] | Exception) -> None:
            if isinstance(names, Exception):
                self._give_up_seen(names)
                return
            seen.add_all((scope, key) for _, scope, key in names)
            if len(names) == SEEN_AT_ONCE:
                self._read_seen(seen, names[-1][0])
            else:
                self._end_seen(seen)

        self._writer.look_up(lambda database: database.names_of_outcomes(after, SEEN_AT_ONCE), then)

    def _end_seen(self, seen: KeyFilter) -> None:
        seen.add_all(self._seen_since or ())
        self._seen, self._seen_since = seen, None

    def _give_up_seen(self, error: Exception) -> None:
        """Do without the filter: every key is then looked up on disk."""
        logger.warning("idempotency keys not read reason=%s", error)
        self._seen = self._seen_since = None

    async def committed(self, position: int) -> None:
        """Wait until everything up to a position is on disk; raises LogUnavailable when it cannot be."""
        if position <= self._committed:
            if self._waking:
                # Callers that waited for the position resume first, so that responses come in the order of their
                # events.
                await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (position, next(self._numbers), partial(self._wake, future)))
        self._writer.flush_soon()
        try:
            await future
        finally:
            if future.done() and not future.cancelled() and future.exception() is None:
                self._waking -= 1

    def _wake(self, future: asyncio.Future[None], failure: Exception | None) -> None:
        """Resume a caller of `committed`."""
        if future.done():
            return
        if failure is None:
            future.set_result(None)
            self._waking += 1
        else:
            future.set_exception(failure)

    def when_committed(self, position: int, callback: Callback) -> None:
        """Call back when everything up to a position is on disk, or with LogUnavailable. The callback must not raise.

        Callbacks run in the order of their positions, before waiting callers of `committed` resume.
        """
        if position <= self._committed:
            callback(None)
            return
        heapq.heappush(self._waiting, (position, next(self._numbers), callback))
        self._writer.flush_soon()

    async def published(self, position: int) -> None:
        """Wait until everything up to a position is on disk and, on a fleet's node, in the fleet's stream.

        Raises LogUnavailable when that fails or takes too long.
        """
        await self.committed(position)
        if self.publisher is None:
            return
        try:
            async with asyncio.timeout(PUBLISH_TIMEOUT):
                await self.publisher.drained(position)
        except TimeoutError:
            failure_reason = self.publisher.failure_reason or "the fleet's stream is slow"
            raise LogUnavailable(f"{failure_reason}; repeat the request") from None

    async def flushed(self) -> None:
        """Wait until everything handed over so far is on disk, including sessions and outcomes."""
        try:
            await self._writer.flush()
        except DatabaseError as error:
            raise LogUnavailable(str(error)) from error

    def when_flushed(self, callback: Callback) -> None:
        """Call back when everything handed over so far is on disk, or with LogUnavailable.

        The callback must not raise.
        """
        self._writer.when_flushed(lambda error: callback(None if error is None else LogUnavailable(str(error))))

    def hold(self, *, join: bool) -> bool:
        """Hold writes to the disk until `let_go` and, with `join`, writes to readers.

        Return False if they are held already.

        So everything that an agent has written at once goes to a reader at once, and to the disk at once.
        """
        if self._writer.is_held:
            return False
        self._writer.is_held = True
        self._postponed = [] if join else None
        return True

    def let_go(self, *, at_once: bool) -> None:
        """Write the held events to readers, then to the disk.

        With `at_once` the disk follows at once, otherwise at the end of this turn of the event loop.
        """
        postponed, self._postponed = self._postponed, None
        for write in postponed or ():
            try:
                write()
            except Exception:
                logger.exception("writing to a reader failed")
        self._writer.let_go(at_once=at_once)

    def postpone(self, write: Callable[[], None]) -> bool:
        """Queue a write to a reader until `let_go`.

        Return False if writes are not held, so that the caller should write at once.
        """
        if self._postponed is None:
            return False
        self._postponed.append(write)
        return True

    def follow(self, channel: str, follower: Follower) -> None:
        self._channel(channel).followers.add(follower)

    def follow_history(self, follower: Follower) -> None:
        """Call a follower for every chunk that becomes part of a session's history."""
        self._historians.append(follower)

    def unfollow(self, channel: str, follower: Follower) -> None:
        entry = self._channels.get(channel)
        if entry is not None:
            entry.followers.discard(follower)
            self._drop_if_idle(channel, entry)

    def forget(self, channel: str) -> None:
        """Drop a channel's deliveries, because no client can ask for them again. Those still to be published stay."""
        self.trims.pop(channel, None)
        through = self.position if self.publisher is None else self.publisher.published
        self._writer.group.forgotten_channels[channel] = through

    def reach(self, channels: Iterable[str]) -> int:
        """Return the position after which everything is in memory, in any channel."""
        return self.evicted

    def in_memory(self, channels: Iterable[str], after: int, limit: int) -> tuple[list[Chunk], bool] | None:
        """Return the chunks after a position, and whether these are all.

        Return None when memory does not reach back that far.
        """
        if after < self.evicted:
            return None
        runs = [newer_than(after, self._channels[name].tail) for name in channels if name in self._channels]
        chunks: list[Chunk] = []
        for chunk in heapq.merge(*runs, key=lambda chunk: chunk.first):
            if limit <= 0:
                return chunks, False
            chunks.append(chunk.after(after))
            limit -= chunk.size
        return chunks, True

    async def page(self, channels: Sequence[str], after: int, through: int) -> list[Chunk]:
        """Read a page of the chunks after one position and up to another, which must be on disk."""
        return await self._read(lambda database: database.follow(channels, after, through, PAGE_BYTES), fresh=False)

    async def since(self, position: int) -> list[Chunk]:
        """Return a page of the chunks after a position that are safe, in order."""
        return (await self.read_safe(position))[1]

    def reader(self, after: int) -> LogReader:
        """Return a reader of all safe events after a position, which waits for new ones at the end."""
        return LogReader(self, after)

    async def wait_for_commit(self) -> None:
        """Wait until further events are safe."""
        if self._next_commit is None:
            self._next_commit = asyncio.get_running_loop().create_future()
        # Shielded: a reader that is cancelled must not cancel the future of the others.
        await asyncio.shield(self._next_commit)

    async def read_safe(self, after: int) -> tuple[int, list[Chunk]]:
        """Return the last position after another one that was deleted, and a page of the safe chunks that follow.

        The position is 0 if all of them are in memory, or on disk.
        """
        deleted, position = 0, after
        while (evicted := self.evicted) > position:
            found, stored = await self._read(partial(_read_stored, after=position), fresh=False)
            deleted = max(deleted, found)
            if stored:
                return deleted, stored
            # Newer chunks may be in the journal alone, so memory has to provide them.
            position = evicted
        safe = self._safe_since(position)
        if not safe and self._awaited > self._committed:
            self._writer.write_soon()
        return deleted, safe

    def _safe_since(self, position: int) -> list[Chunk]:
        """Return a page of the safe chunks after a position, from memory."""
        newer = [chunk for chunk in newer_than(position, self._tail) if chunk.last <= self._committed]
        sizes = accumulate((chunk.size for chunk in newer), initial=0)
        return [
            chunk.after(position)
            for chunk, before in zip(newer, sizes, strict=False)
            if before < MAX_PUBLISH_PAGE_BYTES
        ]

    async def history(self, session_id: str, after: int, before: int, limit: int) -> list[Chunk]:
        """Read chunks of a session's history between two positions (both exclusive), about `limit` events."""
        return await self._read(lambda database: database.history(session_id, after, before, limit, PAGE_BYTES))

    @property
    def full(self) -> bool:
        """Whether too much waits for the disk or the fleet, so that producers should pause."""
        return self._backlog > self.limits.backlog_bytes or (self.publisher is not None and self.publisher.full)

    def when_drained(self, callback: Callable[[], None]) -> None:
        """Call back once the disk has caught up."""
        self._drained.append(callback)

    def close(self) -> None:
        self._writer.close()

    async def _read(self, query: Callable[[Database], T], *, fresh: bool = True) -> T:
        try:
            return await self._writer.read(query, fresh=fresh)
        except DatabaseError as error:
            raise LogUnavailable(str(error)) from error

    def _channel(self, name: str) -> _Channel:
        entry = self._channels.get(name)
        if entry is None:
            entry = self._channels[name] = _Channel()
        return entry

    def _evict(self) -> None:
        """Keep the tail within its limit, but never evict a chunk that is not on disk yet."""
        while self._tail_size > self.limits.tail_bytes and self._tail[0].last <= self._stored:
            chunk = self._tail.popleft()
            self._tail_size -= chunk.size + CHUNK_COST_BYTES
            self.evicted = chunk.last
            if chunk.channel:
                entry = self._channels[chunk.channel]
                if isinstance(entry.tail, deque):
                    entry.tail.popleft()
                entry.tail = entry.tail or ()
                self._drop_if_idle(chunk.channel, entry)

    def _drop_if_idle(self, name: str, entry: _Channel) -> None:
        if not entry.tail and not entry.followers:
            self._channels.pop(name, None)

    def _on_kept(self, group: Group) -> None:
        """Resume the callers that wait for a group, because it is safe."""
        if self.failure is not None:
            logger.warning("log is written again events=%d", len(group.chunks))
            self.failure = None
        if group.chunks:
            self._committed = max(self._committed, group.chunks[-1].last)
            if self._next_commit is not None:
                self._next_commit.set_result(None)
                self._next_commit = None
        while self._waiting and self._waiting[0][0] <= self._committed:
            callback = heapq.heappop(self._waiting)[2]
            try:
                callback(None)
            except Exception:
                logger.exception("callback after a write failed")
        if self.publisher is not None:
            self.publisher.committed(group)

    def _on_stored(self, group: Group, trims: dict[str, int]) -> None:
        """Note that the database has a group, so that memory need not keep it."""
        self._note_trims(trims)
        for session_id, record in group.sessions.items():
            if self._unsaved.get(session_id) is record:
                del self._unsaved[session_id]
        for session_id, through in group.deleted.items():
            if self._undeleted.get(session_id) == through:
                del self._undeleted[session_id]
        for name, outcome in group.outcomes.items():
            if self._unwritten_outcomes.get(name) is outcome:
                self._unwritten_outcomes.pop(name, None)
        if group.chunks:
            self._stored = max(self._stored, group.chunks[-1].last)
            for chunk in group.chunks:
                self._backlog -= chunk.size
                chunk.shared = None
        self._evict()
        self.resume_producers()

    def resume_producers(self) -> None:
        """Call back the producers that pause, unless too much still waits."""
        if not self.full:
            drained, self._drained = self._drained, []
            for callback in drained:
                try:
                    callback()
                except Exception:
                    logger.exception("callback after a write failed")

    def _on_failed(self, reason: str) -> None:
        self.failure = reason
        waiting, self._waiting = self._waiting, []
        call_back([callback for _, _, callback in waiting], LogUnavailable(reason))

    def _trim(self, database: Database) -> dict[str, int]:
        """Trim the database, on the writer's thread. Return the last dropped position of each channel."""
        limits = self.limits
        try:
            ended = database.ended_sessions() if database.size > limits.max_bytes else ()
            through = None if self.publisher is None else self.publisher.published
            trims = database.trim(limits.max_bytes, limits.max_age, ended, through)
        except DatabaseError as error:
            logger.error("log not trimmed reason=%s", error)
            return {}
        if trims:
            logger.info("log trimmed channels=%d size=%d", len(trims), database.size)
        return trims

    def _note_trims(self, trims: dict[str, int]) -> None:
        for channel, through in trims.items():
            if not channel.startswith("history:"):
                self.trims[channel] = max(through, self.trims.get(channel, 0))


def _read_stored(database: Database, after: int) -> tuple[int, list[Chunk]]:
    # Both on the thread of the database, so that nothing is deleted in between.
    return database.last_deleted(after), database.since(after, PAGE_BYTES)
