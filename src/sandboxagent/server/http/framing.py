"""Find where a request ends, limit its size, and check what HTTP demands of its head.

Pure.

The parser cannot stop in the middle of its input, and a parsed request takes far more memory than its bytes. So the
parser gets one piece at a time, and no piece goes beyond the end of a request. Bytes that never become a body (heads,
blank lines, trailers, extensions of chunks) are counted and bounded.
"""

import re
from collections.abc import Sequence
from enum import Enum, auto

from sandboxagent.protocol.errors import BadRequest, HeadersTooLarge

MAX_HEAD_BYTES = 64 << 10
"""Maximum bytes of a request line and its headers, which come before the client has shown a token."""
CHUNK_ALLOWANCE_BYTES = 16
"""Bytes that a chunk may spend on its size and line ends. It may spend another byte for each byte of body."""
CHUNKS = 1000
"""Number of chunks of a body after which other sockets are served. A small chunk costs as much as a large one."""
MAX_HEADERS = 200
_BLANK_LINE = b"\r\n\r\n"
_BLANK_LINES = re.compile(rb"[\r\n]+")


class RequestPart(Enum):
    """The part of a request that comes next."""

    HEAD = auto()
    COUNTED_BODY = auto()
    CHUNKED_BODY = auto()


HEAD, COUNTED_BODY, CHUNKED_BODY = RequestPart
"""The members as constants, for code that runs for every message: Python 3.11 looks a member up in an enumeration
slowly."""


class Framing:
    """The state of the requests on a socket: the expected part, and the bytes counted so far."""

    def __init__(self) -> None:
        self.expect_head()

    def expect_head(self) -> None:
        """Expect the head of the next request."""
        self.part = HEAD
        self.chunks = 0
        """Number of chunks since the caller last set this to 0."""
        self.overhead = 0
        """Bytes of the head so far; of a chunked body, bytes beyond what its chunks may spend."""
        self._left = 0
        self._tail = b""
        """The last bytes of the previous piece, because a blank line may begin there."""

    def expect_body(self, length: int | None) -> None:
        """Expect a body of this length after a whole head; None means a chunked body."""
        self.part = CHUNKED_BODY if length is None else COUNTED_BODY
        self.overhead = 0
        self._left = length or 0
        self._tail = b""

    def end_of_piece(self, data: bytes, start: int, *, has_begun: bool = True) -> int:
        """Return the end of the piece that may be parsed next.

        Blank lines before a request are a piece of their own.
        """
        if self.part is COUNTED_BODY:
            return min(len(data), start + self._left)
        limit = min(len(data), start + MAX_HEAD_BYTES - self.overhead)
        if not has_begun and data[start] in b"\r\n":
            blank = _BLANK_LINES.match(data, start)
            return min(limit, blank.end()) if blank else limit
        across = (self._tail + data[start : start + 3]).find(_BLANK_LINE)
        if across >= 0:
            return min(limit, start + across + 4 - len(self._tail))
        found = data.find(_BLANK_LINE, start, limit)
        return limit if found < 0 else found + 4

    def advance(self, data: bytes, start: int, end: int) -> None:
        """Count a piece that the parser is about to read."""
        if self.part is COUNTED_BODY:
            self._left -= end - start
        else:
            self.overhead += end - start
            self._tail = (self._tail + data[max(start, end - 3) : end])[-3:]

    def count_chunk(self) -> None:
        """Count a chunk whose size was read."""
        self.chunks += 1
        self.overhead -= CHUNK_ALLOWANCE_BYTES

    def count_body(self, size: int) -> None:
        """Count the bytes of the piece that were body."""
        if self.part is CHUNKED_BODY:
            self.overhead -= 2 * size

    def check(self) -> None:
        """Raise HeadersTooLarge if a head is too long, or if a chunked body has too many other bytes."""
        self.overhead = max(self.overhead, 0)
        if self.overhead >= MAX_HEAD_BYTES:
            raise HeadersTooLarge(MAX_HEAD_BYTES)


def check_head(method: bytes, target: bytes, version: str, headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Check a parsed head. Raises BadRequest or HeadersTooLarge."""
    if len(headers) > MAX_HEADERS:
        raise HeadersTooLarge(MAX_HEAD_BYTES)
    if version not in ("1.0", "1.1"):
        raise BadRequest(f"this server speaks HTTP/1.1, not HTTP/{version}")
    if method == b"CONNECT":
        # The bytes after it would belong to another protocol.
        raise BadRequest("CONNECT asks for a tunnel, and this server is no proxy")
    _check_target(target, headers)
    _check_transfer_encoding(version, headers)


def body_length(headers: Sequence[tuple[bytes, bytes]]) -> int | None:
    """Return the length of the body after a checked head; None when the body is chunked."""
    for name, value in headers:
        if name == b"content-length":
            return int(value)
        if name == b"transfer-encoding":
            return None
    return 0


def offers_websocket(method: bytes, version: str, headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether a head with an `Upgrade` header offers a WebSocket."""
    offered = [value.strip().lower() for name, value in headers if name == b"upgrade"]
    return method == b"GET" and version == "1.1" and offered == [b"websocket"] and body_length(headers) == 0


def without_upgrade(method: bytes, target: bytes, version: str, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return a head without its offer of another protocol, which a server may ignore."""
    kept = [b"%b: %b\r\n" % pair for pair in headers if pair[0] not in (b"upgrade", b"http2-settings")]
    return b"".join([method, b" ", target, b" HTTP/", version.encode(), b"\r\n", *kept, b"\r\n"])


def _check_target(target: bytes, headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Check that an absolute target names the same host as Host, because a proxy in front uses the target's."""
    if target.startswith(b"/") or target == b"*":
        return
    authority = target.partition(b"://")[2].partition(b"/")[0].lower()
    if authority not in [value.lower() for name, value in headers if name == b"host"]:
        raise BadRequest("the request's target names another host than its Host header")


def _check_transfer_encoding(version: str, headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Check that every program on the way finds the same end of the body, even an old one (RFC 9112, 6.1)."""
    for name, value in headers:
        if name == b"transfer-encoding" and (version != "1.1" or value.lower() != b"chunked"):
            raise BadRequest("Transfer-Encoding must be chunked, and nothing else, in HTTP/1.1")
