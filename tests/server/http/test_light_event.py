"""What a socket waits on: as an `asyncio.Event`, and small while no request waits."""

import asyncio
import sys

import pytest

from sandboxagent.server.http.sockets import LightEvent
from tests.support.running import BOUND


def test_all_that_wait_go_on_when_it_is_set() -> None:
    async def main() -> None:
        flag = LightEvent()
        waiting = [asyncio.ensure_future(flag.wait()) for _ in range(3)]
        await asyncio.sleep(0)
        assert not any(each.done() for each in waiting)
        flag.set()
        async with asyncio.timeout(BOUND):
            assert await asyncio.gather(*waiting) == [True] * 3

    asyncio.run(main())


def test_one_that_is_set_lets_all_pass_until_it_is_cleared() -> None:
    async def main() -> None:
        flag = LightEvent(is_set=True)
        assert await flag.wait()
        flag.clear()
        assert not flag.is_set()
        waiting = asyncio.ensure_future(flag.wait())
        await asyncio.sleep(0)
        assert not waiting.done()
        flag.set()
        assert await waiting

    asyncio.run(main())


def test_one_that_gives_up_leaves_nothing_behind() -> None:
    async def main() -> None:
        flag = LightEvent()
        for _ in range(10):
            waiting = asyncio.ensure_future(flag.wait())
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        assert flag._waiting == []  # pyright: ignore[reportPrivateUsage]

    asyncio.run(main())


def test_flag_takes_a_fraction_of_the_memory_of_an_event() -> None:
    event = asyncio.Event()
    size = sys.getsizeof(event) + sys.getsizeof(event._waiters)  # type: ignore[attr-defined]
    assert sys.getsizeof(LightEvent()) * 5 < size
