"""The program in this process: `main` with streams, environment and directory of its own.

For what is about words and numbers; signals, terminals and pipes that break want a process.
"""

import io
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, NoReturn

from sandboxagent.cli.main import main

LONGEST = 120
"""Seconds that a whole command line may take on a machine that is busy."""


def run_here(
    arguments: Sequence[str | bytes], environ: Mapping[str, str], input: bytes = b"", cwd: Path | None = None
) -> tuple[int, bytes, bytes]:
    """Run it to its end; its exit code, and what it wrote to stdout and stderr."""
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        stdin.write(input)
        stdin.seek(0)
        with _streams(stdin, stdout, stderr), _environment(environ, cwd), _reports(), _bounded():
            try:
                code = main([os.fsdecode(each) for each in arguments])
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 1
            sys.stdout.flush()
            sys.stderr.flush()
        stdout.seek(0)
        stderr.seek(0)
        return code, stdout.read(), stderr.read()


@contextmanager
def _streams(*files: IO[bytes]) -> Generator[None]:
    """Files in the place of stdin, stdout and stderr, for this process and those that it starts."""
    kept = sys.stdin, sys.stdout, sys.stderr
    sys.stdout.flush()
    sys.stderr.flush()
    saved = [os.dup(number) for number in range(3)]
    try:
        for number, file in enumerate(files):
            os.dup2(file.fileno(), number)
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, "r", closefd=False)), "utf-8", "surrogateescape")
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)), "utf-8")
        sys.stderr = io.TextIOWrapper(io.BufferedWriter(io.FileIO(2, "w", closefd=False)), "utf-8", line_buffering=True)
        yield
    finally:
        for stream in (sys.stdin, sys.stdout, sys.stderr):
            stream.close()
        sys.stdin, sys.stdout, sys.stderr = kept
        for number, descriptor in enumerate(saved):
            os.dup2(descriptor, number)
            os.close(descriptor)


@contextmanager
def _environment(environ: Mapping[str, str], cwd: Path | None) -> Generator[None]:
    before, place = dict(os.environ), Path.cwd()
    os.environ.clear()
    os.environ.update(environ)
    try:
        os.chdir(cwd or place)
        yield
    finally:
        os.chdir(place)
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _reports() -> Generator[None]:
    """Loggers as they were."""
    loggers = [logging.getLogger(name) for name in (None, "sandboxagent", "sandboxagent.client")]
    kept = [(each, each.level, [*each.handlers]) for each in loggers]
    try:
        yield
    finally:
        for logger, level, handlers in kept:
            logger.setLevel(level)
            logger.handlers[:] = handlers


@contextmanager
def _bounded() -> Generator[None]:
    def give_up(*_: object) -> NoReturn:
        raise TimeoutError(f"the command did not end within {LONGEST} s")

    with ExitStack() as stack:
        before = signal.signal(signal.SIGALRM, give_up)
        stack.callback(signal.signal, signal.SIGALRM, before)
        signal.alarm(LONGEST)
        stack.callback(signal.alarm, 0)
        yield
