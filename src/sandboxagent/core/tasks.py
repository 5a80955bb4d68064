"""Keep background tasks until they end, and log the exception of one that fails."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")

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
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("task failed task=%r", task.get_name(), exc_info=error)

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

    async def close(self) -> None:
        """Cancel all tasks, and wait for their ends."""
        self.cancel()
        await self.settle()

    def _others(self) -> list[asyncio.Task[object]]:
        """Return all tasks except the calling one: a task that closes its own owner must not wait for itself."""
        calling = asyncio.current_task()
        return [task for task in self._running if task is not calling]
