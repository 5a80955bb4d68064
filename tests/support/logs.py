"""A log for tests: one whose disk can be full or slow, followers that remember, and words to fill it with."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sandboxagent.server.log.database import Database, DatabaseError
from sandboxagent.server.log.event import Chunk, Direction, session_channel
from sandboxagent.server.log.journal import Group
from sandboxagent.server.log.log import Limits, Log
from tests.support.running import BOUND

S, T = session_channel("s"), session_channel("t")


def run(main: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(4 * BOUND):
            await main

    asyncio.run(bounded())


class FragileDatabase(Database):
    """A database whose disk can be full or slow, at the test's word."""

    def __init__(self, path: Path | None = None) -> None:
        super().__init__(path)
        self.broken = False
        self.failures = 0
        self.groups: list[Group] = []
        self.go = threading.Event()
        self.go.set()

    def write(self, group: Group, number: int | None = None) -> dict[str, int]:
        assert self.go.wait(BOUND)
        if self.broken:
            self.failures += 1
            raise DatabaseError("the disk is full")
        trims = super().write(group, number)
        self.groups.append(group)
        return trims


async def trim(log: Log) -> None:
    """Have it trimmed now, and not when it is time."""
    log._note_trims(await log._read(log._trim))


class Follower:
    def __init__(self) -> None:
        self.chunks: list[Chunk] = []

    def appended(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)

    @property
    def positions(self) -> list[int]:
        return positions(self.chunks)


@asynccontextmanager
async def opened(
    database: Database | None = None, limits: Limits | None = None, clock: Callable[[], float] = lambda: 1.0
) -> AsyncGenerator[Log]:
    log = Log(database or Database(None), limits or Limits(), clock)
    try:
        yield log
    finally:
        log.close()


def positions(chunks: list[Chunk]) -> list[int]:
    return [at for chunk in chunks for at in range(chunk.first, chunk.last + 1)]


def say(log: Log, session: str = "s", *lines: bytes, channel: str | None = None, history: bool = True) -> Chunk:
    where = session_channel(session) if channel is None else channel
    return log.append(list(lines) or [b"{}"], Direction.FROM_AGENT, session, where, history=history)


async def page(log: Log, *channels: str, after: int = 0) -> list[int]:
    """Positions on disk."""
    await log.committed(log.position)
    return positions(await log.page(channels, after, log.position))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND):
        while not condition():  # noqa: ASYNC110 - what is waited for happens on another thread
            await asyncio.sleep(0.005)
