"""Run blocking work in threads, with a pool for each purpose.

The event loop's own threads are left for the upkeep of agents: installing them, and inspecting their processes.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from msgspec import Struct, field

P = ParamSpec("P")
T = TypeVar("T")


class Pool:
    """A pool of at most `threads` threads, which start on demand. Work waits in order while all are busy."""

    def __init__(self, name: str, threads: int) -> None:
        self.threads = threads
        self._executor = ThreadPoolExecutor(threads, name)

    def start(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> "asyncio.Future[T]":
        """Start work at once, or as soon as a thread is free."""
        return asyncio.get_running_loop().run_in_executor(self._executor, lambda: work(*args, **kwargs))

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Start work when this is awaited, and return its result."""
        return await self.start(work, *args, **kwargs)


class Pools(Struct, frozen=True):
    """All pools of a server."""

    agents: Pool = field(default_factory=lambda: Pool("agents", 8))
    """For files and directories that agents ask for."""
    lines: Pool = field(default_factory=lambda: Pool("lines", 1))
    """For large envelopes. One thread, because Python runs only one at a time, and the event loop would wait for
    each."""
    files: Pool = field(default_factory=lambda: Pool("files", 16))
    """For clients' file operations, in steps of which none takes long."""
    trees: Pool = field(default_factory=lambda: Pool("trees", 4))
    """For moves and deletions, which take longer the larger the tree is."""
    searches: Pool = field(default_factory=lambda: Pool("searches", 4))
    """For checking the results of ripgrep again."""
    watches: Pool = field(default_factory=lambda: Pool("watches", 4))
    """For walking through the trees that clients watch."""
