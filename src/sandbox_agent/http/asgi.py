"""The shapes of ASGI, as far as we use them."""

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]  # pyright: ignore[reportExplicitAny] - ASGI defines it so
Message = MutableMapping[str, Any]  # pyright: ignore[reportExplicitAny]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]


def header(scope: Scope, name: bytes) -> bytes | None:
    """The value of a header; None when it is absent."""
    for key, value in scope["headers"]:
        if key == name:
            return value
    return None


async def respond(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes = b"") -> None:
    """Send a whole response."""
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def gone(receive: Receive) -> bool:
    """Whether the client has closed its side, asked without waiting. Only after the body was read to its end."""
    waiting = receive().__await__()
    try:
        next(waiting)
    except StopIteration as ended:
        return ended.value["type"] == "http.disconnect"
    waiting.close()
    return False
