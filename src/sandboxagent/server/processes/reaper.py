"""Run between the server and one child, and kill every process that the child leaves behind.

It is a subreaper: everything the child starts stays below it, even processes that change their session,
environment or limits. When the child ends, or the server does, it kills all of that, and leaves the way the child did.

usage: python -I -S reaper.py SERVER CHILD LINGER    process ids, and seconds for what the child leaves running

SIGUSR1 takes the rest of LINGER away. One runs for each child, so it imports only what is built into Python: `os` and
`signal` would double the time that it takes to start.
"""

import posix as os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal

KILL_TIMEOUT, LAST_TIMEOUT = 1.0, 60.0
"""Seconds to keep trying: after that the server takes over, if there still is one."""
KILL_INTERVAL = 0.01
HEARD = {signal.SIGCHLD, signal.SIGCONT, signal.SIGUSR1}
"""SIGCONT comes from the kernel when the server is gone: it wakes a keeper that was stopped, too."""


class Reaper:
    """Keeps what one child starts."""

    def __init__(self, server: int, child: int, linger: float) -> None:
        self._server = server
        self._child = child
        self._linger = linger
        self._status: int | None = None
        """How the child ended, when it has."""
        self._killed: set[int] = set()
        """Those that have not come back to be waited for."""

    def run(self) -> None:
        """Wait until the child or the server ends, kill what is left, and end as the child did."""
        while self._reap() and self._status is None and self._served():
            self._hear(None)
        deadline = time.monotonic() + self._linger
        while self._reap() and self._served() and self._linger and (rest := deadline - time.monotonic()) > 0:
            self._hear(rest)
        self._kill()
        _leave(self._status)

    def _served(self) -> bool:
        return os.getppid() == self._server

    def _hear(self, seconds: float | None) -> None:
        heard = signal.sigwaitinfo(HEARD) if seconds is None else signal.sigtimedwait(HEARD, seconds)
        if heard is not None and heard.si_signo == signal.SIGUSR1:
            self._linger = 0

    def _reap(self) -> bool:
        """Wait for all that have ended; whether any is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self._killed.discard(pid)
            if pid == self._child:
                self._status = status

    def _kill(self) -> None:
        """Kill children until there are none: those of a dead one become ours.

        No other process waits for them, so none of their process ids can be reused in between.
        """
        deadline = time.monotonic() + (KILL_TIMEOUT if self._served() else LAST_TIMEOUT)
        while self._reap() and time.monotonic() < deadline:
            found = [pid for pid in _children() if pid not in self._killed]
            for pid in found:
                os.kill(pid, signal.SIGKILL)
            self._killed.update(found)
            if not found:
                signal.sigtimedwait(HEARD, KILL_INTERVAL)


def _children() -> list[int]:
    me = os.getpid()
    try:
        with open(f"/proc/self/task/{me}/children", "rb") as file:
            return [int(word) for word in file.read().split()]
    except OSError:  # A kernel without that list.
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and _parent(int(name)) == me]


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def _leave(status: int | None) -> None:
    if status is not None and os.WIFSIGNALED(status):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    sys.exit(os.waitstatus_to_exitcode(status) if status is not None else 0)


if __name__ == "__main__":
    os.chdir("/")
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    Reaper(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])).run()
