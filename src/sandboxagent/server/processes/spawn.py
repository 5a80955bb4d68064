"""Start a program below its reaper, between fork and exec.

The child that the event loop knows becomes the reaper (`reaper.py`). It first forks a process that becomes the program.
So both start in parallel, and a failure of the program is reported as without a reaper.
"""

import ctypes
import os
import platform
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from sandboxagent.server.processes.proc import set_mark

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
SYS_CLOSE_RANGE, CLOSE_RANGE_CLOEXEC = 436, 4
SYS_CLONE = {"x86_64": 56, "aarch64": 220}

_REAPER = str(Path(__file__).with_name("reaper.py"))
_BLOCKED = {signal.SIGCHLD, signal.SIGCONT, signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1}

# Bound here and not in the child, because as little as possible should run between fork and exec. PyDLL keeps the GIL.
_libc = ctypes.PyDLL(None, use_errno=True)
prctl = _libc.prctl
prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong]
_syscall = _libc.syscall
_syscall.argtypes = [ctypes.c_long, *[ctypes.c_ulong] * 5]


def _plain_fork() -> Callable[[], int] | None:
    """Return a fork that runs no fork handlers, because uvloop's handler would treat every fork as its own."""
    with suppress(AttributeError):
        return _libc._Fork  # glibc 2.34, musl 1.2.2
    number = SYS_CLONE.get(platform.machine())
    return None if number is None else lambda: _syscall(number, signal.SIGCHLD, 0, 0, 0, 0)


_fork = _plain_fork()


class StartingChild:
    """One child while it is being started, with a pipe that carries the process id of its program."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def program(self) -> int | None:
        """Return the process id of the program as soon as it is started; None if the child has no reaper."""
        try:
            return int(os.read(self._reader, 32))
        except BlockingIOError:
            return None

    def close(self) -> None:
        os.close(self._reader)
        os.close(self._writer)

    def preexec(self, mark: int, environment: Mapping[str, str], linger: float | None) -> Callable[[], None]:
        """Return a function for the child to run before exec.

        It forks: one process becomes the program, the other its reaper.

        Without `linger` there is no reaper. Both processes are marked, and inherit no file descriptors of the server.
        uvloop leaves a child second copies of its pipes, so that nobody would notice when the child closes the first
        ones.
        """
        server, writer = os.getpid(), self._writer
        fork = None if linger is None else _fork
        reaper = [sys.executable, "-I", "-S", _REAPER, str(server)]

        def prepare() -> None:
            blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL if fork is None else signal.SIGCONT, 0, 0, 0)
            if os.getppid() != server:  # The server died before prctl.
                os.kill(os.getpid(), signal.SIGKILL)
            prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            set_mark(mark)
            _close_on_exec()
            if fork is not None:
                me, program = os.getpid(), fork()
                if program > 0:
                    _become([*reaper, str(program), str(linger)], environment, program, writer)
                if program < 0:
                    raise OSError(ctypes.get_errno(), "cannot fork")
                prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
                if os.getppid() != me:
                    os.kill(os.getpid(), signal.SIGKILL)
                os.setsid()
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

        return prepare


def _become(reaper: list[str], environment: Mapping[str, str], program: int, writer: int) -> None:
    """Turn this process into the reaper. If that fails, kill the program too."""
    try:
        os.write(writer, b"%d" % program)
        # The event loop waits until its pipes are closed, so close them before the slow exec of the reaper.
        _syscall(SYS_CLOSE_RANGE, 3, 2**32 - 1, 0, 0, 0)
        with suppress(PermissionError):  # The process leads a session already.
            os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(nothing, descriptor)
        os.execve(reaper[0], reaper, environment)
    finally:
        os.kill(program, signal.SIGKILL)
        os._exit(127)


def _close_on_exec() -> None:
    if _syscall(SYS_CLOSE_RANGE, 3, 2**32 - 1, CLOSE_RANGE_CLOEXEC, 0, 0) != 0:  # A kernel before 5.11.
        for descriptor in range(3, 1024):
            with suppress(OSError):
                os.set_inheritable(descriptor, False)
