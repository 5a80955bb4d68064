"""The checks of a request's head that HTTP itself demands, the same for every client. Pure.

Who may call is the guard's business.
"""

from collections.abc import Sequence

from sandbox_agent.errors import BadRequest, HeadersTooLarge
from sandbox_agent.http.framing import MAX_HEAD

MAX_HEADERS = 200


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
