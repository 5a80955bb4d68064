"""Call servers and gateways over plain sockets, and start the servers, gateways and nodes to call."""

import http.client
import json
import re
import selectors
import socket
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from build import Tools
from servers import Failed

from sandboxagent.cli.fleet.local import LocalFleet

SERVERS = 3
GATEWAY = "gateway-1"
TAG = re.compile(rb"@tag:(\d{10})")
"""The number in the text of an update of a burst."""
LIMIT = 60.0
"""Seconds until a step counts as failed."""


class Client:
    """One connection to a server or a gateway."""

    def __init__(self, url: str, token: str) -> None:
        self.address = urlsplit(url)
        self.headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._http = http.client.HTTPConnection(str(self.address.hostname), self.address.port, timeout=LIMIT)
        meta = {"sandboxagent.dev": {"agent": "bench"}}
        self.post("initialize", {"protocolVersion": 1, "clientCapabilities": {}, "_meta": meta})

    @staticmethod
    def port_of(url: str) -> int:
        return urlsplit(url).port or 80

    def post(self, method: str, params: object) -> dict[str, object]:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        self._http.request("POST", "/v1/rpc", body, self.headers)
        response = self._http.getresponse()
        text = response.read()
        if connection := response.headers.get("X-ACP-Connection-Id"):
            self.headers["X-ACP-Connection-Id"] = connection
        answer: dict[str, dict[str, object]] = json.loads(text) if response.status == 200 else {}
        if "result" not in answer:
            raise Failed(f"{method} was answered {response.status}: {text[:300].decode(errors='replace')}")
        return answer["result"]

    def get(self, path: str) -> dict[str, list[object]]:
        self._http.request("GET", path, headers=self.headers)
        return json.loads(self._http.getresponse().read())

    def new_session(self, folder: Path) -> str:
        return str(self.post("session/new", {"cwd": str(folder), "mcpServers": []})["sessionId"])

    def prompt(self, session: str, text: str) -> None:
        self.post("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": text}]})

    def attach(self, session: str) -> None:
        deadline = time.monotonic() + LIMIT
        while True:
            try:
                self.post("_sandboxagent/session/attach", {"sessionId": session})
            except Failed:
                # The fleet's list gets a new session a moment later.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                return

    def open_stream(self) -> socket.socket:
        stream = socket.create_connection((str(self.address.hostname), self.address.port or 80))
        lines = [f"{name}: {value}" for name, value in self.headers.items() if name != "Content-Type"]
        lines = ["GET /v1/rpc HTTP/1.1", f"Host: {self.address.netloc}", "Accept: text/event-stream", *lines, "", ""]
        stream.sendall("\r\n".join(lines).encode())
        if b" 200 " not in stream.recv(4096).split(b"\r\n", 1)[0]:
            raise Failed("a stream was refused")
        return stream


class Readers:
    """Streams, and the matches of a pattern that each has received."""

    def __init__(self, streams: Sequence[socket.socket], wanted: re.Pattern[bytes] = TAG) -> None:
        self._selector = selectors.DefaultSelector()
        self._wanted = wanted
        self.found: dict[socket.socket, list[tuple[bytes, int]]] = {}
        self._rest: dict[socket.socket, bytes] = {}
        for stream in streams:
            stream.setblocking(False)
            self._selector.register(stream, selectors.EVENT_READ)
            self.found[stream], self._rest[stream] = [], b""

    def read(self, count: int) -> float:
        """Read until each stream has `count` matches. Return the time of the last one. Raises Failed."""
        deadline = time.monotonic() + LIMIT
        missing = set(self.found)
        while missing:
            for key, _ in self._selector.select(1.0):
                stream = key.fileobj
                assert isinstance(stream, socket.socket)
                data = self._rest[stream] + stream.recv(1 << 20)
                now = time.monotonic_ns()
                cut = data.rfind(b"\n") + 1
                self.found[stream] += [(match, now) for match in self._wanted.findall(data[:cut])]
                self._rest[stream] = data[cut:]
                if len(self.found[stream]) >= count:
                    missing.discard(stream)
            if time.monotonic() > deadline:
                fewest = min(len(each) for each in self.found.values())
                raise Failed(f"{len(missing)} readers did not get all: {fewest} of {count} came")
        return time.monotonic()

    def check(self, count: int) -> None:
        """Check that each stream has every number once and in order. Raises Failed."""
        for found in self.found.values():
            numbers = [int(match) for match, _ in found]
            if numbers != list(range(count)):
                raise Failed("events were lost, repeated or out of order")


@dataclass(frozen=True, slots=True)
class Place:
    """Addresses for prompts and for reading, which are the same for a single server."""

    prompts: str
    reads: str
    """Address for reading, and also for the prompts of a client that knows one address."""
    reads_pid: int
    node_pid: int
    token: str
    folder: Path


@contextmanager
def single(tools: Tools) -> Generator[Place]:
    """Run a server outside of any fleet."""
    with _local() as fleet:
        fleet.prepare(["node-1"])
        _give_agent(fleet, "node-1", tools)
        fleet.start_node("node-1", [])
        url = fleet.nodes["node-1"]
        yield Place(url, url, fleet.pid("node-1"), fleet.pid("node-1"), fleet.token, fleet.directory.path)


class Joined:
    """A fleet of three NATS servers, a gateway, and nodes that are started one by one."""

    def __init__(self, fleet: LocalFleet, tools: Tools, most_nodes: int) -> None:
        self.fleet = fleet
        self._names = [f"node-{number}" for number in range(1, most_nodes + 1)]
        fleet.prepare(self._names)
        for name in self._names:
            _give_agent(fleet, name, tools)
        self.servers = fleet.start_servers(SERVERS)
        fleet.start_gateway(GATEWAY, self.servers, SERVERS)

    def grow(self, nodes: int) -> None:
        """Start nodes until there are that many."""
        for name in self._names[len(self.fleet.nodes) : nodes]:
            self.fleet.start_node(name, self.servers)
        self.fleet.wait_for_nodes(nodes)

    @property
    def place(self) -> Place:
        fleet, gateway = self.fleet, self.fleet.urls[GATEWAY]
        pids = fleet.pid(GATEWAY), fleet.pid("node-1")
        return Place(fleet.urls["node-1"], gateway, *pids, fleet.token, fleet.directory.path)


@contextmanager
def joined(tools: Tools, nodes: int = 1, most_nodes: int = 1) -> Generator[Joined]:
    """Run a fleet on this machine."""
    with _local() as fleet:
        whole = Joined(fleet, tools, most_nodes)
        whole.grow(nodes)
        yield whole


@contextmanager
def _local() -> Generator[LocalFleet]:
    with tempfile.TemporaryDirectory(prefix="sandbox-agent-bench-") as folder:
        fleet = LocalFleet(Path(folder) / "fleet")
        try:
            yield fleet
        finally:
            fleet.stop()


def _give_agent(fleet: LocalFleet, node: str, tools: Tools) -> None:
    config = fleet.config_of(node)
    config.mkdir(parents=True)
    (config / "agents.toml").write_text(f"[agents.bench]\ncommand = [{json.dumps(str(tools.agent))}]\n")


# Resources of processes


def resident(pid: int) -> int:
    """Return the bytes of resident memory of a process."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Rss:"))


def cpu(pid: int) -> float:
    """Return the CPU seconds of a process, of all its threads."""
    return sum(int(each.read_text().split()[0]) for each in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def idle(pid: int, seconds: float) -> tuple[float, float]:
    """Return a process's memory in MiB, and its use of a core in per cent over that time."""
    began, used = time.monotonic(), cpu(pid)
    time.sleep(seconds)
    return resident(pid) / (1 << 20), (cpu(pid) - used) / (time.monotonic() - began) * 100
