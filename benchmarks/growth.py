"""Measure how the cost of one thing grows with the number of others (`./dev bench growth`).

It measures our server alone: a turn by the number of sessions, an update by the rate of updates, and by the length of
the log a start, a page of the list of sessions and a replay. CPU time is the scheduler's own count in nanoseconds,
without the use of an idle server, which has a curve of its own.
"""

import contextlib
import math
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec
from build import Tools
from load import Load
from msgspec import Raw
from servers import Failed, Ours, Running, Target

from sandboxagent.server.log.event import Chunk, Direction, session_channel
from sandboxagent.server.log.journal import Group
from sandboxagent.server.log.recovery import open_database
from sandboxagent.server.sessions.session import SessionFacts
from sandboxagent.server.sessions.store import index_entry

CLIENTS = 8
"""Number of open sessions that take turns."""
TURNS = 60
ROUNDS = 5
"""Number of runs of these turns, of which the median counts: the speed of a shared machine changes within seconds."""
SECONDS = 3
"""Seconds of updates at each rate."""
IDLE = 2.0
STARTS = 3
PAGES = 15
ROUND = 100
"""Number of sessions that a client opens before it leaves."""
TEXT = 120
SESSIONS_IN_LOG = 1000
BATCH = 2000
RUN = 100
"""Number of consecutive events of a session in the log, as in turns."""
LEAST = 12
"""Minimum number of measured updates, also at low rates."""
KIB = 1 << 10
_ID = b"\nid: "


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """A figure as a function of a number of something."""

    title: str
    across: str
    up: str
    wanted: str
    points: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])


@dataclass(frozen=True, slots=True)
class Sizes:
    sessions: Sequence[int] = (1, 10, 100, 1000, 5000)
    resting: Sequence[int] = (500, 1000, 2000, 4000)
    rates: Sequence[int] = (1, 10, 50, 200, 400, 1000)
    events: Sequence[int] = (0, 10_000, 100_000, 1_000_000)
    replays: Sequence[int] = (100_000, 300_000, 1_000_000)


QUICK = Sizes((1, 10, 100), (100, 200), (50, 400), (0, 10_000), (50_000,))


def measure(tools: Tools, sizes: Sizes, say: Callable[[str], None]) -> list[Curve]:
    ours = Ours(tools.agent)
    say("growth: turns among more and more sessions")
    sessions = _sessions(ours, tools, sizes.sessions)
    say("growth: more and more sessions at rest")
    sessions.append(_resting(ours, sizes.resting))
    say("growth: more and more updates a second")
    updates = _updates(ours, tools, sizes.rates)
    say("growth: a log that gets longer")
    return [*sessions, updates, *_log(ours, tools, sizes.events), _replays(ours, tools, sizes.replays)]


# Sessions and updates


def _sessions(ours: Ours, tools: Tools, counts: Sequence[int]) -> list[Curve]:
    across = "sessions, each with a connection"
    turns = Curve("A turn, by open sessions", across, "CPU µs/turn", "flat")
    idle = Curve("A server with nothing to do, by open sessions", across, "CPU ms/s", "")
    memory = Curve("Memory of an open session and its connection", across, "KiB each", "")
    with ours.start() as running:
        targets: list[Target] = []
        before, resident = 0, 0
        for count in counts:
            targets += ours.connect_apart(running, count - len(targets))
            busy = targets[:: max(1, count // CLIENTS)][:CLIENTS]
            each = max(1, TURNS * CLIENTS // len(busy))
            # Run once unmeasured: one-time allocations and pending work of new sessions are no cost of a turn.
            Load(tools, running).turn(busy, each // 4 + 1, 0, "keyed")
            time.sleep(IDLE)
            at_rest = _cpu_of(running, partial(time.sleep, IDLE)) / IDLE
            took: list[float] = []
            for _ in range(ROUNDS):
                began = time.perf_counter()
                spent = _cpu_of(running, partial(Load(tools, running).turn, busy, each, 0, "keyed"))
                took.append(spent - at_rest * (time.perf_counter() - began))
            turns.points.append((count, statistics.median(took) / (each * len(busy)) * 1e6))
            idle.points.append((count, at_rest * 1e3))
            if before >= ROUND // 10:
                memory.points.append((count, (running.resident() - resident) / (count - before) / KIB))
            before, resident = count, running.resident()
    return [turns, idle, memory]


def _resting(ours: Ours, counts: Sequence[int]) -> Curve:
    """Measure sessions whose clients have left, so that only the log has them. Freed memory is used by later ones."""
    wanted = "≤ 4 KiB beyond its facts"
    curve = Curve("Memory of a session at rest", "sessions, each with a turn on disk", "KiB each", wanted)
    with ours.start() as running:
        made = 0
        for count in counts:
            before, resident = made, running.resident()
            while made < count:
                (target,) = ours.connect(running, 1)
                for _ in range(min(ROUND, count - made)):
                    session = ours.new_session(running, target)
                    prompt = {"sessionId": session, "prompt": [{"type": "text", "text": "hello"}]}
                    running.call(target, {"jsonrpc": "2.0", "id": 4, "method": "session/prompt", "params": prompt})
                    made += 1
                ours.leave(running, target)
            time.sleep(IDLE)
            if before:
                curve.points.append((count, max(0.0, (running.resident() - resident) / (made - before) / KIB)))
    return curve


def _updates(ours: Ours, tools: Tools, rates: Sequence[int]) -> Curve:
    curve = Curve("An update, by their rate", "updates a second", "CPU µs/update", "no more at higher rates")
    for rate in rates:
        with ours.start() as running:
            (target,) = ours.connect_apart(running, 1)
            time.sleep(IDLE / 2)
            idle = _cpu_of(running, partial(time.sleep, IDLE)) / IDLE
            count = max(rate * SECONDS, LEAST)
            began = time.perf_counter()
            spent = _cpu_of(running, partial(Load(tools, running).pace, target, count, rate))
            spent -= idle * (time.perf_counter() - began)
            curve.points.append((rate, max(0.0, spent) / count * 1e6))
    return curve


def _cpu_of(running: Running, work: Callable[[], object]) -> float:
    """Return the seconds of CPU time that the server uses during `work`."""
    before = _cpu_seconds(running)
    work()
    return _cpu_seconds(running) - before


def _cpu_seconds(running: Running) -> float:
    files = Path(f"/proc/{running.process.pid}/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[0]) for file in files) / 1e9


# The log


class _OnLog(Ours):
    """Our server on an existing data directory."""

    def __init__(self, agent: Path, data: Path) -> None:
        super().__init__(agent)
        self._data = data

    def command(self, port: int, folder: Path) -> list[str]:
        return [str(self._data) if word == str(folder / "data") else word for word in super().command(port, folder)]


def _log(ours: Ours, tools: Tools, counts: Sequence[int]) -> list[Curve]:
    starts = Curve("Start, by the length of the log", "events", "ms to healthy", "≤ 2× an empty one")
    lists = Curve("`session/list`, by the length of the log", "events", "ms/page", "< 5 ms")
    with tempfile.TemporaryDirectory(prefix="sandbox-agent-bench-") as folder:
        data, filled = Path(folder) / "data", 0
        data.mkdir(mode=0o700)
        program = _OnLog(tools.agent, data)
        for count in counts:
            if count > filled:
                _fill(data / "log.db", filled, count)
                filled = count
            took: list[float] = []
            for number in range(STARTS):
                with program.start() as running:
                    took.append(running.started_after * 1e3)
                    if number == STARTS - 1:
                        (target,) = ours.connect(running, 1)
                        lists.points.append((max(1, count), _list_page(running, target)))
            starts.points.append((max(1, count), statistics.median(took)))
    return [starts, lists]


def _fill(path: Path, filled: int, events: int) -> None:
    """Fill a log as a server leaves it: a thousand ended sessions and their events, each event in its own row."""
    database = open_database(path).database
    text = "x" * TEXT
    lines = {
        session: b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"%b","update":{"sessionUpdate":'
        b'"agent_message_chunk","content":{"type":"text","text":"%b"}}}}' % (session.encode(), text.encode())
        for session in (f"session-{number}" for number in range(SESSIONS_IN_LOG))
    }
    names = list(lines)
    group = Group()
    # Earlier servers on this log have reserved positions.
    start = database.load().reserved
    for number, name in enumerate(names):
        facts = SessionFacts(
            session_id=name,
            agent_session_id=name,
            agent="bench",
            cwd="/",
            created_at=float(number),
            updated_at=float(number),
            ended=True,
            can_resume=True,
            opened_with=Raw(b"{}"),
            event_count=events // SESSIONS_IN_LOG,
            counted_through=start + events,
        )
        group.sessions[name] = msgspec.json.encode(facts)
        group.index[name] = index_entry(facts)
    for first in range(filled, events, BATCH):
        for number in range(first, min(first + BATCH, events)):
            name = names[number // RUN % SESSIONS_IN_LOG]
            chunk = Chunk(start + number + 1, [lines[name]], Direction.FROM_AGENT, name, session_channel(name), 1.0)
            group.chunks.append(chunk)
        group.reserve = group.chunks[-1].last
        database.write(group)
        group = Group()
    database.close()


def _list_page(running: Running, target: Target) -> float:
    """Return the median milliseconds of the fastest half of calls, because the first calls read pages from the disk."""
    took: list[float] = []
    for _ in range(PAGES):
        began = time.perf_counter()
        running.call(target, {"jsonrpc": "2.0", "id": 5, "method": "session/list", "params": {}})
        took.append((time.perf_counter() - began) * 1e3)
    return statistics.median(sorted(took)[: PAGES // 2 + 1])


def _replays(ours: Ours, tools: Tools, counts: Sequence[int]) -> Curve:
    curve = Curve("Replay from disk", "events", "thousand events/s", "> 200")
    for count in counts:
        with ours.start() as running:
            (target,) = ours.connect(running, 1)
            session = ours.new_session(running, target)
            Load(tools, running).burst([target], session, count, TEXT)
            time.sleep(IDLE)
            curve.points.append((count, count / _replay(running, target, count) / 1e3))
    return curve


def _replay(running: Running, target: Target, count: int) -> float:
    """Return the seconds until a reader has `count` missed events. Only the last few ten thousand are in memory."""
    head = "".join(f"{name}: {value}\r\n" for name, value in (*target.headers, ("Last-Event-ID", "0")))
    request = f"GET {target.path} HTTP/1.1\r\nHost: 127.0.0.1:{running.port}\r\n{head}\r\n"
    with contextlib.closing(socket.create_connection(("127.0.0.1", running.port), timeout=60)) as reader:
        began = time.perf_counter()
        reader.sendall(request.encode())
        first, seen, rest = 0, 0, b""
        while not first or seen - first < count:
            # Look only at the last id of each piece: a client that parses everything would be part of the measurement.
            data = rest + reader.recv(1 << 20)
            if len(data) == len(rest):
                raise Failed(f"the replay ended after {seen - first:,} events")
            at = data.rfind(_ID, 0, data.rfind(b"\n"))
            if at >= 0:
                seen = int(data[at + len(_ID) : data.index(b"\n", at + 1)])
                first = first or int(data[data.index(_ID) + len(_ID) :].split(b"\n", 1)[0])
            rest = data[-40:]
        return time.perf_counter() - began


# The page and its plot

WIDTH, HEIGHT, COLUMNS = 420, 250, 2
LEFT, RIGHT, TOP, BOTTOM = 62, 18, 44, 44


def page(curves: Sequence[Curve], facts: Sequence[str]) -> str:
    lines = ["# How cost grows", "", "![how cost grows](GROWTH.svg)", "", *tables(curves)]
    about = [f"- {fact}" for fact in facts if not fact.startswith("peer:")]
    return "\n".join([*lines, *about, ""])


def tables(curves: Sequence[Curve]) -> list[str]:
    """Format each curve as a table of one row."""
    lines: list[str] = []
    for curve in curves:
        wanted = f", wanted: {curve.wanted}" if curve.wanted else ""
        lines += [f"**{curve.title.replace('`', '')}** ({curve.up}{wanted})", ""]
        lines += ["| " + " | ".join([curve.across, *(f"{x:,.0f}" for x, _ in curve.points)]) + " |"]
        lines += ["|" + "---|" * (len(curve.points) + 1)]
        lines += ["| " + " | ".join([curve.up, *(_short(y) for _, y in curve.points)]) + " |", ""]
    return lines


def plot(curves: Sequence[Curve]) -> str:
    rows = -(-len(curves) // COLUMNS)
    size = f"0 0 {COLUMNS * WIDTH} {rows * HEIGHT}"
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}" font-family="sans-serif" font-size="11">']
    parts.append('<rect width="100%" height="100%" fill="white"/>')
    for number, curve in enumerate(curves):
        x, y = number % COLUMNS * WIDTH, number // COLUMNS * HEIGHT
        parts.append(f'<g transform="translate({x} {y})">{_panel(curve)}</g>')
    return "\n".join([*parts, "</svg>", ""])


def _panel(curve: Curve) -> str:
    """Draw one curve: x in powers of ten, y from zero."""
    most = max(y for _, y in curve.points) * 1.25 or 1.0
    first, last = (math.log10(curve.points[end][0]) for end in (0, -1))

    def place(x: float, y: float) -> tuple[float, float]:
        part = (math.log10(x) - first) / ((last - first) or 1.0)
        return LEFT + (WIDTH - LEFT - RIGHT) * part, HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * y / most

    title = curve.title.replace("`", "")
    parts = [f'<text x="{LEFT}" y="18" font-size="13">{title}</text>']
    wanted = f", wanted: {curve.wanted}" if curve.wanted else ""
    parts.append(f'<text x="{LEFT}" y="34" fill="#555">{curve.up}{wanted.replace("<", "&lt;")}</text>')
    for step in range(5):
        _, y = place(curve.points[0][0], most * step / 4)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{_short(most * step / 4)}</text>')
    points = [place(x, y) for x, y in curve.points]
    for (x, _), (value, _) in zip(points, curve.points, strict=True):
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{value:,.0f}</text>')
    parts.append(f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 10}" text-anchor="middle">{curve.across}</text>')
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    parts.append(f'<polyline points="{line}" fill="none" stroke="#06c" stroke-width="2"/>')
    parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#06c"/>' for x, y in points]
    return "".join(parts)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 20 else f"{value:.1f}"
