"""Pass bytes between the event loop and a thread, with a limit on the bytes in between.

The thread waits for the other side. If that side gives up, `Abandoned` ends the wait.
"""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import suppress

MAX_FLOW_BYTES = 1 << 20
"""Maximum number of bytes between the two sides."""
BLOCK_BYTES = 1 << 18
"""Number of bytes to collect before they are passed on."""


class Abandoned(Exception):
    """The other side is gone."""


class Inflow:
    """A flow from the event loop to a thread. The loop calls `feed` and `finish`, the thread the other methods."""

    def __init__(self, limit: int = MAX_FLOW_BYTES) -> None:
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._changed = threading.Condition()
        self._room = asyncio.Event()
        self._coming: deque[bytes] = deque()
        self._size = 0
        self._ended = False
        self._abandoned = False
        self._at_hand: deque[bytes] = deque()
        """Bytes that the thread has taken and not read. They need no lock."""
        self._start = 0
        """Number of bytes already read of the first piece."""
        self.count = 0
        """Number of bytes that the thread has taken."""

    async def feed(self, piece: bytes) -> None:
        """Pass bytes on, and wait until there is room for more."""
        if piece:
            with self._changed:
                self._coming.append(piece)
                self._size += len(piece)
                self._changed.notify()
        while True:
            with self._changed:
                if self._size <= self._limit or self._abandoned:
                    return
                self._room.clear()
            await self._room.wait()

    def finish(self) -> None:
        """Mark the end of the bytes."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def abandon(self) -> None:
        """Release the other side, because one side is gone. Both sides may call this."""
        with self._changed:
            self._abandoned = True
            self._changed.notify()
        with suppress(RuntimeError):  # The loop has ended.
            self._loop.call_soon_threadsafe(self._room.set)

    def peek(self, size: int) -> bytes:
        """Return the first bytes without taking them. Fewer only if the flow ends before."""
        while sum(map(len, self._at_hand)) < size and self._take():
            pass
        return b"".join(self._at_hand)[:size]

    def read(self, size: int, /) -> bytes:
        """Return the next bytes, at most `size`; none at the end. Raises Abandoned."""
        if not self._at_hand and not self._take():
            return b""
        start, piece = self._start, self._at_hand[0]
        if len(piece) - start > size:
            self._start += size
            return piece[start : start + size]
        self._at_hand.popleft()
        self._start = 0
        return piece[start:]

    def _take(self) -> bool:
        """Take all bytes that have arrived, and wait if there are none. Returns False at the end."""
        with self._changed:
            while not self._coming and not self._ended and not self._abandoned:
                self._changed.wait()
            if self._abandoned:
                raise Abandoned
            taken, self._coming, self._size = self._coming, deque(), 0
        self._at_hand.extend(taken)
        self.count += sum(map(len, taken))
        if taken:
            self._loop.call_soon_threadsafe(self._room.set)
        return bool(taken)


class Outflow:
    """A flow from a thread to the event loop. The thread calls `write` and `finish`, the loop the other methods."""

    def __init__(self, limit: int = MAX_FLOW_BYTES) -> None:
        self._limit = limit
        self.loop = asyncio.get_running_loop()
        self._changed = threading.Condition()
        self._some = asyncio.Event()
        self._pieces: deque[bytes] = deque()
        self._gathered = bytearray()
        self._size = 0
        self._ended = False
        self._abandoned = False

    def write(self, data: bytes) -> None:
        """Pass bytes on, perhaps later together with more. Raises Abandoned."""
        self._gathered += data
        if len(self._gathered) >= BLOCK_BYTES:
            self._hand_over()

    def finish(self) -> None:
        """Pass on the rest, and mark the end. Raises Abandoned."""
        self._hand_over()
        self.close()

    def close(self) -> None:
        """Mark the end, even if bytes are missing."""
        with self._changed:
            self._ended = True
        self._tell()

    async def pieces(self) -> AsyncGenerator[bytes]:
        """Yield all bytes as they come."""
        while True:
            with self._changed:
                piece = self._pieces.popleft() if self._pieces else None
                ended = self._ended
                if piece is None:
                    self._some.clear()
                else:
                    self._size -= len(piece)
                    self._changed.notify()
            if piece is not None:
                yield piece
            elif ended:
                return
            else:
                await self._some.wait()

    def abandon(self) -> None:
        """Stop the writer, because the reader is gone."""
        with self._changed:
            self._abandoned = True
            self._pieces.clear()
            self._changed.notify()

    def _hand_over(self) -> None:
        piece = bytes(self._gathered)
        self._gathered.clear()
        with self._changed:
            while self._size >= self._limit and not self._abandoned:
                self._changed.wait()
            if self._abandoned:
                raise Abandoned
            if piece:
                self._pieces.append(piece)
                self._size += len(piece)
        self._tell()

    def _tell(self) -> None:
        with suppress(RuntimeError):  # The loop has ended.
            self.loop.call_soon_threadsafe(self._some.set)
