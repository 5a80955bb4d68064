"""Measure waits of a user: the command line's first word, and the CPU time of programs that start."""

import os
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from servers import TOKEN, Failed, Running

TIMEOUT = 60
CONNECTING = """
import asyncio, sys
from sandboxagent import SandboxAgent

async def main():
    async with SandboxAgent.connect(sys.argv[1], sys.argv[2]):
        pass

asyncio.run(main())
"""


def first_word(environment: Mapping[str, str], folder: Path) -> float:
    """Return the milliseconds until `sandbox-agent run mock hello` prints the first byte of the agent's text."""
    began = time.perf_counter()
    command = [*_program(), "run", "mock", "hello"]
    with subprocess.Popen(
        command,
        env=dict(environment),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        word = os.read(process.stdout.fileno(), 1)
        taken = (time.perf_counter() - began) * 1000
        process.communicate(timeout=TIMEOUT)
    if not word:
        raise Failed("`sandbox-agent run mock hello` said nothing")
    return taken


@contextmanager
def daemon(environment: Mapping[str, str], folder: Path) -> Generator[None]:
    """Stop the server in the background at the end of the block."""
    try:
        yield
    finally:
        stop = [*_program(), "daemon", "stop", "--yes"]
        subprocess.run(stop, env=dict(environment), cwd=folder, capture_output=True, check=False, timeout=TIMEOUT)


def cpu_of_connecting(environment: Mapping[str, str], running: Running) -> float:
    """Return the CPU milliseconds of a Python program that imports the SDK, connects, and exits."""
    url = f"http://127.0.0.1:{running.port}"
    return _cpu_ms([sys.executable, "-c", CONNECTING, url, TOKEN], environment)


def cpu_of_mock(environment: Mapping[str, str]) -> float:
    """Return the CPU milliseconds of the mock agent from start to exit, without any request."""
    return _cpu_ms([sys.executable, "-m", "sandboxagent.adapters.mock"], environment)


def _program() -> list[str]:
    return [str(Path(sys.executable).with_name("sandbox-agent"))]


def _cpu_ms(command: list[str], environment: Mapping[str, str]) -> float:
    process = subprocess.Popen(
        command, env=dict(environment), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.stdout.read()
    process.stdout.close()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise Failed(f"{command[1]} ended with {process.returncode}")
    return (used.ru_utime + used.ru_stime) * 1000
