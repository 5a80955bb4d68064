"""`./dev chaos fleet`: kill, freeze and cut the parts of a fleet; count what became of turns, answers and events."""

import argparse
import asyncio
import logging
import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import cycle
from pathlib import Path

from tests.chaos.caller import TIMEOUT
from tests.chaos.hostile import LARGE
from tests.chaos.rounds import (
    ELECTION,
    FAILOVER,
    OTHERS,
    PLACES,
    RETURN,
    ROWS,
    SILENT,
    SOON,
    Result,
    World,
    world,
)

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

- A **hostile node** attacks beside all that, with a key of its own. It does all of these:

  - it writes into the sessions of other nodes, and lists them as its own;
  - it gives their ids to its own sessions as aliases, and adds facts of {large} bytes;
  - it publishes large events and many small sessions, until the stream of 128 MiB is full;
  - it floods gateways with invalid messages, so they ignore it for a while.

  Events of other nodes' sessions that it gets, and events of its own that readers get, count as *foreign*.

In every round one part fails while a permission is pending in every session. All other parts must continue meanwhile.
Afterwards everything must catch up.

A turn must end with its result, or because its node was lost (`node-lost`, or `outcome-unknown` when the node is
back). A permission is *answered once* if one answer was accepted and the agent got that one. It is *lost* if an answer
was accepted and the agent got none, or another. A text of a finished turn is *lost* if it did not reach a reader, and
*doubled* if it reached a reader twice.

A fault lasts until all other parts have continued, and at least as long as its row says. The *longest fault* includes
the time to start the part again. The *worst pause* is the longest time, after the fault began, in which a reader got no
new text of its session. The column *bound* has its limit:

- **{soon}**, a gateway is killed. Its clients see that at once, and go to another one, which has to read the
  connection. A node gives up a request after 1 s, and asks another gateway, too.
- **{silent}**, a gateway is frozen or cut off. A client leaves a gateway that says nothing for {timeout:.0f}
  s. Between two texts the writer or a person waits for that, and a reader that comes to it just then waits once
  more. Then as above.
- **{failover}**, a NATS server that leads nothing is killed. Its clients connect to
  another one at once. Requests that were lost are repeated after 1 s. A gateway's reader starts again after 1.5 s of
  silence. For some 3 s the servers put a third of new readers on the one that was killed. Such a reader is
  requested again after 0.25 s.
- **{silent}**, a NATS server is frozen or cut off. A gateway that is connected to it is as silent as one that
  is frozen, until two pings, one every 2 s, are without an answer. If it leads, the servers elect another
  leader in the same time.
- **{election}**, the NATS server that leads is killed. The servers elect another one, which took 4 to 9 s
  whenever it was measured; these times cannot be set.
- **{return_}**, a node. Its session waits for as long as the node is away. Then it has to get its lease, which
  it asks for every 2 s, and to know its clients again. Sessions of other nodes may wait for
  {others:.0f} s. A client may be placed at the node that fails, and a gateway looks for another node after 1 s without
  an answer.

A NATS *follower* is a server that leads no stream and no table of the fleet, nor the group of servers. A server that
only follows the stream of events may lead others, and then counts as a leader for everything that needs these.

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
    results, stuck = asyncio.run(_play(asked.minutes * 60, asked.seed, asked.part or PLACES))
    page = "\n".join([_head(asked), "", *(f"- {fact}" for fact in facts), "", _table(results), *_summary(results), ""])
    print(page)
    if stuck is not None:
        print(f"It stopped there: {stuck}", file=sys.stderr)
    elif asked.write:
        PAGE.write_text(page)
    return 0 if stuck is None and all(each.count.is_clean for each in results) else 1


def _head(asked: argparse.Namespace) -> str:
    bounds = {"soon": SOON, "silent": SILENT, "failover": FAILOVER, "election": ELECTION, "return_": RETURN}
    numbers = {
        "minutes": asked.minutes,
        "readers": READERS,
        "seed": asked.seed,
        "timeout": TIMEOUT,
        "others": OTHERS,
        "large": LARGE,
    }
    return HEAD.format(**bounds, **numbers).rstrip()


def _facts() -> list[str]:
    load = os.getloadavg()[0]
    busy = ", which was busy with other work" if load > (os.cpu_count() or 1) else ""
    machine = f"{os.cpu_count()} cores, {platform.system()} {platform.release()}"
    return [
        f"date: {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        f"machine: {machine}, load average before {load:.2f}{busy}",
    ]


async def _play(seconds: float, seed: int, places: list[str]) -> tuple[list[Result], str | None]:
    """The rows that were played; and what did not go on, if that ended it."""
    results = [Result(row) for row in ROWS if row.part in places]
    stuck: str | None = None
    with tempfile.TemporaryDirectory(prefix="sandbox-agent-chaos-") as temporary:
        async with world(Path(temporary), readers=READERS, seed=seed) as fleet:
            ends_at = time.monotonic() + seconds
            for result in cycle(results):
                if time.monotonic() >= ends_at and result.rounds:
                    break
                try:
                    await _play_round(fleet, result)
                except (AssertionError, TimeoutError) as error:
                    stuck = f"{result.row.part}: {result.row.name}: {error!r}"
                    break
    return [each for each in results if each.rounds], stuck


async def _play_round(fleet: World, result: Result) -> None:
    began, late = time.monotonic(), result.late
    await fleet.play(result.row, result)
    took = time.monotonic() - began
    note = f"{result.row.part}: {result.row.name}: round {result.rounds}, {took:.1f} s"
    verdict = "longer than it may be" if result.late > late else "met"
    print(f"{note}, worst pause so far {result.worst:.1f} s, this one {verdict}", file=sys.stderr, flush=True)
    for remark in result.remarks:
        print(remark, file=sys.stderr)
    result.remarks.clear()


def _table(results: list[Result]) -> str:
    head = [
        *("part", "fault", "rounds", "turns finished", "ended by the node's loss", "neither"),
        *("permissions answered once", "twice", "lost"),
        *(
            "events lost",
            "doubled",
            "out of order",
            "foreign",
            "longest fault",
            "worst pause",
            "of other nodes' sessions",
        ),
        *("bound", "met"),
    ]
    rows = [
        [
            each.row.part,
            each.row.name,
            *map(str, (each.rounds, each.count.finished, each.count.node_lost, each.count.neither)),
            *map(str, (each.count.once, each.count.twice, each.count.unanswered)),
            *map(str, (each.count.lost, each.count.doubled, each.count.disordered, each.count.foreign)),
            f"{each.longest:.1f} s",
            f"{each.worst:.1f} s",
            f"{each.others:.1f} s" if each.row.part == "node" else "",
            f"{each.row.limit}",
            f"in {each.rounds - each.late} of {each.rounds} rounds" if each.late else "yes",
        ]
        for each in results
    ]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]) + "\n"


def _summary(results: Sequence[Result]) -> list[str]:
    late, rounds = sum(each.late for each in results), sum(each.rounds for each in results)
    clean = all(each.count.is_clean for each in results)
    return [
        "Nothing was lost, doubled, out of order or answered twice, and nothing was foreign."
        if clean
        else "**Something was lost, doubled, out of order, answered twice or foreign.**",
        f"Pauses were within their bounds in {rounds - late} of {rounds} rounds.",
    ]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
