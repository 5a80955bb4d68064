"""Limit how long each open socket may keep the server waiting, and gather writes to it.

One periodic check of all sockets replaces a timer for each. This module knows nothing of HTTP.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol

from msgspec import Struct

logger = logging.getLogger(__name__)


TICK_INTERVAL = 0.5
REPORT_INTERVAL = 60.0
"""Seconds between two reports of sockets that were closed because there were too many."""
MAX_TICK_INTERVAL = 2 * TICK_INTERVAL
"""Maximum seconds that the clock advances per tick. So while the server itself is blocked, no timeout ends."""

MAX_GATHERED_BYTES = 64 << 10
"""Maximum bytes gathered until the end of a turn of the event loop. A socket with more in its buffer takes no further
part."""
LARGE_BYTES = 8 << 10
"""Bytes from which on data is not copied."""
LINGER_TIMEOUT = 2.0
"""Seconds that a client that still sends has to read its answer, before the socket is closed."""


class Wait(Enum):
    """The event that a socket waits for."""

    REQUEST = auto()
    """The first byte of the next request."""
    HEAD = auto()
    """The rest of a request line and its headers."""
    BODY = auto()
    """More of a body that the server is ready to read."""
    SERVER = auto()
    """The server's own work."""
    MESSAGE = auto()
    """The first message on a WebSocket."""
    PONG = auto()
    """Any bytes of a WebSocket's client after a ping."""
    CLOSING = auto()
    """The client, which has to read the remaining bytes before the socket is closed."""


class SocketLimits(Struct, frozen=True):
    """Timeouts in seconds, and the maximum number of anonymous sockets."""

    anonymous: int = 512
    head_timeout: float = 30.0
    body_timeout: float = 60.0
    idle_timeout: float = 75.0
    pong_timeout: float = 60.0


class OpenSocket(Protocol):
    """An open socket."""

    waited_since: float
    """Start of the wait, by the clock of `Sockets`."""

    def waits_for(self) -> Wait: ...

    def time_out(self, wait: Wait) -> None: ...

    def abort(self) -> None: ...

    def shutdown(self) -> None:
        """Close the socket after the answer under way."""
        ...


class LightEvent:
    """An `asyncio.Event` that makes no deque before a task waits: each request has one, and each socket another."""

    __slots__ = ("_is_set", "_waiting")

    def __init__(self, *, is_set: bool = False) -> None:
        self._is_set = is_set
        self._waiting: list[asyncio.Future[None]] | tuple[()] = ()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """Wake all tasks that wait."""
        self._is_set = True
        waiting, self._waiting = self._waiting, ()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def clear(self) -> None:
        self._is_set = False

    async def wait(self) -> bool:
        """Wait until the flag is set."""
        if not self._is_set:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting = [*self._waiting, future]
            try:
                await future
            finally:
                self._waiting = [each for each in self._waiting if each is not future]
        return True


class Sockets:
    """All open sockets.

    A socket is anonymous until it has shown the token, whether a stranger or a client opened it.
    """

    def __init__(self, limits: SocketLimits) -> None:
        self.limits = limits
        self.clock = 0.0
        self._looked_at = time.monotonic()
        self._open: set[OpenSocket] = set()
        self._anonymous: dict[OpenSocket, None] = {}
        """Anonymous sockets, the oldest first."""
        self._surplus = 0
        """Number of sockets closed since the last report because there were too many."""
        self._reported_at = -REPORT_INTERVAL
        self._all_closed = LightEvent(is_set=True)

    @property
    def in_use(self) -> bool:
        """Whether any open socket has shown the token."""
        return len(self._open) > len(self._anonymous)

    def add(self, socket: OpenSocket) -> None:
        """Add a socket. Close the oldest anonymous ones if there are more than twice the limit.

        A smaller excess is closed at the next tick. So a client that shows its token at once gets in, even when
        strangers have connected in a burst since.
        """
        socket.waited_since = self.clock
        self._open.add(socket)
        self._all_closed.clear()
        self._anonymous[socket] = None
        if len(self._anonymous) > 2 * self.limits.anonymous:
            self._abort_oldest(2 * self.limits.anonymous)

    def mark_authenticated(self, socket: OpenSocket) -> None:
        """Note that a socket has shown the token."""
        self._anonymous.pop(socket, None)

    def remove(self, socket: OpenSocket) -> None:
        self._open.discard(socket)
        self._anonymous.pop(socket, None)
        if not self._open:
            self._all_closed.set()

    def shut_down(self) -> None:
        """Close all sockets, each after its answer."""
        for socket in list(self._open):
            socket.shutdown()

    async def closed(self) -> None:
        """Wait until no socket is open."""
        await self._all_closed.wait()

    def tick(self, now: float) -> None:
        """Close the sockets that have kept the server waiting for too long, and the oldest of too many."""
        self.clock += min(now - self._looked_at, MAX_TICK_INTERVAL)
        self._looked_at = now
        for socket in list(self._open):
            wait = socket.waits_for()
            if wait is Wait.SERVER and socket not in self._anonymous:
                socket.waited_since = self.clock
            elif self.clock - socket.waited_since > self._timeout_of(wait):
                socket.time_out(wait)
        self._abort_oldest(self.limits.anonymous)
        if self._surplus and self.clock - self._reported_at >= REPORT_INTERVAL:
            logger.warning("closed the oldest sockets that showed no token closed=%d", self._surplus)
            self._surplus, self._reported_at = 0, self.clock

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            await asyncio.sleep(TICK_INTERVAL)
            self.tick(time.monotonic())

    def _timeout_of(self, wait: Wait) -> float:
        match wait:
            case Wait.PONG:
                return self.limits.pong_timeout
            case Wait.HEAD | Wait.MESSAGE:
                return self.limits.head_timeout
            case Wait.BODY | Wait.SERVER:
                # The server answers strangers quickly. If that takes longer, the client does not read its answer.
                return self.limits.body_timeout
            case Wait.REQUEST | Wait.CLOSING:
                return self.limits.idle_timeout

    def _abort_oldest(self, kept: int) -> None:
        surplus = list(self._anonymous)[: max(len(self._anonymous) - kept, 0)]
        for socket in surplus:
            self.remove(socket)
            socket.abort()
        self._surplus += len(surplus)


class BufferedTransport(asyncio.Transport):
    """A transport that makes one system call of all writes in a turn of the event loop, mostly of a head and a body."""

    def __init__(
        self, inner: asyncio.Transport, loop: asyncio.AbstractEventLoop, on_admitted: Callable[[], None]
    ) -> None:
        super().__init__()
        self.unread = False
        """Whether the client is in the middle of a body. Closing the socket takes some time then."""
        self.lingering: asyncio.TimerHandle | None = None
        """Timer that closes the socket. While it runs, received bytes are discarded."""
        self._inner = inner
        self._loop = loop
        self._on_admitted: Callable[[], None] | None = on_admitted
        self._gathered: list[bytes] = []
        self._gathered_size = 0
        self._paused = False
        self._backlogged = False
        self.get_extra_info = inner.get_extra_info
        self.abort = inner.abort
        self.set_protocol = inner.set_protocol

    def mark_authenticated(self) -> None:
        """Note that the client has shown that it may call."""
        if self._on_admitted is not None:
            self._on_admitted()
            self._on_admitted = None

    # Reading

    def is_reading(self) -> bool:
        return self._inner.is_reading()

    def pause_reading(self) -> None:
        """Stop reading: the request under way takes no more for now."""
        self._paused = True
        self._read_if_wanted()

    def resume_reading(self) -> None:
        """Read on, because the request takes more. Bytes that already wait come first."""
        self._paused = False
        self._read_if_wanted()

    def set_backlogged(self, backlogged: bool) -> None:
        """Set whether unparsed bytes are waiting, in which case no more are read."""
        self._backlogged = backlogged
        self._read_if_wanted()

    def _read_if_wanted(self) -> None:
        wanted = self.lingering is not None or not (self._paused or self._backlogged)
        if self._inner.is_closing() or wanted == self._inner.is_reading():
            return
        if wanted:
            self._inner.resume_reading()
        else:
            self._inner.pause_reading()

    # Writing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write data before the next turn of the event loop."""
        if not self._gathered:
            self._loop.call_soon(self._flush)
        self._gathered.append(bytes(data))
        self._gathered_size += len(data)
        if self._gathered_size > MAX_GATHERED_BYTES:
            self._flush()

    def write_through(self, data: bytes) -> None:
        """Write a whole answer. It is not gathered here, because the event loop itself gathers such writes."""
        if self._gathered:
            self.write(data)
        else:
            self._inner.write(data)

    def write_part(self, data: bytes) -> bool:
        """Write a part of a chunked response at once. Return False when the client has to read first."""
        inner = self._inner
        # `is_closing` written inline, because this runs for every reader.
        if (
            self._gathered
            or self.lingering is not None
            or inner.is_closing()
            or inner.get_write_buffer_size() > MAX_GATHERED_BYTES
        ):
            return False
        if len(data) < LARGE_BYTES:
            inner.write(b"%x\r\n%b\r\n" % (len(data), data))
        else:
            # Readers share the data, so it is not copied for each.
            inner.writelines((b"%x\r\n" % len(data), data, b"\r\n"))
        return True

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that have not gone out yet."""
        return self._inner.get_write_buffer_size() + self._gathered_size

    def _flush(self) -> None:
        if self._gathered:
            gathered, self._gathered, self._gathered_size = self._gathered, [], 0
            if not self.is_closing():
                self._inner.write(gathered[0] if len(gathered) == 1 else b"".join(gathered))

    # Closing

    def is_closing(self) -> bool:
        """Whether nothing more can be written."""
        return self.lingering is not None or self._inner.is_closing()

    def close(self) -> None:
        """Close when everything is written. For a client that still sends, close LINGER_TIMEOUT later."""
        self._flush()
        if self.unread and not self.is_closing():
            self.lingering = self._loop.call_later(LINGER_TIMEOUT, self._inner.close)
            self._inner.write_eof()
            self._read_if_wanted()
        else:
            self._inner.close()

    def closed(self) -> None:
        """Release the timer and the callback of a closed socket."""
        self._on_admitted = None
        if self.lingering is not None:
            self.lingering.cancel()


class FlowControl:
    """The flow control of a socket: whether it is read and written now."""

    __slots__ = ("_read_paused", "_transport", "_writable", "write_paused")

    def __init__(self, transport: BufferedTransport) -> None:
        self._transport = transport
        self._read_paused = False
        self.write_paused = False
        self._writable = LightEvent(is_set=True)

    async def drain(self) -> None:
        """Wait until the client has read enough, or is gone."""
        await self._writable.wait()

    def pause_reading(self) -> None:
        if not self._read_paused:
            self._read_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._read_paused:
            self._read_paused = False
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        self.write_paused = True
        self._writable.clear()

    def resume_writing(self) -> None:
        self.write_paused = False
        self._writable.set()
