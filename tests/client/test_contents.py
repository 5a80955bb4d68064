"""What is sent as a file: read in threads, and let go however it ends."""

import asyncio
import threading
from collections.abc import AsyncIterable, Generator
from pathlib import Path

import pytest

from sandboxagent.client.api import in_thread, sending
from tests.support.client import run
from tests.support.running import BOUND


def test_blocks_are_made_when_they_are_wanted_and_not_before() -> None:
    made: list[int] = []

    def blocks() -> Generator[bytes]:
        for number in range(3):
            made.append(number)
            yield b"%d" % number

    async def main() -> None:
        found = in_thread(blocks())
        assert await anext(found) == b"0"
        assert made == [0]
        assert [block async for block in found] == [b"1", b"2"]

    run(main())


def test_what_goes_wrong_in_the_thread_is_raised() -> None:
    def blocks() -> Generator[bytes]:
        yield b"one"
        raise OSError("no more")

    async def main() -> None:
        found = in_thread(blocks())
        await anext(found)
        with pytest.raises(OSError, match="no more"):
            await anext(found)

    run(main())


def test_a_thread_that_still_works_is_waited_for_when_it_is_cancelled() -> None:
    working, go, closed = threading.Event(), threading.Event(), threading.Event()

    def blocks() -> Generator[bytes]:
        try:
            working.set()
            assert go.wait(BOUND)
            yield b"late"
        finally:
            closed.set()

    async def main() -> None:
        found = in_thread(blocks())
        reading = asyncio.ensure_future(anext(found))
        await asyncio.to_thread(working.wait, BOUND)
        reading.cancel()
        await asyncio.wait({reading}, timeout=0.05)
        assert not closed.is_set()
        go.set()
        await asyncio.wait({reading})
        assert reading.cancelled()
        assert closed.is_set()

    run(main())


def test_a_file_that_is_not_sent_to_its_end_is_closed(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(1 << 20))

    async def main() -> None:
        async with sending(tmp_path / "large") as body:
            assert isinstance(body, AsyncIterable)
            await anext(aiter(body))

    # An open file would be a warning, and warnings are errors.
    run(main())
