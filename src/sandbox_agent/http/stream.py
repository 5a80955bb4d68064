"""A stream: what one connection has still to read of the log. At most one is live per connection.

A reader that keeps up is handed shared chunks from memory. One that fell behind reads pages from the log until it has
caught up; one that fell behind and takes nothing at all is cut off, and resumes by id. Knows nothing of HTTP.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from sandbox_agent.envelope import notification
from sandbox_agent.hub.connection import Connection
from sandbox_agent.log.event import Chunk, frames
from sandbox_agent.log.log import Log
from sandbox_agent.wire import methods

BATCH = 256 << 10
"""Bytes handed to the socket at a time."""
CATCH_UP_BYTES = 1 << 20
"""How much a reader that fell behind takes from memory at a time."""
CATCH_UP_WAIT = 0.25
"""How long an answer waits for its own client to be handed the events before it."""
LONGEST_PAUSE = 0.5
"""How long an agent's output may wait for a reader that does not keep up: time for a quick one, no loss to others."""
TICK = 0.25


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """What one stream may take, in bytes and seconds."""

    buffer: int = 8 << 20
    stall_timeout: float = 1.0
    heartbeat: float = 15.0


class Socket(Protocol):
    """What a stream is written to."""

    def get_write_buffer_size(self) -> int: ...
    def abort(self) -> None: ...


class Stream:
    """One reader: a cursor in the log, and what waits to be written."""

    def __init__(self, connection: Connection, log: Log, after: int, limits: StreamLimits, socket: Socket) -> None:
        self._connection = connection
        self._log = log
        self._limits = limits
        self._socket = socket
        self._unsent = 0
        self._taken = after
        """Last position taken to be written."""
        self._live = False
        self._queue: deque[Chunk] = deque()
        self._queued = 0
        self._paused: list[Callable[[], None]] = []
        self._patience: asyncio.TimerHandle
        self._comments: list[bytes] = [b": open\n\n"]
        self._closed = False
        self._wake: asyncio.Future[None] | None = None
        self._handed = after
        """Last position handed to the socket."""
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._writing_since: float | None = None
        self._wrote_at = time.monotonic()

    # What the hub does

    def push(self, chunk: Chunk) -> None:
        """A new chunk for this connection."""
        if not self._live:
            # It is on its way through the log and will come to this one there.
            return
        self._queue.append(chunk)
        self._queued += chunk.size
        if self._queued > self._limits.buffer:
            self._fall_behind()
        self._notify()

    def apply_backpressure(self, resume: Callable[[], None]) -> bool:
        """Whether the producer should pause until `resume` is called, which saves a quick reader from reading the log.

        The pause is short: a reader that does not catch up in time reads from the log and slows no producer again.
        """
        if not self._live or self._queued < self._limits.buffer // 2:
            return False
        if not self._paused:
            self._patience = asyncio.get_running_loop().call_later(LONGEST_PAUSE, self._fall_behind)
        self._paused.append(resume)
        return True

    def close(self, reason: str) -> None:
        """End it, with a last comment saying why."""
        self._comments.append(b": closed: %b\n\n" % reason.encode())
        self._closed = True
        self._notify()

    async def caught_up(self, position: int) -> None:
        """Wait until everything up to a position has been handed to the socket; not for long."""
        if self._handed >= position or self._closed:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((position, future))
        try:
            async with asyncio.timeout(CATCH_UP_WAIT):
                await future
        except TimeoutError:
            return

    def tick(self, now: float) -> None:
        """Cut it off when it is behind and stalled; keep it awake when nothing happens."""
        if self._writing_since is not None:
            unsent = self._socket.get_write_buffer_size()
            if unsent < self._unsent:
                self._writing_since = now
            self._unsent = unsent
            behind = self._closed or not self._live or unsent > self._limits.buffer
            if behind and now - self._writing_since > self._limits.stall_timeout:
                self._socket.abort()
        elif self._live and now - self._wrote_at >= self._limits.heartbeat:
            self._wrote_at = now
            self._comments.append(b": \n\n")
            self._notify()

    # What the writer does

    async def next(self) -> bytes | None:
        """What to write next; None when the stream is over. The one before counts as handed over."""
        self._written()
        while True:
            if self._comments:
                comments, self._comments = self._comments, []
                return self._writing(b"".join(comments))
            if self._closed:
                return None
            if self._queue:
                return self._writing(self._drain())
            if self._live:
                await self._sleep()
            elif data := await self._catch_up():
                return self._writing(data)

    def finish(self) -> None:
        """The writer has stopped."""
        self._closed = True
        self._written()
        self._resume_producers()
        for _, future in self._waiting:
            if not future.done():
                future.set_result(None)

    def _fall_behind(self) -> None:
        self._queue.clear()
        self._queued = 0
        self._live = False
        self._resume_producers()

    def _resume_producers(self) -> None:
        """Resume the paused producers."""
        paused, self._paused = self._paused, []
        if paused:
            self._patience.cancel()
        for resume in paused:
            resume()

    def _drain(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        while self._queue and size < BATCH:
            chunk = self._queue.popleft()
            self._queued -= chunk.size
            self._taken = chunk.last
            part = self._connection.frames(chunk)
            parts.append(part)
            size += len(part)
        if self._paused and self._queued < self._limits.buffer // 4:
            self._resume_producers()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _catch_up(self) -> bytes:
        """Read on in the log; becomes live, without an await in between, when there is nothing more."""
        connection, after = self._connection, self._taken
        in_memory = self._log.in_memory(connection.channels(), after, CATCH_UP_BYTES)
        if in_memory is None:
            return await self._page(after)
        chunks, self._live = in_memory
        if chunks:
            self._taken = chunks[-1].last
        return b"".join(connection.frames(chunk) for chunk in chunks if connection.sees(chunk))

    async def _page(self, after: int) -> bytes:
        """A page from disk; preceded by a gap event if events have been trimmed."""
        connection = self._connection
        if lost := connection.lost(self._log.trims, after):
            self._taken = lost
            return self._gap(after, lost + 1)
        # Read before the await, with the channels: those may be others when the page is there. What is no longer in
        # memory is on disk, and what is not on disk yet is in memory.
        evicted = self._log.evicted
        chunks = await self._log.page(connection.channels(), after, evicted)
        if connection.lost(self._log.trims, after):
            # Trimmed while we waited: the gap event comes first.
            return b""
        self._taken = chunks[-1].last if chunks else max(after, evicted)
        return b"".join(connection.frames(chunk) for chunk in chunks if connection.sees(chunk))

    @staticmethod
    def _gap(after: int, resumes_at: int) -> bytes:
        line = notification(methods.GAP, {"after": after, "resumesAt": resumes_at})
        # Its id is that of the last lost event, so that a client that reconnects here does not get the gap again.
        return frames(resumes_at - 1, [line])

    def _writing(self, data: bytes) -> bytes:
        self._writing_since = self._wrote_at = time.monotonic()
        return data

    def _written(self) -> None:
        self._writing_since = None
        self._handed = self._taken
        if self._waiting:
            for position, future in self._waiting:
                if position <= self._handed and not future.done():
                    future.set_result(None)
            self._waiting = [(position, future) for position, future in self._waiting if not future.done()]

    async def _sleep(self) -> None:
        self._wake = asyncio.get_running_loop().create_future()
        try:
            await self._wake
        finally:
            self._wake = None

    def _notify(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


class Streams:
    """All live streams, and the one clock they share."""

    def __init__(self, log: Log, limits: StreamLimits) -> None:
        self._log = log
        self._limits = limits
        self._live: set[Stream] = set()

    def open(self, connection: Connection, after: int, socket: Socket) -> Stream:
        """A new stream takes over: a client that reconnects must not be locked out by its own dead socket."""
        if connection.stream is not None:
            connection.stream.close("another stream took over")
        stream = Stream(connection, self._log, max(after, connection.opened_at), self._limits, socket)
        connection.stream = stream
        self._live.add(stream)
        return stream

    def forget(self, connection: Connection, stream: Stream) -> None:
        stream.finish()
        self._live.discard(stream)
        if connection.stream is stream:
            connection.stream = None

    def close(self, reason: str) -> None:
        for stream in self._live:
            stream.close(reason)

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            await asyncio.sleep(TICK)
            now = time.monotonic()
            for stream in tuple(self._live):
                stream.tick(now)
