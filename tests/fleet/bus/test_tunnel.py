"""Flows between two members: in order, once, within a window; or an end with its reason."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from sandboxagent.fleet.bus.interface import Bus
from sandboxagent.fleet.bus.memory import Cluster, MemoryBus
from sandboxagent.fleet.bus.tunnel import (
    MAX_PIECE_BYTES,
    SIGN_INTERVAL,
    SILENCE_TIMEOUT,
    TICK_INTERVAL,
    WINDOW,
    Flow,
    FlowBroken,
    FlowKind,
    FlowTable,
    Reason,
)
from tests.fleet.bus.conftest import Members
from tests.support.client import run
from tests.support.running import BOUND


@dataclass
class Way:
    bus: Bus
    subject: str
    reply: str = ""
    sent: int = 0

    async def send(self, message: bytes) -> None:
        self.sent += 1
        await self.bus.publish(self.subject, message, self.reply)


@dataclass
class Pair:
    """Both sides of a flow, with the tables that have their clocks."""

    asking: Flow
    answering: Flow
    tables: list[FlowTable]
    ways: list[Way]

    async def pass_time(self, seconds: float) -> None:
        for table in self.tables:
            table.tick(seconds)
            await table.settle()


@asynccontextmanager
async def pair(one: Bus, other: Bus, name: str = "f") -> AsyncGenerator[Pair]:
    tables = [FlowTable(), FlowTable()]
    ways = [Way(one, f"dn.n.flow.{name}"), Way(other, f"up.n.flow.g.{name}")]
    asking = tables[0].open(ways[0], ends_with_them=True)
    answering = tables[1].open(ways[1], ends_with_them=False)
    stops = [
        await one.subscribe(ways[1].subject, lambda _, message: asking.accept(message)),
        await other.subscribe(ways[0].subject, lambda _, message: answering.accept(message)),
    ]
    for place, bus in enumerate((one, other)):
        # What a member hears is known to the servers when a subject that it serves is.
        await bus.serve(f"settled.{name}.{place}", _answer_nothing)
    yield Pair(asking, answering, tables, ways)
    for table in tables:
        table.break_all(Reason.STOPPED)
        await table.settle()
    for stop in stops:
        await stop()


async def _answer_nothing(subject: str, body: bytes) -> None: ...


async def take_until_broken(flow: Flow) -> tuple[list[bytes], Reason]:
    taken: list[bytes] = []
    try:
        while True:
            taken.append((await flow.take()).body)
    except FlowBroken as error:
        return taken, error.reason


async def send_all(flow: Flow, pieces: Iterable[bytes]) -> None:
    for piece in pieces:
        await flow.put(FlowKind.BODY, piece)
    await flow.put(FlowKind.LAST, b"")


async def take_all(flow: Flow) -> list[bytes]:
    taken: list[bytes] = []
    while (piece := await flow.take()).kind is not FlowKind.LAST:
        taken.append(piece.body)
    return taken


def test_pieces_of_both_sides_arrive_in_order_and_once(members: Members, unique: str) -> None:
    async def main() -> None:
        async with members(2) as [one, other], pair(one, other, unique) as flow, asyncio.timeout(BOUND):
            up = [b"%d" % number for number in range(100)]
            down = [bytes([number]) * MAX_PIECE_BYTES for number in range(20)]
            _, _, taken, other_taken = await asyncio.gather(
                send_all(flow.asking, up),
                send_all(flow.answering, down),
                take_all(flow.answering),
                take_all(flow.asking),
            )
            assert (taken, other_taken) == (up, down)

    run(main())


def test_a_side_that_takes_nothing_gets_a_window_of_pieces_and_no_more(members: Members, unique: str) -> None:
    async def main() -> None:
        async with members(2) as [one, other], pair(one, other, unique) as flow, asyncio.timeout(BOUND):
            sending = asyncio.create_task(send_all(flow.answering, [b"x"] * 30))
            for _ in range(3):
                assert (await flow.asking.take()).body == b"x"
            await flow.pass_time(SIGN_INTERVAL)
            assert flow.answering.unfinished <= WINDOW
            assert not sending.done()
            assert len(await take_all(flow.asking)) == 27
            await sending

    run(main())


def test_flow_that_nothing_hears_is_broken(members: Members, unique: str) -> None:
    async def main() -> None:
        async with members(1) as [one], asyncio.timeout(BOUND):
            table = FlowTable()
            flow = table.open(Way(one, f"dn.{unique}.flow.f", f"up.{unique}.flow.g.f"), ends_with_them=True)
            stop = await one.subscribe(f"up.{unique}.flow.g.f", lambda _, message: flow.accept(message))
            await flow.put(FlowKind.OPENING, b"")
            with pytest.raises(FlowBroken) as caught:
                await flow.take()
            assert caught.value.reason is Reason.ABSENT
            await stop()

    run(main())


def test_breaking_off_reaches_the_other_side_after_what_was_sent(members: Members, unique: str) -> None:
    async def main() -> None:
        async with members(2) as [one, other], pair(one, other, unique) as flow, asyncio.timeout(BOUND):
            await flow.answering.put(FlowKind.BODY, b"half")
            flow.answering.break_off(Reason.ABORTED)
            assert (await flow.asking.take()).body == b"half"
            with pytest.raises(FlowBroken) as caught:
                await flow.asking.take()
            assert caught.value.reason is Reason.ABORTED
            with pytest.raises(FlowBroken):
                await flow.asking.put(FlowKind.BODY, b"")

    run(main())


def test_a_break_wakes_a_sender_that_waits_for_room() -> None:
    async def main() -> None:
        async with in_memory() as (flow, _), asyncio.timeout(BOUND):
            sending = asyncio.create_task(send_all(flow.answering, [b"x"] * 30))
            await flow.asking.take()
            flow.asking.break_off(Reason.ABORTED)
            with pytest.raises(FlowBroken):
                await sending

    run(main())


@asynccontextmanager
async def in_memory() -> AsyncGenerator[tuple[Pair, Cluster]]:
    cluster = Cluster()
    async with pair(MemoryBus(cluster), MemoryBus(cluster)) as flow:
        yield flow, cluster


def test_signs_of_life_keep_a_flow_for_hours_and_silence_ends_it() -> None:
    async def main() -> None:
        async with in_memory() as (flow, cluster), asyncio.timeout(BOUND):
            for _ in range(3600):
                await flow.pass_time(2)
            assert (flow.asking.broken, flow.answering.broken) == (None, None)
            assert flow.ways[0].sent < 3600
            cluster.disturb = lambda subject, body: ()
            for _ in range(round(SILENCE_TIMEOUT) + 2):
                await flow.pass_time(1)
            assert (flow.asking.broken, flow.answering.broken) == (Reason.SILENT, Reason.SILENT)

    run(main())


def test_a_side_that_is_not_heard_is_given_signs_sooner() -> None:
    async def main() -> None:
        async with in_memory() as (flow, _), asyncio.timeout(BOUND):
            [table, _], [way, _] = flow.tables, flow.ways
            await flow.asking.put(FlowKind.OPENING, b"")

            async def signs(seconds: int) -> int:
                before = way.sent
                for _ in range(seconds):
                    table.tick(TICK_INTERVAL)
                    await table.settle()
                return way.sent - before

            assert await signs(2) == 2
            flow.answering.send_keep_alive()
            await flow.tables[1].settle()
            await asyncio.sleep(0)
            assert await signs(round(SIGN_INTERVAL)) == 1
            # It should have given one, too.
            assert await signs(4) == 3

    run(main())


def test_a_reader_may_be_slow_with_the_last_pieces_of_a_side_that_is_gone() -> None:
    async def main() -> None:
        async with in_memory() as (flow, _), asyncio.timeout(BOUND):
            await send_all(flow.answering, [b"1", b"2"])
            flow.answering.finish()
            await asyncio.sleep(0)
            for _ in range(100):
                flow.tables[0].tick(1)
            assert await take_all(flow.asking) == [b"1", b"2"]

    run(main())


@pytest.mark.parametrize("harm", ["lost", "doubled", "swapped"])
def test_a_piece_that_is_lost_doubled_or_swapped_ends_the_flow(harm: str) -> None:
    async def main() -> None:
        async with in_memory() as (flow, cluster), asyncio.timeout(BOUND):
            held: list[bytes] = []

            def disturb(subject: str, body: bytes) -> Iterable[bytes]:
                if not subject.startswith("up.") or not body.endswith(b"!"):
                    return [body, *(held.pop() for _ in list(held))]
                if harm == "swapped":
                    held.append(body)
                return [body, body] if harm == "doubled" else []

            cluster.disturb = disturb
            await flow.answering.put(FlowKind.BODY, b"first")
            await flow.answering.put(FlowKind.BODY, b"harmed!")
            await flow.answering.put(FlowKind.BODY, b"third")
            taken, reason = await take_until_broken(flow.asking)
            assert reason is Reason.LOST
            assert taken == ([b"first", b"harmed!"] if harm == "doubled" else [b"first"])

    run(main())


def test_a_lost_last_piece_is_noticed_by_the_next_sign_of_life() -> None:
    async def main() -> None:
        async with in_memory() as (flow, cluster), asyncio.timeout(BOUND):
            cluster.disturb = lambda subject, body: ()
            await flow.answering.put(FlowKind.HEAD, b"the answer, after hours")
            cluster.disturb = None
            await flow.pass_time(SIGN_INTERVAL)
            with pytest.raises(FlowBroken) as caught:
                await flow.asking.take()
            assert caught.value.reason is Reason.LOST

    run(main())


def test_a_credit_that_is_lost_comes_again() -> None:
    async def main() -> None:
        async with in_memory() as (flow, cluster), asyncio.timeout(BOUND):
            sending = asyncio.create_task(send_all(flow.answering, [b"x"] * WINDOW * 2))
            cluster.disturb = lambda subject, body: () if subject.startswith("dn.") else (body,)
            for _ in range(WINDOW):
                await flow.asking.take()
            taking = asyncio.create_task(take_all(flow.asking))
            await flow.tables[0].settle()
            cluster.disturb = None
            await flow.pass_time(SIGN_INTERVAL)
            assert len(await taking) == WINDOW
            await sending

    run(main())


def pack(kind: int, sent: int, finished: int, body: bytes = b"") -> bytes:
    return kind.to_bytes() + sent.to_bytes(8) + finished.to_bytes(8) + body


@pytest.mark.parametrize(
    "messages",
    [
        [b"\x00"],
        [pack(9, 1, 0)],
        [pack(FlowKind.BODY, 1, 5)],
        [pack(FlowKind.BODY, 1, 0, b"x" * (MAX_PIECE_BYTES + 1))],
        [pack(FlowKind.BODY, number, 0) for number in range(1, WINDOW + 2)],
        [pack(FlowKind.LAST, 1, 0), pack(FlowKind.BODY, 2, 0)],
        [pack(FlowKind.BREAK, 0, 0, b"\xff" * 1000)],
        [pack(FlowKind.SIGN, 7, 0)],
    ],
)
def test_what_makes_no_sense_ends_the_flow_at_once_and_costs_a_window(messages: list[bytes]) -> None:
    async def main() -> None:
        async with in_memory() as (flow, _), asyncio.timeout(BOUND):
            evil = flow.ways[1]
            for message in messages:
                await evil.send(message)
            for _ in range(1000):
                # More of the same changes nothing.
                await evil.send(messages[-1])
            taken, _ = await take_until_broken(flow.asking)
            assert len(taken) <= WINDOW

    run(main())


def test_a_flow_ends_when_the_bus_is_cut() -> None:
    async def main() -> None:
        cluster = Cluster()
        one, other = MemoryBus(cluster), MemoryBus(cluster)
        async with pair(one, other) as flow, asyncio.timeout(BOUND):
            one.cut = True
            with pytest.raises(FlowBroken) as caught:
                await flow.asking.put(FlowKind.BODY, b"")
            assert caught.value.reason is Reason.CUT_OFF
            one.cut = False

    run(main())
