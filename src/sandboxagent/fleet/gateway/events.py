"""Append a gateway's own events for one connection to the fleet's stream, in order and once."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable

from sandboxagent.core.tasks import Tasks
from sandboxagent.fleet import records
from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.bus.interface import Append, BusError, BusStream, Conflict, StreamMessage
from sandboxagent.server.log.event import Chunk, Direction, connection_channel

logger = logging.getLogger(__name__)

RETRY_INTERVAL = 0.2
"""Seconds before a failed append is repeated."""
MAX_WAITING_BYTES = 8 << 20
"""Maximum number of bytes that wait for the stream, of all connections. With more, the newest event is dropped."""

Unless = Callable[[], Awaitable[bool]]
"""Returns whether an event is in the stream already. Raises BusError."""
Kept = asyncio.Future[bool]
"""Done when an event is in the stream, or is not needed. The result is False if it was dropped."""


class GatewayEvents:
    """Appends a gateway's own events to the stream."""

    def __init__(self, events: BusStream) -> None:
        self._events = events
        self._waiting: dict[str, deque[tuple[str, Chunk, Unless | None, Kept]]] = {}
        self._size = 0
        self._tasks = Tasks()

    def tell(self, tag: str, line: bytes, session_id: str | None, *, unless: Unless | None = None) -> None:
        """Send a line to the client of a connection, at whichever gateway it reads.

        `unless` is called before, and returns whether another gateway has sent the line. If several gateways do this at
        the same time, one of them sends it.
        """
        self._put(tag, subjects.connection_events(tag, subjects.GATEWAY), line, session_id, unless)

    def announce(self, tag: str, line: bytes, *, unless: Unless | None = None) -> Kept:
        """Write a record about a connection for all gateways."""
        return self._put(tag, subjects.attachments(tag, subjects.GATEWAY), line, None, unless)

    async def all_kept(self, tag: str, timeout: float) -> None:
        """Wait until all earlier events of a connection are in the stream, for at most `timeout` seconds."""
        if waiting := self._waiting.get(tag):
            await asyncio.wait([waiting[-1][3]], timeout=timeout)

    async def purge(self, tag: str, source: str) -> None:
        """Delete the events and records of a connection from the stream. Raises BusError."""
        await self._events.purge(subjects.connection_events(tag, source))
        await self._events.purge(subjects.attachments(tag, source))

    def _put(self, tag: str, subject: str, line: bytes, session_id: str | None, unless: Unless | None = None) -> Kept:
        kept: Kept = asyncio.get_running_loop().create_future()
        chunk = Chunk(1, [line], Direction.FROM_SERVER, session_id, connection_channel(tag), time.time(), history=False)
        if self._size + chunk.size > MAX_WAITING_BYTES:
            logger.error("event for a connection dropped connection=%s reason=the stream takes nothing", tag)
            kept.set_result(False)
            return kept
        self._size += chunk.size
        waiting = self._waiting.get(tag)
        if waiting is not None:
            waiting.append((subject, chunk, unless, kept))
            return kept
        self._waiting[tag] = deque([(subject, chunk, unless, kept)])
        self._tasks.run(self._append_all(tag), f"events for {tag}")
        return kept

    async def _append_all(self, tag: str) -> None:
        waiting = self._waiting[tag]
        while waiting:
            subject, chunk, unless, kept = waiting[0]
            try:
                await self._append(subject, chunk, unless)
            except BusError as error:
                logger.warning("event for a connection waits connection=%s reason=%s", tag, error)
                await asyncio.sleep(RETRY_INTERVAL)
                continue
            waiting.popleft()
            self._size -= chunk.size
            kept.set_result(True)
        del self._waiting[tag]

    async def _append(self, subject: str, chunk: Chunk, unless: Unless | None) -> None:
        headers = {records.NODE: subjects.GATEWAY, records.EPOCH: "1", records.LAST: "0"}
        for each in records.outgoing(chunk, subject):
            part = {records.PART: each.part} if each.part else {}
            message = StreamMessage(subject, each.body, {**headers, records.META: each.meta, **part})
            while True:
                last = await self._events.last(subject)
                if last is not None and last.body == message.body and dict(last.headers) == dict(message.headers):
                    # The event was appended, and only the answer was lost.
                    break
                if unless is not None and await unless():
                    return
                try:
                    await self._events.append(Append([message], {subject: 0 if last is None else last.sequence}))
                except Conflict:
                    # Another gateway was first.
                    continue
                break
