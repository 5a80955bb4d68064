"""The shapes of ASGI, as far as we use them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from msgspec import Struct

Scope = MutableMapping[str, Any]  # pyright: ignore[reportExplicitAny] - ASGI defines it so
Message = MutableMapping[str, Any]  # pyright: ignore[reportExplicitAny]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]


class Reply(Struct, frozen=True):
    """A whole response."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes = b""
    opened: Callable[[], None] | None = None
    """Called when it has gone out, if it names a new session."""


def group_headers(headers: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Headers by name; of one that is there twice, both values, as of a list."""
    found = dict(headers)
    if len(found) == len(headers):
        return found
    values: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        values.setdefault(name, []).append(value)
    return {name: b", ".join(parts) for name, parts in values.items()}


def header(scope: Scope, name: bytes) -> bytes | None:
    """The value of a header; None when it is absent."""
    return scope["headers_by_name"].get(name)


def json_headers(body: bytes) -> list[tuple[bytes, bytes]]:
    """The headers of a JSON response, which must not be cached."""
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
    """Whether the client has closed its side, asked without waiting."""
    return transport(scope).is_closing()


def admit(scope: Scope) -> None:
    """Note that the client has shown that it may call, so that its socket no longer counts as a stranger's."""
    scope["extensions"]["sandbox_agent.transport"].admit()


def remember(scope: Scope, take: Callable[[Any], None]) -> None:  # pyright: ignore[reportExplicitAny] - a Post
    """Let further requests with the same head on this socket go to `take`, if the server's protocol can do that."""
    extension = scope["extensions"].get("sandbox_agent.remember")
    if extension is not None:
        extension(take)


def offers_websocket(scope: Scope) -> bool:
    """Whether a request offers to go on as a WebSocket."""
    return "sandbox_agent.websocket" in scope.get("extensions", ())


def write_part(scope: Scope) -> Callable[[bytes], bool]:
    """What writes a part of a response that comes in chunks, at once; False when the client has to read first."""
    return scope["extensions"]["sandbox_agent.transport"].write_part


def transport(scope: Scope) -> asyncio.Transport:
    """The socket under a request; the server's protocol puts it there."""
    return scope["extensions"]["sandbox_agent.transport"]
