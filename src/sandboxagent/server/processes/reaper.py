"""Run between the server and one child, and kill every process that the child leaves behind.

It is a subreaper: every descendant of the child stays below it, even a process that changes its session,
environment or limits. When the child or the server ends, it kills all descendants, and exits as the child did.

usage: python -I -S reaper.py SERVER CHILD LINGER    process ids, and seconds for processes that the child leaves

SIGUSR1 ends the rest of LINGER. One reaper runs for each child, so it imports only modules that are built into Python:
`os` and `signal` would double its start-up time.
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
"""Seconds to retry the kill. After that, a server that is still there takes over."""
KILL_INTERVAL = 0.01
HEARD = {signal.SIGCHLD, signal.SIGCONT, signal.SIGUSR1}
"""SIGCONT comes from the kernel when the server ends. It also continues a reaper that was stopped."""


class Reaper:
    """Ends the descendants of one child."""

    def __init__(self, server: int, child: int, linger: float) -> None:
        self._server = server
        self._child = child
        self._linger = linger
        self._status: int | None = None
        """The wait status of the child, after it has ended."""
        self._killed: set[int] = set()
        """The killed processes that were not waited for yet."""

    def run(self) -> None:
        """Wait until the child or the server ends, kill the remaining processes, and exit as the child did."""
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
        """Wait for all processes that have ended. Returns whether any process is left."""
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
        """Kill children until there are none. The children of a dead process become children of the reaper.

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
