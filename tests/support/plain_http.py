"""HTTP/1.1 for the tests' client with little around it: thousands of tests send requests.

httpx's own transport goes through three packages for each read and write: a test with ten requests takes 12 ms of CPU
in its own process with it, and 6 ms with this one, which has the parser of uvicorn and a socket of the event loop. What
is rare (bodies that are streamed, HEAD, TLS) goes httpx's own way.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncGenerator

import httpx
from httptools import HttpParserError, HttpResponseParser

_AHEAD = 1 << 16
"""Bytes that are read before a test asks for them."""


class _Connection(asyncio.Protocol):
    """A socket, and the response that is on its way."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.is_lost = False
        self._error: Exception | None = None
        self._news: asyncio.Future[None] | None = None
        self._parser: HttpResponseParser | None = None
        self._is_paused = False

    def begin(self, request: bytes) -> None:
        self._parser = HttpResponseParser(self)
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.reason = b""
        self._is_complete = False
        self._body: deque[bytes] = deque()
        self._waiting = 0
        self.transport.write(request)

    async def head(self, timeout: float | None) -> None:
        """Wait for the head of the response; what precedes it with 1xx is passed over."""
        while self.status < 200:
            if self.is_lost:
                raise self._error or httpx.RemoteProtocolError("Server disconnected without sending a response.")
            await self._more(timeout)

    async def body(self, timeout: float | None) -> bytes:
        """The next part of the body; empty at its end."""
        while not self._body and not self._is_complete:
            if self.is_lost and (self._error or self._has_an_end()):
                raise self._error or httpx.RemoteProtocolError("peer closed connection without sending a complete body")
            if self.is_lost:
                return b""
            await self._more(timeout)
        if not self._body:
            return b""
        part = self._body.popleft()
        self._waiting -= len(part)
        if self._is_paused and self._waiting < _AHEAD:
            self._is_paused = False
            self.transport.resume_reading()
        return part

    def can_be_used_again(self) -> bool:
        assert self._parser is not None
        return self._is_complete and not self._body and not self.is_lost and self._parser.should_keep_alive()

    def rest(self) -> None:
        self._parser = None

    def _has_an_end(self) -> bool:
        return any(name.lower() in (b"content-length", b"transfer-encoding") for name, _ in self.headers)

    async def _more(self, timeout: float | None) -> None:
        self._news = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout):
                await self._news
        except TimeoutError:
            raise httpx.ReadTimeout("nothing came") from None
        finally:
            self._news = None

    def _tell(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            # It answers no request.
            self.is_lost = True
            self.transport.close()
            return
        try:
            self._parser.feed_data(data)
        except HttpParserError as error:
            self._error, self.is_lost = httpx.RemoteProtocolError(str(error)), True
            self.transport.abort()
        if self._waiting > _AHEAD and not self._is_paused and not self.is_lost:
            self._is_paused = True
            self.transport.pause_reading()
        self._tell()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        if exc is not None and self._error is None:
            self._error = httpx.ReadError(str(exc))
        self._tell()

    # What the parser calls.

    def on_message_begin(self) -> None:
        self.headers, self.reason = [], b""

    def on_status(self, status: bytes) -> None:
        self.reason += status

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._body.append(body)
        self._waiting += len(body)

    def on_message_complete(self) -> None:
        self._is_complete = self.status >= 200


class _Body(httpx.AsyncByteStream):
    def __init__(self, owner: "PlainHttp", connection: _Connection, place: tuple[str, int], timeout: float | None):
        self._owner, self._connection, self._place, self._timeout = owner, connection, place, timeout
        self._is_closed = False

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        while part := await self._connection.body(self._timeout):
            yield part

    async def aclose(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._owner.give_back(self._connection, self._place)


class PlainHttp(httpx.AsyncBaseTransport):
    """Connections to servers, used again where that is possible."""

    def __init__(self, other: httpx.AsyncBaseTransport) -> None:
        self._other = other
        self._idle: defaultdict[tuple[str, int], list[_Connection]] = defaultdict(list)
        self._open: set[_Connection] = set()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url, stream = request.url, request.stream
        if url.scheme != "http" or request.method == "HEAD" or not isinstance(stream, httpx.ByteStream):
            return await self._other.handle_async_request(request)
        place = (url.host, url.port or 80)
        bounds = request.extensions.get("timeout", {})
        connection = await self._connection(place, bounds.get("connect"))
        head = b"".join(b"%b: %b\r\n" % each for each in request.headers.raw)
        line = b"%b %b HTTP/1.1\r\n" % (request.method.encode(), url.raw_path)
        try:
            connection.begin(line + head + b"\r\n" + b"".join(stream))
            await connection.head(bounds.get("read"))
        except BaseException:
            self._end(connection)
            raise
        return httpx.Response(
            connection.status,
            headers=connection.headers,
            stream=_Body(self, connection, place, bounds.get("read")),
            extensions={"http_version": b"HTTP/1.1", "reason_phrase": connection.reason},
        )

    async def aclose(self) -> None:
        for connection in [*self._open]:
            self._end(connection)
        self._idle.clear()
        await self._other.aclose()

    def give_back(self, connection: _Connection, place: tuple[str, int]) -> None:
        if connection.can_be_used_again():
            connection.rest()
            self._idle[place].append(connection)
        else:
            self._end(connection)

    async def _connection(self, place: tuple[str, int], timeout: float | None) -> _Connection:
        while self._idle[place]:
            connection = self._idle[place].pop()
            if not connection.is_lost:
                return connection
            self._open.discard(connection)
        try:
            async with asyncio.timeout(timeout):
                _, connection = await asyncio.get_running_loop().create_connection(_Connection, *place)
        except TimeoutError:
            raise httpx.ConnectTimeout("the server does not take the connection") from None
        except OSError as error:
            raise httpx.ConnectError(str(error)) from error
        self._open.add(connection)
        return connection

    def _end(self, connection: _Connection) -> None:
        self._open.discard(connection)
        connection.transport.close()
