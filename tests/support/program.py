"""The program in a process of its own with pipes, forked from one that has imported it: a fraction of a start anew."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from tests.support.fork_server import fork_server


class Program:
    """`sandbox-agent` with these arguments, as `subprocess.Popen` would start and show it."""

    def __init__(
        self,
        arguments: Sequence[str | bytes],
        environ: Mapping[str, str],
        cwd: Path | None = None,
        *,
        stdin: int = subprocess.DEVNULL,
        stdout: int = subprocess.PIPE,
        stderr: int = subprocess.PIPE,
        text: bool = False,
    ) -> None:
        """Start it; the streams are `PIPE`, `DEVNULL` or descriptors."""
        streams = [_Stream(number, each, text) for number, each in enumerate((stdin, stdout, stderr))]
        try:
            theirs = [each.theirs for each in streams]
            self._forked = fork_server().fork([os.fsdecode(each) for each in arguments], environ, theirs, cwd)
        finally:
            for each in streams:
                each.hand_over()
        self.stdin, self.stdout, self.stderr = (each.ours for each in streams)
        self.pid = self._forked.pid
        self.poll = self._forked.poll
        self.wait = self._forked.wait
        self.send_signal = self._forked.send_signal
        self.kill = self._forked.kill

    @property
    def returncode(self) -> int:
        code = self._forked.poll()
        assert code is not None, "it has not ended"
        return code

    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[Any, Any]:
        """Write to it, and read all that it writes until it ends."""
        with ThreadPoolExecutor(3) as pool:
            writing = pool.submit(self._write, input)
            out, err = (pool.submit(_rest, each) for each in (self.stdout, self.stderr))
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
            writing.result()
            return out.result(), err.result()

    def _write(self, input: Any) -> None:
        if self.stdin is not None:
            with suppress(BrokenPipeError), self.stdin:
                if input:
                    self.stdin.write(input)

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
        self.wait()


class _Stream:
    """One of the three: our end, if it is a pipe, and the program's."""

    def __init__(self, number: int, chosen: int, text: bool) -> None:
        self.ours: IO[Any] | None = None
        self._opened = chosen in (subprocess.PIPE, subprocess.DEVNULL)
        if chosen == subprocess.PIPE:
            reading, writing = os.pipe()
            mine, self.theirs = (writing, reading) if number == 0 else (reading, writing)
            self.ours = os.fdopen(mine, ("w" if number == 0 else "r") + ("" if text else "b"))
        else:
            self.theirs = os.open(os.devnull, os.O_RDWR) if chosen == subprocess.DEVNULL else chosen

    def hand_over(self) -> None:
        """The program has its end now."""
        if self._opened:
            os.close(self.theirs)


def _rest(stream: IO[Any] | None) -> Any:
    if stream is None or stream.closed:
        return None
    with stream:
        return stream.read()


def run_program(
    arguments: Sequence[str | bytes],
    environ: Mapping[str, str],
    cwd: Path | None = None,
    *,
    input: Any = None,
    timeout: float,
    text: bool = False,
) -> "subprocess.CompletedProcess[Any]":
    """Run it to its end, as `subprocess.run` would; without input its stdin is empty."""
    stdin = subprocess.DEVNULL if input is None else subprocess.PIPE
    with Program(arguments, environ, cwd, stdin=stdin, text=text) as program:
        out, err = program.communicate(input, timeout)
        return subprocess.CompletedProcess(list(arguments), program.returncode, out, err)
