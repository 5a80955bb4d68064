"""Measure how a fleet's cost grows, and compute its limits at 100,000 sessions.

The cost is measured by the numbers of nodes, sessions and readers.
"""

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import growth
from build import Tools
from fleet_clients import GATEWAY, LIMIT, Client, Joined, Place, Readers, cpu, idle, joined, resident
from growth import Curve
from report import table
from servers import Failed

from sandboxagent.fleet.bus.interface import Append, Conflict, StreamMessage
from sandboxagent.fleet.bus.nats import connect
from sandboxagent.fleet.bus.subjects import inbox_of_gateway, session_events

BUSY = 8
"""Number of sessions that take turns."""
EVENTS = 500
APPENDERS = 32
APPEND_TIMEOUT = 3.0
KIB = 1 << 10
CURVES = 5
_NATS = "nats-1"


@dataclass(frozen=True, slots=True)
class Sizes:
    nodes: Sequence[int] = (1, 3, 10)
    sessions: Sequence[int] = (10, 100, 1000)
    readers: Sequence[int] = (1, 10, 50, 200)
    turns: int = 80
    idle_seconds: float = 4.0


QUICK = Sizes((1, 3), (6, 60), (1, 10), 16, 1.0)


@dataclass(slots=True)
class Growth:
    curves: list[Curve] = field(default_factory=list[Curve])
    remarks: list[str] = field(default_factory=list[str])
    appends: float = 0.0
    """Appends per second that the stream accepts from one client."""


def measure(tools: Tools, sizes: Sizes, found: Growth, say: Callable[[str], None]) -> None:
    with joined(tools, 1, sizes.nodes[-1]) as fleet:
        say("fleet: more and more nodes")
        found.curves.append(_nodes(fleet, sizes))
        say("fleet: more and more sessions")
        found.curves += _sessions(fleet, sizes, found)
        say("fleet: more and more readers")
        found.curves.append(_readers(fleet.place, sizes.readers))


def _nodes(fleet: Joined, sizes: Sizes) -> Curve:
    curve = Curve("An idle gateway, by nodes", "nodes", "% of a core", "")
    for count in sizes.nodes:
        fleet.grow(count)
        curve.points.append((count, idle(fleet.place.reads_pid, sizes.idle_seconds)[1]))
    return curve


def _sessions(fleet: Joined, sizes: Sizes, found: Growth) -> list[Curve]:
    turns = Curve("A turn through a gateway, by sessions", "sessions in the list", "CPU µs/turn", "flat")
    memory = Curve("A session in a gateway's list", "sessions in the list", "KiB each", "")
    stored = Curve("A session at a NATS server", "sessions in the list", "KiB each", "")
    place, sessions, took = fleet.place, list[str](), 0.0
    kept = {memory: fleet.fleet.pid(GATEWAY), stored: fleet.fleet.pid(_NATS)}
    nodes = [Client(url, place.token) for url in fleet.fleet.nodes.values()]
    gateway = Client(place.reads, place.token)
    for count in sizes.sessions:
        before, already, began = [resident(pid) for pid in kept.values()], len(sessions), time.monotonic()
        while len(sessions) < count:
            node = nodes[len(sessions) % len(nodes)]
            sessions.append(node.new_session(place.folder))
            node.prompt(sessions[-1], "burst 1 120 t")
        _until_listed(gateway, count)
        took += time.monotonic() - began
        for (curve, pid), bytes_before in zip(kept.items(), before, strict=True):
            curve.points.append((count, max(0, resident(pid) - bytes_before) / (count - already) / KIB))
        busy = sessions[:: max(1, count // BUSY)][:BUSY]
        _take_turns(gateway, busy, len(busy))
        used = cpu(place.reads_pid)
        _take_turns(gateway, busy, sizes.turns)
        turns.points.append((count, (cpu(place.reads_pid) - used) / sizes.turns * 1e6))
    found.remarks.append(
        f"{len(sessions)} sessions over {len(nodes)} nodes, each with a turn, were made and listed in {took:.1f} s; "
        f"the gateway then has {resident(place.reads_pid) >> 20} MiB"
    )
    return [turns, memory, stored]


def _take_turns(client: Client, sessions: Sequence[str], count: int) -> None:
    for number in range(count):
        client.prompt(sessions[number % len(sessions)], "burst 1 120 t")


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
        time.sleep(0.05)


def _readers(place: Place, counts: Sequence[int]) -> Curve:
    curve = Curve("An event at a gateway, by readers", "readers", "CPU µs/event and reader", "falling")
    writer = Client(place.prompts, place.token)
    session = writer.new_session(place.folder)
    streams: list[socket.socket] = []
    try:
        for count in counts:
            while len(streams) < count:
                client = Client(place.reads, place.token)
                client.attach(session)
                streams.append(client.open_stream())
            reading = Readers(streams)
            used = cpu(place.reads_pid)
            writer.prompt(session, f"burst {EVENTS} 120 tag")
            reading.read(EVENTS)
            reading.check(EVENTS)
            curve.points.append((count, (cpu(place.reads_pid) - used) / (EVENTS * count) * 1e6))
    finally:
        for stream in streams:
            stream.close()
    return curve


def measure_appends(fleet: Joined) -> float:
    """Return the appends per second that the stream accepts, each of one event on a subject of its own."""
    return asyncio.run(_append_for_a_while(fleet))


async def _append_for_a_while(fleet: Joined) -> float:
    bus = await connect(fleet.servers, inbox_of_gateway("bench"), "bench", fleet.fleet.directory.gateway_key)
    stream = bus.open_stream("EV")
    ends_at = time.monotonic() + APPEND_TIMEOUT

    async def append(subject: str) -> int:
        last, count = 0, 0
        while time.monotonic() < ends_at:
            try:
                last = await stream.append(Append([StreamMessage(subject, bytes(300))], {subject: last}))
            except Conflict:
                # A response was lost. As at a gateway, ask the stream for its newest message.
                newest = await stream.last(subject)
                last = 0 if newest is None else newest.sequence
            count += 1
        return count

    try:
        done = await asyncio.gather(*(append(session_events(f"bench-{number}")) for number in range(APPENDERS)))
    finally:
        await bus.close()
    return sum(done) / APPEND_TIMEOUT


# The page


def page(found: Growth) -> list[str]:
    remarks = [*found.remarks]
    remarks.append(f"the stream takes {found.appends:,.0f} appends/s of one client with {APPENDERS} at once, synced")
    return [
        "## How cost grows",
        "",
        "![how cost grows](FLEET.svg)",
        "",
        *growth.tables(found.curves),
        *(f"- {remark}" for remark in remarks),
        "",
        *_on_paper(found),
    ]


def _on_paper(found: Growth) -> list[str]:
    """Compute the limits of a fleet of 100,000 sessions from the measurements."""
    last = {curve.title: curve.points[-1] for curve in found.curves if curve.points}
    if len(last) < CURVES or not found.appends:
        return []
    listed = last["A session in a gateway's list"][1]
    stored = last["A session at a NATS server"][1]
    turn = last["A turn through a gateway, by sessions"][1]
    readers, event = last["An event at a gateway, by readers"]
    (fewest, before), (most, after) = found.curves[0].points[0], found.curves[0].points[-1]
    beat, appends = max(0.0, after - before) / (most - fewest), found.appends
    rows = [
        [
            "appends to the stream",
            "50 events/s a node, at most one append at a time",
            f"50,000 events/s in {appends:,.0f} appends/s or fewer",
            f"**the first limit**: an event waits up to {1000 / appends * 1e3:.0f} ms, for the next append of its node",
        ],
        [
            "a gateway's work for idle nodes",
            f"{beat:.2f} % of a core more for each node",
            f"{beat * 1000:.0f} % of a core over all gateways",
            "a core of each gateway: add gateways, nodes share them",
        ],
        [
            "beats",
            "one in two seconds a node, each a put into a table",
            "500 puts/s",
            f"{appends:,.0f} appends/s of a stream: a table is one",
        ],
        [
            "turns through gateways",
            f"{turn / 1e3:.1f} ms of a core a turn",
            f"5,000 turns that take a minute: {5000 / 60 * turn / 1e4:.0f} % of a core",
            "a core of each gateway",
        ],
        [
            "events to readers",
            f"{event:.1f} µs of a core for each event and reader, with {readers:.0f} readers",
            f"1,000 readers of 50 events/s: {1000 * 50 * event / 1e4:.0f} % of a core over all gateways",
            "a core of each gateway",
        ],
        [
            "a gateway's list",
            f"{listed:.1f} KiB a session",
            f"{listed * 100_000 / KIB:,.0f} MiB at every gateway",
            "memory: what every gateway has of every session",
        ],
        [
            "a NATS server",
            f"{stored:.1f} KiB a session with a turn, and the log on disk",
            f"{stored * 100_000 / KIB:,.0f} MiB, and `--log-max-bytes`",
            "memory and disk",
        ],
    ]
    return [
        "## On paper: 100,000 sessions",
        "",
        "The fleet has 100,000 sessions on 1,000 nodes. 5,000 sessions are in a turn, with ten updates a second each.",
        "There are 1,000 readers at ten gateways, and each reads five sessions in a turn. The measured figures are",
        "those above, of this machine.",
        "",
        *table(["what", "for each, measured", "at 100,000 sessions", "limit"], rows),
        "",
        "One tenant has one stream. Past its limit events come later, in larger appends; none is lost, and nodes whose",
        "backlog is full pause their agents (`--publish-backlog`). Not carried over: how long NATS servers with a full",
        "log take to recover, and networks between machines.",
        "",
    ]
