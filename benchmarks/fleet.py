"""`./dev bench fleet`: what a fleet costs beside a single server, in the same run; and how its cost grows.

Everything is on this machine: three NATS servers, gateways and nodes share its cores with those who measure, so the
ratios are the worst that a fleet can have. The readers are plain sockets, the same for both.
"""

import contextlib
import http.client
import json
import re
import selectors
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from build import Tools
from report import table
from servers import Failed

from sandbox_agent.cli.fleet.local import LocalFleet

LIMIT = 60.0
_NOW = re.compile(rb"@now:(\d+)")


@dataclass(frozen=True, slots=True)
class Sizes:
    events: int = 20_000
    readers: int = 50
    events_for_readers: int = 1_000
    paced: int = 800
    turns: int = 200
    streams: int = 300
    idle_seconds: float = 5.0
    nodes: int = 10
    sessions: int = 1_000


QUICK = Sizes(2_000, 10, 200, 100, 20, 50, 2.0, 3, 60)


@dataclass(slots=True)
class Figures:
    rows: list[list[str]] = field(default_factory=list[list[str]])
    remarks: list[str] = field(default_factory=list[str])
    failures: list[str] = field(default_factory=list[str])
    facts: dict[str, float] = field(default_factory=dict[str, float])


class Client:
    """One connection to a server or a gateway."""

    def __init__(self, url: str, token: str) -> None:
        self.address = urlsplit(url)
        self.headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._http = http.client.HTTPConnection(str(self.address.hostname), self.address.port, timeout=LIMIT)
        meta = {"sandboxagent.dev": {"agent": "bench"}}
        self.post("initialize", {"protocolVersion": 1, "clientCapabilities": {}, "_meta": meta})

    def post(self, method: str, params: object) -> dict[str, object]:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        self._http.request("POST", "/v1/rpc", body, self.headers)
        response = self._http.getresponse()
        text = response.read()
        if connection := response.headers.get("X-ACP-Connection-Id"):
            self.headers["X-ACP-Connection-Id"] = connection
        answer = json.loads(text) if response.status == 200 else {}
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
                # The list of a fleet follows a moment after a session was made.
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
    """Streams, and how much of what is looked for has come on them."""

    def __init__(self, streams: Sequence[socket.socket], wanted: re.Pattern[bytes]) -> None:
        self._selector = selectors.DefaultSelector()
        self._wanted = wanted
        self.found: dict[socket.socket, list[tuple[bytes, int]]] = {}
        self._rest: dict[socket.socket, bytes] = {}
        for stream in streams:
            stream.setblocking(False)
            self._selector.register(stream, selectors.EVENT_READ)
            self.found[stream], self._rest[stream] = [], b""

    def read(self, count: int) -> float:
        """Until each has so many; returns when the last one came. Raises Failed."""
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
        """Each number once, in order. Raises Failed."""
        for found in self.found.values():
            numbers = [int(match) for match, _ in found]
            if numbers != list(range(count)):
                raise Failed("events were lost, repeated or out of order")


@dataclass(frozen=True, slots=True)
class Place:
    """Where to prompt and where to read; the same for a single server."""

    prompts: str
    reads: str
    reads_pid: int
    token: str
    folder: Path
    controls: str
    """Where sessions are prompted by a client that knows only one address."""


@contextmanager
def _single(tools: Tools) -> Generator[Place]:
    with _local(tools) as fleet:
        fleet.prepare(["node-1"])
        _give_agent(fleet, "node-1", tools)
        fleet.start_node("node-1", [])
        url = fleet.nodes["node-1"]
        yield Place(url, url, fleet.pid("node-1"), fleet.token, fleet.directory.path, url)


@contextmanager
def _joined(tools: Tools, nodes: int = 1, servers: int = 3) -> Generator[tuple[LocalFleet, Place]]:
    with _local(tools) as fleet:
        names = [f"node-{number}" for number in range(1, nodes + 1)]
        fleet.prepare(names)
        for name in names:
            _give_agent(fleet, name, tools)
        urls = fleet.start_servers(servers)
        fleet.start_gateway("gateway-1", urls, servers)
        for name in names:
            fleet.start_node(name, urls)
        gateway = fleet.urls["gateway-1"]
        pid = fleet.pid("gateway-1")
        _until_joined(gateway, fleet.token, nodes)
        yield fleet, Place(fleet.urls["node-1"], gateway, pid, fleet.token, fleet.directory.path, gateway)


def _until_joined(gateway: str, token: str, nodes: int) -> None:
    deadline = time.monotonic() + LIMIT
    while _get(gateway, token, "/v1/health")["nodes"] != nodes:
        if time.monotonic() > deadline:
            raise Failed(f"not all of {nodes} nodes have joined")
        time.sleep(0.05)


def _get(url: str, token: str, path: str) -> dict[str, object]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=LIMIT)
    with contextlib.closing(connection):
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        return json.loads(connection.getresponse().read())


@contextmanager
def _local(tools: Tools) -> Generator[LocalFleet]:
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


# What is measured


def _burst(place: Place, readers: int, count: int) -> float:
    """Events a second, all readers together."""
    writer = Client(place.prompts, place.token)
    session = writer.new_session(place.folder)
    clients = [Client(place.reads, place.token) for _ in range(readers)]
    for client in clients:
        client.attach(session)
    streams = [client.open_stream() for client in clients]
    try:
        reading = Readers(streams, re.compile(rb"@tag:(\d{10})"))
        began = time.monotonic()
        writer.prompt(session, f"burst {count} 120 tag")
        ended = reading.read(count)
        reading.check(count)
        return readers * count / (ended - began)
    finally:
        for stream in streams:
            stream.close()


def _pace(place: Place, count: int) -> tuple[float, float]:
    """Milliseconds from the agent's write to the reader: p50 and p99, at 200 a second."""
    writer, client = Client(place.prompts, place.token), Client(place.reads, place.token)
    session = writer.new_session(place.folder)
    client.attach(session)
    with contextlib.closing(client.open_stream()) as stream:
        reading = Readers([stream], _NOW)
        body = json.dumps(
            {
                "jsonrpc": "2.0",
                "id": 2,
                "method": "session/prompt",
                "params": {"sessionId": session, "prompt": [{"type": "text", "text": f"pace {count} 200"}]},
            }
        )
        asking = http.client.HTTPConnection(str(writer.address.hostname), writer.address.port, timeout=LIMIT)
        asking.request("POST", "/v1/rpc", body, {**writer.headers, "Prefer": "respond-async"})
        asking.getresponse().read()
        reading.read(count)
        late = sorted((at - int(match)) / 1e6 for match, at in reading.found[stream])
    return late[len(late) // 2], late[len(late) * 99 // 100]


def _round_trip(place: Place, count: int) -> float:
    """Milliseconds of a turn with one update, by a client that knows one address: p50."""
    client = Client(place.controls, place.token)
    session = client.new_session(place.folder)
    took: list[float] = []
    for number in range(count + count // 10):
        began = time.perf_counter()
        client.prompt(session, f"burst 1 20 t{number}")
        took.append((time.perf_counter() - began) * 1e3)
    return statistics.median(took[count // 10 :])


def _idle_stream(place: Place, count: int) -> float:
    """KiB that one idle stream costs where it is read."""
    session = Client(place.prompts, place.token).new_session(place.folder)
    Client(place.reads, place.token).attach(session)
    before = _resident(place.reads_pid)
    clients = [Client(place.reads, place.token) for _ in range(count)]
    for client in clients:
        client.attach(session)
    streams = [client.open_stream() for client in clients]
    time.sleep(1.0)
    grown = _resident(place.reads_pid) - before
    for stream in streams:
        stream.close()
    return grown / count / 1024


def _resident(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Rss:"))


def _cpu(pid: int) -> float:
    """Nanoseconds on a CPU, of the main thread and all others."""
    return sum(int(each.read_text().split()[0]) for each in Path(f"/proc/{pid}/task").glob("*/schedstat"))


def _idle(pid: int, seconds: float) -> tuple[float, float]:
    """MiB, and per cent of a core."""
    began, used = time.monotonic(), _cpu(pid)
    time.sleep(seconds)
    return _resident(pid) / (1 << 20), (_cpu(pid) - used) / 1e9 / (time.monotonic() - began) * 100


def measure(tools: Tools, sizes: Sizes, say: Callable[[str], None]) -> Figures:
    """All of it; a part that fails is named, and the rest goes on."""
    figures = Figures()
    beside: dict[str, list[object]] = {}

    def keep(name: str, take: Callable[[], object]) -> None:
        say(f"fleet: {name}")
        try:
            beside.setdefault(name, []).append(take())
        except (Failed, OSError) as reason:
            beside.setdefault(name, []).append(None)
            figures.failures.append(f"{name}: {reason}")

    def run(place: Place) -> None:
        keep("events/s to one reader", lambda: _burst(place, 1, sizes.events))
        keep(f"events/s to {sizes.readers} readers", lambda: _burst(place, sizes.readers, sizes.events_for_readers))
        keep("agent to reader, ms", lambda: _pace(place, sizes.paced))
        keep("a turn's round trip, ms", lambda: _round_trip(place, sizes.turns))
        keep("an idle stream, KiB", lambda: _idle_stream(place, sizes.streams))

    with _single(tools) as place:
        alone = _idle(place.reads_pid, sizes.idle_seconds)
        run(place)
    with _joined(tools) as (fleet, place):
        joined = _idle(fleet.pid("node-1"), sizes.idle_seconds)
        run(place)
    wanted = ["≥ 0.25", "≥ 0.8", "p50 ≤ 5 ms", "≤ single + 8 ms", "≤ 1.2"]
    for (name, values), bound in zip(beside.items(), wanted, strict=True):
        figures.rows.append([name, *(_text(value) for value in values), _ratio(values), bound])
    more = [f"{joined[0] - alone[0]:+.1f} MiB", f"{joined[1] - alone[1]:+.2f} %"]
    figures.rows.append(["a node, idle: memory, CPU", _two(alone), _two(joined), ", ".join(more), "≤ 15 MiB, 1 %"])
    say(f"fleet: {sizes.sessions} sessions over {sizes.nodes} nodes")
    try:
        _many(tools, sizes, figures)
    except (Failed, OSError) as reason:
        figures.failures.append(f"many sessions: {reason}")
    return figures


def _many(tools: Tools, sizes: Sizes, figures: Figures) -> None:
    """Sessions over many nodes, and what a gateway and a NATS server hold of each."""
    with _joined(tools, sizes.nodes, 1) as (fleet, place):
        pids = {name: fleet.pid(name) for name in ("gateway-1", "nats-1")}
        before = {name: _resident(pid) for name, pid in pids.items()}
        gateway = Client(place.reads, place.token)
        began, each = time.monotonic(), sizes.sessions // sizes.nodes
        for url in fleet.nodes.values():
            node = Client(url, place.token)
            for _ in range(each):
                node.prompt(node.new_session(place.folder), "burst 1 120 t")
        total = each * sizes.nodes
        _until_listed(gateway, total)
        took = time.monotonic() - began
        for name, pid in pids.items():
            cost = (_resident(pid) - before[name]) / total / 1024
            figures.facts[name] = cost
            figures.remarks.append(f"{name}: {cost:.1f} KiB more for each session with one turn")
        memory, cpu = _idle(pids["gateway-1"], sizes.idle_seconds)
        figures.facts["beat"] = cpu / sizes.nodes
        figures.remarks.append(
            f"{total} sessions over {sizes.nodes} nodes, each with a turn, made and listed in {took:.1f} s; the "
            f"gateway then has {memory:.0f} MiB and uses {cpu:.1f} % of a core, {cpu / sizes.nodes:.2f} % for each node"
        )


def _until_listed(gateway: Client, count: int) -> None:
    deadline = time.monotonic() + LIMIT
    while True:
        cursor, found = "", 0
        while True:
            page = gateway.get(f"/v1/sessions{f'?cursor={cursor}' if cursor else ''}")
            found += len(page["sessions"])
            cursor = str(page.get("nextCursor") or "")
            if not cursor:
                break
        if found >= count:
            return
        if time.monotonic() > deadline:
            raise Failed(f"{found} of {count} sessions are listed")
        time.sleep(0.2)


def _text(value: object) -> str:
    if value is None:
        return "failed"
    if isinstance(value, tuple):
        return f"p50 {value[0]:.1f}, p99 {value[1]:.1f}"
    assert isinstance(value, float)
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _two(idle: tuple[float, float]) -> str:
    return f"{idle[0]:.1f} MiB, {idle[1]:.2f} %"


def _ratio(values: Sequence[object]) -> str:
    one, two = (value[0] if isinstance(value, tuple) else value for value in values)
    return f"{two / one:.2f}" if isinstance(one, float) and isinstance(two, float) and one else "–"


def _on_paper(gateway: float, nats: float, beat: float) -> list[str]:
    """What limits a fleet of 100,000 sessions, from what was measured: KiB and per cent of a core."""
    rows = [
        [
            "a gateway's list",
            f"{gateway:.1f} KiB a session (measured)",
            f"{gateway * 100_000 / 1024:.0f} MiB at every gateway",
            "memory; the one thing that every gateway has of every session",
        ],
        [
            "a NATS server",
            f"{nats:.1f} KiB a session with one turn (measured), and the log on disk",
            f"{nats * 100_000 / 1024:.0f} MiB, and `--log-max-bytes`",
            "memory and disk",
        ],
        [
            "beats",
            "one in two seconds a node, each a put into a table",
            "500 puts/s",
            "one table takes thousands a second",
        ],
        [
            "a gateway's work for idle nodes",
            f"{beat:.2f} % of a core a node (measured)",
            f"{beat * 1000:.0f} % of a core over all gateways",
            "add a gateway: nodes share them",
        ],
        [
            "events",
            "5,000 turns with 10 updates a second, gathered by each node into about 10 appends a second",
            "50,000 events/s in up to 10,000 appends/s",
            "one stream, 10,000 to 30,000 appends/s on two cores: the first limit that you meet",
        ],
        [
            "readers",
            "one consumer for each gateway: up to 500 subjects by name, then all",
            "100 readers a gateway",
            "a gateway's core: events/s to many readers, above",
        ],
    ]
    return [
        "## On paper: 100,000 sessions",
        "",
        "Take 100,000 sessions on 1,000 nodes, a twentieth of them in a turn with ten updates a second, and 1,000",
        "readers at ten gateways.",
        "",
        *table(["what", "for each", "at 100,000 sessions", "limit"], rows),
        "",
        "Not carried over: how long NATS servers with a full log take to recover, and networks between machines.",
        "",
    ]


def page(figures: Figures, facts: Sequence[str]) -> str:
    found = figures.facts
    lines = [
        "# A fleet beside a single server",
        "",
        "Made by `./dev bench fleet --write`. One node and one gateway on three NATS servers that sync every append,",
        "all on this machine, beside one server; the same readers for both.",
        "",
        *(f"- {fact}" for fact in facts),
        *(f"- failed: {each}" for each in figures.failures),
        "",
        *table(["what", "single server", "fleet", "ratio", "wanted"], figures.rows),
        "",
        "## How cost grows",
        "",
        *(f"- {remark}" for remark in figures.remarks),
        "",
        *_on_paper(found.get("gateway-1", 0.0), found.get("nats-1", 0.0), found.get("beat", 0.0)),
    ]
    return "\n".join(lines)
