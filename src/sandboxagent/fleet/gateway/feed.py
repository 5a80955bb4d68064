"""Read the fleet's stream for clients of this gateway, as a server's streams read its log.

The feed takes the place of a server's log: streams follow channels, read the tail from memory, and read pages for older
events. The tail of a channel is complete after the stream's reader has begun to follow it.
"""

import asyncio
import heapq
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from sandboxagent.core.tasks import Tasks
from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.bus.interface import BusError, BusStream, StreamFollowing, StreamRecord
from sandboxagent.fleet.gateway.channel import Channel, Holding, Progress, assemble, subject_of
from sandboxagent.fleet.gateway.limits import Unfinished
from sandboxagent.fleet.records import ChunkAssembly, comes_after, end_of, ownership, position_of, sequence_of
from sandboxagent.protocol.errors import LogUnavailable
from sandboxagent.server.log.event import CHUNK_COST_BYTES, Chunk, Follower, newer_than, report_failed, session_channel
from sandboxagent.server.log.log import PAGE_BYTES

logger = logging.getLogger(__name__)
T = TypeVar("T")
Dropped = Callable[[str], Awaitable[int]]
"""Returns the sequence up to which events of a session without events were dropped, by its subject. Raises BusError."""

RETRY_INTERVAL = 0.05
"""Seconds before a server that is behind, or does not answer, is asked again."""
GATHER = 2
"""Changes of subjects are gathered for this many times the duration of the last change."""
MAX_GATHER_TIMEOUT = 0.25
"""Maximum number of seconds for which changes are gathered. A change that waited for a new leader says nothing about
the next one."""
AT_ONCE = 64
"""Number of channels whose ends are requested at the same time."""
MAX_EXACT = 500
"""Maximum number of subjects that are followed one by one. With more, the feed follows all subjects."""
EVERYTHING = 1 << 62
MAX_UNTAKEN_BYTES = 32 << 20
"""Maximum number of bytes of records that wait to be handed over. With more, all readers start again."""
ATTACH_TIMEOUT = 5.0
"""Seconds that an attaching client waits until this gateway has the events that other gateways have shown."""
CHANGE_TIMEOUT = 30.0
"""Seconds for the stream's reader to begin to follow a channel. NATS does not answer if it takes longer."""
SEARCH_STEP = 64
"""Number of messages in which the last one of a channel is searched first, and the factor of each next search."""
MAX_LINE_BYTES = 64 << 20
"""Maximum number of bytes of a node's line."""
PART_COST_BYTES = 256
"""Number of bytes that a part takes in memory besides its content."""
MAX_BEHIND_ATTEMPTS = 100
"""Maximum number of attempts to read from a server that is behind. After that, the reader has to return later."""


class Feed:
    """The events that one gateway reads from the stream, shared by all its clients."""

    def __init__(
        self,
        stream: BusStream,
        tail_bytes: int,
        most_untaken: int = MAX_UNTAKEN_BYTES,
        longest: int = MAX_LINE_BYTES,
        dropped: "Dropped | None" = None,
    ) -> None:
        """Create the feed of a stream.

        `longest` is the maximum number of bytes of a node's line. `dropped` tells whether a session without events had
        some.
        """
        self.position = 0
        """The last position that is known to have been assigned."""
        self.fell_behind: Callable[[], None] = lambda: None
        """Called when live readers have missed events. Their streams must start again."""
        self.gave_up: Callable[[str], None] = lambda node: None
        """Called when a node's line is not assembled, because the node has begun too many lines."""
        self._unfinished = Unfinished(2 * longest)
        self.trims: dict[str, int] = {}
        """For each followed channel: the last position that was deleted from the stream."""
        self.progress = Progress()
        self._stream = stream
        self._dropped = dropped or _had_none
        self._tail_bytes = tail_bytes
        self._most_untaken = most_untaken
        self._tail: deque[tuple[Channel, Chunk]] = deque()
        self._size = 0
        self._channels: dict[str, Channel] = {}
        """Channels by name. All channels except sessions' are named after their subjects."""
        self._by_subject: dict[str, Channel] = {}
        """Channels of sessions by subject."""
        self._filters: Counter[str] = Counter()
        """The patterns that the stream's reader follows, with the number of channels that need each."""
        self._records: asyncio.Queue[StreamRecord] = asyncio.Queue()
        self._come = 0
        """Sequence of the last record that the reader has delivered."""
        self._untaken = 0
        """Number of bytes of records that have arrived and are not handed over yet."""
        self._reader: StreamFollowing | None = None
        self._changed = asyncio.Event()
        self._settled = asyncio.Event()
        """Set when some channels have become complete or were dropped. Each time a new event takes its place."""
        self._tasks = Tasks()
        self._pumping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to read the stream."""
        position = await self.refresh()
        self._reader = await self._stream.follow([], sequence_of(position), self._take_in)
        self._begin_to_pump()
        self._tasks.run(self._adjust(), "adjust the feed's reader")

    def _begin_to_pump(self) -> None:
        if self._pumping is not None:
            self._pumping.cancel()
        self._pumping = self._tasks.run(self._pump(), "take in the feed's records")

    async def close(self) -> None:
        self._tasks.cancel()
        if self._reader is not None:
            await self._reader.close()

    async def refresh(self) -> int:
        """Read the last position of the stream. Raises LogUnavailable."""
        _, last = await _ask(self._stream.ends())
        self.position = max(self.position, end_of(last))
        return self.position

    # Called by connections and streams

    def follow(self, channel: str, follower: Follower) -> None:
        """Call a follower for new events of a channel: of a session, or of a subject of the stream.

        Until the stream's reader follows the channel, new events are only in pages.
        """
        found = self._channels.get(channel)
        if found is None:
            found = self._channels[channel] = Channel(channel)
            if found.subject != channel:
                self._by_subject[found.subject] = found
            self._filters[subjects.filter_of(found.subject)] += 1
            self._changed.set()
        found.add(follower)

    async def complete(self, channels: Iterable[str]) -> None:
        """Wait until the stream's reader follows all these channels. Raises LogUnavailable."""
        await self._wait_for([self._channels[name] for name in channels if name in self._channels])

    async def attach(self, channel: str, follower: Follower, begin: Callable[[int], None]) -> int:
        """Follow a channel from a position on, without missing or repeating an event, and return the position.

        `begin` gets the position, too. It is not before any event that a client has seen at another gateway. Raises
        LogUnavailable.
        """
        holding = Holding()
        followed_before = channel in self._channels
        self.follow(channel, holding)
        found = self._channels[channel]
        try:
            await self._wait_for([found])
            if followed_before:
                await self._catch_up(found)
            # No await from here on, so that the follower gets exactly the events after the last message handed over.
            position = end_of(found.sequence)
            begin(position)
            self.follow(channel, follower)
        finally:
            self.unfollow(channel, holding)
        return position

    async def catch_up(self, channel: str) -> None:
        """Wait until this gateway has all events of a channel that are in the stream. Raises LogUnavailable."""
        found = self._channels.get(channel)
        if found is not None:
            await self._wait_for([found])
            await self._catch_up(found)

    async def _catch_up(self, channel: Channel) -> None:
        """Wait until this gateway has all events of a channel, because another gateway may be ahead."""
        await self._wait_until_reached(channel, await self._last(channel.subject))

    async def _wait_until_reached(self, channel: Channel, sequence: int) -> None:
        try:
            async with asyncio.timeout(ATTACH_TIMEOUT):
                await channel.reached(sequence)
        except TimeoutError as error:
            raise LogUnavailable.of_fleet(
                "this gateway is behind the fleet's stream; try again, or at another one"
            ) from error

    def unfollow(self, channel: str, follower: Follower) -> None:
        found = self._channels.get(channel)
        if found is None:
            return
        found.discard(follower)
        if not found.is_followed:
            self._drop(channel, found)

    def drop(self, channel: str) -> None:
        """Remove all followers of a channel."""
        found = self._channels.get(channel)
        if found is not None:
            self._drop(channel, found)

    def _drop(self, channel: str, found: Channel) -> None:
        del self._channels[channel]
        self._unfinished.forget(channel)
        self._by_subject.pop(found.subject, None)
        wanted = subjects.filter_of(found.subject)
        self._filters[wanted] -= 1
        if not self._filters[wanted]:
            del self._filters[wanted]
        self._changed.set()
        if found.complete_after is None:
            self._wake()

    def reach(self, channels: Iterable[str]) -> int:
        """Return the position after which memory has all events of these channels."""
        found = [self._channels[name] for name in channels if name in self._channels]
        return max((each.complete_after or 0 for each in found), default=0)

    def handed_over(self, channel: str) -> int:
        """Return the position up to which a channel's events have come to its followers.

        Events from before these followers count as well.
        """
        found = self._channels.get(channel)
        return 0 if found is None else end_of(found.sequence)

    async def last_meant(self, channel: str, after: int, is_meant: Callable[[Chunk], bool]) -> int:
        """Return the position of the last event after `after` that is meant. Return 0 for none, or without followers.

        Raises LogUnavailable.
        """
        found = self._channels.get(channel)
        if found is None:
            return 0
        await self._wait_for([found])
        reach = found.complete_after or 0
        newest = [chunk.last for chunk in newer_than(after, found.tail) if is_meant(chunk)]
        if newest or reach <= after:
            return max(newest, default=0)
        step = SEARCH_STEP
        while True:
            start = max(after, reach - position_of(step))
            chunks: list[Chunk] = []
            cursor, more = start, True
            while more:
                page, more = await self._read(channel, cursor, reach, sequence_of(reach), self.trims)
                chunks += [chunk for chunk in page if chunk.channel and is_meant(chunk)]
                cursor = page[-1].last if page else cursor
            if chunks or start == after:
                return chunks[-1].last if chunks else 0
            step *= SEARCH_STEP

    def postpone(self, write: Callable[[], None]) -> bool:
        """Return False, because records come one by one, and no more are expected at once."""
        return False

    def in_memory(self, channels: Iterable[str], after: int, limit: int) -> tuple[list[Chunk], bool] | None:
        """Return chunks after a position, and whether these are all.

        Return None if memory does not reach back that far.
        """
        found = [self._channels[name] for name in channels if name in self._channels]
        if any(each.complete_after is None or after < each.complete_after for each in found):
            return None
        chunks: list[Chunk] = []
        for chunk in heapq.merge(*(newer_than(after, each.tail) for each in found), key=lambda chunk: chunk.first):
            if limit <= 0:
                return chunks, False
            chunks.append(chunk.after(after))
            limit -= chunk.size
        return chunks, True

    async def page(self, channels: Sequence[str], after: int, through: int) -> list[Chunk]:
        """Return a page of chunks after one position and up to another; an empty list if there are no more.

        The pages have everything that the stream has up to there, even events that the reader has not delivered yet.

        Raises:
            LogUnavailable: the stream cannot be read.
        """
        found = [self._channels[name] for name in channels if name in self._channels]
        await self._wait_for(found)
        wanted = max(through, self.reach(channels))
        await self._hear_of_attachments(channels, sequence_of(wanted))
        # A channel may be new at a sequence that the reader has not reached yet, so the leader is asked for its end.
        behind = [each for each in found if max(each.sequence, self._come) < sequence_of(wanted)]
        ends = {
            each.channel: end.sequence for each, end in zip(behind, await self._find_ends(behind), strict=True) if end
        }
        while True:
            through = wanted
            runs: list[list[Chunk]] = []
            for each in found:
                needed = max(each.sequence, ends.get(each.channel, 0))
                chunks, more = await self._read(each.channel, after, through, needed, self.trims)
                if more:
                    through = min(through, chunks[-1].last)
                runs.append(chunks)
            merged = heapq.merge(*runs, key=lambda chunk: chunk.first)
            meant = [chunk for chunk in merged if chunk.last <= through and chunk.channel]
            if meant or through >= wanted:
                return meant
            # Clients see nothing of this page, but may see events after it.
            after = through

    async def _hear_of_attachments(self, channels: Iterable[str], through: int) -> None:
        """Wait for the attachments that nodes have reported for these channels up to a sequence.

        Otherwise a page would leave out events of sessions that were attached before its end.
        """
        names = [subjects.attachments_beside(name) for name in channels if subjects.is_own(name)]
        for each in [self._channels[name] for name in names if name in self._channels]:
            while max(each.sequence, self._come) < through:
                record = await self.next(each.subject, each.sequence)
                if record is None or record.sequence > through:
                    break
                await self._wait_until_reached(each, record.sequence)

    async def history(self, session_id: str, after: int, before: int, limit: int) -> tuple[list[Chunk], int]:
        """Return chunks of a session between two positions (both exclusive), with about `limit` events.

        The second result is the last position after `after` that was deleted from the stream, or 0.
        """
        found: list[Chunk] = []
        trims: dict[str, int] = {}
        channel, cursor, more = session_channel(session_id), after, True
        needed = await self._find_end(subjects.session_events(session_id))
        while more and sum(len(chunk.lines) for chunk in found) < limit:
            chunks, more = await self._read(channel, cursor, before - 1, needed, trims)
            found += [chunk for chunk in chunks if chunk.history]
            cursor = chunks[-1].last if chunks else cursor
        return found, trims.get(channel, 0)

    # Reading

    async def _read(
        self, channel: str, after: int, through: int, needed: int, trims: dict[str, int]
    ) -> tuple[list[Chunk], bool]:
        """Read about a page of a channel's complete chunks, and return whether there may be more.

        Deleted positions are noted in `trims`. A page comes from any server of the cluster, which may be behind. So
        reading continues until it has reached `needed`, the last message of the subject as the leader knows it.
        """
        subject = subject_of(channel)
        assembly = ChunkAssembly(channel)
        chunks: list[Chunk] = []
        # If the position is inside a message, that message is read again and cut.
        whole = after == end_of(sequence_of(after))
        cursor = sequence_of(after) if whole else max(0, sequence_of(after) - 1)
        size, first, attempts = 0, True, 0
        while True:
            records = await self._page(subject, cursor)
            for record in records:
                if first and comes_after(record) > sequence_of(after):
                    trims[channel] = max(trims.get(channel, 0), end_of(comes_after(record)))
                if record.sequence > sequence_of(through):
                    return chunks, False
                first = False
                cursor = record.sequence
                chunk = assemble(assembly, record)
                if chunk is not None and chunk.last > after:
                    chunks.append(chunk.after(after))
                    size += chunk.size
            if not records and cursor >= needed:
                return chunks, False
            if chunks and size >= PAGE_BYTES:
                return chunks, True
            if not records:
                if await self.next(subject, cursor) is None:
                    # The server is not behind: the events were dropped meanwhile.
                    trims[channel] = max(trims.get(channel, 0), end_of(min(needed, sequence_of(through))))
                    return chunks, False
                attempts += 1
                if attempts > MAX_BEHIND_ATTEMPTS:
                    raise LogUnavailable.of_fleet(f"a server of the fleet is behind; {subject} cannot be read")
                await asyncio.sleep(RETRY_INTERVAL)

    async def _page(self, subject: str, after: int) -> list[StreamRecord]:
        return await _ask(self._stream.page(subject, after, EVERYTHING, PAGE_BYTES))

    async def _last(self, subject: str) -> int:
        record = await self.last(subject)
        return 0 if record is None else record.sequence

    async def _find_end(self, subject: str) -> int:
        """Return the sequence of a subject's last message, even if it was dropped. Raises LogUnavailable."""
        record = await self.last(subject)
        if record is not None:
            return record.sequence
        return await self._find_end_of_dropped(subject) if subjects.is_session(subject) else 0

    async def last(self, subject: str) -> StreamRecord | None:
        """Return a subject's last message, as the leader knows it. Raises LogUnavailable."""
        return await _ask(self._stream.last(subject))

    async def next(self, subject: str, after: int) -> StreamRecord | None:
        """Return a subject's first message after a sequence, as the leader knows it. Raises LogUnavailable."""
        return await _ask(self._stream.next(subject, after))

    async def _wait_for(self, channels: Iterable[Channel]) -> None:
        wanted = list(channels)
        try:
            async with asyncio.timeout(CHANGE_TIMEOUT):
                while missing := [each for each in wanted if each.complete_after is None]:
                    if any(self._find(each.subject) is not each for each in missing):
                        raise LogUnavailable.of_fleet("the connection was closed while it was read")
                    await self._settled.wait()
        except TimeoutError as error:
            raise LogUnavailable.of_fleet(
                "this gateway cannot follow the fleet's stream; try again, or at another one"
            ) from error

    def _find(self, subject: str) -> Channel | None:
        return self._by_subject.get(subject) or self._channels.get(subject)

    def _wake(self) -> None:
        settled, self._settled = self._settled, asyncio.Event()
        settled.set()

    # New events

    async def _adjust(self) -> None:
        """Follow the wanted subjects, whenever they have changed."""
        clock = asyncio.get_running_loop().time
        not_before = 0.0
        while True:
            await self._changed.wait()
            await asyncio.sleep(max(0.0, not_before - clock()))
            began = clock()
            self._changed.clear()
            for name in self.trims.keys() - self._channels.keys():
                del self.trims[name]
            wanted = list(self._filters)
            new = [each for each in self._channels.values() if each.complete_after is None]
            assert self._reader is not None
            try:
                await self._reader.change(wanted if len(wanted) <= MAX_EXACT else [subjects.EVENTS])
                ends = await self._find_ends(new)
                dropped = await self._find_dropped(each for each, last in zip(new, ends, strict=True) if last is None)
            except (BusError, LogUnavailable) as error:
                logger.warning("feed not changed reason=%s", error)
                self._changed.set()
                # The pause is short, because clients wait for their new connections, and the servers may have a leader
                # by now.
                await asyncio.sleep(MAX_GATHER_TIMEOUT)
                continue
            not_before = clock() + min(GATHER * (clock() - began), MAX_GATHER_TIMEOUT)
            for each, last in zip(new, ends, strict=True):
                # The reader follows the subject by now, and delivers all newer messages.
                each.begin(dropped.get(each.subject, 0) if last is None else last.sequence)
                if last is not None:
                    self.progress.note(last.headers, came=False)
                for record in each.release():
                    if record.sequence > each.sequence:
                        self._hand_over(each, record)
            self._wake()

    async def _find_ends(self, channels: list[Channel]) -> list[StreamRecord | None]:
        ends: list[StreamRecord | None] = []
        for place in range(0, len(channels), AT_ONCE):
            ends += await asyncio.gather(*(self.last(each.subject) for each in channels[place : place + AT_ONCE]))
        return ends

    async def _find_dropped(self, channels: Iterable[Channel]) -> dict[str, int]:
        """Return the last sequences of sessions that have no events left, by subject."""
        empty = [each.subject for each in channels if subjects.is_session(each.subject)]
        found: dict[str, int] = {}
        for place in range(0, len(empty), AT_ONCE):
            batch = empty[place : place + AT_ONCE]
            found |= zip(batch, await asyncio.gather(*(self._find_end_of_dropped(each) for each in batch)), strict=True)
        return found

    async def _find_end_of_dropped(self, subject: str) -> int:
        return await _ask(self._dropped(subject))

    def _take_in(self, record: StreamRecord) -> None:
        self._untaken += len(record.body)
        if self._untaken <= self._most_untaken:
            self._records.put_nowait(record)
            return
        logger.warning("feed fell behind: its readers come back and read pages bytes=%d", self._untaken)
        self._records, self._untaken = asyncio.Queue(), 0
        self._begin_to_pump()
        for channel in self._channels.values():
            channel.complete_after = None
            channel.release()
            channel.tail = ()
        self._tail.clear()
        self._size = 0
        self._changed.set()
        self.fell_behind()

    async def _pump(self) -> None:
        records = self._records
        while True:
            record = await records.get()
            while True:
                try:
                    await self._take(record)
                except BusError as error:
                    logger.warning("event waits subject=%s reason=%s", record.subject, error)
                    await asyncio.sleep(RETRY_INTERVAL)
                else:
                    break
            self._untaken -= len(record.body)
            self._come = record.sequence
            self.progress.note(record.headers, came=True)

    async def _take(self, record: StreamRecord) -> None:
        self.position = max(self.position, end_of(record.sequence))
        channel = self._find(record.subject)
        if channel is None or record.sequence <= channel.sequence:
            return
        if channel.complete_after is None:
            channel.hold(record)
            return
        if comes_after(record) > channel.sequence:
            await self._fetch_missing(channel, record, comes_after(record))
        self._hand_over(channel, record)

    async def _fetch_missing(self, channel: Channel, record: StreamRecord, through: int) -> None:
        """Hand over the messages before a record that the reader has left out."""
        while channel.sequence < through:
            missing = await self._stream.page(record.subject, channel.sequence, through, PAGE_BYTES)
            if not missing:
                # A page comes from any server, which may be behind. The leader is never behind.
                found = await self._stream.next(record.subject, channel.sequence)
                if found is None or found.sequence >= record.sequence:
                    # The missing messages were deleted. Readers that lack them read pages, which report the gap.
                    channel.complete_after = end_of(through)
                    return
                missing = [found]
            for missed in missing:
                self._hand_over(channel, missed)

    def _hand_over(self, channel: Channel, record: StreamRecord) -> None:
        channel.move_on(record.sequence)
        had_parts = bool(channel.parts)
        chunk = assemble(channel, record)
        if channel.parts or had_parts:
            self._count_parts(channel, record)
        if chunk is None or not chunk.channel:
            return
        if channel.is_kept:
            channel.keep(chunk)
            self._tail.append((channel, chunk))
            self._size += chunk.size + CHUNK_COST_BYTES
        for follower in channel.followers:
            try:
                follower.appended(chunk)
            except Exception as error:
                report_failed(chunk, error)
        while self._size > self._tail_bytes and len(self._tail) > 1:
            owner, oldest = self._tail.popleft()
            self._size -= oldest.size + CHUNK_COST_BYTES
            owner.drop_oldest()
            owner.complete_after = max(owner.complete_after or 0, oldest.last)

    def _count_parts(self, channel: Channel, record: StreamRecord) -> None:
        """Count the parts of a channel whose line is incomplete, or was incomplete before this record."""
        if not channel.parts:
            self._unfinished.forget(channel.channel)
            return
        node, size = ownership(record.headers).node, sum(len(part) + PART_COST_BYTES for part in channel.parts)
        for name in self._unfinished.note(node, channel.channel, size):
            if name in self._channels:
                self._channels[name].parts = ()
            self.gave_up(node)


async def _had_none(subject: str) -> int:
    return 0


async def _ask(asked: Awaitable[T]) -> T:
    """Return the stream's answer. Raises LogUnavailable in place of BusError."""
    try:
        return await asked
    except BusError as error:
        raise LogUnavailable.of_fleet(error) from error
