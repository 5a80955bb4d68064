"""Limit how long each open socket may keep the server waiting.

One periodic check of all sockets replaces a timer for each. This module knows nothing of HTTP.
"""

import asyncio
import logging
import time
from enum import Enum, auto
from typing import Protocol

from msgspec import Struct

logger = logging.getLogger(__name__)


TICK_INTERVAL = 0.5
REPORT_INTERVAL = 60.0
"""Seconds between two reports of sockets that were closed because there were too many."""
MAX_TICK_INTERVAL = 2 * TICK_INTERVAL
"""Maximum seconds that the clock advances per tick. So while the server itself is blocked, no timeout ends."""

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
