"""Send HTTP requests to a server on this machine: HTTP/1.1 on plain sockets, parsed by h11.

It saves the time to import a complete HTTP client, and the time that its layers need for every request. TLS, proxies,
redirects and cookies are not supported: `http_remote` is for servers that may need them.
"""

import asyncio
import select
from collections.abc import AsyncGenerator, Generator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from typing import cast
from urllib.parse import SplitResult, quote, urlencode

import h11

from sandboxagent.client.errors import ConnectionLost
from sandboxagent.client.http import (
    CONNECT_TIMEOUT,
    IDLE_TIMEOUT,
    MAX_IDLE,
    Content,
    Query,
    Request,
    Response,
    reason_of,
)

MAX_UNREAD_BYTES = 1 << 20
"""Maximum number of unread bytes of a socket. Above it, the socket stops reading."""
MAX_HEAD_BYTES = 100 * 1024
_BODIES = frozenset({"POST", "PUT", "PATCH"})
"""Methods whose requests state the length of the body even if there is none."""
_SAFE = "/?#[]@!$&'()*+,;=:%"
"""Characters of a path and its query that are not quoted. The percent sign is one, because a path may be quoted
already."""


class LocalHttpClient:
    """An HTTP client for a server on this machine."""

    is_direct = True

    def __init__(self, url: SplitResult, headers: Mapping[str, str]) -> None:
        self._url = url.geturl()
        self._host, self._port, self._base = url.hostname or "", url.port or 80, url.path.rstrip("/")
        self._headers = {"host": url.netloc, "accept": "*/*", **_lower(headers)}
        self._idle: dict[_Socket, float] = {}
        """Sockets without a request, and the time until which they are kept. The most recently used one is last."""
        self._sockets: set[_Socket] = set()
        self._is_closed = False

    async def close(self) -> None:
        self._is_closed = True
        for socket in self._sockets:
            socket.abort()
        self._sockets.clear()
        self._idle.clear()

    @asynccontextmanager
    async def exchange(self, request: Request) -> AsyncGenerator[Response]:
        socket = self._take_idle() or await self._open()
        try:
            with self._translate_failures(request):
                head = await socket.send(self._head(request), request.content, request.silence)
            async with aclosing(self._body(socket, request)) as body:
                yield _Response(self._url + request.path, head, body)
        finally:
            self._put_back(socket)

    async def _body(self, socket: "_Socket", request: Request) -> AsyncGenerator[bytes]:
        while True:
            with self._translate_failures(request):
                part = await socket.read(request.silence)
            if part is None:
                return
            yield part

    def _head(self, request: Request) -> h11.Request:
        target = quote(self._base + request.path.partition("#")[0], safe=_SAFE)
        if request.query:
            target += ("&" if "?" in target else "?") + _encode_query(request.query)
        headers = {**self._headers, **_lower(request.headers)}
        match request.content:
            case None if request.method in _BODIES:
                headers["content-length"] = "0"
            case None:
                pass
            case bytes() as content:
                headers["content-length"] = str(len(content))
            case _ if "content-length" not in headers:
                headers["transfer-encoding"] = "chunked"
            case _:
                pass
        return h11.Request(method=request.method, target=target, headers=list(headers.items()))

    def _take_idle(self) -> "_Socket | None":
        now = asyncio.get_running_loop().time()
        while self._idle:
            socket, until = self._idle.popitem()
            if now < until and socket.is_quiet():
                return socket
            self._drop(socket)
        return None

    def _put_back(self, socket: "_Socket") -> None:
        if socket not in self._sockets or not socket.begin_next():
            self._drop(socket)
            return
        self._idle[socket] = asyncio.get_running_loop().time() + IDLE_TIMEOUT
        if len(self._idle) > MAX_IDLE:
            oldest = next(iter(self._idle))
            del self._idle[oldest]
            self._drop(oldest)

    def _drop(self, socket: "_Socket") -> None:
        self._sockets.discard(socket)
        socket.abort()

    async def _open(self) -> "_Socket":
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                socket = await self._connect()
        except OSError as error:
            raise ConnectionLost(f"no server answers at {self._url} ({reason_of(error)})") from error
        if self._is_closed:
            socket.abort()
            raise ConnectionLost("this client is closed")
        self._sockets.add(socket)
        return socket

    async def _connect(self) -> "_Socket":
        loop = asyncio.get_running_loop()
        addresses = [self._host]
        if self._host == "localhost":
            # The name has an IPv4 and an IPv6 address, and a server may listen at only one of them.
            addresses = [str(info[4][0]) for info in await loop.getaddrinfo(self._host, self._port)]
        *others, last = dict.fromkeys(addresses)
        for address in others:
            with suppress(OSError):
                return (await loop.create_connection(_Socket, address, self._port))[1]
        return (await loop.create_connection(_Socket, last, self._port))[1]

    @contextmanager
    def _translate_failures(self, request: Request) -> Generator[None]:
        try:
            yield
        except _Silence as error:
            raise ConnectionLost(
                f"{self._url} said nothing for {request.silence:g} s after {request}", outcome_unknown=True
            ) from error
        except (_Broken, h11.ProtocolError) as error:
            raise ConnectionLost(
                f"the connection to {self._url} broke during {request} ({reason_of(error)})", outcome_unknown=True
            ) from error


class _Silence(Exception):
    """The server sent nothing for too long."""


class _Broken(Exception):
    """The socket is closed."""


class _Socket(asyncio.Protocol):
    """A socket, with one request and its response at a time."""

    def __init__(self) -> None:
        self._parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._unread: list[bytes] = []
        self._size = 0
        self._failure: Exception | None = None
        """The reason why no more data can come."""
        self._is_paused = False
        self._is_lost = False
        self._news = asyncio.Event()
        """Set when data comes, and when no more can come."""
        self._writable = asyncio.Event()
        self._writable.set()

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio.Transport.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._unread.append(data)
        self._size += len(data)
        if self._size > MAX_UNREAD_BYTES and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        self._news.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._failure = self._failure or exc or ConnectionResetError("the server closed the connection")
        self._news.set()
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # Called by a request

    def is_quiet(self) -> bool:
        """Return whether an idle socket can take a request: the server has neither closed it nor sent data."""
        is_closing = self._failure is not None or self._transport.is_closing()
        return not is_closing and not self._unread and not _is_readable(self._transport)

    def begin_next(self) -> bool:
        """Prepare the socket for the next request, and return whether it can have one.

        The last request and its response must be complete, with no data after them.
        """
        states = (self._parser.our_state, self._parser.their_state)
        if states != (h11.DONE, h11.DONE) or self._parser.trailing_data[0] or self._failure is not None:
            return False
        self._parser.start_next_cycle()
        return True

    def abort(self) -> None:
        # asyncio's transport may fail when it is aborted after its end.
        if not self._is_lost:
            self._transport.abort()

    async def send(self, head: h11.Request, content: Content, silence: float | None) -> h11.Response:
        """Send a request, and return the head of its response. Raises _Silence, _Broken or h11.ProtocolError."""
        if content is None or isinstance(content, bytes):
            self._write(head, h11.Data(data=content or b""), h11.EndOfMessage())
        else:
            self._write(head)
            async for piece in content:
                await self._writable.wait()
                if self._failure is not None:
                    break
                self._write(h11.Data(data=piece))
            else:
                self._write(h11.EndOfMessage())
        # A server that refuses a body may close the socket before it has read all of it; its response says why.
        while True:
            event = await self._next(silence)
            if isinstance(event, h11.Response):
                return event

    async def read(self, silence: float | None) -> bytes | None:
        """Return a part of the body; None at its end. Raises _Silence, _Broken or h11.ProtocolError."""
        event = await self._next(silence)
        return bytes(event.data) if isinstance(event, h11.Data) else None

    def _write(self, *events: h11.Request | h11.Data | h11.EndOfMessage) -> None:
        self._transport.write(b"".join([self._parser.send(event) or b"" for event in events]))

    async def _next(self, silence: float | None) -> object:
        while (event := self._parser.next_event()) is h11.NEED_DATA:
            if not self._unread:
                await self._wait(silence)
            self._parser.receive_data(b"".join(self._unread))
            self._unread.clear()
            self._size = 0
            if self._is_paused and self._failure is None:
                self._is_paused = False
                self._transport.resume_reading()
        return event

    async def _wait(self, silence: float | None) -> None:
        self._news.clear()
        if self._failure is None:
            try:
                async with asyncio.timeout(silence):
                    await self._news.wait()
            except TimeoutError as error:
                raise _Silence from error
        # Inside a body the parser decides whether the end of the stream is the regular end of the body.
        if not self._unread and self._failure is not None and self._parser.their_state is not h11.SEND_BODY:
            raise _Broken from self._failure


class _Headers(Mapping[str, str]):
    """Headers by name in any case. Several values of one name are joined."""

    def __init__(self, pairs: Iterator[tuple[str, str]]) -> None:
        self._values: dict[str, str] = {}
        for name, value in pairs:
            before = self._values.get(name)
            self._values[name] = value if before is None else f"{before}, {value}"

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class _Response:
    http_version = "HTTP/1.1"

    def __init__(self, url: str, head: h11.Response, body: AsyncGenerator[bytes]) -> None:
        self.url = url
        self.status_code = head.status_code
        self.reason_phrase = head.reason.decode("latin-1")
        self.headers = _Headers((name.decode("latin-1"), value.decode("latin-1")) for name, value in head.headers)
        self.content = b""
        self._body = body

    @property
    def is_success(self) -> bool:
        return 200 <= self.status_code < 300

    async def aread(self) -> bytes:
        self.content = b"".join([part async for part in self._body])
        return self.content

    def aiter_bytes(self) -> AsyncGenerator[bytes]:
        return self._body


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _encode_query(query: Query) -> str:
    words = {name: str(value).lower() if isinstance(value, bool) else value for name, value in query.items()}
    return urlencode(words, quote_via=quote)


def _is_readable(transport: asyncio.Transport) -> bool:
    """Return whether data has come that the event loop has not read yet, such as the end of the stream."""
    descriptor = transport.get_extra_info("socket").fileno()
    if not hasattr(select, "poll"):
        return bool(select.select([descriptor], [], [], 0)[0])
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
