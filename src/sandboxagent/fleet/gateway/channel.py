"""Keep one channel of a gateway's feed: followers, newest chunks, and its position with each node.

Pure, except for futures. A gateway has four channels for each connection, and nearly all are silent. So a channel
creates its containers only when it needs them.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Mapping, Sequence

from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.bus.interface import StreamRecord
from sandboxagent.fleet.gateway.validate import may_be_read_by_all
from sandboxagent.fleet.records import ChunkAssembly, NotAChunk, end_of, ownership
from sandboxagent.server.log.event import NO_CLIENT, Chunk, Follower, session_channel

logger = logging.getLogger(__name__)

_OF_A_SESSION = session_channel("")
_BEGINNING = end_of(0)
"""The end position of an empty channel, shared by all of them."""


class Holding:
    """A follower that keeps a channel open until its first reader is there."""

    def appended(self, chunk: Chunk) -> None:
        pass


class Channel(ChunkAssembly):
    """The events of a session, or the events for one connection alone."""

    __slots__ = ("_first", "_others", "complete_after", "held", "is_kept", "sequence", "subject", "tail", "waiting")

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.subject = subject_of(name)
        self.is_kept = not subjects.is_attachments(self.subject)
        """Whether its chunks are kept in memory for readers. Chunks about attachments are handled at once and not
        kept."""
        self.tail: deque[Chunk] | tuple[()] = ()
        """The newest chunks."""
        self.complete_after: int | None = None
        """Position after which all events are in the tail, or were handled. None until the stream's reader follows the
        channel."""
        self.sequence = 0
        """Sequence of the last message received."""
        self.held: list[StreamRecord] | tuple[()] = ()
        """Messages that came before `complete_after` was known."""
        self.waiting: list[tuple[int, asyncio.Future[None]]] | tuple[()] = ()
        """Sequences that callers wait for."""
        self._first: Follower | None = None
        self._others: set[Follower] | None = None
        """Further followers. Most channels have only one."""

    @property
    def followers(self) -> tuple[Follower, ...]:
        """The current followers."""
        return (*(() if self._first is None else (self._first,)), *(self._others or ()))

    @property
    def is_followed(self) -> bool:
        return self._first is not None or bool(self._others)

    def add(self, follower: Follower) -> None:
        if self._first is None and not (self._others and follower in self._others):
            self._first = follower
        elif follower is not self._first:
            self._others = self._others or set()
            self._others.add(follower)

    def discard(self, follower: Follower) -> None:
        if self._first is follower:
            self._first = None
        elif self._others is not None:
            self._others.discard(follower)

    def begin(self, sequence: int) -> None:
        """Note that the stream's reader follows the channel, and delivers everything after a sequence."""
        self.move_on(sequence)
        self.complete_after = end_of(sequence) if sequence else _BEGINNING

    def hold(self, record: StreamRecord) -> None:
        """Keep a message until `complete_after` is known."""
        if isinstance(self.held, tuple):
            self.held = []
        self.held.append(record)

    def release(self) -> Sequence[StreamRecord]:
        """Return the held messages, and hold them no more."""
        held, self.held = self.held, ()
        return held

    def keep(self, chunk: Chunk) -> None:
        """Add a chunk to the tail."""
        if isinstance(self.tail, tuple):
            self.tail = deque()
        self.tail.append(chunk)

    def drop_oldest(self) -> None:
        """Drop the oldest chunk of the tail. The tail may have been emptied meanwhile."""
        if self.tail:
            self.tail.popleft()
        if not self.tail:
            self.tail = ()

    def reached(self, sequence: int) -> "asyncio.Future[None]":
        """Return a future that is done when everything up to a sequence has been handed over."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if sequence <= self.sequence:
            future.set_result(None)
        else:
            self.waiting = [*self.waiting, (sequence, future)]
        return future

    def move_on(self, sequence: int) -> None:
        """Note that everything up to a sequence has come."""
        self.sequence = sequence
        if not self.waiting:
            return
        for wanted, future in self.waiting:
            if wanted <= sequence and not future.done():
                future.set_result(None)
        self.waiting = [each for each in self.waiting if each[0] > sequence] or ()


def subject_of(channel: str) -> str:
    """Return the subject of a channel. All channels except sessions' are named after their subjects."""
    session_id = channel.removeprefix(session_channel(""))
    return channel if session_id == channel else subjects.session_events(session_id)


def assemble(assembly: ChunkAssembly, record: StreamRecord) -> Chunk | None:
    """Return the chunk that a record completes, or None. An unreadable record is skipped."""
    try:
        chunk = assembly.take(record)
    except NotAChunk as error:
        logger.warning("record not read subject=%s sequence=%d reason=%s", record.subject, record.sequence, error)
        return None
    if chunk is None or chunk.request is not None or not chunk.channel.startswith(_OF_A_SESSION):
        return chunk
    if not may_be_read_by_all(chunk.lines):
        # Logged at debug level, because a node could fill the log with it. The history has the record, with its node.
        logger.debug("record not shown subject=%s sequence=%d", record.subject, record.sequence)
        chunk.channel = NO_CLIENT
    return chunk


class Progress:
    """The progress of all nodes' logs in the stream, as one gateway knows it."""

    def __init__(self) -> None:
        self._kept: dict[str, int] = {}
        """The last position of each node that is known to be in the stream."""
        self._come: dict[str, int] = {}
        """The last position of each node up to which all followed events have arrived here."""
        self._awaited: dict[str, dict[asyncio.Future[None], int]] = {}
        """By node: waiting futures, with the position of the node that each waits for."""
        self._runs: dict[str, str] = {}
        """The nonce of each node's run."""

    def kept(self, node: str, position: int) -> "asyncio.Future[None]":
        """Return a future that is done when the stream has a node's events up to one of its positions.

        Only events that are followed here count. Cancel the future if it is not needed, because a node's positions are
        not trusted.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._kept.get(node, 0) >= position:
            future.set_result(None)
        else:
            self._awaited.setdefault(node, {})[future] = position
            future.add_done_callback(lambda _: self._forget_awaited(node, future))
        return future

    def has_come(self, node: str, position: int) -> bool:
        """Return whether a node's followed events up to a position have arrived here."""
        return self._come.get(node, 0) >= position

    def begin_run(self, node: str, nonce: str) -> None:
        """Note the run of a node.

        In another run the node's positions may start again, because the node may have lost its disk.
        """
        if self._runs.get(node) != nonce:
            self._runs[node] = nonce
            self._kept.pop(node, None)
            self._come.pop(node, None)

    def note(self, headers: Mapping[str, str], *, came: bool) -> None:
        """Note a node's record in the stream. With `came`, the reader has delivered it after all earlier records."""
        owner = ownership(headers)
        if came:
            self._come[owner.node] = max(owner.last, self._come.get(owner.node, 0))
        if owner.last <= self._kept.get(owner.node, 0):
            return
        self._kept[owner.node] = owner.last
        for future, position in self._awaited.get(owner.node, {}).items():
            if position <= owner.last and not future.done():
                future.set_result(None)

    def _forget_awaited(self, node: str, future: "asyncio.Future[None]") -> None:
        awaited = self._awaited[node]
        del awaited[future]
        if not awaited:
            del self._awaited[node]
