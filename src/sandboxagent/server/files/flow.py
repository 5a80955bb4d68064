"""Pass bytes between the event loop and a thread, at most a bound of them at a time.

The thread waits for the other side. When that gives up, `Abandoned` ends the wait.
"""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import suppress

LIMIT = 1 << 20
"""Bytes that may be on their way."""
HANDED_OVER = 1 << 18
"""Bytes that are handed over at once, when there are as many."""


class Abandoned(Exception):
    """The other side is gone."""


class Inflow:
    """From the event loop to a thread. `feed` and `finish` are for the loop, the rest for the thread."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._changed = threading.Condition()
        self._room = asyncio.Event()
        self._coming: deque[bytes] = deque()
        self._size = 0
        self._ended = False
        self._abandoned = False
        self._at_hand: deque[bytes] = deque()
        """What the thread has taken and not read: needs no lock."""
        self._start = 0
        """How much of the first of these has been read."""
        self.count = 0
        """Bytes that the thread has taken."""

    async def feed(self, piece: bytes) -> None:
        """Hand bytes over, and wait until there is room for more."""
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
        """That was all."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def abandon(self) -> None:
        """One side is gone, so the other must not wait. May be called from either side."""
        with self._changed:
            self._abandoned = True
            self._changed.notify()
        with suppress(RuntimeError):  # The loop has ended.
            self._loop.call_soon_threadsafe(self._room.set)

    def peek(self, size: int) -> bytes:
        """The very first bytes, without taking them; fewer only when there are no more."""
        while sum(map(len, self._at_hand)) < size and self._take():
            pass
        return b"".join(self._at_hand)[:size]

    def read(self, size: int, /) -> bytes:
        """The next bytes, at most so many; none at the end. Raises Abandoned."""
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
        """Take all that has come; waits for something. False at the end."""
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
    """From a thread to the event loop. `write` and `finish` are for the thread, the rest for the loop."""

    def __init__(self, limit: int = LIMIT) -> None:
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
        """Hand bytes over, sooner or later. Raises Abandoned."""
        self._gathered += data
        if len(self._gathered) >= HANDED_OVER:
            self._hand_over()

    def finish(self) -> None:
        """That was all. Raises Abandoned."""
        self._hand_over()
        self.close()

    def close(self) -> None:
        """Nothing more comes, be that all or not."""
        with self._changed:
            self._ended = True
        self._tell()

    async def pieces(self) -> AsyncGenerator[bytes]:
        """All that comes."""
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
        """The reader is gone."""
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
