"""Start the two measured programs in the same way, and call each by its own protocol.

A `Program` knows how to start a server, and how to open connections and sessions there. A `Running` is one running
server with its own temporary folder. The only measurement here is the time to the first answer to a health request.
"""

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from build import CACHE

START_TIMEOUT = 20.0
STOP_TIMEOUT = 5.0
REQUEST_TIMEOUT = 20.0
POLL_INTERVAL = 0.001

TOKEN = "x"


class Failed(Exception):
    """A run without a figure. The message says why."""


@dataclass(frozen=True, slots=True)
class Target:
    """The path and headers to which the load client sends requests, and the session that it uses, if any."""

    path: str
    headers: tuple[tuple[str, str], ...] = ()
    session: str = ""

    def line(self) -> str:
        return "\t".join([self.path, self.session, *(f"{name}: {value}" for name, value in self.headers)])


@dataclass(frozen=True, slots=True)
class Answer:
    headers: http.client.HTTPMessage
    result: dict[str, object]


@dataclass(frozen=True, slots=True)
class Running:
    process: subprocess.Popen[bytes]
    port: int
    folder: Path
    started_after: float
    http: http.client.HTTPConnection

    def resident(self) -> int:
        """Return the server's resident memory in bytes, without the agent."""
        return self._memory("Rss:")

    def proportional(self) -> int:
        """Return the server's memory in bytes, with only its share of memory that several processes use."""
        return self._memory("Pss:")

    def _memory(self, kind: str) -> int:
        for line in Path(f"/proc/{self.process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith(kind):
                return int(line.split()[1]) * 1024
        raise Failed(f"no {kind} in smaps_rollup")

    def cpu_seconds(self) -> float:
        """Return the server's CPU time so far, without the agent."""
        return cpu_seconds(self.process.pid)

    def call(self, target: Target, envelope: Mapping[str, object]) -> Answer:
        """POST one request and return its result.

        Raises:
            Failed: the answer has no result.
        """
        headers = {"Content-Type": "application/json", **dict(target.headers)}
        self.http.request("POST", target.path, json.dumps(envelope), headers)
        response = self.http.getresponse()
        body = response.read()
        if response.status == 200:
            answer = json.loads(body)
            if isinstance(answer.get("result"), dict):
                return Answer(response.headers, answer["result"])
        text = body[:300].decode(errors="replace")
        raise Failed(f"{envelope['method']} was answered {response.status}: {text}")


class Program(ABC):
    """One of the measured programs."""

    name: str

    @abstractmethod
    def command(self, port: int, folder: Path) -> list[str]: ...

    @abstractmethod
    def environment(self, folder: Path) -> dict[str, str]: ...

    @abstractmethod
    def prepare(self, folder: Path) -> None: ...

    @abstractmethod
    def health_headers(self) -> dict[str, str]: ...

    @abstractmethod
    def connect(self, running: Running, count: int) -> list[Target]:
        """Open connections for that many clients."""

    def connect_apart(self, running: Running, count: int) -> list[Target]:
        """Open connections for that many clients, each with a session whose updates no other client sees."""
        targets = self.connect(running, count)
        return [replace(target, session=self.new_session(running, target)) for target in targets]

    @abstractmethod
    def attach(self, running: Running, targets: list[Target], session: str) -> None:
        """Make the stream of every target carry the session's updates."""

    def new_session(self, running: Running, target: Target) -> str:
        params: dict[str, object] = {"cwd": str(running.folder), "mcpServers": []}
        answer = running.call(target, {"jsonrpc": "2.0", "id": 2, "method": "session/new", "params": params})
        return str(answer.result["sessionId"])

    @contextmanager
    def start(self) -> Generator[Running]:
        """Start a fresh server and wait until it is healthy. Stop it and delete its folder at the end of the block.

        Raises:
            Failed: the server exited or did not answer in time.
        """
        folder = Path(tempfile.mkdtemp(prefix="sandbox-agent-bench-"))
        try:
            self.prepare(folder)
            with (folder / "server.log").open("wb") as log:
                port = free_port()
                began = time.perf_counter()
                process = subprocess.Popen(
                    self.command(port, folder),
                    env=self.environment(folder),
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            try:
                self._await_health(process, port, folder)
                started_after = time.perf_counter() - began
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_TIMEOUT)
                yield Running(process, port, folder, started_after, connection)
                connection.close()
            finally:
                _stop(process)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _await_health(self, process: subprocess.Popen[bytes], port: int, folder: Path) -> None:
        until = time.perf_counter() + START_TIMEOUT
        while time.perf_counter() < until:
            if process.poll() is not None:
                raise Failed(f"{self.name} exited with {process.returncode} at start: {_last_lines(folder)}")
            if _is_healthy(port, self.health_headers()):
                return
            time.sleep(POLL_INTERVAL)
        raise Failed(f"{self.name} was not healthy after {START_TIMEOUT:.0f} s: {_last_lines(folder)}")


class Ours(Program):
    """This project's server with a user's defaults: durable log, token required."""

    name = "ours"

    def __init__(self, agent: Path, *, persist: bool = True, python_options: tuple[str, ...] = ()) -> None:
        self._agent = agent
        self._persist = persist
        self._python_options = python_options

    def command(self, port: int, folder: Path) -> list[str]:
        script = Path(sys.executable).with_name("sandbox-agent")
        folders = ["--data-dir", str(folder / "data"), "--config-dir", str(folder)]
        options = [*folders, *([] if self._persist else ["--no-persist"])]
        python = [sys.executable, *self._python_options] if self._python_options else []
        return [*python, str(script), "server", "--port", str(port), "--token", TOKEN, *options]

    def environment(self, folder: Path) -> dict[str, str]:
        # A cache of byte code of its own, so that it exists after the first start as in an installation, whatever
        # PYTHONDONTWRITEBYTECODE of the caller says.
        return {"HOME": str(folder), "PATH": "/usr/bin:/bin", "PYTHONPYCACHEPREFIX": str(CACHE / "pycache")}

    def prepare(self, folder: Path) -> None:
        (folder / "agents.toml").write_text(f"[agents.bench]\ncommand = [{json.dumps(str(self._agent))}]\n")

    def health_headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {TOKEN}"}

    def connect(self, running: Running, count: int) -> list[Target]:
        bare = Target("/v1/rpc", tuple(self.health_headers().items()))
        meta = {"sandboxagent.dev": {"agent": "bench"}}
        params = {"protocolVersion": 1, "clientCapabilities": {}, "_meta": meta}
        targets: list[Target] = []
        for _ in range(count):
            answer = running.call(bare, {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
            connection = answer.headers["X-ACP-Connection-Id"]
            targets.append(Target(bare.path, (*bare.headers, ("X-ACP-Connection-Id", connection))))
        return targets

    @staticmethod
    def leave(running: Running, target: Target) -> None:
        """Close a client's connection. Its sessions stay."""
        running.http.request("DELETE", target.path, headers=dict(target.headers))
        response = running.http.getresponse()
        response.read()
        if response.status >= 300:
            raise Failed(f"DELETE was answered {response.status}")

    def attach(self, running: Running, targets: list[Target], session: str) -> None:
        method = "_sandboxagent/session/attach"
        for target in targets:
            running.call(target, {"jsonrpc": "2.0", "id": 3, "method": method, "params": {"sessionId": session}})


class Earlier(Ours):
    """This project's server at an earlier revision, with the installed libraries."""

    name = "earlier"

    def __init__(self, agent: Path, checkout: Path) -> None:
        super().__init__(agent)
        scripts = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]["scripts"]
        module, _, function = scripts["sandbox-agent"].partition(":")
        self._script = checkout / "sandbox-agent.py"
        self._script.write_text(f"import sys\nfrom {module} import {function}\nsys.exit({function}())\n")
        self._checkout = checkout

    def command(self, port: int, folder: Path) -> list[str]:
        return [sys.executable, str(self._script), *super().command(port, folder)[1:]]

    def environment(self, folder: Path) -> dict[str, str]:
        own = {"PYTHONPATH": str(self._checkout / "src"), "PYTHONPYCACHEPREFIX": str(self._checkout / "pycache")}
        return {**super().environment(folder), **own}


class Peer(Program):
    """The Rust program with its logging off. `connect` gives all clients one server id and one agent process."""

    name = "peer"

    def __init__(self, binary: Path, agent: Path) -> None:
        self._binary = binary
        self._agent = agent

    def command(self, port: int, folder: Path) -> list[str]:
        return [str(self._binary), "server", "--no-token", "--no-telemetry", "--port", str(port)]

    def environment(self, folder: Path) -> dict[str, str]:
        path = f"{folder / 'bin'}:/usr/bin:/bin"
        return {"HOME": str(folder), "XDG_DATA_HOME": str(folder / "data"), "PATH": path, "RUST_LOG": "error"}

    def prepare(self, folder: Path) -> None:
        (folder / "bin").mkdir()
        # `pi` only has to exist, so that the peer takes the agent `pi` for installed. It runs `pi-acp`.
        for name in ("pi", "pi-acp"):
            (folder / "bin" / name).symlink_to(self._agent)

    def health_headers(self) -> dict[str, str]:
        return {}

    def connect(self, running: Running, count: int) -> list[Target]:
        return [self._initialized(running, "bench")] * count

    def connect_apart(self, running: Running, count: int) -> list[Target]:
        """Use a server id for each client, as the peer's SDK does. With one for all, every stream has every turn."""
        targets = [self._initialized(running, f"bench-{number}") for number in range(count)]
        return [replace(target, session=self.new_session(running, target)) for target in targets]

    @staticmethod
    def _initialized(running: Running, server_id: str) -> Target:
        params: dict[str, object] = {"protocolVersion": 1, "clientCapabilities": {}}
        first = Target(f"/v1/acp/{server_id}?agent=pi")
        running.call(first, {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
        return Target(f"/v1/acp/{server_id}")

    def attach(self, running: Running, targets: list[Target], session: str) -> None:
        """Do nothing: every stream of a server id carries all updates."""


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process so far, of all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak(pid: int) -> int:
    """Return the peak resident memory of a process so far, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise Failed("no VmHWM in status")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _is_healthy(port: int, headers: dict[str, str]) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/v1/health", headers=headers)
        response = connection.getresponse()
        response.read()
    except (OSError, http.client.HTTPException):
        return False
    else:
        return response.status == 200
    finally:
        connection.close()


def _last_lines(folder: Path) -> str:
    return " | ".join((folder / "server.log").read_text(errors="replace").strip().splitlines()[-5:])


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    # The agent ends with its pipe. No other process of the server's group may outlive the server.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
