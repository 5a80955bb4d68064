"""Measure the memory that stays after many clients have come and gone (`./dev bench soak`).

Each client opens a connection, makes a session, takes some turns, and closes the connection. Every tenth session is
terminated and deleted as well. The server is ours with its defaults. The plot shows its resident memory, and the bytes
that each session of the second half has left there.
"""

import http.client
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from servers import Failed, Ours, Running, Target

CLIENTS = 8
TURNS = 5
PROMPT = "burst 2 60 soak"
SAMPLES = 100
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Sample:
    sessions: int
    turns: int
    seconds: float
    resident: int


@dataclass(slots=True)
class Soak:
    """The samples and failures of a run."""

    samples: list[Sample] = field(default_factory=list[Sample])
    failures: list[str] = field(default_factory=list[str])

    def per_session(self) -> float:
        """Return the bytes that each session of the second half has left, by the line of least squares."""
        half = self.samples[len(self.samples) // 2 :]
        return _slope([one.sessions for one in half], [one.resident for one in half])

    def rows(self) -> list[tuple[str, str]]:
        first, last = self.samples[0], self.samples[-1]
        warm = self.samples[len(self.samples) // 2]
        return [
            ("sessions, turns, minutes", f"{last.sessions:,}, {last.turns:,}, {last.seconds / 60:.1f}"),
            ("resident at the start", f"{first.resident / MIB:.1f} MiB"),
            ("resident in the middle", f"{warm.resident / MIB:.1f} MiB"),
            ("resident at the end", f"{last.resident / MIB:.1f} MiB"),
            ("left by each session of the second half", f"{self.per_session():.0f} bytes"),
        ]


def measure(agent: Path, sessions: int) -> Soak:
    """Run all clients. `failures` of the result has the errors, if any."""
    soak, numbers, lock = Soak(), count(1), threading.Lock()
    ours = Ours(agent)
    with ours.start() as running:
        began = time.perf_counter()

        def sample(done: int) -> None:
            taken = Sample(done, done * TURNS, time.perf_counter() - began, running.resident())
            soak.samples.append(taken)

        def work() -> None:
            connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=60)
            own = Running(running.process, running.port, running.folder, 0.0, connection)
            while (number := next(numbers)) <= sessions and not soak.failures:
                try:
                    _visit(ours, own, deletes=number % 10 == 0)
                except (Failed, OSError, http.client.HTTPException) as error:
                    soak.failures.append(str(error))
                if number % max(1, sessions // SAMPLES) == 0:
                    with lock:
                        sample(number)
            connection.close()

        sample(0)
        threads = [threading.Thread(target=work) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    soak.samples.sort(key=lambda one: one.sessions)
    return soak


def _visit(ours: Ours, running: Running, *, deletes: bool) -> None:
    """Run one client from its connection to its end."""
    (target,) = ours.connect(running, 1)
    session = ours.new_session(running, target)
    for turn in range(TURNS):
        prompt = [{"type": "text", "text": PROMPT}]
        _call(running, target, "session/prompt", {"sessionId": session, "prompt": prompt}, 10 + turn)
    if deletes:
        _call(running, target, "_sandboxagent/session/terminate", {"sessionId": session}, 20)
        _call(running, target, "session/delete", {"sessionId": session}, 21)
    running.http.request("DELETE", target.path, headers=dict(target.headers))
    running.http.getresponse().read()


def _call(running: Running, target: Target, method: str, params: dict[str, object], id: int) -> None:
    running.call(target, {"jsonrpc": "2.0", "id": id, "method": method, "params": params})


def _slope(across: Sequence[float], up: Sequence[float]) -> float:
    middle, height = sum(across) / len(across), sum(up) / len(up)
    spread = sum((x - middle) ** 2 for x in across)
    return sum((x - middle) * (y - height) for x, y in zip(across, up, strict=True)) / spread if spread else 0.0


# The plot

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 760, 360, 70, 50, 40


def plot(soak: Soak) -> str:
    """Draw resident memory over sessions, as SVG."""
    most = max(one.resident for one in soak.samples) * 1.15
    across = soak.samples[-1].sessions or 1

    def place(sessions: float, resident: float) -> str:
        x = LEFT + (WIDTH - LEFT - 20) * sessions / across
        y = HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * resident / most
        return f"{x:.1f},{y:.1f}"

    line = " ".join(place(one.sessions, one.resident) for one in soak.samples)
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
            ' font-size="12">'
        ),
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        (
            f'<text x="{LEFT}" y="20" font-size="14">Resident memory of the server, '
            f"{soak.samples[-1].turns:,} turns in {across:,} sessions whose clients have left</text>"
        ),
        (
            f'<text x="{LEFT}" y="36" fill="#555">{soak.per_session():.0f} bytes for each session of the second half'
            f" (dashed: 512 bytes a session)</text>"
        ),
    ]
    for step in range(5):
        resident, sessions = most * step / 4, across * step / 4
        x, y = place(sessions, resident).split(",")
        parts += [
            f'<line x1="{LEFT}" x2="{WIDTH - 20}" y1="{y}" y2="{y}" stroke="#ddd"/>',
            f'<text x="{LEFT - 6}" y="{y}" text-anchor="end">{resident / MIB:.0f} MiB</text>',
            f'<text x="{x}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{sessions:,.0f}</text>',
        ]
    middle = soak.samples[len(soak.samples) // 2]
    limit = middle.resident + 512 * (across - middle.sessions)
    parts += [
        f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 12}" text-anchor="middle">sessions</text>',
        (
            f'<polyline points="{place(middle.sessions, middle.resident)} {place(across, limit)}" fill="none"'
            f' stroke="#c33" stroke-dasharray="5 4"/>'
        ),
        f'<polyline points="{line}" fill="none" stroke="#06c" stroke-width="2"/>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def page(soak: Soak, facts: Sequence[str]) -> str:
    """Return the figures as a Markdown page with the plot."""
    rows = [f"| {name} | {value} |" for name, value in soak.rows()]
    about = [f"- {fact}" for fact in facts if not fact.startswith("peer:")]
    return "\n".join(
        ["# Soak", "", "![memory over sessions](SOAK.svg)", "", "| | |", "|---|---|", *rows, "", *about, ""]
    )
