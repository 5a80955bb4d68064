"""Measure the SDKs: a session through ours and through the peer's, each in its own client program.

A client program (`clients/`) gets a job and prints its figures as lines of JSON. In between it stands still, so that
its CPU time and memory are read from outside, in the same way for all. Each SDK uses its own protocol on the wire.
"""

import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import first_words
import msgspec
from build import HERE, NODE, PEER_BINARY, PEER_SDK, PEER_VERSION, Unavailable, build_sdk, install_peer_sdk
from machine import Pace
from report import are_clean, losses, number, samples, spread
from scenarios import Losses, Run, Sample
from servers import TOKEN, Failed, Program, Running, cpu_seconds, peak

TIMEOUT = 60
END_TIMEOUT = 10
MIB = 1 << 20
STARTS = 3

PYTHON, TYPESCRIPT, PEER = "Python", "TypeScript", "peer"
HEADER = ["SDK", PYTHON, TYPESCRIPT, PEER, "Python/peer", "TypeScript/peer", "lost, Python / TypeScript / peer"]

T = TypeVar("T")

_tags = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Sdk:
    """An SDK: the program that uses it, and its server."""

    name: str
    command: tuple[str, ...]
    program: Program
    agent: str


@dataclass(frozen=True, slots=True)
class Measure:
    """A measurement of a certain size, for any SDK."""

    title: str
    unit: str
    sample: Callable[[Sdk], Sample]
    only: str | None = None
    """The name of the only SDK to measure; None for all."""

    def run(self, sdk: Sdk) -> Run:
        try:
            return self.sample(sdk)
        except Failed as failure:
            return failure
        except OSError as error:
            return Failed(f"{type(error).__name__}: {error}")


@dataclass(slots=True)
class Figures:
    """All runs of a measurement, by SDK and round."""

    measure: Measure
    runs: dict[str, list[Run]] = field(default_factory=dict[str, list[Run]])

    def rows(self) -> list[list[str]]:
        """Return the main figure and then its side figures, each as a row of the table."""
        lost = " / ".join(losses(self.runs.get(name, [])) for name in (PYTHON, TYPESCRIPT, PEER))
        first = [*self._row(f"{self.measure.title}: {self.measure.unit}", lambda sample: sample.value), lost]
        found = [sample for runs in self.runs.values() for sample in samples(runs)]
        notes = dict.fromkeys(name for sample in found for name in sample.notes)
        return [first, *([*self._row(note, lambda sample, note=note: sample.notes[note]), ""] for note in notes)]

    def is_clean(self) -> bool:
        return all(are_clean(runs) for name, runs in self.runs.items() if name != PEER)

    def failures(self) -> list[str]:
        runs = [(name, run) for name, runs in self.runs.items() for run in runs]
        return [f"{self.measure.title}, {name}: {run}" for name, run in runs if isinstance(run, Failed)]

    def _row(self, title: str, value: Callable[[Sample], float]) -> list[str]:
        peer = self.runs.get(PEER, [])
        cells: list[str] = []
        ratios: list[str] = []
        for name in (PYTHON, TYPESCRIPT, PEER):
            runs = self.runs.get(name, [])
            values = [value(sample) for sample in samples(runs)]
            cells.append(number(statistics.median(values)) if values else "failed" if runs else "n/a")
            pairs = [
                (a, b) for a, b in zip(runs, peer, strict=False) if isinstance(a, Sample) and isinstance(b, Sample)
            ]
            both = [value(a) / value(b) for a, b in pairs if value(b) > 0]
            ratios.append(spread(both) if both else "–")
        return [title, *cells, *ratios[:2]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The table with its header, remarks below it, and whether our SDKs have passed without failures and losses."""

    table: list[list[str]]
    remarks: list[str]
    is_clean: bool


def measure(ours: Program, peer: Program | None, rounds: int, pace: Pace, *, quick: bool) -> Outcome:
    """Measure all SDKs in turn, round after round."""
    sdks, remarks = _sdks(ours, peer)
    measures = [burst(5_000, 120), trips(100), start(1)] if quick else [burst(50_000, 120), trips(1_000), start(STARTS)]
    measures += [connecting(), mock(), words(), words_of_daemon()]
    warm_up = start(1)
    for sdk in list(sdks):
        run = warm_up.run(sdk)
        if isinstance(run, Failed) and sdk.name == PEER:
            remarks.append(f"the peer's SDK does not work here: {run}")
            sdks.remove(sdk)
    found = [Figures(each) for each in measures]
    for round_number in range(1, rounds + 1):
        for figures in found:
            for sdk in sdks:
                if figures.measure.only not in (None, sdk.name):
                    continue
                pace.take()
                run = figures.measure.run(sdk)
                figures.runs.setdefault(sdk.name, []).append(run)
                figure = f"{run.value:,.2f} {figures.measure.unit}" if isinstance(run, Sample) else f"failed: {run}"
                _say(f"{figures.measure.title} round {round_number}/{rounds} {sdk.name}: {figure}")
    is_clean = TYPESCRIPT in (sdk.name for sdk in sdks) and all(figures.is_clean() for figures in found)
    remarks += [line for figures in found for line in figures.failures()]
    return Outcome([HEADER, *(row for figures in found for row in figures.rows())], remarks, is_clean)


def _sdks(ours: Program, peer: Program | None) -> tuple[list[Sdk], list[str]]:
    """Return the SDKs that can be measured, and why the others cannot."""
    sdks = [Sdk(PYTHON, (sys.executable, str(HERE / "clients" / "ours.py")), ours, "bench")]
    remarks: list[str] = []
    try:
        build_sdk()
        sdks.append(Sdk(TYPESCRIPT, (str(NODE), str(HERE / "clients" / "ours.mjs")), ours, "bench"))
    except Unavailable as reason:
        remarks.append(f"our TypeScript SDK is not available: {reason}")
    if peer is not None:
        try:
            install_peer_sdk()
            sdks.append(Sdk(PEER, (str(NODE), str(HERE / "clients" / "peer.mjs")), peer, "pi"))
        except Unavailable as reason:
            remarks.append(f"the peer's SDK is not available: {reason}")
    node = subprocess.run([NODE, "--version"], capture_output=True, text=True, check=False).stdout.strip()
    remarks.insert(0, f"Node {node} for both TypeScript SDKs; the peer's is npm `{PEER_SDK}` {PEER_VERSION}")
    return sdks, remarks


# Measurements


class Burst(msgspec.Struct, frozen=True):
    seconds: float
    first_ms: float
    delivered: int
    lost: int
    repeated: int
    reordered: int
    late: int


class Trips(msgspec.Struct, frozen=True):
    p50_ms: float
    p99_ms: float


class Ready(msgspec.Struct, frozen=True):
    ready: bool


class Updated(msgspec.Struct, frozen=True):
    updated: bool


def burst(count: int, size: int) -> Measure:
    """Measure updates per second that the SDK hands to a program, as typed objects if the SDK has types."""

    def sample(sdk: Sdk) -> Sample:
        with sdk.program.start() as running, _connected(sdk, running, do="burst", count=count, size=size) as client:
            client.read(Ready)
            cpu, before = client.cpu_seconds(), client.peak()
            client.go()
            result = client.read(Burst)
            in_all, most = client.cpu_seconds(), client.peak()
        if result.delivered == 0:
            raise Failed("no update came")
        notes = {
            "first update, ms ↓": result.first_ms,
            "updates after the end of the turn ↓": result.late,
            "client CPU, µs/update ↓": (in_all - cpu) / result.delivered * 1e6,
            "client CPU in all, s ↓": in_all,
            "client resident before, MiB ↓": before / MIB,
            "client resident at its peak, MiB ↓": most / MIB,
        }
        lost = Losses(count, result.lost, result.repeated, result.reordered)
        return Sample(result.delivered / result.seconds, lost, notes)

    return Measure(f"burst of {count:,} × {size} B", "updates/s", sample)


def trips(count: int) -> Measure:
    """Measure the milliseconds of prompts that the agent answers at once. A tenth more run first, unmeasured."""

    def sample(sdk: Sdk) -> Sample:
        job = {"do": "trips", "count": count, "warmup": count // 10}
        with sdk.program.start() as running, _connected(sdk, running, **job) as client:
            client.read(Ready)
            cpu = client.cpu_seconds()
            client.go()
            result = client.read(Trips)
            cpu_us = (client.cpu_seconds() - cpu) / (count + count // 10) * 1e6
        return Sample(result.p50_ms, notes={"p99 of these, ms ↓": result.p99_ms, "client CPU, µs/prompt ↓": cpu_us})

    return Measure(f"round trip of {count:,} prompts, p50", "ms ↓", sample)


def start(starts: int) -> Measure:
    """Measure the milliseconds from a program's start to its first update, from a server that the SDK starts."""

    def sample(sdk: Sdk) -> Sample:
        times: list[float] = []
        for _ in range(starts):
            with _place(sdk) as folder:
                began = time.perf_counter()
                with _client(sdk, folder, do="start", program=str(folder / "server")) as client:
                    client.read(Updated)
                    times.append((time.perf_counter() - began) * 1000)
        return Sample(statistics.median(times))

    return Measure("`SandboxAgent.start()` to the first update", "ms ↓", sample)


def connecting() -> Measure:
    """Measure the CPU time of a program that imports the SDK and connects to a running server."""

    def sample(sdk: Sdk) -> Sample:
        with sdk.program.start() as running:
            environment = sdk.program.environment(running.folder)
            return Sample(min(first_words.cpu_of_connecting(environment, running) for _ in range(STARTS)))

    return Measure("import and first connection, CPU", "ms ↓", sample, PYTHON)


def mock() -> Measure:
    """Measure the CPU time of the mock agent's start."""

    def sample(sdk: Sdk) -> Sample:
        with _place(sdk) as folder:
            environment = sdk.program.environment(folder)
            return Sample(min(first_words.cpu_of_mock(environment) for _ in range(STARTS)))

    return Measure("start of the mock agent, CPU", "ms ↓", sample, PYTHON)


def words() -> Measure:
    """Measure the time until the command line prints its first word, when no server runs."""

    def sample(sdk: Sdk) -> Sample:
        times: list[float] = []
        for _ in range(STARTS):
            with _place(sdk) as folder:
                environment = sdk.program.environment(folder)
                with first_words.daemon(environment, folder):
                    times.append(first_words.first_word(environment, folder))
        return Sample(statistics.median(times))

    return Measure("`run mock hello` to the first word, no server", "ms ↓", sample, PYTHON)


def words_of_daemon() -> Measure:
    """Measure the time until the command line prints its first word, with a server and a mock agent running."""

    def sample(sdk: Sdk) -> Sample:
        with _place(sdk) as folder:
            environment = sdk.program.environment(folder)
            with first_words.daemon(environment, folder):
                first_words.first_word(environment, folder)
                times = [first_words.first_word(environment, folder) for _ in range(STARTS)]
        return Sample(statistics.median(times))

    return Measure("`run mock hello` to the first word, with a daemon", "ms ↓", sample, PYTHON)


# Client programs


@dataclass(frozen=True, slots=True)
class Client:
    """A client program that runs one job."""

    process: subprocess.Popen[bytes]
    log: Path

    def read(self, kind: type[T]) -> T:
        """Read the next line of figures.

        Raises:
            Failed: the program ended, or was killed because it took too long.
        """
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise self.ended(self.process.wait())
        return msgspec.json.decode(line, type=kind)

    def ended(self, code: int) -> Failed:
        """Return why the program ended, with the last lines of its log."""
        if code == -signal.SIGKILL:
            return Failed(f"the client was not done within {TIMEOUT} s")
        said = self.log.read_text(errors="replace").strip().splitlines()[-5:]
        return Failed(f"the client ended with {code}: {' | '.join(said)}")

    def go(self) -> None:
        """Let the program continue."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.process.pid)

    def peak(self) -> int:
        return peak(self.process.pid)


def _connected(sdk: Sdk, running: Running, **job: object) -> AbstractContextManager[Client]:
    return _client(sdk, running.folder, url=f"http://127.0.0.1:{running.port}", token=TOKEN, **job)


@contextmanager
def _client(sdk: Sdk, folder: Path, **job: object) -> Generator[Client]:
    """Run a client program with a job. At the end of the block, it closes its client and exits."""
    whole: Mapping[str, object] = {"agent": sdk.agent, "cwd": str(folder), "tag": f"s{next(_tags)}", **job}
    log = folder / "client.log"
    environment = sdk.program.environment(folder)
    # Our TypeScript SDK looks for the program `sandbox-agent` on PATH.
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*sdk.command, json.dumps(whole)],
            env=environment,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            start_new_session=True,
        )
    limit = threading.Timer(TIMEOUT, process.kill)
    limit.start()
    try:
        client = Client(process, log)
        yield client
        process.communicate(timeout=END_TIMEOUT)
        if process.returncode != 0:
            raise client.ended(process.returncode)
    except subprocess.TimeoutExpired:
        raise Failed(f"the client did not end within {END_TIMEOUT} s after its work") from None
    finally:
        limit.cancel()
        # A server that the client started ends with the client's stdin, or is in its process group.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def _place(sdk: Sdk) -> Generator[Path]:
    """Make a folder for a client that starts its own server, which finds the agent there."""
    folder = Path(tempfile.mkdtemp(prefix="sandbox-agent-bench-"))
    try:
        sdk.program.prepare(folder)
        # The peer's SDK has no option to switch telemetry off, as all benchmarks do.
        (folder / "server").write_text(f'#!/bin/sh\nexec "{PEER_BINARY}" "$@" --no-telemetry\n')
        (folder / "server").chmod(0o755)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _say(text: str) -> None:
    print(f"bench: sdk: {text}", file=sys.stderr, flush=True)
