"""Define the interface of the SDK's HTTP clients, with their requests and responses.

There are two clients: `http_local` for a server on this machine, and `http_remote` for all others.
"""

import os
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

Content = bytes | AsyncIterable[bytes] | None
Query = Mapping[str, str | int | bool]

CONNECT_TIMEOUT = 10.0
"""Seconds to connect to a server."""
IDLE_TIMEOUT = 30.0
"""Seconds that an idle socket is kept. The server keeps it longer, so it never closes a socket during a request."""
MAX_IDLE = 20
"""Maximum number of idle sockets that are kept."""


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request."""

    method: str
    path: str
    query: Query
    content: Content
    headers: Mapping[str, str]
    silence: float | None
    """Maximum number of seconds without any data from the server."""

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class Response(Protocol):
    """An HTTP response, whose body is read with `aread` or `aiter_bytes`. httpx's responses have this interface."""

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
        """Headers by name. The case of a name does not matter."""
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
    """An HTTP client for one server."""

    @property
    def is_direct(self) -> bool:
        """Whether requests go to the server directly, without a proxy."""
        ...

    def exchange(self, request: Request) -> AbstractAsyncContextManager[Response]:
        """Send a request, and yield its response, which can be read inside of the block.

        Raises:
            ConnectionLost: there is no response, or the connection breaks while the response is read.
        """
        ...

    async def close(self) -> None:
        """Close all sockets. Pending requests fail with ConnectionLost."""
        ...


def reason_of(error: BaseException) -> str:
    """Return the message of the innermost error in a chain. The outer ones only say that there was an error."""
    said = str(error)
    while True:
        said = _of_the_system(error) or str(error) or said
        inner = error.__cause__ or error.__context__
        if inner is None:
            return said or type(error).__name__
        error = inner


def _of_the_system(error: BaseException) -> str | None:
    """Return the operating system's message for an error, because asyncio has others.

    Numbers below zero belong to names that cannot be resolved, and have no such message.
    """
    number = error.errno if isinstance(error, OSError) else None
    return os.strerror(number) if number is not None and number > 0 else None
