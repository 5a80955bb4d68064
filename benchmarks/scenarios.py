"""What is measured. Each run starts a fresh server, sets it up, and takes one figure; runs share nothing."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from load import Load
from servers import Failed, Program

STARTS = 5


@dataclass(frozen=True, slots=True)
class Losses:
    """What became of the events of a burst, over all readers."""

    sent: int = 0
    lost: int = 0
    repeated: int = 0
    reordered: int = 0

    def __add__(self, other: "Losses") -> "Losses":
        return Losses(
            self.sent + other.sent,
            self.lost + other.lost,
            self.repeated + other.repeated,
            self.reordered + other.reordered,
        )


@dataclass(frozen=True, slots=True)
class Sample:
    """One run: the figure that is compared, losses where there can be any, and side figures by name."""

    value: float
    losses: Losses | None = None
    notes: dict[str, float] = field(default_factory=dict[str, float])


Run: TypeAlias = Sample | Failed


@dataclass(frozen=True, slots=True)
class Case:
    """A measurement of a certain size. The title names the size, so that a quick run cannot pass for a full one."""

    title: str
    unit: str
    measure: Callable[[Program, Path], Sample]

    def run(self, program: Program, client: Path) -> Run:
        """Measure once. A failure is a result too, and must not end the other runs."""
        try:
            return self.measure(program, client)
        except Failed as failure:
            return failure
        except OSError as error:
            return Failed(f"{type(error).__name__}: {error}")


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    expected: str
    full: Case
    quick: Case


def posts(clients: int, requests: int) -> Case:
    """Requests per second of small requests that the agent answers at once."""

    def measure(program: Program, client: Path) -> Sample:
        with program.start() as running:
            targets = program.connect(running, clients)
            warmup = requests // 10
            cpu = running.cpu_seconds()
            result = Load(client, running).post(targets, clients, requests, warmup)
            cpu_us = (running.cpu_seconds() - cpu) / (clients * (requests + warmup)) * 1e6
            notes = {"p50 µs": result.p50_us, "p99 µs": result.p99_us, "server CPU µs/request": cpu_us}
            return Sample(result.answered / result.seconds, notes=notes)

    return Case(f"POST, {clients} client{'s' * (clients > 1)} × {_count(requests)}", "requests/s", measure)


def burst(readers: int, count: int, size: int) -> Case:
    """Events per second delivered to all readers together, from the prompt to the last event that arrived."""

    def measure(program: Program, client: Path) -> Sample:
        with program.start() as running:
            targets = program.connect(running, readers)
            session = program.new_session(running, targets[0])
            program.attach(running, targets[1:], session)
            cpu = running.cpu_seconds()
            result = Load(client, running).burst(targets, session, count, size)
            cpu_us = (running.cpu_seconds() - cpu) / result.delivered * 1e6
            notes = {
                "seconds to last event": result.seconds,
                "server CPU µs/event": cpu_us,
                "MiB resident after": running.resident() / 2**20,
                "streams resumed": result.resumed,
            }
            losses = Losses(readers * count, result.lost, result.repeated, result.reordered)
            return Sample(result.delivered / result.seconds, losses, notes)

    title = f"SSE, {_count(count)} × {_bytes(size)}, {readers} reader{'s' * (readers > 1)}"
    return Case(title, "events/s", measure)


def idle(streams: int, history: int) -> Case:
    """Resident memory that one idle stream costs the server, its connection and attachment included."""

    def measure(program: Program, client: Path) -> Sample:
        with program.start() as running:
            load = Load(client, running)
            first = program.connect(running, 1)
            session = program.new_session(running, first[0])
            if history:
                load.burst(first, session, history, 120)
            before = load.hold(first)
            targets = program.connect(running, streams)
            program.attach(running, targets, session)
            after = load.hold(targets)
            notes = {"MiB before": before / 2**20, "MiB with streams": after / 2**20}
            return Sample((after - before) / streams / 1024, notes=notes)

    past = f"after {_count(history)} updates" if history else "fresh session"
    return Case(f"memory per idle stream, {_count(streams)} streams, {past}", "KiB ↓", measure)


def start(starts: int) -> Case:
    """Milliseconds from spawning the server to its first answer on the health route; the median of some starts."""

    def measure(program: Program, client: Path) -> Sample:
        del client
        times: list[float] = []
        for _ in range(starts):
            with program.start() as running:
                times.append(running.started_after * 1000)
        return Sample(statistics.median(times), notes={"fastest ms": min(times), "slowest ms": max(times)})

    return Case("start to first health answer", "ms ↓", measure)


def resident() -> Case:
    """Resident memory right after the first answer of the health route."""

    def measure(program: Program, client: Path) -> Sample:
        del client
        with program.start() as running:
            return Sample(running.resident() / 2**20)

    return Case("resident memory at start", "MiB ↓", measure)


def _count(number: int) -> str:
    return f"{number // 1000}k" if number >= 10_000 and number % 1000 == 0 else f"{number:,}"


def _bytes(number: int) -> str:
    return f"{number // 1024} KiB" if number % 1024 == 0 else f"{number} B"


# Expected: the ratio ours/peer that we mean to keep.
SCENARIOS = [
    Scenario("post-1", "–", posts(1, 20_000), posts(1, 3_000)),
    Scenario("post-32", "≥ 1.3", posts(32, 2_000), posts(32, 200)),
    Scenario("sse-1", "≥ 8", burst(1, 200_000, 120), burst(1, 50_000, 120)),
    Scenario("sse-4k", "≥ 5", burst(1, 20_000, 4096), burst(1, 10_000, 4096)),
    Scenario("sse-50", "≥ 20", burst(50, 20_000, 120), burst(50, 4_000, 120)),
    Scenario("idle", "≤ 0.1", idle(1_000, 0), idle(200, 0)),
    Scenario("idle-history", "–", idle(1_000, 2_000), idle(200, 2_000)),
    Scenario("start", "–", start(STARTS), start(1)),
    Scenario("rss", "–", resident(), resident()),
]
