"""Call a server over HTTP: bodies, server-sent events, retries, and failures as errors of the SDK.

The module knows no routes and no envelopes.
"""

import asyncio
import ipaddress
import re
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeAlias, TypedDict, TypeVar, Unpack
from urllib.parse import SplitResult, urlsplit

import msgspec

from sandboxagent import __version__
from sandboxagent.client.errors import (
    ClientError,
    ConnectionLost,
    ForeignAnswer,
    InvalidCall,
    LocalFileFailed,
    ServerProblem,
    foreign,
    problem,
)
from sandboxagent.client.http import Content, HttpClient, Request, Response
from sandboxagent.client.http_local import LocalHttpClient
from sandboxagent.client.websocket import ClientSocket, open_socket
from sandboxagent.protocol.errors import FleetUnreachable, ShuttingDown, UnknownConnection
from sandboxagent.protocol.json_bounds import read_answer

T = TypeVar("T")
Params = Mapping[str, str | int | bool | None]
"""Query parameters. A parameter that is None is left out."""

_MAX_PROBLEM_BYTES = 1 << 20


Locate: TypeAlias = Callable[[], tuple[str, str | None] | None]
"""A function that returns the address and the token of a server that could not be reached; None if it does not run."""


class ServerSentEvent(NamedTuple):
    """A server-sent event. `id` is the last id that the stream had up to this event."""

    event: str
    id: str
    data: str


class Sending(TypedDict, total=False):
    """The optional parts of a request."""

    params: Params | None
    content: Content
    headers: Mapping[str, str] | None
    silence: float | None
    """Maximum number of seconds without any data from the server."""


class Api:
    """An HTTP client of one server, which sends its token with every request."""

    def __init__(self, url: str, token: str | None = None, locate: Locate | None = None) -> None:
        self._locate = locate
        self._is_lost = False
        """Whether the last request did not reach the server."""
        self._client = self._use(url, token)
        self._is_closed = False

    def _use(self, url: str, token: str | None) -> HttpClient:
        """Take another address and token from the next request on. Return the HTTP client for them."""
        self.url = url.rstrip("/")
        self.token = token
        headers = {
            "User-Agent": f"sandbox-agent-python/{__version__}",
            # A proxy that compresses a stream also buffers it.
            "Accept-Encoding": "identity",
        }
        if token is not None:
            _check_token(token)
            headers["Authorization"] = f"Bearer {token}"
        self._authorization = headers.get("Authorization")
        return _make_client(self.url, headers)

    def __repr__(self) -> str:
        return f"Api({self.url!r})"

    async def close(self) -> None:
        """Close all sockets; pending requests fail with ConnectionLost."""
        self._is_closed = True
        await self._client.close()

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
        """Send a request, and return the JSON of its response as a `type`.

        `body` is sent as JSON unless it is None.

        Raises:
            ServerProblem: the server refuses the request.
            ConnectionLost: there is no response.
        """
        content = None if body is None else msgspec.json.encode(body)
        kind = {} if body is None else {"Content-Type": "application/json"}
        response = await self.request(
            method, path, params=params, content=content, headers={**kind, **(headers or {})}, silence=silence
        )
        return self.decoded(response, type)

    def decoded(self, response: Response, type: type[T]) -> T:
        """Parse the body of a response, already read, as a `type`. Raises ForeignAnswer if it is not one."""
        return self.parsed(response, response.content, type)

    def parsed(self, response: Response, data: bytes, type: type[T]) -> T:
        """Parse a part of a response's body as a `type`. Raises ForeignAnswer if it is not one."""
        try:
            return read_answer(data, type)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self.foreign(response, data) from error

    def foreign(self, response: Response, body: bytes) -> ForeignAnswer:
        """Return the error for a response that is not from sandbox-agent. For a redirect it names the target."""
        headers = response.headers
        excerpt = body or headers.get("location", "").encode()
        return foreign(self.url, response.status_code, headers.get("content-type", ""), excerpt)

    async def request(self, method: str, path: str, **more: Unpack[Sending]) -> Response:
        """Send a request, and return its response with the whole body.

        Raises:
            ServerProblem: the server refuses the request.
            ConnectionLost: there is no response.
        """
        async with self.stream(method, path, **more) as response:
            await response.aread()
            return response

    @asynccontextmanager
    async def stream(self, method: str, path: str, **more: Unpack[Sending]) -> AsyncGenerator[Response]:
        """Send a request, and yield its response, whose body is not read yet.

        Raises:
            ServerProblem: the server refuses the request.
            ConnectionLost: there is no response, or the connection breaks while the body is read.
        """
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
        content: Content = None,
        headers: Mapping[str, str] | None = None,
        silence: float | None = None,
    ) -> AsyncGenerator[Response]:
        """Send a request, and yield its response with any status: unlike `stream`, this accepts refusals."""
        if self._is_closed:
            raise InvalidCall("this client is closed")
        query = {name: value for name, value in (params or {}).items() if value is not None}
        request = Request(method, path, query, content, headers or {}, silence)
        if self._is_lost and self._locate is not None:
            await self._find_again(self._locate)
        try:
            async with self._client.exchange(request) as response:
                yield response
        except ConnectionLost:
            self._is_lost = True
            raise

    async def _find_again(self, locate: Locate) -> None:
        """Take the server's address from `locate`. Raises ConnectionLost if the server has none: others may use it."""
        found = locate()
        if found is None:
            raise ConnectionLost(f"the server that was at {self.url} is not running")
        self._is_lost = False
        if found != (self.url, self.token):
            before, self._client = self._client, self._use(*found)
            await before.close()

    async def open_socket(self, path: str, headers: Mapping[str, str], silence: float) -> ClientSocket | None:
        """Open a WebSocket. Return None if no WebSocket can be opened. Raises ServerProblem if the server refuses."""
        shown = {} if self._authorization is None else {"Authorization": self._authorization}
        url = re.sub("^http", "ws", self.url) + path
        return await open_socket(url, {**shown, **headers}, silence, direct=self._client.is_direct)

    async def _refusal(self, response: Response) -> ServerProblem:
        body = bytearray()
        async for part in response.aiter_bytes():
            body += part
            if len(body) > _MAX_PROBLEM_BYTES:
                break
        return problem(bytes(body)) or self.foreign(response, bytes(body))


def _check_address(url: str) -> SplitResult:
    """Split the address of a server into its parts. Raises InvalidCall if it is not valid."""
    if not re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#]*)?", url):
        # The text before an @ may contain a password.
        shown = url.rpartition("@")[2]
        raise InvalidCall(f"expected an address such as http://127.0.0.1:2468, got {shown!r:.100}")
    try:
        parts = urlsplit(url)
        if parts.hostname and parts.port != 0:
            return parts
    except ValueError:
        pass
    raise InvalidCall(f"{url!r:.100} has no such host or port")


def _through_proxy(url: SplitResult) -> bool:
    if _is_local(url.hostname or ""):
        return False
    # Importing urllib.request is slow: it imports http.client and email.
    from urllib.request import getproxies

    proxies = getproxies()
    return url.scheme in proxies or "all" in proxies


def _make_client(url: str, headers: Mapping[str, str]) -> HttpClient:
    parts = _check_address(url)
    if parts.scheme == "http" and _is_local(parts.hostname or ""):
        return LocalHttpClient(parts, headers)
    from sandboxagent.client.http_remote import RemoteHttpClient

    return RemoteHttpClient(url, headers, direct=not _through_proxy(parts))


def _is_local(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_token(token: str) -> None:
    # The HTTP library would refuse such a token too, but its error would quote the token.
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidCall("the token is empty, or has characters that a header cannot carry")


EVENT_STREAM = "text/event-stream"


async def read_events(response: Response) -> AsyncGenerator[ServerSentEvent]:
    """Yield the events of a response until it ends. The caller closes the generator.

    Raises:
        ForeignAnswer: the response is not an event stream.
    """
    content_type = response.headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() != EVENT_STREAM:
        raise foreign(str(response.url), response.status_code, content_type, b"")
    decoder = EventDecoder()
    async for piece in response.aiter_bytes():
        for event in decoder.feed(piece):
            yield event


Data: TypeAlias = bytes | bytearray | memoryview | str | Path | BinaryIO | AsyncIterable[bytes]
"""Content to send. A `str` is sent as UTF-8. A `Path` names a file of your own machine. A binary file is read from its
current position."""

BLOCK_BYTES = 1 << 18


@asynccontextmanager
async def sending(data: Data) -> AsyncGenerator[bytes | AsyncIterable[bytes]]:
    """Yield data in a form that a request can send. A file opened for that is closed at the end.

    Raises:
        LocalFileFailed: a file of this machine cannot be read.
    """
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
    """Raise LocalFileFailed in place of an error of this machine's file system."""
    try:
        yield
    except ClientError:
        raise
    except OSError as error:
        raise LocalFileFailed(error) from error


async def in_thread(blocks: Generator[bytes]) -> AsyncGenerator[bytes]:
    """Yield the blocks of a generator that runs in threads. Each block is made when it is requested."""
    making: asyncio.Future[bytes | None] | None = None
    try:
        while True:
            making = asyncio.ensure_future(asyncio.to_thread(next, blocks, None))
            block = await asyncio.shield(making)
            if block is None:
                return
            yield block
    finally:
        # A generator cannot be closed while a thread runs it.
        if making is not None:
            await asyncio.wait({making})
        await asyncio.to_thread(blocks.close)


def _blocks_at(path: Path) -> Generator[bytes]:
    with path.open("rb") as file:
        yield from _blocks(file)


def _blocks(file: BinaryIO) -> Generator[bytes]:
    while block := file.read(BLOCK_BYTES):
        yield block


FIRST_RETRY_INTERVAL, MAX_RETRY_INTERVAL = 0.1, 5.0
"""Seconds between two attempts to reach the server again: the first pause, and the longest."""

_UNREACHED = frozenset({502, 503, 504})
"""Statuses that a proxy returns if it cannot reach the server."""


async def retry(call: Callable[[], Awaitable[T]], seconds: float) -> T:
    """Repeat a call that is safe to repeat until it succeeds. After `seconds`, raise its last failure."""
    clock = asyncio.get_running_loop().time
    until, pause = clock() + seconds, FIRST_RETRY_INTERVAL
    while True:
        try:
            return await call()
        except ClientError as error:
            if not is_temporary(error) or clock() > until:
                raise
        await asyncio.sleep(pause)
        pause = min(2 * pause, MAX_RETRY_INTERVAL)


def is_temporary(error: ClientError) -> bool:
    """Return whether a failure may be temporary."""
    match error:
        case ConnectionLost():
            return True
        case ForeignAnswer(status=status):
            return status in _UNREACHED
        case ServerProblem(slug=slug):
            return slug in (UnknownConnection.slug, ShuttingDown.slug, FleetUnreachable.slug)
        case _:
            return False


class EventDecoder:
    """A decoder of one event stream. Comments and events without data are skipped."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        """The start of an unfinished line."""
        self._event = self._id = ""
        self._data: list[str] = []

    def feed(self, piece: bytes) -> Iterator[ServerSentEvent]:
        """Yield the events that this piece completes."""
        for line in self._lines(piece):
            if line:
                self._read(line)
                continue
            event, data = self._event or "message", "\n".join(self._data)
            self._event, self._data = "", []
            if data:
                yield ServerSentEvent(event, self._id, data)

    def _lines(self, piece: bytes) -> list[bytes]:
        after_return = bool(self._pieces) and self._pieces[-1].endswith(b"\r")
        self._pieces.append(piece)
        if b"\n" not in piece and b"\r" not in piece and not after_return:
            return []
        text = b"".join(self._pieces)
        # A carriage return at the end may be the first half of a CRLF.
        held = b"\r" if text.endswith(b"\r") else b""
        if b"\r" in text:
            text = text.removesuffix(b"\r").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = text.split(b"\n")
        self._pieces = [rest + held] if rest or held else []
        return lines

    def _read(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        text = value.removeprefix(b" ").decode(errors="replace")
        match name:
            case b"data":
                self._data.append(text)
            case b"id" if "\0" not in text:
                self._id = text
            case b"event":
                self._event = text
            case _:
                pass
