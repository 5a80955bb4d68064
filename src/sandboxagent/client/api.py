"""Call a server over HTTP: bodies, server-sent events, retries, and failures as errors of the SDK.

Each failure is one of the SDK's. Knows no route and no envelope.
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
"""A query; what is None is left out."""

_MAX_PROBLEM = 1 << 20


class ServerSentEvent(NamedTuple):
    """One event. `id` is that of the last event that had one."""

    event: str
    id: str
    data: str


class Sending(TypedDict, total=False):
    """What goes with a request."""

    params: Params | None
    content: Content
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
        self._authorization = headers.get("Authorization")
        self._client = _make_client(self.url, headers)
        self._is_closed = False

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

    def decoded(self, response: Response, type: type[T]) -> T:
        """The body of an answer that has been read, as a `type`."""
        return self.parsed(response, response.content, type)

    def parsed(self, response: Response, data: bytes, type: type[T]) -> T:
        """A part of an answer's body, as a `type`; raises ForeignAnswer when it cannot be read as that."""
        try:
            return read_answer(data, type)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self.foreign(response, data) from error

    def foreign(self, response: Response, body: bytes) -> ForeignAnswer:
        """The failure that an answer is not sandbox-agent's; of one that leads elsewhere it says where to."""
        headers = response.headers
        excerpt = body or headers.get("location", "").encode()
        return foreign(self.url, response.status_code, headers.get("content-type", ""), excerpt)

    async def request(self, method: str, path: str, **more: Unpack[Sending]) -> Response:
        """An answer and all of its body.

        Raises:
            ServerProblem: the server refuses.
            ConnectionLost: there is no answer.
        """
        async with self.stream(method, path, **more) as response:
            await response.aread()
            return response

    @asynccontextmanager
    async def stream(self, method: str, path: str, **more: Unpack[Sending]) -> AsyncGenerator[Response]:
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
        content: Content = None,
        headers: Mapping[str, str] | None = None,
        silence: float | None = None,
    ) -> AsyncGenerator[Response]:
        """The same, but a status that says no is an answer like any other."""
        if self._is_closed:
            raise InvalidCall("this client is closed")
        query = {name: value for name, value in (params or {}).items() if value is not None}
        async with self._client.exchange(Request(method, path, query, content, headers or {}, silence)) as response:
            yield response

    async def open_socket(self, path: str, headers: Mapping[str, str], silence: float) -> ClientSocket | None:
        """A WebSocket; None when none gets through. Raises ServerProblem."""
        shown = {} if self._authorization is None else {"Authorization": self._authorization}
        url = re.sub("^http", "ws", self.url) + path
        return await open_socket(url, {**shown, **headers}, silence, direct=self._client.is_direct)

    async def _refusal(self, response: Response) -> ServerProblem:
        body = bytearray()
        async for part in response.aiter_bytes():
            body += part
            if len(body) > _MAX_PROBLEM:
                break
        return problem(bytes(body)) or self.foreign(response, bytes(body))


def _check_address(url: str) -> SplitResult:
    """The parts of an address; raises InvalidCall when no server can have it."""
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


def _through_proxy(url: SplitResult) -> bool:
    if _is_local(url.hostname or ""):
        return False
    # It imports two other HTTP clients, and their e-mail.
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
    # The HTTP library would refuse it too, and quote it in the error.
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidCall("the token is empty, or has characters that a header cannot carry")


EVENT_STREAM = "text/event-stream"


async def read_events(response: Response) -> AsyncGenerator[ServerSentEvent]:
    """The events as they come, until the answer ends. To be closed.

    Raises:
        ForeignAnswer: this is no stream of events.
    """
    content_type = response.headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() != EVENT_STREAM:
        raise foreign(str(response.url), response.status_code, content_type, b"")
    decoder = EventDecoder()
    async for piece in response.aiter_bytes():
        for event in decoder.feed(piece):
            yield event


Data: TypeAlias = bytes | bytearray | memoryview | str | Path | BinaryIO | AsyncIterable[bytes]
"""A `str` is the content, as UTF-8; a `Path` is a file of this machine; a binary file is read from where it is."""

BLOCK = 1 << 18


@asynccontextmanager
async def sending(data: Data) -> AsyncGenerator[bytes | AsyncIterable[bytes]]:
    """What a request sends; a file that was opened for it is closed, however it ends. Raises LocalFileFailed."""
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


FIRST_PAUSE, MAX_PAUSE = 0.1, 5.0
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
        pause = min(2 * pause, MAX_PAUSE)


def is_passing(error: ClientError) -> bool:
    """Whether the failure may be temporary."""
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
    """Reads one stream. What has no data is no event: comments, or an id alone."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        """The beginning of a line that has not ended."""
        self._event = self._id = ""
        self._data: list[str] = []

    def feed(self, piece: bytes) -> Iterator[ServerSentEvent]:
        """The events that end in this piece."""
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
        # A return at the end may be half of a line's end.
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
