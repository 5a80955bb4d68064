"""Watches of clients: changes wait for their reader in a bounded buffer; a reader that is too slow gets a notice."""

import asyncio
import errno
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Literal

from msgspec import Struct

from sandbox_agent.errors import TooMany, WatchesExhausted
from sandbox_agent.host.paths.confined import Confined
from sandbox_agent.host.paths.names import encode_name
from sandbox_agent.host.paths.refusals import file_problem
from sandbox_agent.host.watch.watched import Gone, Kind, Missed, Parts, Watched
from sandbox_agent.pools import Pool

GATHER = 0.05
"""Seconds in which changes are gathered: one saved file makes several events."""

_OVERHEAD = 64
_SETTINGS = {errno.EMFILE: "fs.inotify.max_user_instances", errno.ENOSPC: "fs.inotify.max_user_watches"}


Ending = Literal["gone", "exhausted", "stopping"]
"""The directory is no longer there, or has more in it than the kernel watches; or the server stops."""


class Change(Struct):
    """What became of a path: `added`, `modified` or `deleted`."""

    kind: Kind
    path: str


class Watch:
    """One watch, from the moment it is made. `take` what has changed, until it is over; then close it."""

    def __init__(self, watched: Watched, path: str, buffer: int, pool: Pool) -> None:
        self.ended: Ending | None = None
        """Why no more changes come."""
        self._pool = pool
        self._watched = watched
        self._path = path.rstrip("/")
        self._buffer = buffer
        self._pending: dict[Parts, Kind] = {}
        self._size = 0
        self._missed = False
        self._loop = asyncio.get_running_loop()
        self._readable = asyncio.Event()
        self._some = asyncio.Event()
        self._loop.add_reader(watched.descriptor, self._readable.set)
        self._task = asyncio.create_task(self._follow())

    async def take(self, seconds: float) -> tuple[list[Change], bool]:
        """Changes since the last time, and whether there were more than the buffer holds; waits for some, so long."""
        if not self._pending and not self._missed and self.ended is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._some.wait()
        changes = [Change(kind, encode_name("/".join((self._path, *parts)))) for parts, kind in self._pending.items()]
        missed = self._missed
        self._pending.clear()
        self._size, self._missed = 0, False
        self._some.clear()
        return changes, missed

    def end(self, why: Ending) -> None:
        """Let its reader go."""
        self.ended = self.ended or why
        self._some.set()

    async def close(self) -> None:
        self._loop.remove_reader(self._watched.descriptor)
        self._task.cancel()
        # A thread may be reading: the descriptor is closed after that.
        await asyncio.wait({self._task})
        self._watched.close()

    async def _follow(self) -> None:
        while self.ended is None:
            await self._readable.wait()
            await asyncio.sleep(GATHER)
            self._readable.clear()
            work = self._pool.start(self._read)
            try:
                await asyncio.shield(work)
            finally:
                await asyncio.wait({work})

    def _read(self) -> None:
        """In a thread."""
        found: list[tuple[Kind, Parts]] = []
        missed, ended = False, None
        try:
            for change in self._watched.changes():
                found.append(change)  # noqa: PERF402 - those before an error count
        except Missed:
            missed = True
        except Gone:
            ended = "gone"
        except OSError:
            ended = "exhausted"
        self._loop.call_soon_threadsafe(self._add, found, missed, ended)

    def _add(self, found: list[tuple[Kind, Parts]], missed: bool, ended: Ending | None) -> None:
        self.ended = self.ended or ended
        for kind, parts in found:
            before = self._pending.get(parts)
            if before is None:
                self._size += _OVERHEAD + len(self._path) + sum(map(len, parts))
            self._pending[parts] = _combine_kinds(before, kind)
        if missed or self._size > self._buffer:
            # Part of the truth would pass for all of it.
            self._pending.clear()
            self._size, self._missed = 0, True
        self._some.set()


class Watches:
    """All watches of a server, at most `most`, each with a buffer of so many bytes."""

    def __init__(self, most: int, buffer: int, pool: Pool) -> None:
        self._pool = pool
        self._most = most
        self._buffer = buffer
        self._places = 0
        self._watches: set[Watch] = set()

    @asynccontextmanager
    async def open(self, confined: Confined, path: str, *, recursive: bool) -> AsyncGenerator[Watch]:
        """A watch, for the time of the block. Raises TooMany, WatchesExhausted or a FileProblem."""
        if self._places >= self._most:
            raise TooMany("watches", self._most, "--watches")
        self._places += 1
        try:
            watch = Watch(await self._watched(confined, path, recursive), path, self._buffer, self._pool)
            self._watches.add(watch)
            try:
                yield watch
            finally:
                self._watches.discard(watch)
                await watch.close()
        finally:
            self._places -= 1

    def close(self) -> None:
        """End all of them."""
        for watch in self._watches:
            watch.end("stopping")

    async def _watched(self, confined: Confined, path: str, recursive: bool) -> Watched:
        try:
            return await self._pool.run(Watched, confined, path, recursive=recursive)
        except OSError as error:
            setting = _SETTINGS.get(error.errno or 0)
            raise (
                file_problem(error, path) if setting is None else WatchesExhausted(encode_name(path), setting)
            ) from error


def _combine_kinds(before: Kind | None, now: Kind) -> Kind:
    """Two changes of a path as the one change that a reader of neither needs."""
    if before == "added" and now == "modified":
        return "added"
    if before == "deleted" and now == "added":
        return "modified"
    return now
