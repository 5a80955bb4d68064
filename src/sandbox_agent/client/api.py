"""Calling the server over HTTP: one client for all requests, what they send, the events they bring, and trying again.

Each failure is one of the SDK's. Knows no route and no envelope.
"""

import asyncio
import ipaddress
import os
import re
import socket
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Generator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from typing import BinaryIO, TypeAlias, TypedDict, TypeVar, Unpack
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies

import msgspec

from sandbox_agent import __version__
from sandbox_agent.client.errors import (
    ClientError,
    ConnectionLost,
    ForeignAnswer,
    InvalidCall,
    LocalFileFailed,
    ServerProblem,
    foreign,
    problem,
)
from sandbox_agent.client.light_httpx import EventSource, ServerSentEvent, httpx
from sandbox_agent.client.websocket import Socket, open_socket
from sandbox_agent.errors import ShuttingDown, UnknownConnection

T = TypeVar("T")
Params = Mapping[str, str | int | bool | None]
"""A query; what is None is left out."""

CONNECT = 10.0
"""Seconds to reach the server."""
_IDLE = 30.0
"""Seconds that an unused socket is kept; the server keeps it longer, so none is closed under a request."""
_MOST_OF_A_PROBLEM = 1 << 20
# A prompt may wait for hours, and there may be any number of them.
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=_IDLE)
# Nothing is sent while a request waits: without these, a peer that vanished would be waited for for ever, and a router
# in between would forget the connection. In seconds; the second name is what macOS calls the first.
_PROBES = {"TCP_KEEPIDLE": 30, "TCP_KEEPALIVE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}


class Sending(TypedDict, total=False):
    """What goes with a request."""

    params: Params | None
    content: bytes | AsyncIterable[bytes] | None
    headers: Mapping[str, str] | None
    silence: float | None
    """Seconds that the server may say nothing."""


class Api:
    """A server's address, and the token to send to it."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url.rstrip("/")
        headers = {
            "User-Agent": f"sandbox-agent-python/{__version__}",
            # A proxy that compresses a stream also buffers it.
            "Accept-Encoding": "identity",
        }
        if token is not None:
            _check_token(token)
            headers["Authorization"] = f"Bearer {token}"
        transport = _direct(_checked(self.url))
        self._direct = transport is not None
        """Whether no proxy leads there."""
        self._client = httpx.AsyncClient(
            base_url=self.url, headers=headers, timeout=_timeout(None), limits=_LIMITS, transport=transport
        )

    def __repr__(self) -> str:
        return f"Api({self.url!r})"

    async def close(self) -> None:
        """Close all sockets; pending requests fail with ConnectionLost."""
        await self._client.aclose()

    async def json(
        self,
        method: str,
        path: str,
        *,
        type: type[T],
        params: Params | None = None,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        silence: float | None = None,
    ) -> T:
        """What the server answers, read as a `type`; `body` is sent as JSON unless it is None.

        Raises:
            ServerProblem: the server refuses.
            ConnectionLost: there is no answer.
        """
        content = None if body is None else msgspec.json.encode(body)
        kind = {} if body is None else {"Content-Type": "application/json"}
        response = await self.request(
            method, path, params=params, content=content, headers={**kind, **(headers or {})}, silence=silence
        )
        return self.decoded(response, type)

    def decoded(self, response: httpx.Response, type: type[T]) -> T:
        """The body of an answer that has been read, as a `type`."""
        return self.parsed(response, response.content, type)

    def parsed(self, response: httpx.Response, data: bytes, type: type[T]) -> T:
        """A part of an answer's body, as a `type`; raises ForeignAnswer when it is none."""
        try:
            return msgspec.json.decode(data, type=type)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self.foreign(response, data) from error

    def foreign(self, response: httpx.Response, body: bytes) -> ForeignAnswer:
        """The failure that an answer is not sandbox-agent's; of one that leads elsewhere it says where to."""
        headers = response.headers
        excerpt = body or headers.get("location", "").encode()
        return foreign(self.url, response.status_code, headers.get("content-type", ""), excerpt)

    async def request(self, method: str, path: str, **more: Unpack[Sending]) -> httpx.Response:
        """An answer and all of its body.

        Raises:
            ServerProblem: the server refuses.
            ConnectionLost: there is no answer.
        """
        async with self.stream(method, path, **more) as response:
            await response.aread()
            return response

    @asynccontextmanager
    async def stream(self, method: str, path: str, **more: Unpack[Sending]) -> AsyncGenerator[httpx.Response]:
        """An answer whose body is still to be read; what breaks while it is read is a ConnectionLost, too."""
        async with self.exchange(method, path, **more) as response:
            if not response.is_success:
                raise await self._refusal(response)
            yield response

    @asynccontextmanager
    async def exchange(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        content: bytes | AsyncIterable[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        silence: float | None = None,
    ) -> AsyncGenerator[httpx.Response]:
        """The same, but a status that says no is an answer like any other."""
        if self._client.is_closed:
            raise InvalidCall("this client is closed")
        query = {name: value for name, value in (params or {}).items() if value is not None}
        request = self._client.build_request(
            method, path, params=query or None, content=content, headers=headers, timeout=_timeout(silence)
        )
        with self._translate_failures(f"{method} {path}", silence):
            response = await self._client.send(request, stream=True)
            try:
                yield response
            finally:
                await response.aclose()

    async def open_socket(self, path: str, headers: Mapping[str, str], silence: float) -> Socket | None:
        """A WebSocket; None when none gets through. Raises ServerProblem."""
        authorization = self._client.headers.get("Authorization")
        shown = {} if authorization is None else {"Authorization": authorization}
        url = re.sub("^http", "ws", self.url) + path
        return await open_socket(url, {**shown, **headers}, silence, direct=self._direct)

    async def _refusal(self, response: httpx.Response) -> ServerProblem:
        body = bytearray()
        async for part in response.aiter_bytes():
            body += part
            if len(body) > _MOST_OF_A_PROBLEM:
                break
        return problem(bytes(body)) or self.foreign(response, bytes(body))

    @contextmanager
    def _translate_failures(self, tried: str, silence: float | None) -> Generator[None]:
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError) as error:
            raise ConnectionLost(f"no server answers at {self.url} ({_reason(error)})") from error
        except httpx.ReadTimeout as error:
            raise ConnectionLost(
                f"{self.url} said nothing for {silence:g} s after {tried}", outcome_unknown=True
            ) from error
        except httpx.RequestError as error:
            raise ConnectionLost(
                f"the connection to {self.url} broke during {tried} ({_reason(error)})", outcome_unknown=True
            ) from error


def _timeout(silence: float | None) -> httpx.Timeout:
    return httpx.Timeout(None, connect=CONNECT, read=silence)


def _reason(error: BaseException) -> str:
    """What the innermost failure says: those around it only say that there is one."""
    said = str(error)
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
        said = _of_the_system(error) or str(error) or said
    return said or type(error).__name__


def _of_the_system(error: BaseException) -> str | None:
    """The system's own words; asyncio has others. Numbers below zero are those of names that cannot be resolved."""
    number = error.errno if isinstance(error, OSError) else None
    return os.strerror(number) if number is not None and number > 0 else None


def _checked(url: str) -> SplitResult:
    """The parts of an address; raises ValueError when it is none of a server."""
    if not re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#]*)?", url):
        # What stands before an @ is a secret.
        shown = url.rpartition("@")[2]
        raise InvalidCall(f"expected an address such as http://127.0.0.1:2468, got {shown!r:.100}")
    try:
        parts = urlsplit(url)
        if parts.hostname and parts.port != 0:
            return parts
    except ValueError:
        pass
    raise InvalidCall(f"{url!r:.100} has no such host or port")


def goes_direct(url: str) -> bool:
    """Whether no proxy of the environment leads to a server."""
    return not _through_proxy(_checked(url))


def _through_proxy(url: SplitResult) -> bool:
    proxies = getproxies()
    return not _is_local(url.hostname or "") and (url.scheme in proxies or "all" in proxies)


def _direct(url: SplitResult) -> httpx.AsyncHTTPTransport | None:
    """The way to a server; None when the environment names a proxy that leads there, which httpx then takes."""
    if _through_proxy(url):
        return None
    probes = [
        (socket.IPPROTO_TCP, getattr(socket, name), value) for name, value in _PROBES.items() if hasattr(socket, name)
    ]
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), *probes]
    # To read the machine's certificates takes longer than to connect.
    return httpx.AsyncHTTPTransport(verify=url.scheme == "https", limits=_LIMITS, socket_options=options)


def _is_local(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_token(token: str) -> None:
    # The HTTP library would refuse it too, and quote it in the error.
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidCall("the token is empty, or has characters that a header cannot carry")


EVENT_STREAM = "text/event-stream"


async def read_events(response: httpx.Response) -> AsyncGenerator[ServerSentEvent]:
    """The events as they come, until the answer ends. To be closed.

    Raises:
        ForeignAnswer: this is no stream of events.
    """
    content_type = response.headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() != EVENT_STREAM:
        raise foreign(str(response.url), response.status_code, content_type, b"")
    async with aclosing(EventSource(response).aiter_sse()) as found:
        async for event in found:
            # A comment comes out as an event that has only the id of the one before.
            if event.data:
                yield event


Data: TypeAlias = bytes | bytearray | memoryview | str | Path | BinaryIO | AsyncIterable[bytes]
"""A `str` is the content, as UTF-8; a `Path` is a file of this machine; a binary file is read from where it is."""

BLOCK = 1 << 18


@asynccontextmanager
async def sending(data: Data) -> AsyncGenerator[bytes | AsyncIterable[bytes]]:
    """What httpx sends; a file that was opened for it is closed, however it ends. Raises LocalFileFailed."""
    match data:
        case bytes():
            yield data
        case bytearray() | memoryview():
            yield bytes(data)
        case str():
            yield data.encode()
        case AsyncIterable():
            yield data
        case _:
            blocks = _blocks_at(data) if isinstance(data, Path) else _blocks(data)
            with translate_local_failures():
                async with aclosing(in_thread(blocks)) as body:
                    yield body


@contextmanager
def translate_local_failures() -> Generator[None]:
    """Raise LocalFileFailed for what this machine's file system refuses."""
    try:
        yield
    except ClientError:
        raise
    except OSError as error:
        raise LocalFileFailed(error) from error


async def in_thread(blocks: Generator[bytes]) -> AsyncGenerator[bytes]:
    """Blocks that are made in threads, one after another, as they are wanted."""
    making: asyncio.Future[bytes | None] | None = None
    try:
        while True:
            making = asyncio.ensure_future(asyncio.to_thread(next, blocks, None))
            block = await asyncio.shield(making)
            if block is None:
                return
            yield block
    finally:
        # It must not be closed under a thread.
        if making is not None:
            await asyncio.wait({making})
        await asyncio.to_thread(blocks.close)


def _blocks_at(path: Path) -> Generator[bytes]:
    with path.open("rb") as file:
        yield from _blocks(file)


def _blocks(file: BinaryIO) -> Generator[bytes]:
    while block := file.read(BLOCK):
        yield block


FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds between two tries to reach the server again."""

_UNREACHED = frozenset({502, 503, 504})
"""What a proxy answers in place of a server that it cannot reach."""


async def retry(call: Callable[[], Awaitable[T]], seconds: float) -> T:
    """The result of a call that is safe to repeat. Raises the last failure after so many seconds."""
    clock = asyncio.get_running_loop().time
    until, pause = clock() + seconds, FIRST_PAUSE
    while True:
        try:
            return await call()
        except ClientError as error:
            if not is_passing(error) or clock() > until:
                raise
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def is_passing(error: ClientError) -> bool:
    """Whether the failure may be temporary."""
    match error:
        case ConnectionLost():
            return True
        case ForeignAnswer(status=status):
            return status in _UNREACHED
        case ServerProblem(slug=slug):
            return slug in (UnknownConnection.slug, ShuttingDown.slug)
        case _:
            return False
