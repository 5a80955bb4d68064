"""Gather the writes to a socket in one turn of the event loop into one system call.

This module knows nothing of HTTP.
"""

import asyncio
from collections.abc import Callable

from sandboxagent.server.http.sockets import LINGER_TIMEOUT, LightEvent

MAX_GATHERED_BYTES = 64 << 10
"""Maximum bytes gathered until the end of a turn of the event loop. A socket with more in its buffer takes no further
part."""
LARGE_BYTES = 8 << 10
"""Bytes from which on data is not copied."""


class BufferedTransport(asyncio.Transport):
    """A transport that makes one system call of all writes in a turn of the event loop, mostly of a head and a body."""

    def __init__(
        self, inner: asyncio.Transport, loop: asyncio.AbstractEventLoop, on_admitted: Callable[[], None]
    ) -> None:
        super().__init__()
        self.unread = False
        """Whether the client is in the middle of a body. Closing the socket takes some time then."""
        self.lingering: asyncio.TimerHandle | None = None
        """Timer that closes the socket. While it runs, received bytes are discarded."""
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

    def mark_authenticated(self) -> None:
        """Note that the client has shown that it may call."""
        if self._on_admitted is not None:
            self._on_admitted()
            self._on_admitted = None

    # Reading

    def is_reading(self) -> bool:
        return self._inner.is_reading()

    def pause_reading(self) -> None:
        """Stop reading: the request under way takes no more for now."""
        self._paused = True
        self._read_if_wanted()

    def resume_reading(self) -> None:
        """Read on, because the request takes more. Bytes that already wait come first."""
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
        """Write data before the next turn of the event loop."""
        if not self._gathered:
            self._loop.call_soon(self._flush)
        self._gathered.append(bytes(data))
        self._gathered_size += len(data)
        if self._gathered_size > MAX_GATHERED_BYTES:
            self._flush()

    def write_through(self, data: bytes) -> None:
        """Write a whole answer. It is not gathered here, because the event loop itself gathers such writes."""
        if self._gathered:
            self.write(data)
        else:
            self._inner.write(data)

    def write_part(self, data: bytes) -> bool:
        """Write a part of a chunked response at once. Return False when the client has to read first."""
        inner = self._inner
        # `is_closing` written inline, because this runs for every reader.
        if (
            self._gathered
            or self.lingering is not None
            or inner.is_closing()
            or inner.get_write_buffer_size() > MAX_GATHERED_BYTES
        ):
            return False
        if len(data) < LARGE_BYTES:
            inner.write(b"%x\r\n%b\r\n" % (len(data), data))
        else:
            # Readers share the data, so it is not copied for each.
            inner.writelines((b"%x\r\n" % len(data), data, b"\r\n"))
        return True

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that have not gone out yet."""
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
        """Close when everything is written. For a client that still sends, close LINGER_TIMEOUT later."""
        self._flush()
        if self.unread and not self.is_closing():
            self.lingering = self._loop.call_later(LINGER_TIMEOUT, self._inner.close)
            self._inner.write_eof()
            self._read_if_wanted()
        else:
            self._inner.close()

    def closed(self) -> None:
        """Release the timer and the callback of a closed socket."""
        self._on_admitted = None
        if self.lingering is not None:
            self.lingering.cancel()


class FlowControl:
    """The flow control of a socket: whether it is read and written now."""

    __slots__ = ("_read_paused", "_transport", "_writable", "write_paused")

    def __init__(self, transport: BufferedTransport) -> None:
        self._transport = transport
        self._read_paused = False
        self.write_paused = False
        self._writable = LightEvent(is_set=True)

    async def drain(self) -> None:
        """Wait until the client has read enough, or is gone."""
        await self._writable.wait()

    def pause_reading(self) -> None:
        if not self._read_paused:
            self._read_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._read_paused:
            self._read_paused = False
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        self.write_paused = True
        self._writable.clear()

    def resume_writing(self) -> None:
        self.write_paused = False
        self._writable.set()
