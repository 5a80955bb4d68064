"""Threads beside the event loop: in order for each key, few in all, and one that hangs hangs alone."""

import asyncio
import threading

import pytest

from sandboxagent.server.sessions.policy import Threads
from tests.support.client import run


def test_what_a_function_gives_or_raises_is_passed_on() -> None:
    def fail() -> int:
        raise KeyError("x")

    async def main() -> None:
        threads = Threads(1)
        assert await threads.run("a", lambda: 5) == 5
        with pytest.raises(KeyError):
            await threads.run("a", fail)
        assert threads._last == {}  # type: ignore[attr-defined]

    run(main())


def test_calls_of_one_key_run_in_order_and_one_at_a_time() -> None:
    async def main() -> None:
        threads, seen = Threads(4), list[str]()
        inside = threading.Semaphore(1)

        def note(name: str) -> None:
            assert inside.acquire(blocking=False), "two at once"
            seen.append(name)
            inside.release()

        names = [str(number) for number in range(20)]
        await asyncio.gather(*(threads.run("a", lambda name=name: note(name)) for name in names))
        assert seen == names

    run(main())


def test_one_that_hangs_holds_back_its_own_key_only() -> None:
    async def main() -> None:
        threads, released = Threads(2), threading.Event()
        try:
            stuck = asyncio.ensure_future(threads.run("a", released.wait))
            after = asyncio.ensure_future(threads.run("a", lambda: "second"))
            assert await threads.run("b", lambda: "other") == "other"
            assert not stuck.done()
            assert not after.done()
            # Who stops waiting frees nothing: the thread is still there.
            stuck.cancel()
            with pytest.raises(asyncio.CancelledError):
                await stuck
            assert await threads.run("b", lambda: "other") == "other"
            assert not after.done()
        finally:
            released.set()
        assert await after == "second"

    run(main())


def test_cancelled_call_does_not_let_the_next_one_in() -> None:
    async def main() -> None:
        threads, released = Threads(2), threading.Event()
        try:
            first = asyncio.ensure_future(threads.run("a", released.wait))
            second = asyncio.ensure_future(threads.run("a", lambda: "second"))
            third = asyncio.ensure_future(threads.run("a", lambda: "third"))
            await threads.run("b", lambda: None)
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
            await threads.run("b", lambda: None)
            assert not third.done()
        finally:
            released.set()
        assert await first
        assert await third == "third"

    run(main())
