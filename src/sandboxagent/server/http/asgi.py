"""Read heads and write whole responses as ASGI has them, with errors as RFC 9457 problems."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from functools import lru_cache
from http import HTTPStatus
from typing import Any

import msgspec
from msgspec import Struct

from sandboxagent.protocol.errors import (
    URN,
    MethodNotAllowed,
    NotAcceptable,
    RangeNotSatisfiable,
    SandboxAgentError,
    Unauthorized,
    UnsupportedMediaType,
)

Scope = MutableMapping[str, Any]  # pyright: ignore[reportExplicitAny] - ASGI defines it so
Message = MutableMapping[str, Any]  # pyright: ignore[reportExplicitAny]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]

STATUS_LINE = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


class Response(Struct, frozen=True):
    """A whole response."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes = b""


def group_headers(headers: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return headers by name. A repeated header has all values, joined as a list."""
    found = dict(headers)
    if len(found) == len(headers):
        return found
    values: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        values.setdefault(name, []).append(value)
    return {name: b", ".join(parts) for name, parts in values.items()}


def header(scope: Scope, name: bytes) -> bytes | None:
    """Return the value of a header; None when it is absent."""
    return scope["headers_by_name"].get(name)


def json_headers(body: bytes) -> list[tuple[bytes, bytes]]:
    """Return the headers of a JSON response, which must not be cached."""
    return [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"cache-control", b"no-store"),
    ]


async def respond(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes = b"") -> None:
    """Send a whole response."""
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def is_gone(scope: Scope) -> bool:
    """Whether the client has closed its side. Does not wait."""
    return transport(scope).is_closing()


def mark_authenticated(scope: Scope) -> None:
    """Note that the client has shown that it may call, so that its socket no longer counts as anonymous."""
    scope["extensions"]["sandboxagent.transport"].mark_authenticated()


def offers_websocket(scope: Scope) -> bool:
    """Whether a request offers a WebSocket."""
    return "sandboxagent.websocket" in scope.get("extensions", ())


def write_part(scope: Scope) -> Callable[[bytes], bool]:
    """Return the function that writes a part of a chunked response at once.

    It returns False when the client must read first.
    """
    return scope["extensions"]["sandboxagent.transport"].write_part


def transport(scope: Scope) -> asyncio.Transport:
    """Return the transport of a request's socket, which the server's protocol puts into the scope."""
    return scope["extensions"]["sandboxagent.transport"]


def problem_document(error: SandboxAgentError) -> bytes:
    """Return the body of a problem document."""
    problem = {
        "type": URN + error.slug,
        "title": error.title,
        "status": error.status,
        "detail": str(error),
    }
    # The standard members come first, and a fact never replaces one.
    return msgspec.json.encode(problem | {name: value for name, value in error.fields.items() if name not in problem})


def problem_headers(error: SandboxAgentError, body: bytes) -> list[tuple[bytes, bytes]]:
    """Return the headers of a problem document, including those that its status demands."""
    found = [
        (b"content-type", b"application/problem+json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    if isinstance(error, Unauthorized):
        found.append((b"www-authenticate", b'Bearer realm="sandbox-agent"'))
    if isinstance(error, MethodNotAllowed):
        found.append((b"allow", str(error.fields["allow"]).encode()))
    if isinstance(error, RangeNotSatisfiable):
        found.append((b"content-range", f"bytes */{error.fields['size']}".encode()))
    return found


async def send_problem(send: Send, error: SandboxAgentError) -> None:
    """Answer with a problem document."""
    body = problem_document(error)
    await respond(send, error.status, problem_headers(error, body), body)


JSON = "application/json"
EVENT_STREAM = "text/event-stream"


def check_accept(accept: bytes | None, offered: str) -> None:
    """Raise NotAcceptable if Accept excludes the media type of the answer."""
    if accept is not None and accept.strip() and not _accepts(accept, offered):
        raise NotAcceptable(offered)


def check_json(content_type: bytes | None) -> None:
    """Raise UnsupportedMediaType if a body is not declared as JSON."""
    if content_type is None or not _is_json(content_type):
        raise UnsupportedMediaType((content_type or b"").decode("latin-1"))


@lru_cache(maxsize=256)
def _accepts(accept: bytes, offered: str) -> bool:
    """Whether Accept allows a media type. The most specific media range that matches decides (RFC 9110)."""
    best, quality = -1, 0.0
    for part in accept.decode("latin-1").lower().split(","):
        media, *parameters = [piece.strip() for piece in part.split(";")]
        ranges = ("*/*", f"{offered.partition('/')[0]}/*", offered)
        if media in ranges and ranges.index(media) > best:
            best, quality = ranges.index(media), _quality(parameters)
    return quality > 0


def _quality(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0


@lru_cache(maxsize=256)
def _is_json(content_type: bytes) -> bool:
    media = content_type.decode("latin-1").partition(";")[0].strip().lower()
    return media == JSON or (media.startswith("application/") and media.endswith("+json"))


def wants_async(prefer: bytes | None) -> bool:
    """Whether `Prefer` has `respond-async`, alone or among others."""
    if prefer is None:
        return False
    return any(
        part.partition(";")[0].strip() == "respond-async" for part in prefer.decode("latin-1").lower().split(",")
    )
