"""Rounds of chaos: one part fails while turns run and readers wander; then everything is held against what was said."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.parts import Endpoint, Parts, parts
from tests.chaos.traffic import TEXTS, Count, Reader, Writer, tally
from tests.support.client import Client
from tests.support.running import BOUND

TURNS = 3
"""That every writer takes before a fault, under it, and after it."""
LEAST = 3.0
"""Seconds for which a fault lasts, so that all readers meet it."""
LONG = 20.0
"""Seconds for which a node is frozen or cut off: more than its lease."""


@dataclass(frozen=True)
class Row:
    """What happens to which part."""

    part: str
    """`gateway`, `NATS leader`, `NATS follower` or `node`."""
    fault: str
    """`kill -9`, `freeze` or `cut`."""
    hold: float = LEAST
    """Seconds for which it lasts at least."""

    @property
    def name(self) -> str:
        return f"{self.fault}, {self.hold:.0f} s"


PLACES = ("gateway", "NATS leader", "NATS follower", "node")
ROWS = [
    *(Row(part, fault) for part in PLACES[:3] for fault in ("kill -9", "freeze", "cut")),
    Row("node", "kill -9"),
    *(Row("node", fault, hold) for fault in ("freeze", "cut") for hold in (LEAST, LONG)),
]


@dataclass
class Result:
    """All rounds of one row."""

    row: Row
    rounds: int = 0
    acknowledged: int = 0
    lost: int = 0
    doubled: int = 0
    disordered: int = 0
    worst: float = 0.0
    remarks: list[str] = field(default_factory=list[str])
    """Where readers left something out."""

    def add(self, counted: Count, before: Count, worst: float) -> None:
        self.rounds += 1
        self.acknowledged += counted.acknowledged - before.acknowledged
        self.lost += counted.lost - before.lost
        self.doubled += counted.doubled - before.doubled
        self.disordered += counted.disordered - before.disordered
        self.worst = max(self.worst, worst)


@dataclass
class World:
    """A fleet in use."""

    parts: Parts
    writers: list[Writer]
    readers: dict[str, list[Reader]]
    random: random.Random
    _nodes: list[str] = field(default_factory=list[str])
    counted: Count = field(default_factory=lambda: Count(0, 0, 0, 0))
    """After the last round."""

    async def play(self, row: Row, result: Result) -> None:
        """One round. Everything but the part that fails has to go on meanwhile."""
        victim = await self._choose(row.part)
        for reader in self._all_readers():
            reader.begin_round()
        await self._progress(self.writers)
        others = [writer for writer, name in zip(self.writers, self._nodes, strict=True) if name != victim]
        began = time.monotonic()
        inflict, heal = self._means(row.fault)
        await inflict(victim)
        try:
            await self._progress(others)
            await self._caught_up(others)
            # A fault's length is what the row is about.
            await asyncio.sleep(max(0.0, row.hold - (time.monotonic() - began)))
        finally:
            await heal(victim)
        await self._progress(self.writers)
        turns = [list(writer.acknowledged) for writer in self.writers]
        await self._caught_up(self.writers)
        counted = tally(
            [(each, self.readers[writer.session]) for each, writer in zip(turns, self.writers, strict=True)]
        )
        result.add(counted, self.counted, max(reader.worst for reader in self._all_readers()))
        if counted != self.counted and not counted.is_clean:
            for each, writer in zip(turns, self.writers, strict=True):
                for reader in self.readers[writer.session]:
                    result.remarks += reader.holes(each)
        self.counted = counted

    async def _choose(self, part: str) -> str:
        match part:
            case "NATS leader":
                return await self.parts.leader()
            case "NATS follower":
                return await self.parts.follower()
            case "gateway":
                await self.parts.leader()
                return self.random.choice([name for name in self.parts.fleet.urls if name.startswith("gateway")])
            case _:
                await self.parts.leader()
                return self.random.choice(self._nodes)

    def _means(self, fault: str) -> tuple[Callable[[str], Awaitable[None]], Callable[[str], Awaitable[None]]]:
        match fault:
            case "kill -9":
                return self.parts.kill, self.parts.start_again
            case "freeze":
                return self.parts.freeze, self.parts.thaw
            case _:
                return self.parts.cut, self.parts.mend

    async def _progress(self, writers: Sequence[Writer]) -> None:
        """Wait until each has had more of its turns acknowledged."""
        wanted = [len(writer.acknowledged) + TURNS for writer in writers]
        async with asyncio.timeout(2 * BOUND):
            while any(len(writer.acknowledged) < each for writer, each in zip(writers, wanted, strict=True)):  # noqa: ASYNC110 - of several tasks
                await asyncio.sleep(0.02)

    async def _caught_up(self, writers: Sequence[Writer]) -> None:
        """Wait until all readers have the turns that are acknowledged by now. What does not come is counted as lost."""
        wanted = [(writer.acknowledged[-1], self.readers[writer.session]) for writer in writers]
        with suppress(TimeoutError):
            async with asyncio.timeout(2 * BOUND):
                for number, readers in wanted:
                    for reader in readers:
                        while not reader.seen or reader.seen[-1] < (number, TEXTS - 1):  # noqa: ASYNC110 - of a task
                            await asyncio.sleep(0.02)

    def _all_readers(self) -> list[Reader]:
        return [reader for readers in self.readers.values() for reader in readers]


@asynccontextmanager
async def world(
    directory: Path, *, gateways: int = 2, nodes: int = 3, readers: int = 2, seed: int = 0
) -> AsyncGenerator[World]:
    """A fleet with a writer at each node and so many readers of each session, all at work."""
    async with parts(directory, gateways, nodes) as made:
        names = list(made.fleet.nodes)
        writers = [Writer(lambda name=name: made.endpoint(name)) for name in names]
        for writer in writers:
            await writer.open()
        await _listed(made, {writer.session for writer in writers})

        def all_gateways() -> Sequence[Endpoint]:
            return [made.endpoint(name) for name in made.fleet.urls if name.startswith("gateway")]

        by_session = {
            writer.session: [
                Reader(writer.session, all_gateways, random.Random(f"{seed} {place} {number}"))
                for number in range(readers)
            ]
            for place, writer in enumerate(writers)
        }
        tasks = [asyncio.create_task(writer.run()) for writer in writers]
        tasks += [asyncio.create_task(reader.run()) for readers in by_session.values() for reader in readers]
        try:
            yield World(made, writers, by_session, random.Random(seed), names)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for writer in writers:
                await writer.close()


async def _listed(made: Parts, sessions: set[str]) -> None:
    async with Client(made.endpoint("gateway-1")) as client, asyncio.timeout(BOUND):
        while True:
            listed = (await client.result("session/list"))["sessions"]
            if sessions <= {each["sessionId"] for each in listed}:
                return
            await asyncio.sleep(0.05)
