"""Threads, a pool for each purpose."""

import asyncio
import threading

import pytest

from sandboxagent.core.threads import Pool, Pools
from tests.support.client import run
from tests.support.running import BOUND


def test_a_pool_that_is_busy_delays_no_other() -> None:
    async def main() -> None:
        pools = Pools()
        over = threading.Event()
        others = (pools.files, pools.trees, pools.searches, pools.watches)
        waiting = [pools.agents.start(over.wait, BOUND) for _ in range(3 * pools.agents.threads)]
        try:
            for pool in others:
                assert await pool.run(threading.active_count) > pools.agents.threads
            # Nor the threads of the event loop.
            await asyncio.to_thread(int)
            assert not any(each.done() for each in waiting)
        finally:
            over.set()
        assert all(await asyncio.gather(*waiting))

    run(main())


def test_what_waits_for_a_thread_begins_in_order_and_fails_by_itself() -> None:
    async def main() -> None:
        pool, done = Pool("test", 1), list[int]()

        def work(number: int, *, fails: bool = False) -> int:
            done.append(number)
            if fails:
                raise ValueError(number)
            return number

        begun = [pool.start(work, number, fails=number == 3) for number in range(10)]
        found = await asyncio.gather(*begun, return_exceptions=True)
        assert done == list(range(10))
        assert isinstance(found[3], ValueError)
        assert [each for each in found if each is not found[3]] == [0, 1, 2, 4, 5, 6, 7, 8, 9]
        later = pool.run(work, 10)
        assert done[-1] == 9
        assert await later == 10
        with pytest.raises(ValueError, match="11"):
            await pool.run(work, 11, fails=True)

    run(main())
