"""A server that runs for one program: the test itself, or a host that can be killed."""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from tests.support.program import Program
from tests.support.running import BOUND, TOKEN, alive, eventually, scripted

HOST = """
import os, subprocess, sys, threading, time
how, directory, *command = sys.argv[1:]
def start():
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    print(server.pid, server.stdout.readline().decode().split()[-1], flush=True)
    started.append(server)
started = []
if how == "thread":
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
else:
    start()
if not started:
    sys.exit("no server")
if how == "fork" and os.fork() == 0:
    # It holds the server's stdin, and outlives the host.
    os.setsid()
    print(os.getpid(), flush=True)
    time.sleep(60)
sys.stdin.read()
"""


class Place:
    """Where embedded servers run in a test: a user's directories, and a place for what is temporary."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config = directory / "config"
        self.temporary = directory / "tmp"
        self.work = str(directory / "work")
        for each in (self.config, self.temporary, directory / "work"):
            each.mkdir()
        (self.config / "agents.toml").write_text(f"[agents.scripted]\n{scripted()}\n")

    @property
    def leftovers(self) -> list[Path]:
        return list(self.temporary.iterdir())

    @property
    def environment(self) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("SANDBOX_AGENT_")}
        own = {"TMPDIR": str(self.temporary), "XDG_DATA_HOME": str(self.directory / "share")}
        return {**clean, **own, "SANDBOX_AGENT_TOKEN": TOKEN}

    def arguments(self, *flags: str) -> list[str]:
        return ["server", "--embedded", "--config-dir", str(self.config), *flags]

    def command(self, *flags: str) -> list[str]:
        return [sys.executable, "-m", "sandboxagent", *self.arguments(*flags)]


class Embedded:
    """A server whose stdin the test holds; ends with the block at the latest."""

    def __init__(
        self,
        place: Place,
        *flags: str,
        environment: Mapping[str, str] | None = None,
        stdin: socket.socket | None = None,
    ) -> None:
        self.token = TOKEN
        self.work = place.work
        self._stderr: IO[Any] = (place.directory / "stderr").open("a+")
        self.process = Program(
            place.arguments(*flags),
            place.environment | dict(environment or {}),
            stdin=subprocess.PIPE if stdin is None else stdin.fileno(),
            stderr=self._stderr.fileno(),
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("sandbox-agent listening on "), f"{line!r}\n{self.stderr}"
        self.url = line.split()[-1]

    @property
    def stderr(self) -> str:
        self._stderr.seek(0)
        return self._stderr.read()

    def close_stdin(self) -> int:
        """End its stdin; gives its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(BOUND)

    def __enter__(self) -> "Embedded":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for file in (self.process.stdin, self.process.stdout, self._stderr):
            if file is not None:
                file.close()


class Host:
    """A program with an embedded server: `plain`, with a `fork`, or one that starts it in a `thread`."""

    def __init__(self, place: Place, how: str = "plain", *flags: str) -> None:
        self.token = TOKEN
        self.work = place.work
        self.fork: int | None = None
        with (place.directory / "stderr").open("a") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-c", HOST, how, str(place.directory), *place.command(*flags)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=place.environment,
            )
        assert self.process.stdout is not None
        pid, self.url = self.process.stdout.readline().split()
        self.server = int(pid)
        if how == "fork":
            self.fork = int(self.process.stdout.readline())

    def kill(self) -> None:
        """End it as a crash would."""
        self.process.kill()
        self.process.wait()

    def server_gone(self) -> None:
        eventually(lambda: not alive(self.server), "the end of the server")

    def __enter__(self) -> "Host":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for pid in (self.server, self.fork):
            if pid is not None and alive(pid):
                os.kill(pid, 9)
        for file in (self.process.stdin, self.process.stdout):
            if file is not None:
                file.close()
