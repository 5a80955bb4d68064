"""Measure the speed of the Inspector in a real Chromium (`./dev bench inspector`).

The browser runs `clients/inspector.mjs`.
"""

import json
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from build import HERE, NODE
from servers import TOKEN, Failed, Ours, Peer

HEADING = "## The Inspector"
LONGEST = 1800
FULL = {
    "chunks": 5_000,
    "lines": 10_000,
    "envelopes": 50_000,
    "sessions": 200,
    "seconds": 15,
    "rounds": 10,
    "events": 10_000,
    "timeout": 120,
}
QUICK = {
    "chunks": 1_000,
    "lines": 10_000,
    "envelopes": 5_000,
    "sessions": 30,
    "seconds": 4,
    "rounds": 3,
    "events": 1_000,
    "timeout": 20,
}
"""Sizes of a full and of a quick run. `timeout`: seconds for the peer's page to show the chunks."""
WRITER = (str(NODE), str(HERE / "clients" / "writer.mjs"))
"""An agent whose text is like that of real agents: words, paragraphs, lists, code."""


class WithWriter(Ours):
    def prepare(self, folder: Path) -> None:
        (folder / "agents.toml").write_text(f"[agents.writer]\ncommand = {json.dumps(WRITER)}\n")


class PeerWithWriter(Peer):
    def prepare(self, folder: Path) -> None:
        (folder / "bin").mkdir()
        for name in ("pi", "pi-acp"):
            program = folder / "bin" / name
            program.write_text(f"#!/bin/sh\nexec {shlex.join(WRITER)}\n")
            program.chmod(0o755)


def measure(agent: Path, peer: Path | None, *, quick: bool) -> dict[str, Any]:
    """Measure all figures, on one fresh server.

    Raises:
        Failed: there is no browser, or a step did not finish.
    """
    sizes = QUICK if quick else FULL
    counts = {f"{name}_count": value for name, value in sizes.items()}
    with WithWriter(agent).start() as ours:
        address = f"http://127.0.0.1:{ours.port}"
        wanted: dict[str, object] = {"url": address, "token": TOKEN, "peer": None, **sizes}
        if peer is None:
            return {**counts, **_browse(wanted)}
        with PeerWithWriter(peer, agent).start() as other:
            return {**counts, **_browse({**wanted, "peer": f"http://127.0.0.1:{other.port}"})}


def _browse(wanted: Mapping[str, object]) -> dict[str, Any]:
    command = [NODE, HERE / "clients" / "inspector.mjs", json.dumps(wanted)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, check=False)
    if done.returncode:
        raise Failed(done.stderr.strip()[-600:])
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def section(found: Mapping[str, Any], facts: Sequence[str]) -> str:
    """Return the figures as a section of the results."""
    load, chunks, envelopes = found["load"], found["chunks"], found["envelopes"]
    difference = found["difference"]
    live, heaps = found["sessions"], found["memory"]["heaps"]
    peer = found.get("peer")
    each, half = found["memory"]["events"], max(1, len(heaps) // 2)
    events = each * len(heaps)
    # Only of the second half, because in the first half the page still fills its buffers.
    growth = (heaps[-1] - heaps[half - 1]) / max(1, events - each * half)
    rows = [
        ("first load, compressed (page, scripts, styles)", f"{load['bytes'] / 1000:.0f} kB", "< 300 kB"),
        ("interactive after", f"{load['interactive']:.0f} ms", "< 1 s"),
        (f"{found['chunks_count']:,} chunks shown after", f"{chunks['milliseconds'] / 1000:.2f} s", "< 2 s"),
        ("longest frame meanwhile", _frames(chunks), ""),
        (f"a change of {found['lines_count']:,} lines shown after", f"{difference['milliseconds']:.0f} ms", ""),
        ("longest frame meanwhile", _frames(difference["shown"]), ""),
        ("longest frame while it scrolls", _frames(difference["scrolled"]), "< 50 ms"),
        (f"{found['envelopes_count']:,} envelopes listed after", f"{envelopes['loaded'] / 1000:.2f} s", ""),
        ("longest frame while they scroll", _frames(envelopes["scrolled"]), "< 50 ms"),
        ("longest frame while they are searched", _frames(envelopes["searched"]), "< 50 ms"),
        (f"longest frame with {found['sessions_count']} live sessions", _frames(live), "< 50 ms"),
        (f"memory of the page after {each:,} events", f"{heaps[0] / 1e6:.1f} MB", ""),
        (f"memory of the page after {each * half:,} events", f"{heaps[half - 1] / 1e6:.1f} MB", ""),
        (f"memory of the page after {events:,} events", f"{heaps[-1] / 1e6:.1f} MB, {growth:.0f} B an event", "flat"),
    ]
    if peer:
        load, shown = peer["load"], peer["chunks"]
        after = f"{shown['milliseconds'] / 1000:.2f} s" if shown["done"] else _shown(shown)
        rows[4:4] = [
            (f"the peer's: {found['chunks_count']:,} chunks shown after", after, ""),
            ("the peer's: longest frame meanwhile", _frames(shown), ""),
        ]
        rows.insert(2, ("the peer's: first load", f"{load['bytes'] / 1000:.0f} kB, {load['interactive']:.0f} ms", ""))
    return "\n".join(
        [
            HEADING,
            "",
            *(f"- {fact}" for fact in facts),
            "",
            "| figure | found | wanted |",
            "|---|---:|---:|",
            *(f"| {name} | {value} | {wanted} |" for name, value, wanted in rows),
            "",
            (
                "A frame is the time between two calls of `requestAnimationFrame`. On a busy machine, frames are late "
                "for that reason alone. The CPU time of the page's longest task does not include such delays."
            ),
            "",
        ]
    )


def _shown(found: Mapping[str, Any]) -> str:
    return f"not within {found['milliseconds'] / 1000:.0f} s: {found['events']:,} events shown by then"


def _frames(found: Mapping[str, Any]) -> str:
    cpu = f"; its longest task took {found['longestCpu']:.0f} ms of CPU" if "longestCpu" in found else ""
    return f"{found['longest']:.0f} ms (p99 {found['p99']:.0f} ms{cpu})"


def kept(results: str) -> str:
    """Return the Inspector's section of the results, which a run without the Inspector keeps."""
    return results[results.index(HEADING) :] if HEADING in results else ""


def replaced(results: str, part: str) -> str:
    """Return the results with another section about the Inspector."""
    before = results[: results.index(HEADING)] if HEADING in results else results.rstrip("\n") + "\n\n"
    return before + part
