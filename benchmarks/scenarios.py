"""Define what is measured: each run starts a fresh server, sets it up, and takes one figure."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from build import Tools
from load import Load
from servers import Failed, Program

STARTS = 5


@dataclass(frozen=True, slots=True)
class Losses:
    """The number of events of a burst that were sent, lost, repeated and reordered, over all readers."""

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
    """The result of one run: the compared figure, losses if there can be any, and side figures by name."""

    value: float
    losses: Losses | None = None
    notes: dict[str, float] = field(default_factory=dict[str, float])


Run: TypeAlias = Sample | Failed


@dataclass(frozen=True, slots=True)
class Case:
    """A measurement of a certain size. The title names the size, so that nobody takes a quick run for a full one."""

    title: str
    unit: str
    measure: Callable[[Program, Tools], Sample]

    def run(self, program: Program, tools: Tools) -> Run:
        """Measure once. Return a failure as a result, so that the other runs continue."""
        try:
            return self.measure(program, tools)
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


def posts(clients: int, requests: int, *, in_session: bool) -> Case:
    """Measure small requests per second that the agent answers at once, in one session each or without a session."""

    def measure(program: Program, tools: Tools) -> Sample:
        with program.start() as running:
            connect = program.connect_apart if in_session else program.connect
            targets = connect(running, clients)
            warmup = requests // 10
            cpu = running.cpu_seconds()
            result = Load(tools, running).post(targets, clients, requests, warmup)
            cpu_us = (running.cpu_seconds() - cpu) / (clients * (requests + warmup)) * 1e6
            notes = {"p50 µs": result.p50_us, "p99 µs": result.p99_us, "server CPU µs/request": cpu_us}
            return Sample(result.answered / result.seconds, notes=notes)

    what = "request with a session" if in_session else "nothing but the way through"
    return Case(f"{what}, {_clients(clients)} × {_count(requests)}", "requests/s", measure)


def turns(clients: int, count: int, headers: str) -> Case:
    """Measure whole turns per second: a prompt, one update on the client's own stream, the response."""

    def measure(program: Program, tools: Tools) -> Sample:
        with program.start() as running:
            targets = program.connect_apart(running, clients)
            warmup = count // 10
            cpu = running.cpu_seconds()
            result = Load(tools, running).turn(targets, count, warmup, headers)
            cpu_us = (running.cpu_seconds() - cpu) / (clients * (count + warmup)) * 1e6
            notes = {"p50 µs": result.p50_us, "p99 µs": result.p99_us, "server CPU µs/turn": cpu_us}
            losses = Losses(clients * count, reordered=result.early)
            return Sample(result.answered / result.seconds, losses, notes)

    return Case(f"turns{_SENT[headers]}, {_clients(clients)} × {_count(count)}", "turns/s", measure)


_SENT = {"bare": "", "keyed": " with `Idempotency-Key`", "async": " with `Idempotency-Key` and `Prefer: respond-async`"}


def pace(count: int, rate: int) -> Case:
    """Measure the time of an update from the agent's write to its reader, at a steady rate."""

    def measure(program: Program, tools: Tools) -> Sample:
        with program.start() as running:
            (target,) = program.connect_apart(running, 1)
            cpu = running.cpu_seconds()
            result = Load(tools, running).pace(target, count, rate)
            cpu_us = (running.cpu_seconds() - cpu) / result.arrived * 1e6
            notes = {"p99 µs": result.p99_us, "slowest µs": result.max_us, "server CPU µs/update": cpu_us}
            repeated = max(0, result.arrived - result.wanted)
            losses = Losses(result.wanted, lost=max(0, result.wanted - result.arrived), repeated=repeated)
            return Sample(result.p50_us, losses, notes)

    return Case(f"an update reaches its reader, {_count(count)} at {rate}/s, p50", "µs ↓", measure)


def burst(readers: int, count: int, size: int) -> Case:
    """Measure events per second to all readers together, from the prompt to the last event that arrived."""

    def measure(program: Program, tools: Tools) -> Sample:
        with program.start() as running:
            targets = program.connect(running, readers)
            session = program.new_session(running, targets[0])
            program.attach(running, targets[1:], session)
            cpu = running.cpu_seconds()
            result = Load(tools, running).burst(targets, session, count, size)
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
    """Measure the server's resident memory for one idle stream, with its connection and attachment."""

    def measure(program: Program, tools: Tools) -> Sample:
        with program.start() as running:
            load = Load(tools, running)
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
    """Measure the milliseconds from the server's start to its first answer to a health request, as a median."""

    def measure(program: Program, tools: Tools) -> Sample:
        del tools
        times: list[float] = []
        cpu: list[float] = []
        for _ in range(starts):
            with program.start() as running:
                times.append(running.started_after * 1000)
                cpu.append(running.cpu_seconds() * 1000)
        notes = {"fastest ms": min(times), "slowest ms": max(times), "server CPU ms": statistics.median(cpu)}
        return Sample(statistics.median(times), notes=notes)

    return Case("start to first health answer", "ms ↓", measure)


def memory() -> Case:
    """Measure the server's memory right after its first answer to a health request."""

    def measure(program: Program, tools: Tools) -> Sample:
        del tools
        with program.start() as running:
            notes = {"MiB resident": running.resident() / 2**20}
            return Sample(running.proportional() / 2**20, notes=notes)

    return Case("memory at start (PSS)", "MiB ↓", measure)


def _clients(number: int) -> str:
    return f"{number} client{'s' * (number > 1)}"


def _count(number: int) -> str:
    return f"{number // 1000}k" if number >= 10_000 and number % 1000 == 0 else f"{number:,}"


def _bytes(number: int) -> str:
    return f"{number // 1024} KiB" if number % 1024 == 0 else f"{number} B"


# Each `expected` is the ratio ours/peer that we mean to keep.
SCENARIOS = [
    Scenario("call-1", "≥ 1.0", posts(1, 10_000, in_session=True), posts(1, 2_000, in_session=True)),
    Scenario("call-32", "≥ 1.5", posts(32, 1_000, in_session=True), posts(32, 100, in_session=True)),
    Scenario("turn-1", "≥ 1.0", turns(1, 5_000, "bare"), turns(1, 1_000, "bare")),
    Scenario("turn-32", "≥ 1.2", turns(32, 500, "bare"), turns(32, 60, "bare")),
    Scenario("turn-keyed-1", "–", turns(1, 3_000, "keyed"), turns(1, 600, "keyed")),
    Scenario("turn-keyed-32", "–", turns(32, 300, "keyed"), turns(32, 40, "keyed")),
    Scenario("turn-async-32", "–", turns(32, 300, "async"), turns(32, 40, "async")),
    Scenario("pace", "≤ 1.0", pace(4_000, 400), pace(800, 400)),
    Scenario("sse-1", "≥ 15", burst(1, 200_000, 120), burst(1, 50_000, 120)),
    Scenario("sse-4k", "≥ 7", burst(1, 20_000, 4096), burst(1, 10_000, 4096)),
    Scenario("sse-50", "≥ 60", burst(50, 20_000, 120), burst(50, 4_000, 120)),
    Scenario("idle", "≤ 0.055", idle(1_000, 0), idle(200, 0)),
    Scenario("idle-history", "–", idle(1_000, 2_000), idle(200, 2_000)),
    Scenario("start", "≤ 3.5", start(STARTS), start(1)),
    Scenario("memory", "≤ 1.8", memory(), memory()),
    Scenario("through-1", "–", posts(1, 20_000, in_session=False), posts(1, 3_000, in_session=False)),
    Scenario("through-32", "–", posts(32, 2_000, in_session=False), posts(32, 200, in_session=False)),
]
