"""`./dev bench growth`: how the cost of one thing grows with the number of others. Ours alone.

A turn among more and more sessions, an update at more and more of them a second, and what a start, a page of the list
of sessions and a replay cost on a log that gets longer. CPU time is the scheduler's own count, in nanoseconds, without
what an idle server uses.
"""

import http.client
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec
from build import Tools
from load import Load
from msgspec import Raw
from servers import Ours, Running, Target

from sandbox_agent.hub.session import SessionFacts
from sandbox_agent.hub.shelf import card_of
from sandbox_agent.log.event import Chunk, Direction, session_channel
from sandbox_agent.log.group import Group
from sandbox_agent.log.recovery import open_database

CLIENTS = 8
"""Of the open sessions, so many take turns."""
TURNS = 60
SECONDS = 3
"""How long updates come at each rate."""
IDLE = 2.0
PAGES = 15
TEXT = 120
SESSIONS_IN_LOG = 1000
BATCH = 2000
KIB = 1 << 10
_UPDATE = b'"agent_message_chunk"'


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """One figure over the number of something."""

    title: str
    across: str
    up: str
    wanted: str
    points: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])


@dataclass(frozen=True, slots=True)
class Sizes:
    sessions: Sequence[int] = (1, 10, 100, 1000, 5000)
    rates: Sequence[int] = (10, 50, 200, 400, 1000)
    events: Sequence[int] = (0, 10_000, 100_000, 1_000_000)


QUICK = Sizes((1, 10, 100), (50, 400), (0, 10_000))


def measure(tools: Tools, sizes: Sizes, say: Callable[[str], None]) -> list[Curve]:
    ours = Ours(tools.agent)
    say("growth: turns among more and more sessions")
    sessions = _sessions(ours, tools, sizes.sessions)
    say("growth: more and more updates a second")
    updates = _updates(ours, tools, sizes.rates)
    say("growth: a log that gets longer")
    return [*sessions, updates, *_log(ours, tools, sizes.events)]


# Sessions and updates


def _sessions(ours: Ours, tools: Tools, counts: Sequence[int]) -> list[Curve]:
    turns = Curve("A turn, by open sessions", "sessions, each with a connection", "CPU µs/turn", "flat")
    memory = Curve("Memory of an open session", "sessions, each with a connection", "KiB each", "")
    with ours.start() as running:
        targets: list[Target] = []
        before, empty = 0, running.resident()
        for count in counts:
            targets += ours.connect_apart(running, count - len(targets))
            busy = targets[:: max(1, count // CLIENTS)][:CLIENTS]
            each = max(1, TURNS * CLIENTS // len(busy))
            # A first run of it: what is allocated once is no cost of a turn.
            Load(tools, running).turn(busy, each // 4 + 1, 0, "keyed")
            spent = _cpu_of(running, partial(Load(tools, running).turn, busy, each, 0, "keyed"))
            turns.points.append((count, spent / (each * len(busy)) * 1e6))
            if before:
                memory.points.append((count, (running.resident() - empty) / (count - before) / KIB))
            before, empty = count, running.resident()
    return [turns, memory]


def _updates(ours: Ours, tools: Tools, rates: Sequence[int]) -> Curve:
    curve = Curve("An update, by their rate", "updates a second", "CPU µs/update", "flat")
    for rate in rates:
        with ours.start() as running:
            (target,) = ours.connect_apart(running, 1)
            idle = _cpu_of(running, partial(time.sleep, IDLE)) / IDLE
            began = time.perf_counter()
            spent = _cpu_of(running, partial(Load(tools, running).pace, target, rate * SECONDS, rate))
            spent -= idle * (time.perf_counter() - began)
            curve.points.append((rate, max(0.0, spent) / (rate * SECONDS) * 1e6))
    return curve


def _cpu_of(running: Running, work: Callable[[], object]) -> float:
    """Seconds of CPU time that the server takes while something is done."""
    before = _cpu_seconds(running)
    work()
    return _cpu_seconds(running) - before


def _cpu_seconds(running: Running) -> float:
    files = Path(f"/proc/{running.process.pid}/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[0]) for file in files) / 1e9


# The log


class _OfLength(Ours):
    """Ours, on a log that has some events."""

    def __init__(self, agent: Path, events: int) -> None:
        super().__init__(agent)
        self._events = events

    def prepare(self, folder: Path) -> None:
        super().prepare(folder)
        (folder / "data").mkdir(mode=0o700)
        if self._events:
            _fill(folder / "data" / "log.db", self._events)


def _log(ours: Ours, tools: Tools, counts: Sequence[int]) -> list[Curve]:
    starts = Curve("Start, by the length of the log", "events", "ms to healthy", "≤ 2× an empty one")
    lists = Curve("`session/list`, by the length of the log", "events", "ms/page", "< 5 ms")
    replays = Curve("Replay from disk", "events", "thousand events/s", "> 200")
    for count in counts:
        with _OfLength(tools.agent, count).start() as running:
            starts.points.append((max(1, count), running.started_after * 1e3))
            (target,) = ours.connect(running, 1)
            lists.points.append((max(1, count), _list_page(running, target)))
        if count:
            replays.points.append((count, _replay(ours, tools, count) / 1e3))
    return [starts, lists, replays]


def _fill(path: Path, events: int) -> None:
    """A log as a server leaves it: a thousand sessions that have ended, and their events, each a row of its own."""
    database = open_database(path).database
    text = "x" * TEXT
    lines = {
        session: b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"%b","update":{"sessionUpdate":'
        b'"agent_message_chunk","content":{"type":"text","text":"%b"}}}}' % (session.encode(), text.encode())
        for session in (f"session-{number}" for number in range(SESSIONS_IN_LOG))
    }
    names = list(lines)
    group = Group()
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
            counted_through=events,
        )
        group.sessions[name] = msgspec.json.encode(facts)
        group.cards[name] = card_of(facts)
    for first in range(1, events + 1, BATCH):
        for position in range(first, min(first + BATCH, events + 1)):
            name = names[position % SESSIONS_IN_LOG]
            chunk = Chunk(position, [lines[name]], Direction.FROM_AGENT, name, session_channel(name), 1.0)
            group.chunks.append(chunk)
        database.write(group)
        group = Group()
    database.close()


def _list_page(running: Running, target: Target) -> float:
    """Milliseconds, of the fastest half the median: the first ones read pages from the disk."""
    took: list[float] = []
    for _ in range(PAGES):
        began = time.perf_counter()
        running.call(target, {"jsonrpc": "2.0", "id": 5, "method": "session/list", "params": {}})
        took.append((time.perf_counter() - began) * 1e3)
    return statistics.median(sorted(took)[: PAGES // 2 + 1])


def _replay(ours: Ours, tools: Tools, count: int) -> float:
    """Events a second that a reader gets who comes back after a burst, all of which it has missed."""
    with ours.start() as running:
        (target,) = ours.connect(running, 1)
        session = ours.new_session(running, target)
        Load(tools, running).burst([target], session, count, TEXT)
        connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=60)
        began = time.perf_counter()
        connection.request("GET", target.path, headers={**dict(target.headers), "Last-Event-ID": "0"})
        response = connection.getresponse()
        seen, rest = 0, b""
        while seen < count:
            data = rest + response.read1(1 << 20)
            seen += data.count(_UPDATE)
            # One may lie across two reads.
            rest = data[1 - len(_UPDATE) :]
        took = time.perf_counter() - began
        connection.close()
        return count / took


# The page and its plot

WIDTH, HEIGHT, COLUMNS = 420, 250, 2
LEFT, RIGHT, TOP, BOTTOM = 62, 18, 44, 44


def page(curves: Sequence[Curve], facts: Sequence[str]) -> str:
    lines = ["# How cost grows", "", "![how cost grows](GROWTH.svg)", "", *tables(curves)]
    about = [f"- {fact}" for fact in facts if not fact.startswith("peer:")]
    return "\n".join([*lines, *about, ""])


def tables(curves: Sequence[Curve]) -> list[str]:
    """Each curve as a table of one row."""
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
    """Across in powers of ten, up from zero."""
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
