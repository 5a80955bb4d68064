"""Measure a fleet beside a single server, and how its cost grows (`./dev bench fleet`).

All processes run on this machine: NATS servers, gateways and nodes share its cores with the measuring clients. So the
ratios are the worst that a fleet can have. The readers are plain sockets, the same for both. Both run at the same time
and are measured in turn, in the same run, so that a change of the machine's speed affects both.
"""

import contextlib
import http.client
import json
import re
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import fleet_growth
import growth
from build import Tools
from fleet_clients import LIMIT, Client, Place, Readers, idle, joined, resident, single
from report import table
from servers import Failed
from transfer import download, upload

_NOW = re.compile(rb"@now:(\d+)")
WARM_UP = 300
"""Streams that are opened before the memory of a stream is measured, so that one-time allocations do not count."""


@dataclass(frozen=True, slots=True)
class Sizes:
    rounds: int = 3
    events: int = 20_000
    readers: int = 50
    events_for_readers: int = 10_000
    paced: int = 400
    turns: int = 100
    megabytes: int = 64
    streams: int = 600
    idle_seconds: float = 5.0
    growth: fleet_growth.Sizes = field(default_factory=fleet_growth.Sizes)


QUICK = Sizes(1, 2_000, 10, 200, 100, 20, 8, 50, 2.0, fleet_growth.QUICK)


@dataclass(slots=True)
class Figures:
    rows: list[list[str]] = field(default_factory=list[list[str]])
    failures: list[str] = field(default_factory=list[str])
    growth: fleet_growth.Growth = field(default_factory=fleet_growth.Growth)


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of both, and its target."""

    name: str
    take: Callable[[Place], float]
    wanted: str = "–"
    is_met: Callable[[float, float], bool] | None = None
    """Whether a single server's value and the fleet's meet the target."""
    is_fresh: bool = False
    """Whether to measure on fresh servers, because memory depends on earlier work."""


def _figures(sizes: Sizes) -> list[Figure]:
    many = f"events/s to {sizes.readers} readers"
    return [
        Figure("events/s to one reader", lambda at: _burst(at, 1, sizes.events), "≥ 0.25", _at_least(0.25)),
        Figure(many, lambda at: _burst(at, sizes.readers, sizes.events_for_readers), "≥ 0.8", _at_least(0.8)),
        Figure("agent to reader, ms, p50", lambda at: _pace(at, sizes.paced), "≤ 5 ms", lambda _, fleet: fleet <= 5),
        Figure(
            "a turn's round trip, ms, p50",
            lambda at: _round_trip(at, sizes.turns),
            "≤ single + 8 ms",
            lambda alone, fleet: fleet <= alone + 8,
        ),
        Figure("a file up and down, MB/s", lambda at: _file_both(at, sizes.megabytes), "≥ 0.25", _at_least(0.25)),
        Figure("down alone, MB/s", lambda at: _file_down(at, sizes.megabytes)),
        Figure(
            "memory of an idle stream, KiB",
            lambda at: _idle_stream(at, sizes.streams),
            "≤ 1.2",
            lambda alone, fleet: fleet <= 1.2 * alone,
            is_fresh=True,
        ),
    ]


def _at_least(ratio: float) -> Callable[[float, float], bool]:
    return lambda alone, fleet: fleet >= ratio * alone


def _burst(place: Place, readers: int, count: int) -> float:
    """Return events per second, of all readers together."""
    writer = Client(place.prompts, place.token)
    session = writer.new_session(place.folder)
    clients = [Client(place.reads, place.token) for _ in range(readers)]
    for client in clients:
        client.attach(session)
    streams = [client.open_stream() for client in clients]
    try:
        reading = Readers(streams)
        began = time.monotonic()
        writer.prompt(session, f"burst {count} 120 tag")
        ended = reading.read(count)
        reading.check(count)
        return readers * count / (ended - began)
    finally:
        for stream in streams:
            stream.close()


def _pace(place: Place, count: int) -> float:
    """Return the median of the milliseconds from the agent's write to the reader, at 200 updates per second."""
    writer, client = Client(place.prompts, place.token), Client(place.reads, place.token)
    session = writer.new_session(place.folder)
    client.attach(session)
    with contextlib.closing(client.open_stream()) as stream:
        reading = Readers([stream], _NOW)
        params = {"sessionId": session, "prompt": [{"type": "text", "text": f"pace {count} 200"}]}
        body = json.dumps({"jsonrpc": "2.0", "id": 2, "method": "session/prompt", "params": params})
        asking = http.client.HTTPConnection(str(writer.address.hostname), writer.address.port, timeout=LIMIT)
        with contextlib.closing(asking):
            asking.request("POST", "/v1/rpc", body, {**writer.headers, "Prefer": "respond-async"})
            asking.getresponse().read()
            reading.read(count)
        return statistics.median((at - int(match)) / 1e6 for match, at in reading.found[stream])


def _round_trip(place: Place, count: int) -> float:
    """Return the median milliseconds of a turn with one update, for a client that knows one address."""
    client = Client(place.reads, place.token)
    session = client.new_session(place.folder)
    took: list[float] = []
    for number in range(count + count // 10):
        began = time.perf_counter()
        client.prompt(session, f"burst 1 20 t{number}")
        took.append((time.perf_counter() - began) * 1e3)
    return statistics.median(took[count // 10 :])


def _file_down(place: Place, megabytes: int) -> float:
    file = _file(place.folder, megabytes)
    done = download(*_way(place, file))
    if done.received < file.stat().st_size:
        raise Failed("a file came in part")
    return megabytes / done.seconds


def _file_both(place: Place, megabytes: int) -> float:
    port, target, headers = _way(place, place.folder / "uploaded")
    up = upload(port, "PUT", target, headers, _file(place.folder, megabytes)).seconds
    return 2 * megabytes / (up + megabytes / _file_down(place, megabytes))


def _way(place: Place, path: Path) -> tuple[int, str, dict[str, str]]:
    port = Client.port_of(place.reads)
    return port, f"/v1/fs/file?path={path}", {"Authorization": f"Bearer {place.token}"}


def _file(folder: Path, megabytes: int) -> Path:
    file = folder / "file"
    if not file.exists():
        file.write_bytes(bytes(range(256)) * (megabytes * 1_000_000 // 256))
    return file


def _idle_stream(place: Place, count: int) -> float:
    """Return the KiB of an idle stream in the process that serves it."""
    session = Client(place.prompts, place.token).new_session(place.folder)
    streams: list[socket.socket] = []
    before = 0
    try:
        for number in range(WARM_UP + count):
            if number == WARM_UP:
                before = resident(place.reads_pid)
            client = Client(place.reads, place.token)
            client.attach(session)
            streams.append(client.open_stream())
        time.sleep(1.0)
        return (resident(place.reads_pid) - before) / count / 1024
    finally:
        for stream in streams:
            stream.close()


def measure(tools: Tools, sizes: Sizes, say: Callable[[str], None]) -> Figures:
    """Measure all figures. A failed one is listed, and the others still run."""
    figures = Figures()
    wanted = _figures(sizes)
    taken: dict[str, tuple[list[float], list[float]]] = {figure.name: ([], []) for figure in wanted}

    def take(figure: Figure, number: int, places: tuple[Place, Place]) -> None:
        say(f"fleet, round {number + 1} of {sizes.rounds}: {figure.name}")
        for values, place in zip(taken[figure.name], places, strict=True):
            try:
                values.append(figure.take(place))
            except (Failed, OSError) as reason:
                figures.failures.append(f"{figure.name}: {reason}")

    for figure in (each for each in wanted if each.is_fresh):
        for number in range(sizes.rounds):
            with single(tools) as alone, joined(tools) as fleet:
                take(figure, number, (alone, fleet.place))
    with single(tools) as alone, joined(tools) as fleet:
        places = (alone, fleet.place)
        spent = [idle(place.node_pid, sizes.idle_seconds) for place in places]
        for number in range(sizes.rounds):
            for figure in (each for each in wanted if not each.is_fresh):
                take(figure, number, places)
        figures.rows = [_row(figure, *taken[figure.name]) for figure in wanted]
        figures.rows.append(_idle_row(*spent))
        say("fleet: what its stream takes")
        figures.growth.appends = fleet_growth.measure_appends(fleet)
    try:
        fleet_growth.measure(tools, sizes.growth, figures.growth, say)
    except (Failed, OSError) as reason:
        figures.failures.append(f"how cost grows: {reason}")
    return figures


def _row(figure: Figure, alone: Sequence[float], fleet: Sequence[float]) -> list[str]:
    if not alone or not fleet:
        return [figure.name, "failed", "failed", "–", figure.wanted, "no"]
    one, other = statistics.median(alone), statistics.median(fleet)
    met = "–" if figure.is_met is None else "yes" if figure.is_met(one, other) else "**no**"
    return [figure.name, _short(one), _short(other), f"{other / one:.2f}", figure.wanted, met]


def _idle_row(alone: tuple[float, float], node: tuple[float, float]) -> list[str]:
    more, busier = node[0] - alone[0], node[1] - alone[1]
    both = [f"{memory:.1f} MiB, {share:.2f} %" for memory, share in (alone, node)]
    met = "yes" if more <= 15 and busier <= 1 else "**no**"
    return ["an idle node: memory, CPU", *both, f"{more:+.1f} MiB, {busier:+.2f} %", "≤ 15 MiB, 1 % more", met]


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def page(figures: Figures, facts: Sequence[str]) -> str:
    return "\n".join(
        [
            "# A fleet beside a single server",
            "",
            "Made by `./dev bench fleet --write`. One node and one gateway on three NATS servers that sync every",
            "append, all on this machine, beside one server, with the same readers. Medians of rounds, taken in turn.",
            "",
            *(f"- {fact}" for fact in facts),
            *(f"- failed: {each}" for each in figures.failures),
            "",
            *table(["what", "single server", "fleet", "ratio", "wanted", "met"], figures.rows),
            "",
            "A single server lets the kernel send a file (`sendfile`). A fleet copies its bytes, which is far slower.",
            "",
            *fleet_growth.page(figures.growth),
        ]
    )


def plot(figures: Figures) -> str:
    return growth.plot(figures.growth.curves)
