"""Continue keepers that were stopped, or kill them with all processes below them.

The end of a program is learned from its keeper, and a keeper that is stopped says nothing. So the server watches the
program as well, looks every now and then whether the keeper was stopped, and lets it go on. A keeper that is stopped
again and again is of no use: then the server kills the tree by itself.
"""

import asyncio
import logging
import os
from typing import Protocol

logger = logging.getLogger(__name__)

LOOK_INTERVAL = 2.0
"""Seconds between two looks at a keeper whose program runs."""
RETRY_INTERVAL = 0.1
"""Seconds between two looks when the program has ended, or the keeper was stopped."""
MAX_STOPS = 5
"""How many looks in a row may find it stopped, although each lets it go on."""


class Kept(Protocol):
    """A child."""

    @property
    def kept(self) -> bool: ...
    @property
    def program(self) -> int: ...


class Keepers(Protocol):
    """Whose children are watched."""

    def get(self, key: str, /) -> Kept | None: ...
    def wake(self, key: str, /) -> bool: ...
    def kill(self, key: str, /) -> int: ...


class Watch:
    """Watches one keeper and its program, from its registration until the child is forgotten."""

    def __init__(self, children: Keepers, key: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._children = children
        self._key = key
        self._child = children.get(key)
        self._stopped = 0
        """How many looks in a row have found the keeper stopped."""
        self._program: int | None = None
        self._killing: asyncio.Future[int] | None = None
        if self._child is None or not self._child.kept:  # It has ended already, or has no keeper.
            return
        self._has_ended = False
        try:
            self._program = os.pidfd_open(self._child.program)
        except ProcessLookupError:
            self._has_ended = True
        except OSError as error:
            # The kernel is old, or there is no descriptor left: the looks must do.
            logger.debug("program not watched reason=%s key=%s", error.strerror, key)
        else:
            self._loop.add_reader(self._program, self._on_end)
        self._timer = self._loop.call_later(LOOK_INTERVAL, self._look)

    def _on_end(self) -> None:
        """The program has ended: its keeper has something to do now."""
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
            logger.warning("keeper was stopped, and goes on key=%s", self._key)
        if self._stopped > MAX_STOPS and (self._killing is None or self._killing.done()):
            logger.warning("keeper was stopped again and again, so its tree is killed key=%s", self._key)
            # In a thread: it takes as long as there are processes on the machine.
            self._killing = self._loop.run_in_executor(None, self._children.kill, self._key)
        quick = self._has_ended or self._stopped
        self._timer = self._loop.call_later(RETRY_INTERVAL if quick else LOOK_INTERVAL, self._look)

    def _close(self) -> None:
        if self._program is not None:
            self._loop.remove_reader(self._program)
            os.close(self._program)
            self._program = None
