"""A real server in a process of its own, for black-box tests."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.fork_server import Forked, fork_server

if TYPE_CHECKING:
    from tests.support.fleet_of_one import Front

SCRIPTED = Path(__file__).with_name("scripted_agent.py")
TOKEN = "test-token"
THROUGH_GATEWAY = "SANDBOX_AGENT_TEST_GATEWAY"
"""The variable that puts a gateway in front of every server, as `--gateway` does."""
BOUND = 60.0
"""Seconds after which a wait has failed. A wait ends with what it waits for, so a long bound costs a good run nothing,
and no test fails because the machine is busy."""


def scripted(*flags: str, **keys: str) -> str:
    """The lines of agents.toml for a scripted agent with these flags."""
    command = [sys.executable, "-I", "-S", str(SCRIPTED), *flags]
    lines = [f"command = {command!r}", *(f"{name} = {value!r}" for name, value in keys.items())]
    return "\n".join(lines).replace("\\\\", "\\")


class Server:
    """`sandbox-agent server` with directories of its own; ends with the block, and must end cleanly."""

    def __init__(
        self,
        *flags: str,
        agents: Mapping[str, str] | None = None,
        token: str | None = TOKEN,
        directory: Path | None = None,
        environment: Mapping[str, str | None] | None = None,
        anew: bool = False,
        command: str = "server",
        gateway: bool | None = None,
        module: str = "sandboxagent",
    ) -> None:
        self._temporary = tempfile.TemporaryDirectory(ignore_cleanup_errors=True) if directory is None else None
        self.directory = directory or Path(self._temporary.name)  # type: ignore[union-attr]
        self.flags: Sequence[str] = flags
        self.token = token
        self.agents = {"scripted": scripted(), **(agents or {})}
        self.environment = dict(environment or {})
        self.anew = anew
        """Started as a program of its own, and not forked from one that has imported it."""
        self._module = module
        """What a program of its own is."""
        self._command = command
        through = THROUGH_GATEWAY in os.environ if gateway is None else gateway
        self._front = _front(self.directory) if command == "server" and through else None
        self.process: subprocess.Popen[str] | Forked
        self.url = ""

    @property
    def stderr(self) -> str:
        return (self.directory / "stderr").read_text()

    def start(self) -> "Server":
        config = self.directory / "config"
        config.mkdir(exist_ok=True, parents=True)
        (self.directory / "work").mkdir(exist_ok=True)
        (config / "agents.toml").write_text("\n".join(f"[agents.{id}]\n{lines}" for id, lines in self.agents.items()))
        token = [] if self.token is None else ["--token", self.token]
        flags = [*token, *self.flags] if self._front is None else self._front.flags_of_node(self.flags)
        arguments = [self._command, "--port", "0"]
        arguments += ["--data-dir", str(self.directory / "data"), "--config-dir", str(config), *flags]
        registry = self.directory / "registry.json"
        if not registry.exists():
            registry.write_text('{"version": "1.0.0", "agents": []}')
        own = {
            "MOCK_AGENT_STATE_DIR": str(self.directory / "mock"),
            "XDG_STATE_HOME": str(self.directory / "state"),
            # No test asks anything of a network.
            "SANDBOX_AGENT_ACP_REGISTRY_URL": str(registry),
        }
        # None takes a variable away.
        given = {**os.environ, **own, **self.environment}
        environment = {name: value for name, value in given.items() if value is not None}
        with (self.directory / "stderr").open("a") as stderr:
            if self.anew:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", self._module, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    text=True,
                    env=environment,
                )
            else:
                self.process = _forked(arguments, environment, stderr.fileno())
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert re.match(r"sandbox-agent (gateway \S+ )?listening on ", line), f"{line!r}\n{self.stderr}"
        self.url = line.split()[-1] if self._front is None else self._front.start(self)
        return self

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End it; gives the exit code."""
        if self._front is not None:
            self._front.stop(number)
        self.process.send_signal(number)
        try:
            return self.process.wait(timeout=BOUND)
        finally:
            self.process.kill()
            self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()

    def close(self) -> None:
        """End what stands before it."""
        if self._front is not None:
            self._front.close()

    def kill(self) -> None:
        """End it as a crash would."""
        self.stop(signal.SIGKILL)

    @property
    def work(self) -> str:
        """A directory for sessions."""
        return str(self.directory / "work")

    def __enter__(self) -> "Server":
        return self.start()

    def __exit__(self, *_: object) -> None:
        code = self.stop() if self.process.poll() is None else 0
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.close()
        stderr = self.stderr
        if self._temporary is not None:
            self._temporary.cleanup()
        assert code == 0, f"exit code {code}\n{stderr}"
        assert "Traceback" not in stderr, stderr


def _front(directory: Path) -> "Front":
    # It stands on servers itself.
    from tests.support.fleet_of_one import Front

    return Front(directory)


def _forked(arguments: Sequence[str], environment: Mapping[str, str], stderr: int) -> Forked:
    """A server with a pipe for its stdout."""
    reading, writing = os.pipe()
    try:
        with Path(os.devnull).open() as nothing:
            process = fork_server().fork(arguments, environment, [nothing.fileno(), writing, stderr])
    finally:
        os.close(writing)
    process.stdout = os.fdopen(reading)
    return process


def alive(pid: int) -> bool:
    """Whether a process is there and not a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def eventually(condition: object, what: str = "the condition") -> None:
    """Poll until a condition holds."""
    assert callable(condition)
    end = time.monotonic() + BOUND
    while not condition():
        assert time.monotonic() < end, f"{what} did not come true within {BOUND} s"
        time.sleep(0.01)
