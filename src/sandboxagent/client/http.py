"""Define what an HTTP client of the SDK offers, its requests and its responses.

There are two: `http_local` for a server on this machine, and `http_remote` for all others.
"""

import os
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

Content = bytes | AsyncIterable[bytes] | None
Query = Mapping[str, str | int | bool]

CONNECT_TIMEOUT = 10.0
"""Seconds to reach a server."""
IDLE_TIMEOUT = 30.0
"""Seconds that an unused socket is kept; the server keeps it longer, so none is closed under a request."""
MAX_IDLE = 20
"""Unused sockets that are kept."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent."""

    method: str
    path: str
    query: Query
    content: Content
    headers: Mapping[str, str]
    silence: float | None
    """Seconds that the server may say nothing."""

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class Response(Protocol):
    """A response whose body is read with `aread` or `aiter_bytes`; httpx's is one."""

    @property
    def url(self) -> object: ...
    @property
    def status_code(self) -> int: ...
    @property
    def reason_phrase(self) -> str: ...
    @property
    def http_version(self) -> str: ...
    @property
    def headers(self) -> Mapping[str, str]:
        """By name, in any case."""
        ...

    @property
    def content(self) -> bytes:
        """The body, after `aread`."""
        ...

    @property
    def is_success(self) -> bool: ...
    async def aread(self) -> bytes: ...
    def aiter_bytes(self) -> AsyncIterator[bytes]: ...


class HttpClient(Protocol):
    """Sends requests to one server."""

    @property
    def is_direct(self) -> bool:
        """Whether no proxy stands in between."""
        ...

    def exchange(self, request: Request) -> AbstractAsyncContextManager[Response]:
        """Send a request; its response can be read inside of the block. Raises ConnectionLost, also there."""
        ...

    async def close(self) -> None:
        """Close all sockets; what waits for them fails with ConnectionLost."""
        ...


def reason_of(error: BaseException) -> str:
    """What the innermost failure says: those around it only say that there is one."""
    said = str(error)
    while True:
        said = _of_the_system(error) or str(error) or said
        inner = error.__cause__ or error.__context__
        if inner is None:
            return said or type(error).__name__
        error = inner


def _of_the_system(error: BaseException) -> str | None:
    """The system's own words; asyncio has others. Numbers below zero are those of names that cannot be resolved."""
    number = error.errno if isinstance(error, OSError) else None
    return os.strerror(number) if number is not None and number > 0 else None
