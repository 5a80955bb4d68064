"""Send OpenCode's events to readers, each with a bounded buffer.

OpenCode's streams cannot be resumed. A reader that falls too far behind is disconnected, and gets the newest messages
again when it connects again (`event_routes.py`). It costs the other readers nothing but its bounded buffer.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from sandboxagent.adapters.opencode.ids import Ticks, make_id, milliseconds

HEARTBEAT_INTERVAL = 10.0
"""Seconds between two heartbeats, as in OpenCode's own server."""
FLUSH_TIMEOUT = 0.25
"""Maximum seconds that an answer waits until readers were sent the events before it."""
MAX_BATCH_BYTES = 256 << 10
"""Maximum bytes that are written to a socket at a time."""


class EventSocket(Protocol):
    """The connection of a stream."""

    def abort(self) -> None: ...


@dataclass(slots=True, eq=False)
class EventReader:
    """One stream of events."""

    socket: EventSocket
    limit: int
    wrapped: bool
    """Whether each event comes with its directory, as on `/global/event`."""
    directory: str | None
    """Only events of this directory; None for all."""
    closed: bool = False
    _queue: deque[bytes] = field(default_factory=deque[bytes])
    _size: int = 0
    _pushed: int = 0
    _written: int = 0
    _taken: int = 0
    _writing_since: float | None = None
    _wake: "asyncio.Future[None] | None" = None
    _waiting: list[tuple[int, "asyncio.Future[None]"]] = field(default_factory=list[tuple[int, "asyncio.Future[None]"]])

    def push(self, frame: bytes) -> None:
        if self.closed:
            return
        if self._size + len(frame) > self.limit:
            self.closed = True
            self._queue.clear()
            self.socket.abort()
        else:
            self._queue.append(frame)
            self._size += len(frame)
            self._pushed += 1
        self._notify()

    def close(self) -> None:
        """End the stream after the waiting events are written."""
        self.closed = True
        self._notify()

    async def next(self) -> bytes | None:
        """Wait for events, and return the next bytes to write.

        Empty if nothing has happened for HEARTBEAT_INTERVAL; None if the stream is over.
        """
        self._mark_written()
        if not self._queue and not self.closed:
            self._wake = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(HEARTBEAT_INTERVAL):
                    await self._wake
            except TimeoutError:
                return b""
            finally:
                self._wake = None
        if not self._queue:
            return None if self.closed else b""
        frames: list[bytes] = []
        size = 0
        while self._queue and size < MAX_BATCH_BYTES:
            frames.append(self._queue.popleft())
            size += len(frames[-1])
        self._size -= size
        self._taken += len(frames)
        self._writing_since = time.monotonic()
        return b"".join(frames)

    async def flushed(self) -> None:
        """Wait until everything pushed so far is written to the socket. Return at once if the socket is stalled."""
        stalled = self._writing_since is not None and time.monotonic() - self._writing_since > FLUSH_TIMEOUT
        if self._written < self._pushed and not self.closed and not stalled:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((self._pushed, future))
            await future

    def finish(self) -> None:
        """Drop the queue of a stream that is not written any more, and release all that wait for it."""
        self.closed = True
        self._queue.clear()
        self._written = self._pushed
        self._release()

    def _mark_written(self) -> None:
        self._written, self._writing_since = self._taken, None
        self._release()

    def _release(self) -> None:
        for count, future in self._waiting:
            if count <= self._written and not future.done():
                future.set_result(None)
        self._waiting = [each for each in self._waiting if not each[1].done()]

    def _notify(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


class EventBus:
    """All readers of events."""

    def __init__(self, limit: int, find_project: Callable[[str], str], clock: Callable[[], float] = time.time) -> None:
        """`limit` is the maximum number of bytes that wait for one reader."""
        self._limit = limit
        self._find_project = find_project
        self._clock = clock
        self._readers: set[EventReader] = set()
        self._ticks = Ticks()
        self._closed = False

    @property
    def read(self) -> bool:
        """Whether there are readers."""
        return bool(self._readers)

    def open(self, socket: EventSocket, *, wrapped: bool, directory: str | None) -> EventReader:
        """Add and return a reader, which first gets `server.connected`."""
        reader = EventReader(socket, self._limit, wrapped, directory)
        self._readers.add(reader)
        self.send(reader, None, "server.connected", {})
        if self._closed:
            reader.close()
        return reader

    def forget(self, reader: EventReader) -> None:
        reader.finish()
        self._readers.discard(reader)

    def close(self) -> None:
        """End all streams, because the server is stopping."""
        self._closed = True
        for reader in self._readers:
            reader.close()

    def publish(self, directory: str | None, type: str, properties: object) -> None:
        """Send an event to all readers of its directory; without a directory, to all readers."""
        wanting = [one for one in self._readers if one.directory in (None, directory) or directory is None]
        if not wanting:
            return
        bare = self._encode(type, properties)
        wrapped = self._wrap(directory, bare) if any(one.wrapped for one in wanting) else b""
        for reader in wanting:
            reader.push(wrapped if reader.wrapped else _frame(bare))

    def refresh(self) -> None:
        """Have programs read again the lists that they read at their start, such as the models."""
        # The web page reacts to the first event, the terminal interface to the second.
        self.publish(None, "catalog.updated", {})
        for reader in self._readers:
            if reader.wrapped:
                self.send(reader, None, "server.instance.disposed", {"directory": ""})

    def send(
        self, reader: EventReader, directory: str | None, type: str, properties: object, most: int | None = None
    ) -> int:
        """Send an event to one reader, and return its bytes; send nothing if it has more than `most` bytes."""
        bare = self._encode(type, properties)
        frame = self._wrap(directory, bare) if reader.wrapped else _frame(bare)
        if most is not None and len(frame) > most:
            return 0
        reader.push(frame)
        return len(frame)

    async def flushed(self) -> None:
        """Wait until everything so far is written to the readers, at most FLUSH_TIMEOUT."""
        waiting = [asyncio.ensure_future(reader.flushed()) for reader in self._readers]
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=FLUSH_TIMEOUT)
            for each in late:
                each.cancel()

    def _encode(self, type: str, properties: object) -> bytes:
        id = make_id("evt", self._ticks.next(milliseconds(self._clock())), self._ticks)
        return msgspec.json.encode({"id": id, "type": type, "properties": properties})

    def _wrap(self, directory: str | None, bare: bytes) -> bytes:
        payload = {"payload": msgspec.Raw(bare)}
        about = {} if directory is None else {"directory": directory, "project": self._find_project(directory)}
        return _frame(msgspec.json.encode(about | payload))


def _frame(data: bytes) -> bytes:
    return b"data: %b\n\n" % data
