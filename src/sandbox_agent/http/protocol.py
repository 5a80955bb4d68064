"""HTTP/1.1 on a socket: uvicorn's protocol, with our errors, a bound on headers, and a way to cut off a dead reader."""

from typing import cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from sandbox_agent.errors import BadRequest, HeadersTooLarge, SandboxAgentError
from sandbox_agent.http import problems

MAX_HEAD = 64 << 10
"""Bytes of a request line and its headers: they come before anybody has shown a token."""


class Protocol(HttpToolsProtocol):
    """One socket."""

    _in_head = True
    _head_size = 0

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._in_head, self._head_size = True, 0
        extensions: dict[str, object] = {"sandbox_agent.abort": self.transport.abort}
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
