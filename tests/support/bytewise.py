"""HTTP byte by byte: for requests that no library would send, and for seeing exactly what comes back, and when."""

import json
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tests.support.running import BOUND, Server


@dataclass(frozen=True)
class Reply:
    """A response; `head` is its status line and headers as they came, names of `headers` are in lower case."""

    status: int
    headers: dict[str, str]
    head: str
    body: bytes

    @property
    def problem(self) -> dict[str, Any]:
        assert self.headers["content-type"] == "application/problem+json", self.head
        return json.loads(self.body)


def exchange(server: Server, data: bytes) -> Reply:
    """Send these bytes and read one response, without sending anything more."""
    address = urlsplit(server.url)
    assert address.hostname is not None
    with socket.create_connection((address.hostname, address.port), timeout=BOUND) as link:
        link.sendall(data)
        return read_reply(link, bodiless=data.startswith(b"HEAD "))


def read_reply(link: socket.socket, *, bodiless: bool = False) -> Reply:
    """One response from a socket; bounded by the socket's own timeout. HEAD has no body, whatever its length."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = link.recv(65536)
        assert more, f"the server hung up after {data!r}"
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    status_line, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if "content-length" in headers and not bodiless:
        while len(body) < int(headers["content-length"]):
            more = link.recv(65536)
            assert more, "the server hung up in the middle of a body"
            body += more
    return Reply(int(status_line.split()[1]), headers, head.decode("latin-1"), body)


def ask(
    server: Server,
    path: str = "/v1/agents",
    *headers: str | bytes,
    method: str = "GET",
    host: str | None = "localhost",
    token: str | None = None,
    body: bytes = b"",
) -> Reply:
    """One request with these header lines and none that are not said here. Without a host there is no Host."""
    lines: Iterable[str | bytes] = [
        f"{method} {path} HTTP/1.1",
        *([] if host is None else [f"Host: {host}"]),
        *([] if token is None else [f"Authorization: Bearer {token}"]),
        *headers,
        *([f"Content-Length: {len(body)}"] if body else []),
    ]
    encoded = [line if isinstance(line, bytes) else line.encode() for line in lines]
    return exchange(server, b"\r\n".join([*encoded, b"", body]))
