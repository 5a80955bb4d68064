"""Keep one channel of a gateway's feed: followers, newest chunks, and its position with each node.

Pure, but for futures. A gateway has four channels for each connection, nearly all of them silent: what such a one does
not need is not made.
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
"""Shared by all channels that have no message."""


class Holding:
    """Keeps a channel followed until its first reader is there."""

    def appended(self, chunk: Chunk) -> None:
        pass


class Channel(ChunkAssembly):
    """A session's events, or what is for one connection."""

    __slots__ = ("_first", "_others", "complete_after", "held", "is_kept", "sequence", "subject", "tail", "waiting")

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.subject = subject_of(name)
        self.is_kept = not subjects.is_attachments(self.subject)
        """Its chunks are in memory for readers; those about attachments have none: they are taken as they come."""
        self.tail: deque[Chunk] | tuple[()] = ()
        """The newest chunks."""
        self.complete_after: int | None = None
        """Everything after this position is in the tail, or was taken; None while the stream's reader does not know of
        the channel."""
        self.sequence = 0
        """Of the last message that came."""
        self.held: list[StreamRecord] | tuple[()] = ()
        """Messages that came before it was known where memory begins."""
        self.waiting: list[tuple[int, asyncio.Future[None]]] | tuple[()] = ()
        """Sequences that are waited for."""
        self._first: Follower | None = None
        self._others: set[Follower] | None = None
        """Most channels have one follower."""

    @property
    def followers(self) -> tuple[Follower, ...]:
        """As they are now."""
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
        """The stream's reader knows of it now: everything after a sequence comes by it."""
        self.move_on(sequence)
        self.complete_after = end_of(sequence) if sequence else _BEGINNING

    def hold(self, record: StreamRecord) -> None:
        """Keep a message until it is known where memory begins."""
        if isinstance(self.held, tuple):
            self.held = []
        self.held.append(record)

    def release(self) -> Sequence[StreamRecord]:
        """Those that were held, which it holds no longer."""
        held, self.held = self.held, ()
        return held

    def keep(self, chunk: Chunk) -> None:
        """Add a chunk to the tail."""
        if isinstance(self.tail, tuple):
            self.tail = deque()
        self.tail.append(chunk)

    def drop_oldest(self) -> None:
        """Of the tail; nothing when it was emptied meanwhile."""
        if self.tail:
            self.tail.popleft()
        if not self.tail:
            self.tail = ()

    def reached(self, sequence: int) -> "asyncio.Future[None]":
        """Done when everything up to a sequence has been handed over."""
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
    """A session's channel is that of its events; every other one is named after its subject."""
    session_id = channel.removeprefix(session_channel(""))
    return channel if session_id == channel else subjects.session_events(session_id)


def assemble(assembly: ChunkAssembly, record: StreamRecord) -> Chunk | None:
    """The chunk that is complete with a record; None while there is none, and for what cannot be read."""
    try:
        chunk = assembly.take(record)
    except NotAChunk as error:
        logger.warning("record not read subject=%s sequence=%d reason=%s", record.subject, record.sequence, error)
        return None
    if chunk is None or chunk.request is not None or not chunk.channel.startswith(_OF_A_SESSION):
        return chunk
    if not may_be_read_by_all(chunk.lines):
        # Not louder: a node could fill the log with it. The history has it, and so names the node.
        logger.debug("record not shown subject=%s sequence=%d", record.subject, record.sequence)
        chunk.channel = NO_CLIENT
    return chunk


class Progress:
    """Of all nodes, as one gateway knows it."""

    def __init__(self) -> None:
        self._kept: dict[str, int] = {}
        """Node → the last of its own positions that is known to be in the stream."""
        self._come: dict[str, int] = {}
        """Node → the last one up to which everything has come by that is followed here."""
        self._awaited: dict[str, dict[asyncio.Future[None], int]] = {}
        """Node → those who wait for it, and for which of its positions."""
        self._runs: dict[str, str] = {}
        """Node → the nonce of its run."""

    def kept(self, node: str, position: int) -> "asyncio.Future[None]":
        """Done when the stream has what a node had said up to a position of its own, as far as it is followed here.

        To be cancelled when it is not wanted any more: what a node says of its positions is not trusted.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._kept.get(node, 0) >= position:
            future.set_result(None)
        else:
            self._awaited.setdefault(node, {})[future] = position
            future.add_done_callback(lambda _: self._forget_awaited(node, future))
        return future

    def has_come(self, node: str, position: int) -> bool:
        """Whether all that has also come by here."""
        return self._come.get(node, 0) >= position

    def begin_run(self, node: str, nonce: str) -> None:
        """A node is there. In another run its positions may begin anew: it may have lost its disk."""
        if self._runs.get(node) != nonce:
            self._runs[node] = nonce
            self._kept.pop(node, None)
            self._come.pop(node, None)

    def note(self, headers: Mapping[str, str], *, came: bool) -> None:
        """The stream has a record of a node; it `came` if the reader has brought it, behind all others before it."""
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
