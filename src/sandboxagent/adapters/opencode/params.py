"""Read the body, the query and the directory of a request of OpenCode's programs."""

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from sandboxagent.adapters.opencode.errors import BridgeError
from sandboxagent.adapters.opencode.paths import find_directory, read_query
from sandboxagent.adapters.opencode.session_ids import normalize
from sandboxagent.protocol.errors import BodyTooLarge
from sandboxagent.protocol.json_bounds import read

Table = list[tuple[str, str, Callable[[Request], Awaitable[Response]]]]
"""Routes: method, path, handler."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reading:
    """Reads the body and the directory of requests."""

    max_body: int
    base: str
    """The directory of requests that name none."""

    async def body(self, request: Request, type: type[T]) -> T:
        """Read the body as a type. Raises BridgeError or BodyTooLarge."""
        data = bytearray()
        async for part in request.stream():
            data += part
            if len(data) > self.max_body:
                raise BodyTooLarge(self.max_body)
        try:
            return read(data or b"{}", type)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BridgeError(400, f"the body is invalid: {error}") from None

    def named_directory(self, request: Request) -> str | None:
        """Return the directory that a request names; None if it names none. Raises BridgeError."""
        with _query_problems():
            given = find_directory(request.scope)
        return None if given is None else _check(given)

    def directory(self, request: Request) -> str:
        """Return the directory that a request names, else `base`. Raises BridgeError."""
        return self.named_directory(request) or _check(self.base)


def _check(directory: str) -> str:
    """Check and normalize a directory. It must be UTF-8, because answers in JSON have to name it."""
    if not directory.startswith("/") or "\0" in directory:
        raise BridgeError(400, f"directory must be an absolute path: {directory[:200]!r}")
    try:
        directory.encode()
    except UnicodeEncodeError:
        raise BridgeError(400, f"directory must be UTF-8: {directory[:200]!r}") from None
    return normalize(directory)


def query(request: Request) -> dict[str, str]:
    """Return the parameters of the query. A repeated parameter has its last value. Raises BridgeError."""
    with _query_problems():
        return read_query(request.scope)


@contextmanager
def _query_problems() -> Generator[None]:
    try:
        yield
    except ValueError:
        raise BridgeError(400, "the query has too many parameters") from None


def read_number(request: Request, name: str) -> int | None:
    """Return a whole number from the query, at least 0; None if it is missing. Raises BridgeError."""
    given = query(request).get(name)
    if not given:
        return None
    try:
        return max(0, int(float(given)))
    except (ValueError, OverflowError):
        raise BridgeError(400, f"{name} is not a number") from None


def answer(value: object, status: int = 200) -> Response:
    """Return a JSON response that must not be cached."""
    body = msgspec.json.encode(value)
    return Response(body, status, {"cache-control": "no-store"}, "application/json")
