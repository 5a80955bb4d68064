"""Keep background tasks until they end, and log the exception of one that fails.

All other modules start tasks here, but for those that `tests/test_house.py` lists with a reason.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator, Hashable
from contextlib import contextmanager
from typing import Generic, TypeVar

from sandboxagent.protocol.errors import SandboxAgentError

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

logger = logging.getLogger(__name__)


class Tasks:
    """The tasks of one owner, which closes them at its own end."""

    def __init__(self, most: int | None = None) -> None:
        """Take `most`, the limit of concurrent tasks. Callers must check `is_full` before they start another one."""
        self._most = most
        self._running: set[asyncio.Task[object]] = set()

    def run(self, work: Coroutine[object, None, T], name: str) -> asyncio.Task[T]:
        """Start a coroutine as a task. The task need not be awaited: an exception is logged with its name."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._end)
        return task

    def _end(self, task: asyncio.Task[T]) -> None:
        self._running.discard(task)
        _log_failure(task)

    def __len__(self) -> int:
        return len(self._running)

    @property
    def is_full(self) -> bool:
        return self._most is not None and len(self._running) >= self._most

    def cancel(self) -> None:
        """Cancel all tasks except the calling one, without waiting for their ends."""
        for task in self._others():
            task.cancel()

    async def settle(self) -> None:
        """Wait until all tasks have ended, including the tasks that start meanwhile."""
        while others := self._others():
            await asyncio.wait(others)

    async def join(self) -> None:
        """Wait until all tasks have ended. Raises the exception of one that fails meanwhile."""
        while others := self._others():
            ended, _ = await asyncio.wait(others, return_when=asyncio.FIRST_EXCEPTION)
            for task in ended:
                if not task.cancelled():
                    task.result()

    async def close(self) -> None:
        """Cancel all tasks, and wait for their ends."""
        self.cancel()
        await self.settle()

    def _others(self) -> list[asyncio.Task[object]]:
        """Return all tasks except the calling one: a task that closes its own owner must not wait for itself."""
        calling = asyncio.current_task()
        return [task for task in self._running if task is not calling]


class Shared(Generic[K, T]):
    """Work under way, at most one task for each key. All callers with the same key share the task and its outcome."""

    def __init__(self) -> None:
        self._running: dict[K, _SharedTask[T]] = {}

    async def get(self, key: K, make: Callable[[], Coroutine[object, None, T]], name: str) -> T:
        """Return the outcome of a key's task, which `make` starts if there is none.

        A caller that is cancelled does not cancel the task. A failure is logged if all callers are gone by then.
        """
        with self.join(key, make, name) as task:
            return await asyncio.shield(task)

    @contextmanager
    def join(self, key: K, make: Callable[[], Coroutine[object, None, T]], name: str) -> Generator[asyncio.Task[T]]:
        """Give a key's task to a caller that waits for something else as well. The caller must not cancel it."""
        shared = self._running.get(key)
        if shared is None:
            shared = self._running[key] = _SharedTask(asyncio.get_running_loop().create_task(make(), name=name))
            shared.task.add_done_callback(lambda _: self._end(key))
        shared.callers += 1
        try:
            yield shared.task
        finally:
            shared.callers -= 1

    def _end(self, key: K) -> None:
        shared = self._running.pop(key)
        if shared.callers:
            # Mark the exception as retrieved: a caller may get something else in the same step of the event loop.
            _ = shared.task.cancelled() or shared.task.exception()
        else:
            _log_failure(shared.task)

    def __contains__(self, key: K) -> bool:
        return key in self._running

    def __len__(self) -> int:
        return len(self._running)

    async def settle(self) -> None:
        """Wait until all tasks have ended, including the tasks that start meanwhile."""
        while self._running:
            await asyncio.wait([each.task for each in self._running.values()])

    async def close(self) -> None:
        """Cancel all tasks, and wait for their ends."""
        for each in self._running.values():
            each.task.cancel()
        await self.settle()


class _SharedTask(Generic[T]):
    __slots__ = ("callers", "task")

    def __init__(self, task: asyncio.Task[T]) -> None:
        self.task = task
        self.callers = 0


def _log_failure(task: asyncio.Task[T]) -> None:
    """Log why a task failed. An error of the protocol says all in one line, any other one is a defect."""
    error = None if task.cancelled() else task.exception()
    if isinstance(error, SandboxAgentError):
        logger.warning("task failed task=%r error=%s reason=%s", task.get_name(), error.slug, error)
    elif error is not None:
        logger.error("task failed task=%r", task.get_name(), exc_info=error)
