"""Publish a node's log into the fleet's stream, in order, one request at a time.

The stream itself shows which events were published, so a repetition does no harm. The cursor only says where to start.
The module knows nothing of gateways except a function that sends a request to one.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from enum import Enum, auto
from typing import Protocol

from sandboxagent.fleet import records
from sandboxagent.fleet.bus.interface import MAX_BODY_BYTES, MAX_MESSAGES, BusError
from sandboxagent.fleet.messages import LogReply, LogRequest, OutgoingMessage
from sandboxagent.server.log.event import Chunk

logger = logging.getLogger(__name__)

RETRY_INTERVAL = 0.2
"""Seconds before a failed request is sent again."""
MAX_REQUEST_BYTES = 2 * MAX_BODY_BYTES - (128 << 10)
"""Maximum number of bytes of one request, without its encoding. NATS servers accept 1 MiB."""
UNKNOWN = -1
MAX_REMEMBERED = 50_000
"""Maximum number of subjects whose end is remembered."""

Ask = Callable[[LogRequest], Awaitable[LogReply]]


class PublishOutcome(Enum):
    """The outcome of a request."""

    PUBLISHED = auto()
    AGAIN = auto()
    """Nothing is lost: the missing messages have to be sent again."""
    REFUSED = auto()
    """The request will never be accepted."""


class Events(Protocol):
    """The operations of a log that the publisher needs."""

    async def since(self, position: int) -> list[Chunk]:
        """Return a page of chunks after a position that are on disk: of all channels, in order."""
        ...


class Cursor(Protocol):
    """The position where the last run ended."""

    @property
    def position(self) -> int: ...

    def save(self, position: int) -> None: ...


class NodePublisher:
    """The part of a node's log that is not published yet."""

    def __init__(self, node: str, events: Events, cursor: Cursor, ask: Ask) -> None:
        self.published = cursor.position
        """Position up to which all events are in the stream, or will never be there."""
        self.failure: str | None = None
        """Why nothing is published at the moment."""
        self.is_idle = False
        """Whether everything on disk is published."""
        self.foreign: dict[str, str] = {}
        """The node that owns a subject, for subjects of other nodes. Nothing is published there."""
        self._node = node
        self._events = events
        self._cursor = cursor
        self._ask = ask
        self._sequences: dict[str, int] = {}
        self._skip: dict[str, int] = {}
        """The node's position up to which the stream has the events of a subject."""
        self._more = asyncio.Event()
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def notify(self) -> None:
        """Announce new events on disk."""
        self._more.set()

    async def moved(self) -> None:
        """Wait until more is published."""
        await self.drained(self.published + 1)

    async def drained(self, position: int) -> None:
        """Wait until all events up to a position are published."""
        if position > self.published:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((position, future))
            await future

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            self._more.clear()
            chunks = await self._events.since(self.published)
            if not chunks:
                self.is_idle = True
                try:
                    await self._more.wait()
                finally:
                    self.is_idle = False
                continue
            await self._publish(chunks)

    async def _publish(self, chunks: list[Chunk]) -> None:
        for batch in self._batches(chunks):
            await self._deliver(batch)
        self._move_on(chunks[-1].last)

    async def _deliver(self, batch: list[OutgoingMessage]) -> None:
        """Send requests until these messages are in the stream. Only refused messages are left out."""
        while messages := [each for each in batch if self._is_missing(each)]:
            request = LogRequest(messages, {each.subject: self._sequence(each.subject) for each in messages})
            match await self._send(request):
                case PublishOutcome.PUBLISHED:
                    return
                case PublishOutcome.REFUSED if len(messages) == 1:
                    return
                case PublishOutcome.REFUSED:
                    for message in messages:
                        await self._deliver([message])
                    return
                case PublishOutcome.AGAIN:
                    pass

    def _batches(self, chunks: Iterable[Chunk]) -> Iterable[list[OutgoingMessage]]:
        batch: list[OutgoingMessage] = []
        size = 0
        for chunk in chunks:
            subject = records.subject_of(chunk, self._node)
            for message in () if subject is None else records.outgoing(chunk, subject):
                cost = len(message.body) + len(message.meta) + 2 * len(message.subject)
                if batch and (len(batch) == MAX_MESSAGES // 2 or size + cost > MAX_REQUEST_BYTES):
                    yield batch
                    self._move_on(batch[-1].last)
                    batch, size = [], 0
                batch.append(message)
                size += cost
        if batch:
            yield batch

    def _is_missing(self, message: OutgoingMessage) -> bool:
        if message.subject in self.foreign:
            return False
        # An inner part belongs to the event after `last`.
        completes = message.last + (1 if _is_inner_part(message) else 0)
        return completes > self._skip.get(message.subject, 0)

    def _sequence(self, subject: str) -> int:
        return self._sequences.get(subject, UNKNOWN)

    async def _send(self, request: LogRequest) -> PublishOutcome:
        """Send a request once."""
        try:
            reply = await self._ask(request)
        except BusError as error:
            self._fail(str(error))
            await asyncio.sleep(RETRY_INTERVAL)
            return PublishOutcome.AGAIN
        if reply.slow is not None:
            self._fail(reply.slow)
            await asyncio.sleep(RETRY_INTERVAL)
            return PublishOutcome.AGAIN
        if reply.refused is not None:
            # The message is invalid and stays so. It is better to leave out one session than to publish none.
            if len(request.messages) == 1:
                logger.error("events not published reason=%s", reply.refused)
            return PublishOutcome.REFUSED
        self.failure = None
        if len(self._sequences) > MAX_REMEMBERED:
            # Gateways report the ends again.
            for known in (self._sequences, self._skip, self.foreign):
                known.clear()
        for subject, end in (reply.ends or {}).items():
            if end.owner not in ("", self._node):
                logger.warning("session not published subject=%s reason=it belongs to %s", subject, end.owner)
                self.foreign[subject] = end.owner
            self._sequences[subject] = end.sequence
            self._skip[subject] = end.last
        self._sequences |= reply.published or {}
        return PublishOutcome.AGAIN if reply.published is None else PublishOutcome.PUBLISHED

    def _fail(self, reason: str) -> None:
        if self.failure is None:
            logger.warning("events wait to be published reason=%s", reason)
        self.failure = reason

    def _move_on(self, position: int) -> None:
        if position <= self.published:
            return
        self.published = position
        self._cursor.save(position)
        done = [future for wanted, future in self._waiting if wanted <= position]
        self._waiting = [each for each in self._waiting if each[0] > position]
        for future in done:
            if not future.done():
                future.set_result(None)


def _is_inner_part(message: OutgoingMessage) -> bool:
    number, _, of = message.part.partition("/")
    return bool(message.part) and number != of
