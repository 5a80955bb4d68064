"""A stream: what one connection has still to read of the log.

At most one is live per connection or, on `/acp`, one for the connection and one for each of its sessions. A reader that
keeps up is handed shared chunks from memory. One that fell behind reads pages from the log until it has caught up; one
that fell behind and takes nothing at all is cut off, and resumes by id. Knows nothing of HTTP.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from msgspec import Struct

from sandbox_agent.envelope import notification
from sandbox_agent.http.encoding import SSE, Encoding
from sandbox_agent.hub.connections import Connection, Downlink
from sandbox_agent.log.event import Chunk
from sandbox_agent.wire import methods

BATCH = 256 << 10
"""Bytes handed to the socket at a time."""
JOINED = 64 << 10
"""Bytes from which on a chunk is better written by itself than copied."""
CATCH_UP_BYTES = 1 << 20
"""How much a reader that fell behind takes from memory at a time."""
CATCH_UP_WAIT = 0.25
"""How long an answer waits for its own client to be handed the events before it."""
LONGEST_PAUSE = 0.5
"""How long an agent's output may wait for a reader that does not keep up: time for a quick one, no loss to others."""
TICK = 0.25
TAKEN_OVER = "another stream took over"


class StreamLimits(Struct, frozen=True):
    """What one stream may take, in bytes and seconds."""

    buffer: int = 8 << 20
    stall_timeout: float = 1.0
    heartbeat: float = 15.0
    peer_timeout: float = 60.0


class StreamSocket(Protocol):
    """What a stream is written to."""

    def get_write_buffer_size(self) -> int: ...
    def abort(self) -> None: ...


class StreamPart(Struct, frozen=True):
    """The events that one stream of a connection has: those of a session, or those of no session's own stream."""

    session_id: str | None

    def has(self, connection: Connection, chunk: Chunk) -> bool:
        return connection.stream_of(chunk) == self.session_id


class Source(Protocol):
    """What streams read: a server's log, or a gateway's feed."""

    @property
    def trims(self) -> dict[str, int]:
        """Channel → last position that is no longer kept."""
        ...

    def reach(self, channels: Iterable[str]) -> int:
        """Everything after this position is in memory."""
        ...

    def postpone(self, write: Callable[[], None]) -> bool:
        """Call back when all that happens now is known, to write it together; False when it is."""
        ...

    def in_memory(self, channels: Iterable[str], after: int, limit: int) -> tuple[list[Chunk], bool] | None: ...
    async def page(self, channels: Sequence[str], after: int, through: int) -> list[Chunk]: ...


class Stream:
    """One reader: a cursor in the log, and what waits to be written. Without a part, it has all events."""

    def __init__(
        self,
        connection: Connection,
        source: Source,
        after: int,
        limits: StreamLimits,
        socket: StreamSocket,
        encoding: Encoding = SSE,
        part: StreamPart | None = None,
        waits: Callable[[Connection], bool] | None = None,
    ) -> None:
        """While `waits` says so, nothing is read; `look_back` wakes it."""
        self.part = part
        self.reason: str | None = None
        """Why it was closed."""
        self.direct: Callable[[bytes], bool] | None = None
        """Writes at once, if the socket takes more; the writer sets it."""
        self._waits = waits
        self._looked_back = False
        self._encoding = encoding
        self._connection = connection
        self._source = source
        self._limits = limits
        self._socket = socket
        self._unsent = 0
        self._taking_at = time.monotonic()
        """When the client last took something, or nothing waited for it."""
        self._taken = after
        """Last position taken to be written."""
        self._known = after
        """Its client, or a page, had everything up to here. A gateway that is behind may still push some of it."""
        self._live = False
        self._queue: deque[Chunk] | tuple[()] = ()
        """A deque while something waits: an empty one would be a twentieth of what an idle stream takes."""
        self._queued = 0
        self._paused: list[Callable[[], None]] = []
        self._patience: asyncio.TimerHandle
        self._comments: list[bytes] = [encoding.opening] if encoding.opening else []
        self._closed = False
        self._wake: asyncio.Future[None] | None = None
        self._handed = after
        """Last position handed to the socket."""
        self._newest = after
        """Last position meant for this stream."""
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._writing_since: float | None = None
        self._wrote_at = time.monotonic()

    # What the hub does

    def push(self, chunk: Chunk) -> None:
        """A new chunk for this connection."""
        if self.part is not None and not self.part.has(self._connection, chunk):
            return
        if chunk.first <= self._known:
            if chunk.last <= self._known:
                return
            chunk = chunk.after(self._known)
        self._newest = chunk.last
        if not self._live:
            # It is on its way through the log and will come to this one there.
            return
        # A request is the writer's: each client reads it in other words, which are not known before all has happened.
        wake = self._wake
        if wake is not None and not wake.done() and self.direct is not None and chunk.request is None:
            if chunk.size < JOINED and (self._queue or self._source.postpone(self._write_queue)):
                self._enqueue(chunk)
                return
            if self._queue:
                self._write_queue()
            if not self._queue and self._write_now(self._encoding.events(self._connection, chunk), chunk.last):
                return
        self._enqueue(chunk)
        self._notify()

    def _enqueue(self, chunk: Chunk) -> None:
        if isinstance(self._queue, deque):
            self._queue.append(chunk)
        else:
            self._queue = deque((chunk,))
        self._queued += chunk.size
        if self._queued > self._limits.buffer:
            self._fall_behind()

    def _write_queue(self) -> None:
        """Write what was postponed, or let the writer do it."""
        is_written, wake = False, self._wake
        try:
            if self._queue and wake is not None and not wake.done():
                frames = [self._encoding.events(self._connection, chunk) for chunk in self._queue]
                is_written = self._write_now(b"".join(frames), self._queue[-1].last)
        finally:
            if is_written:
                self._queue = ()
                self._queued = 0
                if self._paused:
                    self._resume_producers()
            else:
                self._notify()

    def _write_now(self, data: bytes, last: int) -> bool:
        """Write what goes up to a position while the writer sleeps, if the socket takes more."""
        if self.direct is None or not self.direct(data):
            return False
        self._taken = self._handed = last
        self._wrote_at = time.monotonic()
        if self._waiting:
            self._written()
        return True

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

    def look_back(self) -> None:
        """Something may be there that was not pushed: read on from the last position that was taken."""
        self._looked_back = True
        self._fall_behind()
        self._notify()

    def close(self, reason: str) -> None:
        """End it, with a last comment saying why."""
        if farewell := self._encoding.farewell(reason):
            self._comments.append(farewell)
        self.reason = self.reason or reason
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

    def has_handed(self, position: int) -> bool:
        """Whether an answer need not wait for it."""
        return self._handed >= position or self._closed

    async def flushed(self) -> None:
        """Wait until everything meant for it so far has been handed to the socket; not for long."""
        await self.caught_up(self._newest)

    @property
    def cursor(self) -> int:
        """The last position handed to the socket."""
        return self._handed

    def tick(self, now: float) -> None:
        """Cut it off when it is behind and stalled; keep it awake when nothing happens."""
        unsent = self._socket.get_write_buffer_size()
        taken, self._unsent = unsent < self._unsent, unsent
        if taken or not unsent:
            self._taking_at = now
        elif now - self._taking_at > self._limits.peer_timeout:
            # Not behind, and perhaps gone without a word.
            self._socket.abort()
        if self._writing_since is not None:
            if taken:
                self._writing_since = now
            behind = self._closed or not self._live or unsent > self._limits.buffer
            if behind and now - self._writing_since > self._limits.stall_timeout:
                self._socket.abort()
        elif self._live and now - self._wrote_at >= self._limits.heartbeat:
            self._wrote_at = now
            self._comments.append(self._encoding.heartbeat())
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
            if self._live or (self._waits is not None and self._waits(self._connection)):
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
        self._queue = ()
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
        while isinstance(self._queue, deque) and size < BATCH:
            chunk = self._queue.popleft()
            self._queue = self._queue or ()
            self._queued -= chunk.size
            self._taken = chunk.last
            part = self._encoding.events(self._connection, chunk)
            parts.append(part)
            size += len(part)
        if self._paused and self._queued < self._limits.buffer // 4:
            self._resume_producers()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _catch_up(self) -> bytes:
        """Read on in the log; becomes live, without an await in between, when there is nothing more."""
        connection, after = self._connection, self._taken
        in_memory = self._source.in_memory(connection.channels(), after, CATCH_UP_BYTES)
        if in_memory is None:
            return await self._page(after)
        chunks, self._live = in_memory
        if chunks:
            self._taken = chunks[-1].last
        return self._render(chunks)

    async def _page(self, after: int) -> bytes:
        """A page from disk; preceded by a gap event if events have been trimmed."""
        connection = self._connection
        only = None if self.part is None else self.part.session_id
        if lost := connection.lost(self._source.trims, after, only):
            self._taken = lost
            return self._gap(after, lost + 1)
        # Read before the await, with the channels: those may be others when the page is there. What is no longer in
        # memory is on disk, and what is not on disk yet is in memory.
        channels = connection.channels()
        reach = self._source.reach(channels)
        self._looked_back = False
        chunks = await self._source.page(channels, after, reach)
        if self._looked_back or connection.lost(self._source.trims, after, only):
            # The channels are others now: read again. Or trimmed while we waited: the gap event comes first.
            return b""
        self._taken = self._known = chunks[-1].last if chunks else max(after, reach)
        return self._render(chunks)

    def _render(self, chunks: Iterable[Chunk]) -> bytes:
        connection, part = self._connection, self.part
        meant = (each for each in chunks if connection.sees(each) and (part is None or part.has(connection, each)))
        return b"".join(self._encoding.events(connection, chunk) for chunk in meant)

    def _gap(self, after: int, resumes_at: int) -> bytes:
        line = notification(methods.GAP, {"after": after, "resumesAt": resumes_at})
        # Its id is that of the last lost event, so that a client that reconnects here does not get the gap again.
        return self._encoding.event(resumes_at - 1, line)

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


class Several:
    """The live streams of one connection, when each has a part of its events."""

    def __init__(self) -> None:
        self.streams: dict[StreamPart, Stream] = {}

    def push(self, chunk: Chunk) -> None:
        for stream in self.streams.values():
            stream.push(chunk)

    def look_back(self) -> None:
        for stream in self.streams.values():
            stream.look_back()

    def close(self, reason: str) -> None:
        for stream in self.streams.values():
            stream.close(reason)

    async def caught_up(self, position: int) -> None:
        """Wait until each was handed what it has to have; not for long."""
        await asyncio.gather(*(stream.flushed() for stream in self.streams.values()))

    def has_handed(self, position: int) -> bool:
        return False

    def apply_backpressure(self, resume: Callable[[], None]) -> bool:
        return any(stream.apply_backpressure(resume) for stream in self.streams.values())


class Streams:
    """All live streams, and the one clock they share."""

    def __init__(
        self,
        source: Source,
        limits: StreamLimits,
        opened: Callable[[Connection], None] | None = None,
        waits: Callable[[Connection], bool] | None = None,
    ) -> None:
        """`opened` learns whose stream was opened; `waits` says whose streams must not read on yet."""
        self._opened = opened
        self._waits = waits
        self._source = source
        self._limits = limits
        self._live: set[Stream] = set()

    def open(
        self,
        connection: Connection,
        after: int,
        socket: StreamSocket,
        encoding: Encoding = SSE,
        part: StreamPart | None = None,
    ) -> Stream:
        """A new stream takes over: a client that reconnects must not be locked out by its own dead socket."""
        start = max(after, connection.opened_at)
        stream = Stream(connection, self._source, start, self._limits, socket, encoding, part, self._waits)
        if part is None:
            _take_over(connection.stream)
            connection.stream = stream
        else:
            if not isinstance(connection.stream, Several):
                _take_over(connection.stream)
                connection.stream = Several()
            _take_over(connection.stream.streams.get(part))
            connection.stream.streams[part] = stream
        self._live.add(stream)
        if self._opened is not None:
            self._opened(connection)
        return stream

    def forget(self, connection: Connection, stream: Stream) -> None:
        stream.finish()
        self._live.discard(stream)
        if stream.part is None:
            connection.served = max(connection.served, stream.cursor)
            if connection.stream is stream:
                connection.stream = None
            return
        name = stream.part.session_id
        connection.cursors[name] = max(stream.cursor, connection.cursors.get(name, 0))
        if isinstance(connection.stream, Several) and connection.stream.streams.get(stream.part) is stream:
            del connection.stream.streams[stream.part]
            if not connection.stream.streams:
                connection.stream = None

    def cursor(self, connection: Connection, part: StreamPart) -> int:
        """How far its client has been served: where a stream goes on when the client does not say."""
        live = self.find(connection, part)
        return max(live.cursor if live else 0, connection.cursors.get(part.session_id, 0), connection.served)

    @staticmethod
    def find(connection: Connection, part: StreamPart) -> Stream | None:
        """The live stream of a part."""
        return connection.stream.streams.get(part) if isinstance(connection.stream, Several) else None

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


def _take_over(stream: Downlink | None) -> None:
    if stream is not None:
        stream.close(TAKEN_OVER)
