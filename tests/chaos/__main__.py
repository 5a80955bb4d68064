"""`./dev chaos fleet`: kill, freeze and cut the parts of a fleet; count what became of turns, answers and events."""

import argparse
import asyncio
import logging
import os
import platform
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from tests.chaos.rounds import PLACES, ROWS, Result, world

PAGE = Path(__file__).parents[2] / "benchmarks" / "CHAOS.md"
HEAD = """\
# A fleet whose parts fail

Made by `./dev chaos fleet --minutes {minutes:g} --seed {seed} --write`: three NATS servers, two gateways and three
nodes on one machine.

- At each node a **writer** prompts through gateways, one turn after another. Every turn asks for a permission in its
  middle. A POST that breaks is repeated under its `Idempotency-Key` at another gateway.
- Two **people** are attached to each session. They read at one gateway after another, with one connection and
  `Last-Event-ID`, and answer through another gateway than they read at. Both answer; one says yes, the other no.
- {readers} **readers** of each session wander between the gateways, each going on behind the last event that it has.

In every round one part fails at a moment at which a permission is pending in every session. All others have to go on
meanwhile, and everything has to have caught up after it.

A turn ends with its result, or because its node was lost (`node-lost`, or `outcome-unknown` when the node is back);
nothing else may become of it. A permission is *answered once* when one answer was taken and the agent got that one;
*lost* when an answer was taken and the agent got none, or another. A text of a finished turn that did not reach a
reader is *lost*; one that reached it twice is *doubled*.

A fault lasts until everything else has gone on, and at least as long as its row says; the *longest fault* includes the
time to start the part again. The *worst pause* is the longest time after the fault's beginning for which any reader was
without a new text of its session.
Clients leave a gateway after five seconds of silence, so a gateway that is frozen or cut off costs a turn five seconds,
and ten when writer and person were both there. A node that is away costs its own session as long as that lasts.

"""
READERS = 2


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="./dev chaos", description=__doc__)
    parser.add_argument("what", choices=["fleet"])
    parser.add_argument("--minutes", type=float, default=5, help="Begin no round after this time. (default: 5)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", choices=PLACES, action="append", help="Let only this part fail.")
    parser.add_argument("--write", action="store_true", help=f"Keep the table in {PAGE.name}.")
    asked = parser.parse_args(arguments)
    logging.basicConfig(level=logging.ERROR)
    facts = _facts()
    print(f"seed: {asked.seed}", file=sys.stderr)
    results = asyncio.run(_play(asked.minutes * 60, asked.seed, asked.part or PLACES))
    head = HEAD.format(minutes=asked.minutes, readers=READERS, seed=asked.seed)
    page = "\n".join([head.rstrip(), "", *(f"- {fact}" for fact in facts), "", _table(results)])
    print(page)
    if asked.write:
        PAGE.write_text(page)
    return 0 if all(each.count.is_clean for each in results) else 1


def _facts() -> list[str]:
    load = os.getloadavg()[0]
    busy = ", which was busy with other work" if load > (os.cpu_count() or 1) else ""
    machine = f"{os.cpu_count()} cores, {platform.system()} {platform.release()}"
    return [
        f"date: {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        f"machine: {machine}, load average before {load:.2f}{busy}",
    ]


async def _play(seconds: float, seed: int, places: list[str]) -> list[Result]:
    results = [Result(row) for row in ROWS if row.part in places]
    ends_at = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="sandbox-agent-chaos-") as temporary:
        async with world(Path(temporary), readers=READERS, seed=seed) as fleet:
            while time.monotonic() < ends_at:
                for result in results:
                    if time.monotonic() >= ends_at and result.rounds:
                        continue
                    began = time.monotonic()
                    await fleet.play(result.row, result)
                    took = time.monotonic() - began
                    note = f"{result.row.part}: {result.row.name}: round {result.rounds}, {took:.1f} s"
                    print(f"{note}, worst pause {result.worst:.1f} s", file=sys.stderr, flush=True)
                    print(*result.remarks, sep="\n", end="", file=sys.stderr)
                    result.remarks.clear()
    return [each for each in results if each.rounds]


def _table(results: list[Result]) -> str:
    head = [
        *("part", "fault", "rounds", "turns finished", "ended by the node's loss", "neither"),
        *("permissions answered once", "twice", "lost"),
        *("events lost", "doubled", "out of order", "longest fault", "worst pause"),
    ]
    rows = [
        [
            each.row.part,
            each.row.name,
            *map(str, (each.rounds, each.count.finished, each.count.node_lost, each.count.neither)),
            *map(str, (each.count.once, each.count.twice, each.count.unanswered)),
            *map(str, (each.count.lost, each.count.doubled, each.count.disordered)),
            f"{each.longest:.1f} s",
            f"{each.worst:.1f} s",
        ]
        for each in results
    ]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]) + "\n"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
