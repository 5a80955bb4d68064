"""Run work that blocks in threads, with a pool for each purpose.

The event loop's own threads are left to the upkeep of agents: installing them, and looking at their processes.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from msgspec import Struct, field

P = ParamSpec("P")
T = TypeVar("T")


class Pool:
    """So many threads, which start when they are needed. What comes when all are busy waits, in order."""

    def __init__(self, name: str, threads: int) -> None:
        self.threads = threads
        self._executor = ThreadPoolExecutor(threads, name)

    def start(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> "asyncio.Future[T]":
        """Begin something now, or as soon as a thread is free."""
        return asyncio.get_running_loop().run_in_executor(self._executor, lambda: work(*args, **kwargs))

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Begin something once this is awaited; gives what comes of it."""
        return await self.start(work, *args, **kwargs)


class Pools(Struct, frozen=True):
    """All pools of a server."""

    agents: Pool = field(default_factory=lambda: Pool("agents", 8))
    """Files and directories that agents ask for."""
    lines: Pool = field(default_factory=lambda: Pool("lines", 1))
    """Large envelopes. One thread, as Python runs only one at a time: with more, the event loop would wait for each."""
    files: Pool = field(default_factory=lambda: Pool("files", 16))
    """What clients do with files, step by step: no step takes long."""
    trees: Pool = field(default_factory=lambda: Pool("trees", 4))
    """Moves and deletions, which take as long as the tree is large."""
    searches: Pool = field(default_factory=lambda: Pool("searches", 4))
    """Looking again at what ripgrep found."""
    watches: Pool = field(default_factory=lambda: Pool("watches", 4))
    """Going through the trees that clients watch."""
