"""Measure what a process for each session costs, for every agent (`./dev bench isolation`).

Each agent runs twice: with `isolation = "agent"`, and with `isolation = "session"`. Its model is scripted. The memory
is that of all processes of the agent, after one turn in each session.
"""

import argparse
import asyncio
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from tests.agents.real import ROOT, install, running
from tests.agents.recipes import RECIPES
from tests.support.asking import TURN
from tests.support.client import Client, run
from tests.support.model.script import Say
from tests.support.running import Server

PAGE = ROOT / "benchmarks" / "ISOLATION.md"
SESSIONS = 4
SETTLING_SECONDS = 3.0
MIB = 1 << 20
MOCK = "mock"

Isolation = Literal["agent", "session"]
Marker = Callable[[], str]
"""Makes the text of a prompt that the agent's model answers at once."""


@dataclass(frozen=True)
class Figures:
    """What was measured with one agent and one isolation."""

    start: float
    """Seconds from `initialize`, when no process runs, to its answer."""
    news: Sequence[float]
    """Seconds from each `session/new` to its answer."""
    one: int
    """Bytes of all processes of the agent with one session."""
    all: int
    """The same with `SESSIONS` sessions."""
    processes: int
    """Their number then."""

    @property
    def new(self) -> float:
        return min(self.news)

    @property
    def each(self) -> float:
        """Bytes of each further session."""
        return (self.all - self.one) / (SESSIONS - 1)


def main() -> None:
    known = [MOCK, *(recipe.agent for recipe in RECIPES)]
    parser = argparse.ArgumentParser(description="The cost of a process for each session.")
    parser.add_argument("agents", nargs="*", metavar="agent", help=f"only these: {', '.join(known)}")
    parser.add_argument("--write", action="store_true", help=f"also write {PAGE.name}")
    parser.add_argument("--fact", action="append", default=[], help="a line about the machine, for the page")
    arguments = parser.parse_args()
    found: dict[str, tuple[Figures, Figures]] = {}
    for agent in arguments.agents or known:
        found[agent] = measure(agent, "agent"), measure(agent, "session")
        print(_row(agent, *found[agent]), flush=True)
    text = page(found, arguments.fact)
    print(text)
    if arguments.write:
        PAGE.write_text(text)


def measure(agent: str, isolation: Isolation) -> Figures:
    """Measure an agent in a new server."""
    with _served(agent, isolation) as (server, marker):
        return run(_measured(server, agent, marker))


@contextmanager
def _served(agent: str, isolation: Isolation) -> Generator[tuple[Server, Marker]]:
    line = f'isolation = "{isolation}"'
    if agent == MOCK:
        with Server(agents={MOCK: line}) as server:
            yield server, lambda: "hello"
        return
    recipe = next(recipe for recipe in RECIPES if recipe.agent == agent)
    install(recipe)
    with running(recipe, line) as real:
        yield real.server, lambda: f"Please do what {real.model.script(Say('Done.')).marker} says"


async def _measured(server: Server, agent: str, marker: Marker) -> Figures:
    client, news, memory = Client(server, agent), [], []
    try:
        began = time.perf_counter()
        await client.initialize()
        start = time.perf_counter() - began
        async with client.stream() as stream:
            for number in range(1, SESSIONS + 1):
                began = time.perf_counter()
                session = await client.new_session()
                news.append(time.perf_counter() - began)
                assert "result" in await client.prompt(session, marker())
                await stream.until(lambda event: event.method == TURN and event.data["params"]["state"] == "ended")
                if number in (1, SESSIONS):
                    await asyncio.sleep(SETTLING_SECONDS)
                    memory.append(_proportional(server))
    finally:
        await client.http.aclose()
    (one, _), (all, processes) = memory
    return Figures(start, news, one, all, processes)


def _proportional(server: Server) -> tuple[int, int]:
    """Bytes of all that the server has started, memory that processes share counted once, and their number."""
    below = psutil.Process(server.process.pid).children(recursive=True)
    sizes = [_pss(each.pid) for each in below]
    return sum(sizes), len(sizes)


def _pss(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # It has just ended.
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


_TITLES = (
    "agent",
    "1 session, shared",
    "1 session, own",
    f"{SESSIONS} sessions, shared",
    f"{SESSIONS} sessions, own",
    "a further session, shared",
    "a further session, own",
    "processes, shared / own",
    "start",
    "`session/new`, shared",
    "`session/new`, own",
)


def page(found: dict[str, tuple[Figures, Figures]], facts: Sequence[str]) -> str:
    """Return the figures as a Markdown page."""
    table = [_line(_TITLES), "|" + "---|" * len(_TITLES), *(_row(agent, *both) for agent, both in found.items())]
    return "\n".join(["# The cost of a process for each session", "", _LEGEND, "", *table, "", *_listed(facts)])


_LEGEND = f"""\
*Shared* is `isolation = "agent"`: one process for all sessions. *Own* is `isolation = "session"`: one process for each
session, and one more for `initialize` and requests without a session. Memory is in MiB (PSS): all processes of the
agent, {SETTLING_SECONDS:g} seconds after the last turn. Each session has had one turn with a scripted model. *Start*
is the time of `initialize` when no process runs. Times are in seconds; that of `session/new` is the shortest."""


def _row(agent: str, shared: Figures, own: Figures) -> str:
    memory = [shared.one, own.one, shared.all, own.all, shared.each, own.each]
    times = [min(shared.start, own.start), shared.new, own.new]
    return _line(
        [
            f"`{agent}`",
            *(f"{size / MIB:.0f}" for size in memory),
            f"{shared.processes} / {own.processes}",
            *(f"{seconds:.2f}" for seconds in times),
        ]
    )


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _listed(facts: Sequence[str]) -> list[str]:
    return [*(f"- {fact}" for fact in facts), ""] if facts else []


if __name__ == "__main__":
    main()
