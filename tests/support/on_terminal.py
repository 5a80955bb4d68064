"""A program on a terminal of its own: keys in, a screen to look at."""

import codecs
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tests.support.emulator import Emulator
from tests.support.fork_server import Forked, fork_server

# Ctrl-C is a signal only to those whose terminal it is.
_LAUNCHER = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""
PROGRAM = [sys.executable, "-m", "sandboxagent"]
LONGEST = 180.0
"""Seconds that something may take to be seen on a machine that is busy."""


class Screen(Protocol):
    """What a program's output is drawn on."""

    def feed(self, text: str, /) -> None: ...


class OnTerminal:
    """The program; ends with the block."""

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        columns: int = 80,
        cwd: Path | None = None,
        screen: Screen | None = None,
    ) -> None:
        self.raw = b""
        self.screen = screen or Emulator(columns)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self.modes = termios.tcgetattr(theirs)
        environ = {"TERM": "xterm-256color", **environ}
        self.process: subprocess.Popen[bytes] | Forked
        if list(command[: len(PROGRAM)]) == PROGRAM:
            arguments = command[len(PROGRAM) :]
            self.process = fork_server().fork(arguments, environ, [theirs] * 3, cwd, terminal=True)
        else:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _LAUNCHER, *command],
                env=environ,
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
                cwd=cwd,
                start_new_session=True,
            )
        # Held open: the modes can be looked at after the program has ended.
        self._theirs = theirs

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._ours, keys.encode())

    def expect(self, text: str, times: int = 1) -> str:
        """Wait until the screen shows a text; gives the screen."""
        return self.becomes(lambda screen: screen.count(text) >= times, repr(text))

    def becomes(self, as_wanted: Callable[[str], bool], what: str) -> str:
        """Wait until the screen is as wanted; gives the screen."""
        end = time.monotonic() + LONGEST
        while not as_wanted(str(self.screen)):
            assert time.monotonic() < end, f"{what} was not shown:\n{self.screen}"
            assert self._read(0.05) or self.process.poll() is None, f"it ended without {what}:\n{self.screen}"
        return str(self.screen)

    def becomes_soon(self, as_wanted: Callable[[str], bool], seconds: float) -> bool:
        """Whether the screen becomes as wanted in so many seconds: for what is then tried again."""
        end = time.monotonic() + seconds
        while not as_wanted(str(self.screen)) and time.monotonic() < end:
            self._read(0.05)
        return as_wanted(str(self.screen))

    def looks(self, as_wanted: Callable[[str], bool]) -> bool:
        """Whether the screen is as wanted by now."""
        while self._read(0.0):
            pass
        return as_wanted(str(self.screen))

    def expect_end(self) -> int:
        """Wait until it has ended; gives the exit code."""
        end = time.monotonic() + LONGEST
        while self.process.poll() is None:
            assert time.monotonic() < end, f"it does not end:\n{self.screen}"
            self._read(0.05)
        while self._read(0.0):
            pass
        assert "Traceback" not in str(self.screen), str(self.screen)
        assert self.process.returncode is not None
        return self.process.returncode

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    @property
    def is_as_it_was(self) -> bool:
        """Whether the terminal has the modes that it had before."""
        return termios.tcgetattr(self._theirs) == self.modes

    def _read(self, timeout: float) -> bool:
        if not select.select([self._ours], [], [], timeout)[0]:
            return False
        try:
            data = os.read(self._ours, 65536)
        except OSError:
            return False
        self.raw += data
        self.screen.feed(self._decoder.decode(data))
        return bool(data)

    def __enter__(self) -> "OnTerminal":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self._theirs)
        os.close(self._ours)
