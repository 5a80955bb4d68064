"""A place of its own to run the program in: directories, a home, and a registry in a file with made-up agents."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

from sandboxagent.server.agents.install.registry_entries import current_platform
from tests.cli.in_process import run_here
from tests.support.archives import member, tar
from tests.support.program import Program, run_program
from tests.support.running import BOUND

PROGRAM = [sys.executable, "-m", "sandboxagent"]
LONGEST = 120.0
"""Seconds that a whole command line may take on a machine that is busy."""

# Speaks just enough ACP to be taken for an agent. What it does is its first argument.
AGENT = """\
#!{python} -IS
import json, os, subprocess, sys
how, notes = sys.argv[1:]
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("method") != "initialize":
        continue
    if how == "dies":
        sys.stderr.write("\\x1b[31mcannot find my heart\\n" + "out of it\\n")
        sys.exit(3)
    if how == "hangs":
        other = subprocess.Popen(["sleep", "3600"], start_new_session=True)
        with open(notes + ".new", "w") as file:
            file.write(str(os.getpid()) + " " + str(other.pid))
        os.replace(notes + ".new", notes)
        other.wait()
    result = {{"protocolVersion": 1, "agentInfo": {{"name": "made-up", "version": "7"}}, "agentCapabilities": {{}}}}
    print(json.dumps({{"jsonrpc": "2.0", "id": asked["id"], "result": result}}), flush=True)
"""


def runs_here(*arguments: str | bytes) -> bool:
    """Whether a command can be run in this process: not what leaves processes behind, or ends the one it is in."""
    return arguments[:1] not in [("daemon",), ("doctor",), ("server",)] and current_thread() is main_thread()


class Place:
    """Where the program runs, and what it finds there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.home = directory / "home"
        self.home.mkdir()
        self.data = directory / "data"
        self.config = directory / "config"
        self.config.mkdir()
        self.agents = self.data / "agents"
        self.notes = directory / "notes"
        """Where the agent that hangs writes the ids of its processes."""
        self.registry = directory / "registry.json"
        script = AGENT.format(python=sys.executable).encode()
        self.archive = tar(directory / "made-up.tar.gz", member("bin/made-up", script, mode=0o755))
        self.write_registry(*(self.binary(id, how) for id, how in (("works", "works"), ("dies", "dies"))))

    def binary(self, id: str, how: str) -> dict[str, Any]:
        """An entry of the registry that comes as an archive."""
        target = {"archive": self.archive.as_uri(), "cmd": "./bin/made-up", "args": [how, str(self.notes)]}
        return entry(id, {"binary": {current_platform(): target}})

    def write_registry(self, *entries: dict[str, Any]) -> None:
        self.registry.write_text(json.dumps({"version": "1.0.0", "agents": entries}))

    @property
    def environment(self) -> dict[str, str]:
        """What the program sees: nothing of this process's settings and credentials."""
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "SANDBOX_AGENT_DATA_DIR": str(self.data),
            "SANDBOX_AGENT_CONFIG_DIR": str(self.config),
            "SANDBOX_AGENT_ACP_REGISTRY_URL": str(self.registry),
        }

    def run(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """The program to its end, in this process where that will do."""
        if runs_here(*arguments):
            code, out, err = run_here(arguments, {**self.environment, **environ})
            return subprocess.CompletedProcess(arguments, code, out.decode(), err.decode())
        return self.run_apart(*arguments, **environ)

    def run_apart(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """The program to its end, in a process of its own, with pipes for stdout and stderr."""
        return run_program(arguments, {**self.environment, **environ}, text=True, timeout=LONGEST)

    def json(self, *arguments: str, code: int = 0, **environ: str) -> Any:
        """What it prints, which must be one JSON document on one line."""
        result = self.run(*arguments, **environ)
        assert result.returncode == code, result.stderr
        assert result.stdout.count("\n") == 1
        return json.loads(result.stdout)

    def start(self, *arguments: str, **environ: str) -> Program:
        """The program, to be stopped on the way."""
        return Program(arguments, {**self.environment, **environ}, text=True)

    def on_a_terminal(self, *arguments: str, **environ: str) -> tuple[int, str]:
        """The program with a terminal for stdout and stderr; its exit code, and all that was written there."""
        ours, theirs = pty.openpty()
        shown = {"TERM": "xterm-256color", "COLUMNS": "100"}
        process = Program(arguments, {**self.environment, **shown, **environ}, stdout=theirs, stderr=theirs)
        os.close(theirs)
        try:
            text = _all_of(ours)
            return process.wait(timeout=LONGEST), text
        finally:
            process.kill()
            os.close(ours)

    def folders(self, agent: str) -> list[str]:
        """The installations of an agent that are on disk, whole or not."""
        return sorted(path.name for path in (self.agents / agent).glob("*/"))


def entry(id: str, distribution: dict[str, Any]) -> dict[str, Any]:
    """An entry of the registry."""
    return {"id": id, "name": id.title(), "version": "1.2.3", "description": "Made up.", "distribution": distribution}


def interrupt(process: Program, number: int = signal.SIGINT) -> tuple[int, str, str]:
    """Send a signal; the exit code, stdout and stderr."""
    process.send_signal(number)
    try:
        stdout, stderr = process.communicate(timeout=BOUND)
    finally:
        process.kill()
    return process.returncode, stdout, stderr


def _all_of(terminal: int) -> str:
    """Read until no process has the other end open any more."""
    pieces: list[bytes] = []
    end = time.monotonic() + LONGEST
    while time.monotonic() < end:
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                piece = os.read(terminal, 65536)
            except OSError:  # On Linux, that is how a terminal ends.
                break
            pieces.append(piece)
    return b"".join(pieces).decode()
