"""A bare socket to a server, for what no HTTP client would send."""

import json
import socket
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from tests.support.running import BOUND, Server


@dataclass(frozen=True)
class WireResponse:
    """One response as it stood on the wire."""

    status_code: int
    headers: dict[str, str]
    content: bytes

    def json(self) -> Any:
        return json.loads(self.content)


class Wire:
    """One socket. Every wait is bounded."""

    def __init__(self, server: Server) -> None:
        parts = urlsplit(server.url)
        assert parts.hostname is not None
        self.server = server
        self.socket = socket.create_connection((parts.hostname, parts.port or 80), timeout=BOUND)
        self._file = self.socket.makefile("rb")

    def __enter__(self) -> "Wire":
        return self

    def __exit__(
        self, type_: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
        self.socket.close()

    def send(self, *pieces: bytes) -> None:
        """Send bytes; those that the other side no longer takes are lost, as on any network."""
        for piece in pieces:
            try:
                self.socket.sendall(piece)
            except (ConnectionResetError, BrokenPipeError):
                return

    def request(
        self, start: str, *headers: str | bytes, body: bytes = b"", host: bool = True, token: bool = True
    ) -> bytes:
        """The bytes of a request with our Host and token; nothing is added for the body."""
        lines: list[str | bytes] = [f"{start} HTTP/1.1"]
        lines += ["Host: 127.0.0.1"] if host else []
        lines += [f"Authorization: Bearer {self.server.token}"] if token else []
        lines += headers
        return b"".join(line.encode() + b"\r\n" if isinstance(line, str) else line for line in lines) + b"\r\n" + body

    def post(self, body: bytes, *headers: str | bytes) -> bytes:
        """The bytes of a POST of JSON to /v1/rpc."""
        own = ("Content-Type: application/json", f"Content-Length: {len(body)}")
        return self.request("POST /v1/rpc", *own, *headers, body=body)

    def health(self) -> bytes:
        """The bytes of a request that always works."""
        return self.request("GET /v1/health")

    def response(self) -> WireResponse:
        """The next response; EOFError when the server hung up without one."""
        line = self._file.readline()
        if not line:
            raise EOFError
        status = int(line.split()[1])
        headers: dict[str, str] = {}
        while (header := self._file.readline().strip()) != b"":
            name, _, value = header.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        if status == 100:
            return WireResponse(status, headers, b"")
        return WireResponse(status, headers, self._body(headers))

    def _body(self, headers: dict[str, str]) -> bytes:
        if "chunked" not in headers.get("transfer-encoding", ""):
            return self._file.read(int(headers.get("content-length", "0")))
        parts: list[bytes] = []
        while (size := int(self._file.readline(), 16)) > 0:
            parts.append(self._file.read(size))
            self._file.readline()
        self._file.readline()
        return b"".join(parts)

    def hung_up(self) -> bool:
        """Whether the server closes the socket without another byte; waits for it."""
        try:
            return self._file.read(1) == b""
        except ConnectionResetError:
            return True


def initialize(agent: str = "scripted", id: str = "1") -> bytes:
    """The body of a POST that opens a connection."""
    meta = json.dumps({"sandboxagent.dev": {"agent": agent}})
    return f'{{"jsonrpc":"2.0","id":{id},"method":"initialize","params":{{"_meta":{meta}}}}}'.encode()
