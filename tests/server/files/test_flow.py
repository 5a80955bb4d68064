"""Bytes between the event loop and a thread: all of them, in order, never too many, and no wait without an end."""

import asyncio

import pytest

from sandboxagent.server.files.flow import Abandoned, Inflow, Outflow
from sandboxagent.server.files.upload import PIECE_BYTES
from tests.support.client import run
from tests.support.running import BOUND


def test_all_that_is_fed_is_read_in_order_and_pieces_of_any_size() -> None:
    data = bytes(range(256)) * 400

    async def main() -> bytes:
        inflow = Inflow(limit=1000)

        def read() -> bytes:
            assert inflow.peek(6) == data[:6]
            sizes = iter(range(1, 10_000))
            return b"".join(iter(lambda: inflow.read(next(sizes)), b""))

        work = asyncio.create_task(asyncio.to_thread(read))
        for at in range(0, len(data), 777):
            await inflow.feed(data[at : at + 777])
        inflow.finish()
        result = await work
        assert inflow.count == len(data)
        return result

    assert run(main()) == data


def test_a_sender_waits_until_there_is_room() -> None:
    async def main() -> None:
        inflow = Inflow(limit=10)
        await inflow.feed(b"x" * 10)
        feeding = asyncio.create_task(inflow.feed(b"y"))
        await asyncio.sleep(0)
        assert not feeding.done()
        assert await asyncio.to_thread(inflow.read, 100) == b"x" * 10
        async with asyncio.timeout(BOUND):
            await feeding

    run(main())


def test_a_waiting_side_is_released_when_the_other_side_is_gone() -> None:
    async def main() -> None:
        inflow, outflow = Inflow(limit=10), Outflow(limit=10)
        reading = asyncio.create_task(asyncio.to_thread(inflow.read, 1))

        def write() -> None:
            while True:
                outflow.write(bytes(PIECE_BYTES))

        writing = asyncio.create_task(asyncio.to_thread(write))
        await anext(outflow.pieces())
        inflow.abandon()
        outflow.abandon()
        for waiting in (reading, writing):
            with pytest.raises(Abandoned):
                await asyncio.wait_for(waiting, BOUND)
        await asyncio.wait_for(inflow.feed(bytes(100)), BOUND)

    run(main())


def test_all_that_is_written_comes_and_not_far_ahead_of_its_reader() -> None:
    async def main() -> None:
        outflow = Outflow(limit=2 * PIECE_BYTES)
        written = 0

        def write() -> None:
            nonlocal written
            for number in range(40):
                outflow.write(bytes([number]) * (PIECE_BYTES // 2))
                written += PIECE_BYTES // 2
            outflow.write(b"end")
            outflow.finish()

        work = asyncio.create_task(asyncio.to_thread(write))
        got = bytearray()
        async for piece in outflow.pieces():
            got += piece
            assert written - len(got) <= 4 * PIECE_BYTES
        await work
        assert bytes(got) == b"".join(bytes([number]) * (PIECE_BYTES // 2) for number in range(40)) + b"end"

    run(main())
