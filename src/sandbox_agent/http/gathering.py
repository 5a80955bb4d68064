"""A socket's transport: gathers writes, reads only when more is wanted, and closes without a reset.

A client that is answered before all of its body was read gets the answer, however much it still sends: the socket is
closed for writing, and what comes is thrown away for a moment. To close it at once would be a reset, which may overtake
the answer.
"""

import asyncio
from collections.abc import Callable

GATHERED = 64 << 10
"""Bytes that may wait for the end of a turn; beyond, the socket has to say whether it takes more."""
LINGER = 2.0
"""Seconds in which a client that still sends may read its answer, before the socket is closed."""


class GatheringTransport(asyncio.Transport):
    """Gathers what is written in one turn of the event loop into one system call: a head and its body, mostly."""

    def __init__(
        self, inner: asyncio.Transport, loop: asyncio.AbstractEventLoop, on_admitted: Callable[[], None]
    ) -> None:
        super().__init__()
        self.unread = False
        """The client is in the middle of a body: closing the socket takes some time then."""
        self.lingering: asyncio.TimerHandle | None = None
        """While what comes is thrown away."""
        self._inner = inner
        self._loop = loop
        self._on_admitted: Callable[[], None] | None = on_admitted
        self._gathered: list[bytes] = []
        self._gathered_size = 0
        self._paused = False
        self._backlogged = False
        self.get_extra_info = inner.get_extra_info
        self.abort = inner.abort
        self.set_protocol = inner.set_protocol

    def admit(self) -> None:
        """The client has shown that it may call."""
        if self._on_admitted is not None:
            self._on_admitted()
            self._on_admitted = None

    # Reading

    def is_reading(self) -> bool:
        return self._inner.is_reading()

    def pause_reading(self) -> None:
        """The request under way takes no more for now."""
        self._paused = True
        self._read_if_wanted()

    def resume_reading(self) -> None:
        """The request takes more; bytes that already wait come first."""
        self._paused = False
        self._read_if_wanted()

    def set_backlogged(self, backlogged: bool) -> None:
        """Set whether unparsed bytes are waiting, in which case no more are read."""
        self._backlogged = backlogged
        self._read_if_wanted()

    def _read_if_wanted(self) -> None:
        wanted = self.lingering is not None or not (self._paused or self._backlogged)
        if self._inner.is_closing() or wanted == self._inner.is_reading():
            return
        if wanted:
            self._inner.resume_reading()
        else:
            self._inner.pause_reading()

    # Writing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write it before the next turn of the event loop."""
        if not self._gathered:
            self._loop.call_soon(self._flush)
        self._gathered.append(bytes(data))
        self._gathered_size += len(data)
        if self._gathered_size > GATHERED:
            self._flush()

    def get_write_buffer_size(self) -> int:
        """What has not gone out yet."""
        return self._inner.get_write_buffer_size() + self._gathered_size

    def _flush(self) -> None:
        if self._gathered:
            gathered, self._gathered, self._gathered_size = self._gathered, [], 0
            if not self.is_closing():
                self._inner.write(gathered[0] if len(gathered) == 1 else b"".join(gathered))

    # Closing

    def is_closing(self) -> bool:
        """Whether nothing more can be written."""
        return self.lingering is not None or self._inner.is_closing()

    def close(self) -> None:
        """Close when everything is written; for a client that still sends, a moment after that."""
        self._flush()
        if self.unread and not self.is_closing():
            self.lingering = self._loop.call_later(LINGER, self._inner.close)
            self._inner.write_eof()
            self._read_if_wanted()
        else:
            self._inner.close()

    def closed(self) -> None:
        """The socket is gone."""
        self._on_admitted = None
        if self.lingering is not None:
            self.lingering.cancel()
