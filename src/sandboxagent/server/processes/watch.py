"""Continue reapers that were stopped, or kill them with all processes below them.

The server learns the end of a program from its reaper, and a stopped reaper reports nothing. So the server watches the
program as well, checks at intervals whether the reaper was stopped, and continues it. If a reaper is stopped again and
again, the server kills the tree itself.
"""

import asyncio
import logging
import os
from typing import Protocol

logger = logging.getLogger(__name__)

LOOK_INTERVAL = 2.0
"""Seconds between two checks of a reaper whose program runs."""
RETRY_INTERVAL = 0.1
"""Seconds between two checks if the program has ended, or the reaper was stopped."""
MAX_STOPS = 5
"""Maximum number of checks in a row that find the reaper stopped, although each check continues it."""


class WatchedChild(Protocol):
    """A child with the properties that a watch needs."""

    @property
    def has_reaper(self) -> bool: ...
    @property
    def program(self) -> int: ...


class WatchedChildren(Protocol):
    """The owner of the watched children."""

    def get(self, key: str, /) -> WatchedChild | None: ...
    def wake(self, key: str, /) -> bool: ...
    def kill(self, key: str, /) -> int: ...


class Watch:
    """A watch on one reaper and its program, from the registration of the child until it is forgotten."""

    def __init__(self, children: WatchedChildren, key: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._children = children
        self._key = key
        self._child = children.get(key)
        self._stopped = 0
        """Number of checks in a row that have found the reaper stopped."""
        self._program: int | None = None
        self._killing: asyncio.Future[int] | None = None
        if self._child is None or not self._child.has_reaper:  # The child has ended already, or has no reaper.
            return
        self._has_ended = False
        try:
            self._program = os.pidfd_open(self._child.program)
        except ProcessLookupError:
            self._has_ended = True
        except OSError as error:
            # The kernel is old, or no file descriptor is left. The regular checks still find the end.
            logger.debug("program not watched reason=%s key=%s", error.strerror, key)
        else:
            self._loop.add_reader(self._program, self._on_end)
        self._timer = self._loop.call_later(LOOK_INTERVAL, self._look)

    def _on_end(self) -> None:
        """Check the reaper at once, because its program has ended."""
        self._close()
        self._has_ended = True
        self._timer.cancel()
        self._look()

    def _look(self) -> None:
        if self._children.get(self._key) is not self._child:
            self._close()
            return
        self._stopped = self._stopped + 1 if self._children.wake(self._key) else 0
        if self._stopped == 1:
            logger.warning("reaper was stopped, and goes on key=%s", self._key)
        if self._stopped > MAX_STOPS and (self._killing is None or self._killing.done()):
            logger.warning("reaper was stopped again and again, so its tree is killed key=%s", self._key)
            # In a thread, because the time depends on the number of processes on the machine.
            self._killing = self._loop.run_in_executor(None, self._children.kill, self._key)
        quick = self._has_ended or self._stopped
        self._timer = self._loop.call_later(RETRY_INTERVAL if quick else LOOK_INTERVAL, self._look)

    def _close(self) -> None:
        if self._program is not None:
            self._loop.remove_reader(self._program)
            os.close(self._program)
            self._program = None
