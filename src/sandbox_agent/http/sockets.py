"""All open sockets: how long each may keep the server waiting, and how many may be open without a token.

Knows nothing of HTTP. Looks at all of them now and then, in place of a timer for each.
"""

import asyncio
import logging
import time
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

logger = logging.getLogger(__name__)

TICK = 0.5
REPORT = 60.0
"""Seconds between two reports of sockets that were closed because there were too many."""
MAX_STEP = 2 * TICK
"""Most seconds that the clock advances per tick: while the server itself is blocked, no socket's time runs out."""


class Wait(Enum):
    """What a socket waits for."""

    REQUEST = auto()
    """The next request, of which nothing has come."""
    HEAD = auto()
    """The rest of a request line and its headers."""
    BODY = auto()
    """More of a body that the server would take."""
    SERVER = auto()
    """The server: it is the server's turn."""
    CLOSING = auto()
    """The client, which is to take what is left before the socket is closed."""


@dataclass(frozen=True, slots=True)
class SocketLimits:
    """Seconds, and a number of sockets."""

    anonymous: int = 512
    head_timeout: float = 30.0
    body_timeout: float = 60.0
    idle_timeout: float = 75.0


class Socket(Protocol):
    """One of them."""

    waited_since: float
    """By the clock of `Sockets`."""

    def waits_for(self) -> Wait: ...

    def time_out(self, wait: Wait) -> None: ...

    def abort(self) -> None: ...


class Sockets:
    """The open ones. Anonymous is one that has not shown the token, whether it is a stranger's or a client's."""

    def __init__(self, limits: SocketLimits) -> None:
        self.limits = limits
        self.clock = 0.0
        self._looked_at = time.monotonic()
        self._open: set[Socket] = set()
        self._anonymous: dict[Socket, None] = {}
        """Oldest first."""
        self._surplus = 0
        """Closed because there were too many, since the last report."""
        self._reported_at = -REPORT

    @property
    def in_use(self) -> bool:
        """Whether a client is there: a socket that has shown the token."""
        return len(self._open) > len(self._anonymous)

    def opened(self, socket: Socket) -> None:
        """Make room for it when there are far too many; those that are a little too many go with the next tick.

        So a client that shows its token at once gets in, even when strangers have connected in a burst since.
        """
        socket.waited_since = self.clock
        self._open.add(socket)
        self._anonymous[socket] = None
        if len(self._anonymous) > 2 * self.limits.anonymous:
            self._abort_oldest(2 * self.limits.anonymous)

    def admitted(self, socket: Socket) -> None:
        """It has shown the token."""
        self._anonymous.pop(socket, None)

    def closed(self, socket: Socket) -> None:
        self._open.discard(socket)
        self._anonymous.pop(socket, None)

    def tick(self, now: float) -> None:
        """Close what has kept the server waiting for too long, and what is too many."""
        self.clock += min(now - self._looked_at, MAX_STEP)
        self._looked_at = now
        for socket in list(self._open):
            wait = socket.waits_for()
            if wait is Wait.SERVER and socket not in self._anonymous:
                socket.waited_since = self.clock
            elif self.clock - socket.waited_since > self._patience(wait):
                socket.time_out(wait)
        self._abort_oldest(self.limits.anonymous)
        if self._surplus and self.clock - self._reported_at >= REPORT:
            logger.warning("closed the oldest sockets that showed no token closed=%d", self._surplus)
            self._surplus, self._reported_at = 0, self.clock

    async def run(self) -> None:
        """Tick for ever."""
        while True:
            await asyncio.sleep(TICK)
            self.tick(time.monotonic())

    def _patience(self, wait: Wait) -> float:
        match wait:
            case Wait.HEAD:
                return self.limits.head_timeout
            case Wait.BODY | Wait.SERVER:
                # The server is quick to answer strangers; one that takes longer does not read its answer.
                return self.limits.body_timeout
            case Wait.REQUEST | Wait.CLOSING:
                return self.limits.idle_timeout

    def _abort_oldest(self, kept: int) -> None:
        surplus = list(self._anonymous)[: max(len(self._anonymous) - kept, 0)]
        for socket in surplus:
            self.closed(socket)
            socket.abort()
        self._surplus += len(surplus)
