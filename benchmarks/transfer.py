"""Transfer large bodies over plain sockets, with as little work for the client as possible."""

import os
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from servers import Failed

SECONDS = 300.0
_BUFFER = 1 << 20


@dataclass(frozen=True, slots=True)
class Transferred:
    seconds: float
    received: int


def download(port: int, target: str, headers: dict[str, str]) -> Transferred:
    """Send a GET and read the whole answer.

    Raises:
        Failed: the status is not 200.
    """
    began = time.perf_counter()
    with _asked(port, "GET", target, headers) as connection:
        buffer = memoryview(bytearray(_BUFFER))
        head, received = _head(connection)
        while count := connection.recv_into(buffer):
            received += count
    _check(head, b"")
    return Transferred(time.perf_counter() - began, received)


def upload(port: int, method: str, target: str, headers: dict[str, str], file: Path) -> Transferred:
    """Send a file as the body and read the answer.

    Raises:
        Failed: the status is not 200.
    """
    size = file.stat().st_size
    began = time.perf_counter()
    with file.open("rb") as body, _asked(port, method, target, headers | {"Content-Length": str(size)}) as connection:
        sent = 0
        # A server that has read enough answers and closes the socket.
        with suppress(BrokenPipeError, ConnectionResetError):
            while sent < size:
                sent += os.sendfile(connection.fileno(), body.fileno(), sent, size - sent)
        answer = b""
        with suppress(ConnectionResetError):
            while part := connection.recv(_BUFFER):
                answer += part
    head, _, rest = answer.partition(b"\r\n\r\n")
    _check(head, rest)
    return Transferred(time.perf_counter() - began, len(answer))


def _asked(port: int, method: str, target: str, headers: dict[str, str]) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
    # With a timeout, Python makes a socket non-blocking, and os.sendfile fails when its buffer is full.
    connection.settimeout(None)
    lines = [f"{method} {target} HTTP/1.1", "Host: 127.0.0.1", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    connection.sendall("\r\n".join([*lines, "", ""]).encode())
    return connection


def _head(connection: socket.socket) -> tuple[bytes, int]:
    """Read the head of an answer. Return it, and the number of bytes of the body that came with it."""
    head = b""
    while b"\r\n\r\n" not in head and (part := connection.recv(4096)):
        head += part
    head, _, body = head.partition(b"\r\n\r\n")
    return head, len(body)


def _check(head: bytes, body: bytes) -> None:
    status = head.split(b"\r\n", 1)[0].decode(errors="replace")
    if " 200" not in status:
        raise Failed(f"answered {status or 'nothing'} {body[:200].decode(errors='replace')}".strip())
