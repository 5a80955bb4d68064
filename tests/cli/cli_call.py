"""The program as it calls a server: with its address and token, with input, in a directory, and on a terminal."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from tests.cli.in_process import run_here
from tests.cli.place import LONGEST, Place, runs_here
from tests.support.program import Program, run_program
from tests.support.running import BOUND, TOKEN, Server


class Ran:
    """How a command ended, and what it wrote."""

    def __init__(self, code: int, stdout: bytes, stderr: bytes) -> None:
        self.code = code
        self.raw = stdout
        self.err = stderr.decode()
        assert "Traceback" not in self.err, self.err

    @property
    def out(self) -> str:
        return self.raw.decode()

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def json(self) -> Any:
        assert self.raw, f"it wrote nothing, and ended with {self.code}: {self.err}"
        return json.loads(self.raw)

    @property
    def objects(self) -> list[Any]:
        """JSON lines."""
        return [json.loads(line) for line in self.raw.split(b"\n") if line]


class CliCall:
    """Runs commands against one server."""

    def __init__(self, place: Place, server: Server) -> None:
        self.place = place
        self.server = server
        self.environ = {"SANDBOX_AGENT_ENDPOINT": server.url, "SANDBOX_AGENT_TOKEN": TOKEN}

    def __call__(self, *arguments: str | bytes, input: bytes = b"", cwd: Path | None = None) -> Ran:
        environ = {**self.place.environment, **self.environ}
        if runs_here(*arguments):
            return Ran(*run_here(arguments, environ, input, cwd))
        done = run_program(arguments, environ, cwd, input=input, timeout=LONGEST)
        return Ran(done.returncode, done.stdout, done.stderr)

    def well(self, *arguments: str | bytes, input: bytes = b"", cwd: Path | None = None) -> Ran:
        """A command that must succeed."""
        ran = self(*arguments, input=input, cwd=cwd)
        assert ran.code == 0, ran.err
        return ran

    def refused(self, *arguments: str | bytes, code: int = 1, input: bytes = b"", cwd: Path | None = None) -> str:
        """What a command says that must fail with one line and nothing else."""
        ran = self(*arguments, input=input, cwd=cwd)
        assert (ran.code, ran.raw, ran.err.count("\n")) == (code, b"", 1), (ran.code, ran.raw, ran.err)
        return ran.err.removeprefix("sandbox-agent: ").rstrip("\n")

    def start(self, *arguments: str, stdin: int = subprocess.PIPE, cwd: Path | None = None) -> Program:
        """A command that is spoken with, with pipes."""
        return Program(arguments, {**self.place.environment, **self.environ}, cwd, stdin=stdin)

    def on_a_terminal(self, *arguments: str, **environ: str) -> tuple[int, str]:
        return self.place.on_a_terminal(*arguments, **self.environ, **environ)


def reading(stream: IO[bytes] | None, wanted: Callable[[bytes], bool]) -> bytes:
    """The first line that is wanted; the process's own end bounds the wait."""
    assert stream is not None
    for line in stream:
        if wanted(line):
            return line
    raise EOFError


def nobody_reads(process: Program) -> tuple[int, bytes]:
    """Close stdout; the exit code, and what is written to stderr."""
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    try:
        return process.wait(timeout=BOUND), os.read(process.stderr.fileno(), 1 << 16)
    finally:
        ended(process)


def ended(process: Program) -> None:
    """End it, if it has not."""
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None and not stream.closed:
            stream.close()


def interrupted(process: Program, number: int) -> Ran:
    """Send a signal, and wait for the end."""
    process.send_signal(number)
    try:
        stdout, stderr = process.communicate(timeout=BOUND)
    finally:
        ended(process)
    return Ran(process.returncode, stdout, stderr)
