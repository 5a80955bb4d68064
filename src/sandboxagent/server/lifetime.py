"""End a server when the program that started it is gone, or when the server was idle for long enough.

The program keeps the server's stdin open. When the program ends for any reason, the kernel closes it. If a fork of the
program keeps the pipe open, the kernel also sends a signal when the program ends. The module knows nothing of the
server's work.
"""

import asyncio
import logging
import os
import signal
import stat
import time
from collections.abc import Callable

from sandboxagent.protocol.errors import SettingsError
from sandboxagent.server.processes.spawn import PR_SET_PDEATHSIG, prctl

STDIN = 0
ENDED = signal.SIGUSR1
"""Not SIGTERM: the kernel also sends this signal if only the thread that started the server ends, which must not end
the server."""

logger = logging.getLogger(__name__)


class Parent:
    """The process that started this one. Create this first, while that process most likely still exists."""

    def __init__(self) -> None:
        """Remember the parent process. Raises SettingsError if stdin is neither a pipe nor a socket."""
        self._pid = os.getppid()
        if (unfit := _unfit()) is not None:
            raise SettingsError(
                f"--embedded: stdin is {unfit}; it must be a pipe that the program that starts the server keeps open, "
                "because the server ends with it. Leave out --embedded to run a standalone server"
            )

    def watch(self, gone: Callable[[], None]) -> None:
        """Call `gone` when the parent process has ended, perhaps more than once.

        Needs the event loop, and no thread.
        """
        loop = asyncio.get_running_loop()
        os.set_blocking(STDIN, False)

        def read() -> None:
            if not _is_stdin_open():
                loop.remove_reader(STDIN)
                logger.info("stdin has ended")
                gone()

        def look() -> None:
            if os.getppid() != self._pid:
                logger.info("the parent process has ended")
                gone()

        loop.add_reader(STDIN, read)
        loop.add_signal_handler(ENDED, look)
        prctl(PR_SET_PDEATHSIG, ENDED, 0, 0, 0)
        look()  # It may have ended before the kernel was asked for the signal.


def _unfit() -> str | None:
    """Return the kind of stdin if it is neither a pipe nor a socket, else None."""
    try:
        mode = os.fstat(STDIN).st_mode
    except OSError:
        return "closed"
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        return None
    if os.isatty(STDIN):
        return "a terminal"
    return "a file" if stat.S_ISREG(mode) else "a device" if stat.S_ISCHR(mode) else "no pipe"


def _is_stdin_open() -> bool:
    """Return whether the other end of stdin is open. Discards input."""
    try:
        return bool(os.read(STDIN, 1 << 16))
    except BlockingIOError:
        return True
    except OSError:  # A socket whose other end was closed with something unread.
        return False


TICK_INTERVAL = 0.5
MAX_TICK_INTERVAL = 2 * TICK_INTERVAL
"""Maximum number of seconds that count per tick, because a machine that sleeps or a blocked server is not idle."""


class IdleTimer:
    """A clock of the time that the server has been idle.

    `is_busy` returns whether the server is working at this moment.
    """

    def __init__(self, is_busy: Callable[[], bool], timeout: float) -> None:
        self._is_busy = is_busy
        self._timeout = timeout
        self._idle = 0.0
        self._looked_at: float | None = None

    def tick(self, now: float) -> bool:
        """Check once; return True if the server has been idle for long enough."""
        step = 0.0 if self._looked_at is None else min(now - self._looked_at, MAX_TICK_INTERVAL)
        self._looked_at = now
        self._idle = 0.0 if self._is_busy() else self._idle + step
        return self._idle >= self._timeout

    async def wait(self) -> None:
        """Return when the server has been idle for long enough."""
        while not self.tick(time.monotonic()):  # noqa: ASYNC110 - it is a clock
            await asyncio.sleep(min(TICK_INTERVAL, self._timeout))
