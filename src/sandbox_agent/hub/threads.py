"""Threads for work that may take long: few in all, and one at a time for each key, so that one that hangs hangs alone.

They are daemon threads: one that hangs on a disk does not keep the server from stopping.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Threads:
    """Runs functions beside the event loop, those of one key in the order in which they came."""

    def __init__(self, most: int) -> None:
        self._free = asyncio.Semaphore(most)
        self._last: dict[str, asyncio.Future[None]] = {}
        """Of each key, the end of the last that was begun or waits."""

    async def run(self, key: str, function: Callable[[], T]) -> T:
        """Run a function and return its result. If the caller stops waiting, the thread runs on and keeps its slot."""
        loop = asyncio.get_running_loop()
        before, ended = self._last.get(key), loop.create_future()
        self._last[key] = ended
        ended.add_done_callback(lambda _: self._forget(key, ended))
        try:
            if before is not None:
                await asyncio.shield(before)
            await self._free.acquire()
        except BaseException:
            _end_with(before, ended)
            raise
        outcome: asyncio.Future[T] = loop.create_future()

        def end(result: T | None, error: BaseException | None) -> None:
            self._free.release()
            ended.set_result(None)
            if outcome.cancelled():
                return
            if error is not None:
                outcome.set_exception(error)
            else:
                outcome.set_result(result)  # type: ignore[arg-type]

        def work() -> None:
            result, error = None, None
            try:
                result = function()
            except BaseException as raised:
                error = raised
            try:
                loop.call_soon_threadsafe(end, result, error)
            except RuntimeError:
                # The server has ended meanwhile.
                return

        threading.Thread(target=work, daemon=True, name=f"rules-{key}").start()
        return await outcome

    def _forget(self, key: str, ended: asyncio.Future[None]) -> None:
        if self._last.get(key) is ended:
            del self._last[key]


def _end_with(before: asyncio.Future[None] | None, ended: asyncio.Future[None]) -> None:
    """A cancelled waiter counts as ended only once its predecessor has."""
    if before is None or before.done():
        ended.set_result(None)
    else:
        before.add_done_callback(lambda _: ended.set_result(None))
