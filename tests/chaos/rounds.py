"""Rounds of chaos: one part fails while turns run and readers wander; then everything is held against what was said."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from tests.chaos.caller import TIMEOUT, Choice, Journal
from tests.chaos.hostile import NAME, Hostile
from tests.chaos.parts import Endpoint, Parts, parts
from tests.chaos.traffic import Count, Reader, tally
from tests.chaos.turns import TEXTS, Gate, Person, Writer, make_caller
from tests.support.running import BOUND

TURNS = 3
"""That every writer takes before a fault, under it, and after it."""
LEAST = 3.0
"""Seconds for which a fault lasts, so that all readers meet it."""
LONG = 20.0
"""Seconds for which a node is frozen or cut off: more than its lease."""
OTHERS = 3.0
"""Seconds that a node which fails may cost sessions of other nodes."""


@dataclass(frozen=True)
class Limit:
    """How long a reader may be without a text, in seconds."""

    seconds: float
    beside_fault: bool = False
    """It comes to the time for which the fault lasts."""

    def allowed(self, fault: float) -> float:
        return self.seconds + (fault if self.beside_fault else 0.0)

    def __str__(self) -> str:
        return f"{'fault + ' if self.beside_fault else ''}{self.seconds:.0f} s"


SOON = Limit(2)
"""Clients and nodes go to another gateway."""
SILENT = Limit(2 * TIMEOUT + SOON.seconds)
"""A client waits for a silent gateway; and a reader that comes to it meanwhile does so once more."""
FAILOVER = Limit(3)
"""Those that were connected to it go to another server, where readers begin anew."""
ELECTION = Limit(10)
"""Servers find a leader."""
RETURN = Limit(3, beside_fault=True)
"""A node has its lease, and its clients are known to it."""


@dataclass(frozen=True)
class Row:
    """What happens to which part."""

    part: str
    """`gateway`, `NATS leader`, `NATS follower` or `node`."""
    fault: str
    """`kill -9`, `freeze` or `cut`."""
    limit: Limit
    hold: float = LEAST
    """Seconds for which it lasts at least."""

    @property
    def name(self) -> str:
        return f"{self.fault}, {self.hold:.0f} s"


PLACES = ("gateway", "NATS leader", "NATS follower", "node")
ROWS = [
    Row("gateway", "kill -9", SOON),
    Row("gateway", "freeze", SILENT),
    Row("gateway", "cut", SILENT),
    Row("NATS leader", "kill -9", ELECTION),
    Row("NATS leader", "freeze", SILENT),
    Row("NATS leader", "cut", SILENT),
    Row("NATS follower", "kill -9", FAILOVER),
    Row("NATS follower", "freeze", SILENT),
    Row("NATS follower", "cut", SILENT),
    Row("node", "kill -9", RETURN),
    *(Row("node", fault, RETURN, hold) for fault in ("freeze", "cut") for hold in (LEAST, LONG)),
]


@dataclass
class Result:
    """All rounds of one row."""

    row: Row
    rounds: int = 0
    count: Count = field(default_factory=Count)
    longest: float = 0.0
    """Seconds for which a fault really lasted: until all others had gone on."""
    worst: float = 0.0
    others: float = 0.0
    """The same, of sessions whose node has not failed."""
    late: int = 0
    """Rounds in which a pause was longer than it may be."""
    remarks: list[str] = field(default_factory=list[str])
    """What went wrong, in words."""

    def add(self, counted: Count, fault: float, own: float, others: float) -> bool:
        """A round: how long its fault was, and the pauses of sessions whose node failed, and of all others. Whether no
        pause was longer than it may be."""
        self.rounds += 1
        self.count = self.count.plus(counted)
        self.longest = max(self.longest, fault)
        self.worst = max(self.worst, own, others)
        self.others = max(self.others, others)
        is_late = max(own, others) > self.row.limit.allowed(fault) or (self.row.part == "node" and others > OTHERS)
        self.late += is_late
        return not is_late


@dataclass
class World:
    """A fleet in use."""

    parts: Parts
    writers: list[Writer]
    people: dict[str, list[Person]]
    readers: dict[str, list[Reader]]
    gate: Gate
    random: random.Random
    journal: Journal
    hostile: Hostile
    counted: Count = field(default_factory=Count)
    """After the last round."""

    async def play(self, row: Row, result: Result) -> None:
        """One round. Everything but the part that fails has to go on meanwhile."""
        await self.parts.joined()
        victim = await self._choose(row.part)
        await self._progress(self.writers)
        others = [writer for writer in self.writers if writer.node != victim]
        inflict, heal = self._means(row.fault)
        await self._all_asked()
        for reader in self._all_readers():
            reader.begin_round()
        self.journal.begin_round()
        began = time.monotonic()
        await inflict(victim)
        self.gate.open()
        try:
            await self._progress(others)
            await self._caught_up(others)
            # A fault's length is what the row is about.
            await asyncio.sleep(max(0.0, row.hold - (time.monotonic() - began)))
        finally:
            await heal(victim)
        fault = time.monotonic() - began
        await self._progress(self.writers)
        counted = await self._count(result)
        worst = dict.fromkeys((True, False), 0.0)
        for reader in self._all_readers():
            own = reader.node == victim
            worst[own] = max(worst[own], reader.worst)
        if not result.add(counted, fault, worst[True], worst[False]):
            pauses = (f"{reader.choice.who} {reader.worst:.1f} s" for reader in self._all_readers())
            result.remarks += [f"{victim} failed for {fault:.1f} s; pauses: {', '.join(pauses)}", *self.journal.steps]

    async def _count(self, result: Result) -> Count:
        turns = {writer.session: list(writer.finished) for writer in self.writers}
        await self._caught_up(self.writers)
        counted = Count()
        for writer in self.writers:
            people, readers = self.people[writer.session], self.readers[writer.session]
            of_session = tally(turns[writer.session], writer, people, readers)
            counted = counted.plus(of_session)
            if of_session.is_clean:
                continue
            result.remarks += writer.neither
            for person in people:
                result.remarks += person.refused
            for reader in readers:
                result.remarks += reader.holes(turns[writer.session])
        counted = counted.plus(Count(foreign=self.hostile.foreign))
        before, self.counted = self.counted, counted
        return counted.minus(before)

    async def _all_asked(self) -> None:
        """Wait until something is pending in every session, and let no person answer it yet."""
        self.gate.shut()
        async with self._timeout("no agent asks"):
            while not all(any(person.asked for person in people) for people in self.people.values()):  # noqa: ASYNC110 - of several tasks
                await asyncio.sleep(0.02)

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
                return self.random.choice([writer.node for writer in self.writers])

    def _means(self, fault: str) -> tuple[Callable[[str], Awaitable[None]], Callable[[str], Awaitable[None]]]:
        match fault:
            case "kill -9":
                return self.parts.kill, self.parts.start_again
            case "freeze":
                return self.parts.freeze, self.parts.thaw
            case _:
                return self.parts.cut, self.parts.mend

    async def _progress(self, writers: Sequence[Writer]) -> None:
        """Wait until more turns of each have come to an end, and one of them to a good one."""
        wanted = [(writer, writer.ended + TURNS, len(writer.finished)) for writer in writers]
        async with self._timeout("turns do not end"):
            while any(each.ended < ends or len(each.finished) == finished for each, ends, finished in wanted):  # noqa: ASYNC110 - of several tasks
                await asyncio.sleep(0.02)

    async def _caught_up(self, writers: Sequence[Writer]) -> None:
        """Wait until all readers have the turns that are finished by now. What does not come is counted as lost."""
        wanted = [(writer.finished[-1], self.readers[writer.session]) for writer in writers]
        with suppress(TimeoutError):
            async with asyncio.timeout(2 * BOUND):
                for number, readers in wanted:
                    for reader in readers:
                        while not reader.seen or reader.seen[-1] < (number, TEXTS - 1):  # noqa: ASYNC110 - of a task
                            await asyncio.sleep(0.02)

    @asynccontextmanager
    async def _timeout(self, what: str) -> AsyncGenerator[None]:
        """Raises AssertionError that says what each part is doing, when a wait does not end."""
        try:
            async with asyncio.timeout(2 * BOUND):
                yield
        except TimeoutError:
            state = [
                f"{writer.node}: turn {writer.number}, {writer.ended} ended, last {writer.caller.last_status}; "
                + "; ".join(
                    f"{person.option} asked {sorted(person.asked)} taken {len(person.taken)} "
                    f"at {person.at} after {person.last}, last {person.caller.last_status}"
                    for person in self.people[writer.session]
                )
                for writer in self.writers
            ]
            raise AssertionError("\n".join([what, *state])) from None

    def _all_readers(self) -> list[Reader]:
        return [reader for readers in self.readers.values() for reader in readers]


@asynccontextmanager
async def world(
    directory: Path, *, gateways: int = 2, nodes: int = 3, readers: int = 2, seed: int = 0
) -> AsyncGenerator[World]:
    """A fleet with a writer and two people at each node and so many readers of each session, all at work."""
    async with parts(directory, gateways, nodes) as made, AsyncExitStack() as stack:

        def all_gateways() -> Sequence[Endpoint]:
            return [made.endpoint(name) for name in made.fleet.urls if name.startswith("gateway")]

        gate, journal = Gate(), Journal()
        writers = [
            Writer(name, make_caller(all_gateways, seed, f"writer of {name}", journal)) for name in made.fleet.nodes
        ]
        await made.joined()
        for writer in writers:
            stack.push_async_callback(writer.caller.close)
            await writer.open(str(made.work))
        people = {
            writer.session: [
                Person(
                    writer.session, option, make_caller(all_gateways, seed, f"{option} of {writer.node}", journal), gate
                )
                for option in ("yes", "no")
            ]
            for writer in writers
        }
        for person in (person for found in people.values() for person in found):
            stack.push_async_callback(person.caller.close)
            await person.open()
        by_session = {
            writer.session: [
                Reader(writer.session, writer.node, Choice(all_gateways, random.Random(f"{seed} {who}"), who, journal))
                for who in (f"reader {number} of {writer.node}" for number in range(readers))
            ]
            for writer in writers
        }
        hostile = Hostile(lambda: list(people), random.Random(f"{seed} hostile"))
        stack.push_async_callback(hostile.close)
        await hostile.start(made.urls, made.fleet.directory.node_key(NAME))
        at_work = [hostile, *writers, *chain(*people.values()), *chain(*by_session.values())]
        tasks = [asyncio.create_task(each.run()) for each in at_work]
        try:
            yield World(made, writers, people, by_session, gate, random.Random(seed), journal, hostile)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
