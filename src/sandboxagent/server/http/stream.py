"""Send connections their unread events of the log, and cut off slow readers.

A connection has at most one live stream. On `/acp` it may have one for itself and one for each of its sessions. A
reader that keeps up gets shared chunks from memory. A reader that fell behind reads pages from the log until it has
caught up. If it takes nothing at all, it is cut off, and resumes by id. This module knows nothing of HTTP.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from sandboxagent.core.cursor import Cursor, Gap
from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import notification
from sandboxagent.server.http.encoding import SSE, Encoding
from sandboxagent.server.http.stream_source import EventLog, StreamPart, StreamSource
from sandboxagent.server.log.event import Chunk
from sandboxagent.server.sessions.connection import Connection, StreamSink

BATCH_BYTES = 256 << 10
"""Bytes handed to the socket at a time."""
MAX_JOINED_BYTES = 64 << 10
"""Bytes from which on a chunk is written by itself, because copying it would cost more."""
CATCH_UP_TIMEOUT = 0.25
"""Maximum seconds that an answer waits until its own client has been handed the events before it."""
READER_TIMEOUT = 0.5
"""Maximum seconds that an agent's output waits for a reader that does not keep up. A quick reader catches up in that
time, and others lose nothing."""
TICK_INTERVAL = 0.25
REPLACED = "another stream took over"


class StreamLimits(Struct, frozen=True):
    """Limits of one stream, in bytes and seconds."""

    buffer: int = 8 << 20
    stall_timeout: float = 1.0
    heartbeat: float = 15.0
    peer_timeout: float = 60.0


class StreamSocket(Protocol):
    """The socket that a stream is written to."""

    def get_write_buffer_size(self) -> int: ...
    def abort(self) -> None: ...


class Stream:
    """A reader of a connection's events: its cursor, its queue and its socket. Without a part, it gets all events."""

    __slots__ = (
        "_comments",
        "_connection",
        "_cursor",
        "_encoding",
        "_handed",
        "_limits",
        "_newest",
        "_pause_timer",
        "_paused",
        "_socket",
        "_source",
        "_taking_at",
        "_unsent",
        "_waiting",
        "_waits",
        "_writing_since",
        "_wrote_at",
        "direct",
        "part",
        "reason",
    )

    def __init__(
        self,
        connection: Connection,
        source: EventLog,
        after: int,
        limits: StreamLimits,
        socket: StreamSocket,
        encoding: Encoding = SSE,
        part: StreamPart | None = None,
        waits: Callable[[Connection], bool] | None = None,
    ) -> None:
        """Create a stream. While `waits` returns True, the stream reads nothing; `resync` wakes it."""
        self.part = part
        self.reason: str | None = None
        """Reason why the stream was closed."""
        self.direct: Callable[[bytes], bool] | None = None
        """Function that writes at once, if the socket takes more. The writer sets it."""
        self._waits = waits
        self._encoding = encoding
        self._connection = connection
        self._source = source
        self._limits = limits
        self._socket = socket
        self._cursor: Cursor[Chunk] = Cursor(
            StreamSource(connection, part, source), after, limits.buffer, has_memory=True
        )
        self._unsent = 0
        self._taking_at = time.monotonic()
        """Time when the client last took bytes, or no bytes waited for it."""
        self._paused: tuple[Callable[[], None], ...] = ()
        """Callbacks of paused producers. A tuple, as two fields below: empty lists would be a sixth of an idle stream's
        memory."""
        self._pause_timer: asyncio.TimerHandle
        self._comments: tuple[bytes, ...] = (encoding.opening,) if encoding.opening else ()
        self._handed = after
        """Last position handed to the socket."""
        self._newest = after
        """Last position meant for this stream."""
        self._waiting: tuple[tuple[int, asyncio.Future[None]], ...] = ()
        self._writing_since: float | None = None
        self._wrote_at = time.monotonic()

    # Called by the hub

    def push(self, chunk: Chunk) -> None:
        """Take a new chunk for this connection."""
        if self.part is not None and not self.part.has(self._connection, chunk):
            return
        cursor = self._cursor
        if chunk.first <= cursor.known:
            # A gateway that is behind may push events that the client has.
            if chunk.last <= cursor.known:
                return
            chunk = chunk.after(cursor.known)
        self._newest = chunk.last
        if not cursor.is_live:
            # The stream will read the chunk from the log.
            return
        # The writer encodes requests: each client gets a form of its own, which is not known before the event is
        # processed.
        waiting = cursor.waiting
        if waiting is not None and not waiting.done() and self.direct is not None and chunk.request is None:
            if chunk.size < MAX_JOINED_BYTES and (cursor.queue or self._source.postpone(self._write_queue)):
                cursor.enqueue(chunk)
                return
            if cursor.queue:
                self._write_queue()
            if not cursor.queue and self._write_now(self._encoding.events(self._connection, chunk), chunk.last):
                return
        cursor.push(chunk)

    def _write_queue(self) -> None:
        """Write the postponed chunks, or wake the writer to do it."""
        is_written, cursor = False, self._cursor
        queue, waiting = cursor.queue, cursor.waiting
        try:
            if queue and waiting is not None and not waiting.done():
                frames = [self._encoding.events(self._connection, chunk) for chunk in queue]
                is_written = self._write_now(b"".join(frames), queue[-1].last)
        finally:
            if is_written:
                cursor.clear()
                if self._paused:
                    self._resume_producers()
            else:
                cursor.wake()

    def _write_now(self, data: bytes, last: int) -> bool:
        """Write events up to a position while the writer sleeps, if the socket takes more."""
        if self.direct is None or not self.direct(data):
            return False
        self._cursor.position = self._handed = last
        self._wrote_at = time.monotonic()
        if self._waiting:
            self._written()
        return True

    def apply_backpressure(self, resume: Callable[[], None]) -> bool:
        """Return whether the producer should pause until `resume` is called.

        That saves a quick reader from reading the log.

        The pause is short: a reader that does not catch up in time reads from the log and slows no producer again.
        """
        if not self._cursor.is_live or self._cursor.queued < self._limits.buffer // 2:
            return False
        if not self._paused:
            self._pause_timer = asyncio.get_running_loop().call_later(READER_TIMEOUT, self._end_pause)
        self._paused = (*self._paused, resume)
        return True

    def _end_pause(self) -> None:
        self._cursor.fall_behind()
        self._resume_producers()

    def resync(self) -> None:
        """Read on from the last position taken, because there may be events that were not pushed."""
        self._cursor.read_again()
        self._resume_producers()

    def close(self, reason: str) -> None:
        """End the stream, with a last comment that has the reason."""
        if last_bytes := self._encoding.last_bytes(reason):
            self._comments = (*self._comments, last_bytes)
        self.reason = self.reason or reason
        self._cursor.close()

    async def wait_sent(self, position: int) -> None:
        """Wait until everything up to a position has been handed to the socket, at most CATCH_UP_TIMEOUT."""
        if self._handed >= position or self._cursor.is_closed:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting = (*self._waiting, (position, future))
        try:
            async with asyncio.timeout(CATCH_UP_TIMEOUT):
                await future
        except TimeoutError:
            return

    def has_sent(self, position: int) -> bool:
        """Whether everything up to a position has been handed to the socket, or never will be."""
        return self._handed >= position or self._cursor.is_closed

    async def flushed(self) -> None:
        """Wait until all events so far have been handed to the socket, at most CATCH_UP_TIMEOUT."""
        await self.wait_sent(self._newest)

    @property
    def cursor(self) -> int:
        """The last position handed to the socket."""
        return self._handed

    def tick(self, now: float) -> None:
        """Cut off a stream that is behind and stalled, and send a heartbeat on an idle one."""
        unsent = self._socket.get_write_buffer_size()
        taken, self._unsent = unsent < self._unsent, unsent
        if taken or not unsent:
            self._taking_at = now
        elif now - self._taking_at > self._limits.peer_timeout:
            # The client is not behind, but may be gone without closing the socket.
            self._socket.abort()
        if self._writing_since is not None:
            if taken:
                self._writing_since = now
            cursor = self._cursor
            behind = cursor.is_closed or not cursor.is_live or max(unsent, cursor.queued) > self._limits.buffer
            if behind and now - self._writing_since > self._limits.stall_timeout:
                self._socket.abort()
        elif self._cursor.is_live and now - self._wrote_at >= self._limits.heartbeat:
            self._wrote_at = now
            self._comments = (*self._comments, self._encoding.heartbeat())
            self._cursor.wake()

    # Called by the writer

    async def next(self) -> bytes | None:
        """Return the bytes to write next; None when the stream is over. The previous bytes count as handed over."""
        self._written()
        cursor = self._cursor
        while True:
            if self._comments:
                comments, self._comments = self._comments, ()
                return self._writing(b"".join(comments))
            if cursor.is_closed:
                return None
            if cursor.queue:
                return self._writing(self._drain())
            if cursor.is_live or (self._waits is not None and self._waits(self._connection)):
                await cursor.wait()
            elif items := await cursor.catch_up():
                return self._writing(b"".join(map(self._encode, items)))

    def finish(self) -> None:
        """Release all that wait for the writer, which has stopped."""
        self._cursor.close()
        self._written()
        self._resume_producers()
        for _, future in self._waiting:
            if not future.done():
                future.set_result(None)

    def _resume_producers(self) -> None:
        """Resume the paused producers."""
        paused, self._paused = self._paused, ()
        if paused:
            self._pause_timer.cancel()
        for resume in paused:
            resume()

    def _drain(self) -> bytes:
        parts = [self._encoding.events(self._connection, chunk) for chunk in self._cursor.take(BATCH_BYTES)]
        if self._paused and self._cursor.queued < self._limits.buffer // 4:
            self._resume_producers()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _encode(self, item: Chunk | Gap) -> bytes:
        if isinstance(item, Gap):
            line = notification(methods.GAP, {"after": item.after, "resumesAt": item.resumes_at})
            # The gap's id is that of the last lost event, so that a client that reconnects here does not get the gap
            # again.
            return self._encoding.event(item.resumes_at - 1, line)
        return self._encoding.events(self._connection, item)

    def _writing(self, data: bytes) -> bytes:
        self._writing_since = self._wrote_at = time.monotonic()
        return data

    def _written(self) -> None:
        self._writing_since = None
        self._handed = self._cursor.position
        if self._waiting:
            for position, future in self._waiting:
                if position <= self._handed and not future.done():
                    future.set_result(None)
            self._waiting = tuple(each for each in self._waiting if not each[1].done())


class StreamGroup:
    """The live streams of one connection, when each has a part of its events."""

    def __init__(self) -> None:
        self.streams: dict[StreamPart, Stream] = {}

    def push(self, chunk: Chunk) -> None:
        for stream in self.streams.values():
            stream.push(chunk)

    def resync(self) -> None:
        for stream in self.streams.values():
            stream.resync()

    def close(self, reason: str) -> None:
        for stream in self.streams.values():
            stream.close(reason)

    async def wait_sent(self, position: int) -> None:
        """Wait until each stream has been handed its events so far, at most CATCH_UP_TIMEOUT."""
        await asyncio.gather(*(stream.flushed() for stream in self.streams.values()))

    def has_sent(self, position: int) -> bool:
        return False

    def apply_backpressure(self, resume: Callable[[], None]) -> bool:
        return any(stream.apply_backpressure(resume) for stream in self.streams.values())


class Streams:
    """All live streams, and the one clock they share."""

    def __init__(
        self,
        source: EventLog,
        limits: StreamLimits,
        opened: Callable[[Connection], None] | None = None,
        waits: Callable[[Connection], bool] | None = None,
    ) -> None:
        """Create the table.

        `opened` gets the connection of each new stream; `waits` tells whose streams must not read yet.
        """
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
        """Open a stream in place of a live one: a client's own dead socket must not lock it out after a reconnect."""
        start = max(after, connection.opened_at)
        stream = Stream(connection, self._source, start, self._limits, socket, encoding, part, self._waits)
        if part is None:
            _take_over(connection.stream)
            connection.stream = stream
        else:
            if not isinstance(connection.stream, StreamGroup):
                _take_over(connection.stream)
                connection.stream = StreamGroup()
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
        if isinstance(connection.stream, StreamGroup) and connection.stream.streams.get(stream.part) is stream:
            del connection.stream.streams[stream.part]
            if not connection.stream.streams:
                connection.stream = None

    def cursor(self, connection: Connection, part: StreamPart) -> int:
        """Return how far the client has been served: a stream continues there when the client gives no position."""
        live = self.find(connection, part)
        return max(live.cursor if live else 0, connection.cursors.get(part.session_id, 0), connection.served)

    @staticmethod
    def find(connection: Connection, part: StreamPart) -> Stream | None:
        """Return the live stream of a part."""
        return connection.stream.streams.get(part) if isinstance(connection.stream, StreamGroup) else None

    def close(self, reason: str) -> None:
        for stream in self._live:
            stream.close(reason)

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            await asyncio.sleep(TICK_INTERVAL)
            now = time.monotonic()
            for stream in tuple(self._live):
                stream.tick(now)


def _take_over(stream: StreamSink | None) -> None:
    if stream is not None:
        stream.close(REPLACED)
