"""Find where a request ends, limit its size, and check what HTTP demands of its head.

Pure.

The parser cannot stop in the middle of what it was given, and a request costs far more memory than its bytes. So it is
given a piece at a time, and no piece goes beyond the end of a request. Bytes that never become a body (heads, blank
lines, trailers, extensions of chunks) are counted, and bounded.
"""

import re
from collections.abc import Sequence
from enum import Enum, auto

from sandboxagent.protocol.errors import BadRequest, HeadersTooLarge

MAX_HEAD = 64 << 10
"""Bytes of a request line and its headers: they come before the client has shown a token."""
CHUNK_ALLOWANCE = 16
"""Bytes that a chunk may spend on its size and line ends. It may spend another byte for each byte of body."""
CHUNKS = 1000
"""Chunks of a body after which others have their turn: each costs as much as any other, however small it is."""
MAX_HEADERS = 200
_BLANK_LINE = b"\r\n\r\n"
_BLANK_LINES = re.compile(rb"[\r\n]+")


class RequestPart(Enum):
    """What comes next."""

    HEAD = auto()
    COUNTED_BODY = auto()
    CHUNKED_BODY = auto()


HEAD, COUNTED_BODY, CHUNKED_BODY = RequestPart
"""By themselves, for what runs for every message: Python 3.11 takes long to look a member up in its enumeration."""


class Framing:
    """How far a socket has come in its requests."""

    def __init__(self) -> None:
        self.expect_head()

    def expect_head(self) -> None:
        """A request is whole: the next one may begin."""
        self.part = HEAD
        self.chunks = 0
        """That were counted since somebody set this to 0."""
        self.overhead = 0
        """Bytes of the head so far; of a chunked body, bytes beyond what its chunks may spend."""
        self._left = 0
        self._tail = b""
        """The last bytes of the piece before: a blank line may lie across."""

    def expect_body(self, length: int | None) -> None:
        """The head is whole, and a body of this length follows; None for one in chunks."""
        self.part = CHUNKED_BODY if length is None else COUNTED_BODY
        self.overhead = 0
        self._left = length or 0
        self._tail = b""

    def end_of_piece(self, data: bytes, start: int, *, has_begun: bool = True) -> int:
        """Where the piece ends that may be read next; blank lines before a request are one."""
        if self.part is COUNTED_BODY:
            return min(len(data), start + self._left)
        limit = min(len(data), start + MAX_HEAD - self.overhead)
        if not has_begun and data[start] in b"\r\n":
            blank = _BLANK_LINES.match(data, start)
            return min(limit, blank.end()) if blank else limit
        across = (self._tail + data[start : start + 3]).find(_BLANK_LINE)
        if across >= 0:
            return min(limit, start + across + 4 - len(self._tail))
        found = data.find(_BLANK_LINE, start, limit)
        return limit if found < 0 else found + 4

    def advance(self, data: bytes, start: int, end: int) -> None:
        """The parser is about to read this piece."""
        if self.part is COUNTED_BODY:
            self._left -= end - start
        else:
            self.overhead += end - start
            self._tail = (self._tail + data[max(start, end - 3) : end])[-3:]

    def count_chunk(self) -> None:
        """The size of a chunk was read."""
        self.chunks += 1
        self.overhead -= CHUNK_ALLOWANCE

    def count_body(self, size: int) -> None:
        """So much of the piece was body."""
        if self.part is CHUNKED_BODY:
            self.overhead -= 2 * size

    def check(self) -> None:
        """Raises HeadersTooLarge for a head, or what is no body of a chunked one, that is longer than it may be."""
        self.overhead = max(self.overhead, 0)
        if self.overhead >= MAX_HEAD:
            raise HeadersTooLarge(MAX_HEAD)


def check_head(method: bytes, target: bytes, version: str, headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Raises BadRequest or HeadersTooLarge."""
    if len(headers) > MAX_HEADERS:
        raise HeadersTooLarge(MAX_HEAD)
    if version not in ("1.0", "1.1"):
        raise BadRequest(f"this server speaks HTTP/1.1, not HTTP/{version}")
    if method == b"CONNECT":
        # What follows would be another protocol's.
        raise BadRequest("CONNECT asks for a tunnel, and this server is no proxy")
    _check_target(target, headers)
    _check_transfer_encoding(version, headers)


def body_length(headers: Sequence[tuple[bytes, bytes]]) -> int | None:
    """Bytes of the body that follows a head that was checked; None when it comes in chunks."""
    for name, value in headers:
        if name == b"content-length":
            return int(value)
        if name == b"transfer-encoding":
            return None
    return 0


def offers_websocket(method: bytes, version: str, headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether a head with an `Upgrade` offers to go on as a WebSocket."""
    offered = [value.strip().lower() for name, value in headers if name == b"upgrade"]
    return method == b"GET" and version == "1.1" and offered == [b"websocket"] and body_length(headers) == 0


def without_upgrade(method: bytes, target: bytes, version: str, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """A head that offers another protocol, as if it did not: a server may ignore the offer."""
    kept = [b"%b: %b\r\n" % pair for pair in headers if pair[0] not in (b"upgrade", b"http2-settings")]
    return b"".join([method, b" ", target, b" HTTP/", version.encode(), b"\r\n", *kept, b"\r\n"])


def _check_target(target: bytes, headers: Sequence[tuple[bytes, bytes]]) -> None:
    """An absolute target has a host of its own, and a proxy in front goes by that one."""
    if target.startswith(b"/") or target == b"*":
        return
    authority = target.partition(b"://")[2].partition(b"/")[0].lower()
    if authority not in [value.lower() for name, value in headers if name == b"host"]:
        raise BadRequest("the request's target names another host than its Host header")


def _check_transfer_encoding(version: str, headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Where a body ends must be clear to every program on the way, old ones included (RFC 9112, 6.1)."""
    for name, value in headers:
        if name == b"transfer-encoding" and (version != "1.1" or value.lower() != b"chunked"):
            raise BadRequest("Transfer-Encoding must be chunked, and nothing else, in HTTP/1.1")
