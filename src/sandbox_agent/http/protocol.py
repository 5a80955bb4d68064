"""HTTP/1.1 on a socket: uvicorn's protocol, with our errors, a bound on headers, and a way to cut off a dead reader."""

import asyncio
from typing import cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from sandbox_agent.errors import BadRequest, HeadersTooLarge, SandboxAgentError
from sandbox_agent.http import problems

MAX_HEAD = 64 << 10
"""Bytes of a request line and its headers: they come before anybody has shown a token."""


class GatheringTransport(asyncio.Transport):
    """Gathers what is written in one turn of the event loop into one system call: a head and its body, mostly."""

    def __init__(self, inner: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._inner = inner
        self._loop = loop
        self._gathered: list[bytes] = []
        self.get_extra_info = inner.get_extra_info
        self.is_closing = inner.is_closing
        self.pause_reading = inner.pause_reading
        self.resume_reading = inner.resume_reading
        self.abort = inner.abort
        self.set_protocol = inner.set_protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write it before the next turn of the event loop."""
        if not self._gathered:
            self._loop.call_soon(self._flush)
        self._gathered.append(bytes(data))

    def close(self) -> None:
        """Close when everything is written."""
        self._flush()
        self._inner.close()

    def _flush(self) -> None:
        if self._gathered:
            gathered, self._gathered = self._gathered, []
            if not self._inner.is_closing():
                self._inner.write(gathered[0] if len(gathered) == 1 else b"".join(gathered))


class Protocol(HttpToolsProtocol):
    """One socket."""

    _in_head = True
    _head_size = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        super().connection_made(GatheringTransport(cast("asyncio.Transport", transport), self.loop))

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._in_head, self._head_size = True, 0
        extensions: dict[str, object] = {"sandbox_agent.transport": self.transport}
        cast("dict[str, object]", cast("object", self.scope))["extensions"] = extensions

    def on_headers_complete(self) -> None:
        """Its headers are whole."""
        self._in_head = False
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """Bytes from the socket."""
        super().data_received(data)
        if self._in_head and not self.transport.is_closing():
            self._head_size += len(data)
            if self._head_size > MAX_HEAD:
                self._refuse(HeadersTooLarge(MAX_HEAD))

    def send_400_response(self, msg: str) -> None:
        """Something that is not HTTP."""
        self._refuse(BadRequest("this is not HTTP/1.1 that can be read in one way only"))

    def _refuse(self, error: SandboxAgentError) -> None:
        """Answer what never became a request, and hang up: what follows on this socket cannot be trusted."""
        if self.transport.is_closing():
            return
        body = problems.document(error)
        head = [b"%b: %b\r\n" % pair for pair in (*problems.headers(error, body), (b"connection", b"close"))]
        self.transport.write(b"".join([STATUS_LINE[error.status], *head, b"\r\n", body]))
        self.transport.close()
