"""A stream: appends by compare-and-set, pages, and readers that miss nothing."""

import asyncio

import pytest

from sandboxagent.fleet.bus.interface import (
    MAX_BODY_BYTES,
    MAX_MESSAGES,
    Append,
    Bus,
    BusRefused,
    BusStream,
    Conflict,
    StreamMessage,
    StreamRecord,
)
from tests.fleet.bus.conftest import Members
from tests.support.client import run


async def open_stream(bus: Bus, name: str) -> BusStream:
    return await bus.stream(name, [f"{name}.>"], max_bytes=64 << 20, max_age=3600)


def bodies(records: list[StreamRecord]) -> list[bytes]:
    return [record.body for record in records]


def test_an_append_is_all_or_nothing_and_has_consecutive_sequences(members: Members, unique: str) -> None:
    async def main() -> None:
        async with members(1) as [bus]:
            stream = await open_stream(bus, unique)
            a, b = f"{unique}.a", f"{unique}.b"
            first = await stream.append(
                Append(
                    [StreamMessage(a, b"1", {"Sa-Node": "n"}), StreamMessage(b, b"2"), StreamMessage(a, b"3")],
                    {a: 0, b: 0},
                )
            )
            with pytest.raises(Conflict):
                await stream.append(Append([StreamMessage(b, b"x"), StreamMessage(a, b"y")], {b: first + 1, a: first}))
            assert bodies(await stream.page(b, 0, 1 << 40, 1 << 20)) == [b"2"]
            records = await stream.page(a, 0, 1 << 40, 1 << 20)
            assert [(each.sequence, each.predecessor, each.body) for each in records] == [
                (first, 0, b"1"),
                (first + 2, first, b"3"),
            ]
            assert dict(records[0].headers) == {"Sa-Node": "n"}
            assert await stream.append(Append([StreamMessage(a, b"4")], {a: first + 2})) == first + 3
            last = await stream.last(a)
            assert last is not None
            assert (last.sequence, last.predecessor, last.body) == (first + 3, first + 2, b"4")
            assert await stream.last(f"{unique}.none") is None
            assert await stream.ends() == (first, first + 3)

    run(main())


def test_of_two_appends_one_wins(members: Members, unique: str) -> None:
    async def main() -> None:
        async with members(2) as buses:
            streams = [await open_stream(bus, unique) for bus in buses]
            subject = f"{unique}.a"
            for after in range(5):
                attempts = [
                    stream.append(Append([StreamMessage(subject, b"%d" % place)], {subject: after}))
                    for place, stream in enumerate(streams)
                ]
                outcomes = await asyncio.gather(*attempts, return_exceptions=True)
                assert [type(outcome) for outcome in outcomes if isinstance(outcome, Exception)] == [Conflict]
                assert [outcome for outcome in outcomes if isinstance(outcome, int)] == [after + 1]

    run(main())


def test_pages_are_bounded_and_go_on(members: Members, unique: str) -> None:
    async def main() -> None:
        async with members(1) as [bus]:
            stream = await open_stream(bus, unique)
            subject, last = f"{unique}.a", 0
            for place in range(20):
                last = await stream.append(Append([StreamMessage(subject, b"%d" % place * 100_000)], {subject: last}))
            found: list[StreamRecord] = []
            pages = 0
            while page := await stream.page(subject, found[-1].sequence if found else 0, last - 1, 1):
                found += page
                pages += 1
            assert [record.body for record in found] == [b"%d" % place * 100_000 for place in range(19)]
            assert pages > 1

    run(main())


def test_what_the_stream_does_not_take_is_refused(members: Members, unique: str) -> None:
    async def main() -> None:
        async with members(1) as [bus]:
            stream = await open_stream(bus, unique)
            subject = f"{unique}.a"
            for messages in (
                [],
                [StreamMessage(subject, b"x")] * (MAX_MESSAGES + 1),
                [StreamMessage(subject, b"x" * (MAX_BODY_BYTES + 1))],
                [StreamMessage("elsewhere.a", b"x")],
            ):
                with pytest.raises(BusRefused):
                    await stream.append(Append(messages, {subject: 0, "elsewhere.a": 0}))
            assert await stream.append(Append([StreamMessage(subject, b"x" * MAX_BODY_BYTES)] * 3, {subject: 0}))

    run(main())


def test_a_reader_gets_all_from_where_it_asks_and_what_comes(members: Members, unique: str) -> None:
    async def main() -> None:
        async with members(2) as [bus, other]:
            stream, reading = await open_stream(bus, unique), await open_stream(other, unique)
            a, b, c = (f"{unique}.{name}" for name in "abc")
            first = await stream.append(
                Append([StreamMessage(a, b"1"), StreamMessage(b, b"2"), StreamMessage(a, b"3")], {a: 0, b: 0})
            )
            got: asyncio.Queue[StreamRecord] = asyncio.Queue()
            reader = await reading.follow([a], first, got.put_nowait)
            assert (await got.get()).body == b"3"
            await stream.append(Append([StreamMessage(b, b"4"), StreamMessage(a, b"5")], {a: first + 2, b: first + 1}))
            record = await got.get()
            assert (record.body, record.predecessor) == (b"5", first + 2)
            await reader.change([a, c])
            await stream.append(Append([StreamMessage(c, b"6"), StreamMessage(b, b"7")], {c: 0, b: first + 3}))
            assert (await got.get()).body == b"6"
            await reader.change([])
            await stream.append(Append([StreamMessage(c, b"8")], {c: first + 5}))
            await reader.change([c])
            await stream.append(Append([StreamMessage(c, b"9")], {c: first + 7}))
            assert (await got.get()).body == b"9"
            await reader.close()
            assert got.empty()

    run(main())


def test_a_reader_of_much_gets_it_in_order(members: Members, unique: str) -> None:
    async def main() -> None:
        async with members(1) as [bus]:
            stream = await open_stream(bus, unique)
            subject, last = f"{unique}.a", 0
            got: asyncio.Queue[StreamRecord] = asyncio.Queue()
            reader = await stream.follow([f"{unique}.>"], 0, got.put_nowait)
            for _ in range(30):
                messages = [StreamMessage(subject, b"x" * 1000)] * MAX_MESSAGES
                last = await stream.append(Append(messages, {subject: last})) + MAX_MESSAGES - 1
            records = [await got.get() for _ in range(30 * MAX_MESSAGES)]
            assert [record.sequence for record in records] == list(range(1, last + 1))
            assert [record.predecessor for record in records] == list(range(last))
            await reader.close()

    run(main())


def test_a_purged_subject_is_empty_and_others_are_not(members: Members, unique: str) -> None:
    async def main() -> None:
        async with members(1) as [bus]:
            stream = await open_stream(bus, unique)
            a, b = f"{unique}.a", f"{unique}.b"
            await stream.append(Append([StreamMessage(a, b"1"), StreamMessage(b, b"2")], {a: 0, b: 0}))
            await stream.purge(a)
            assert await stream.page(a, 0, 1 << 40, 1) == []
            assert bodies(await stream.page(b, 0, 1 << 40, 1)) == [b"2"]

    run(main())
