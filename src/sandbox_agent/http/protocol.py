"""HTTP/1.1 on a socket: uvicorn's protocol, one request at a time, with our errors and bounds.

It builds on uvicorn's inside: `pyproject.toml` pins the release, and `tests/http/test_uvicorn.py` notices a change.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

import httptools

from sandbox_agent.errors import BadRequest, RequestTimeout, SandboxAgentError
from sandbox_agent.http.asgi import problem_document, problem_headers
from sandbox_agent.http.framing import (
    HEAD,
    LONGEST_KNOWN_HEAD,
    Framing,
    KnownHead,
    Post,
    body_length,
    check_head,
    learn_head,
    offers_websocket,
    without_upgrade,
)
from sandbox_agent.http.light_uvicorn import STATUS_LINE, Config, HttpToolsProtocol, ServerState
from sandbox_agent.http.sockets import GatheringTransport, Sockets, Wait

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from sandbox_agent.http.websocket import WebSocket

UNREAD = 1 << 20
"""Bytes of an unwanted body that the server still reads, so that the socket can be reused."""

PROTOCOL_ERROR, GOING_AWAY = 1002, 1001
"""Codes of a WebSocket's close frame."""

SHORT = 64 << 10
"""Bytes of a request that goes the short way."""

BACKLOG = 64 << 10
"""Bytes behind a request under way that may come before the socket is no longer read. While it is, the server notices
that the client leaves."""


_NONE_IN_LINE: deque[tuple["RequestResponseCycle", "ASGI3Application"]] = deque()
"""uvicorn's requests behind the one under way: a protocol that reads one at a time never has any."""


class Flag:
    """What uvicorn uses an `asyncio.Event` for, of which each socket has two: without a deque before one waits."""

    __slots__ = ("_is_set", "_waiting")

    def __init__(self, *, is_set: bool = False) -> None:
        self._is_set = is_set
        self._waiting: list[asyncio.Future[None]] | tuple[()] = ()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """Let those go on that wait."""
        self._is_set = True
        waiting, self._waiting = self._waiting, ()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def clear(self) -> None:
        self._is_set = False

    async def wait(self) -> bool:
        """Wait until it is set."""
        if not self._is_set:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting = [*self._waiting, future]
            try:
                await future
            finally:
                self._waiting = [each for each in self._waiting if each is not future]
        return True


class Protocol(HttpToolsProtocol):
    """One socket."""

    _socket: GatheringTransport

    def __init__(
        self,
        sockets: Sockets,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, object],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.pipeline = _NONE_IN_LINE
        self.waited_since = 0.0
        self._sockets = sockets
        self._framing = Framing()
        self._begun = False
        """The first bytes of the next request have arrived; blank lines before it do not count."""
        self._backlog = b""
        """Received bytes that are not parsed yet: the next request, while this one is answered."""
        self._kept_if_whole = False
        """The socket goes on after this request if its body is whole by the time it is answered."""
        self._broken = False
        """The body is malformed, and the error response is under way."""
        self._offers_websocket = False
        """The head that is being read offers to go on as a WebSocket."""
        self._websocket: WebSocket | None = None
        """What the socket has become; HTTP is over then."""
        self._head = b""
        """The head of the request under way, if it came in one piece."""
        self._known: KnownHead | None = None
        """The head of an earlier request, and who takes all that have the same:"""
        self._take: Callable[[Post], None]
        self._partial = b""
        """The beginning of a request whose head is known: many clients send their bodies by themselves."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        admitted = partial(self._sockets.admit, self)
        self._socket = GatheringTransport(cast("asyncio.Transport", transport), self.loop, admitted)
        super().connection_made(self._socket)
        vars(self.flow)["_is_writable_event"] = Flag(is_set=True)
        self._sockets.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        self._sockets.remove(self)
        self._socket.closed()
        if self._websocket is not None:
            self._websocket.lost()
        self._backlog = self._partial = b""
        super().connection_lost(exc)
        # What refers to each other would be left to the collector of garbage.
        post = cast("object", self.cycle)
        if isinstance(post, Post):
            post.lose_line()
        if self.scope is not None:  # pyright: ignore[reportUnnecessaryComparison]
            cast("dict[str, dict[str, object]]", cast("object", self.scope))["extensions"].pop(
                "sandbox_agent.remember", None
            )

    # Bytes from the socket

    def data_received(self, data: bytes) -> None:
        """Bytes from the socket."""
        if self._socket.lingering is not None or self._broken:
            return
        if self._websocket is not None:
            self.waited_since = self._sockets.clock
            self._websocket.data_received(data)
            return
        if self._partial:
            data, self._partial = self._partial + data, b""
        if self._known is not None and self._take_known(self._known, data):
            return
        if self._framing.part is not HEAD or not self._framing.overhead:
            # The time of a head begins with its first byte, and no further one prolongs it.
            self.waited_since = self._sockets.clock
        self._backlog = self._backlog + data if self._backlog else data
        self._read_backlog()

    def _take_known(self, known: KnownHead, data: bytes) -> bool:
        """Let a request whose head is known go the short way; False when it has to go the long one."""
        if self._backlog or self._begun or self._framing.part is not HEAD or not self._answered:
            return False
        read = known.read(data)
        if read is None or len(data) > read[1] or read[1] > SHORT:
            return False
        self.waited_since = self._sockets.clock
        begin, end, key = read
        if len(data) < end:
            self._partial = data
            return True
        post = Post(self, data[begin:], key)
        self.cycle = cast("RequestResponseCycle", cast("object", post))
        self._take(post)
        return True

    def is_gone(self) -> bool:
        """Whether the client has left."""
        return self._socket.is_closing()

    def reply(self, head: bytes, body: bytes, *, keep_alive: bool) -> None:
        """Answer a request that went the short way; the head is without its end."""
        if self._socket.is_closing():
            return
        more = [b"%b: %b\r\n" % pair for pair in self.server_state.default_headers]
        end = b"\r\n" if keep_alive else b"connection: close\r\n\r\n"
        self._socket.write_through(b"".join((head, *more, end, body)))
        if not keep_alive:
            self._socket.close()
        self.on_response_complete()

    def _remember(self, take: Callable[[Post], None]) -> None:
        """Let further requests with this head go to `take`, at once: all that was asked of the head is known."""
        if self.cycle.keep_alive and not self.expect_100_continue and self._head:
            self._known, self._take = learn_head(self._head, self.headers), take

    def _read_backlog(self) -> None:
        """Let the parser read on, up to the end of a request that is not answered yet."""
        data, start = self._backlog, 0
        try:
            with memoryview(data) as view:
                while start < len(data) and (self._framing.part is not HEAD or self._answered):
                    end = self._framing.end_of_piece(data, start)
                    if self._framing.part is HEAD:
                        # A stream would keep its head for as long as it lasts.
                        is_post = not self._framing.overhead and data.startswith(b"POST ", start)
                        self._head = data[start:end] if is_post and end - start <= LONGEST_KNOWN_HEAD else b""
                    self._framing.advance(data, start, end)
                    self._parse(view[start:end])
                    self._framing.check()
                    start = end
        except SandboxAgentError as error:
            self._backlog = b""
            self._refuse(error)
        else:
            self._backlog = data[start:]
        self._socket.set_backlogged(len(self._backlog) > BACKLOG)

    def _parse(self, piece: memoryview) -> None:
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            # The parser leaves all after such a head to the other protocol, its body included.
            method, version = self.parser.get_method(), self.parser.get_http_version()
            head = without_upgrade(method, self.url, version, self.headers)
            self._offers_websocket = offers_websocket(method, version, self.headers)
            self.parser = httptools.HttpRequestParser(self)
            self._parse(memoryview(head))
            self._offers_websocket = False
        except httptools.HttpParserError as error:
            # What a callback raised is its context.
            if isinstance(error.__context__, SandboxAgentError):
                raise error.__context__ from None
            raise BadRequest("this is not unambiguous HTTP/1.1") from None

    @property
    def _answered(self) -> bool:
        return self.cycle is None or self.cycle.response_complete  # pyright: ignore[reportUnnecessaryComparison]

    # What the parser calls

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._begun = True
        extensions: dict[str, object] = {
            "sandbox_agent.transport": self.transport,
            "sandbox_agent.remember": self._remember,
        }
        if self._offers_websocket:
            extensions["sandbox_agent.websocket"] = self._open_websocket
        cast("dict[str, object]", cast("object", self.scope))["extensions"] = extensions

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; a trailer is none, and says nothing about the request."""
        if self._framing.part is HEAD:
            name = name.lower()
            if name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Its headers are whole."""
        check_head(self.parser.get_method(), self.url, self.parser.get_http_version(), self.headers)
        if self.parser.should_upgrade():
            return
        super().on_headers_complete()
        self.cycle.message_event = cast("asyncio.Event", cast("object", Flag()))
        self._expect_body(body_length(self.headers))

    def _expect_body(self, length: int | None) -> None:
        """Until it is whole, an answer closes the socket, unless little is left to read."""
        if length == 0:
            return
        self._framing.expect_body(length)
        self._socket.unread = True
        if length is None or length > UNREAD or self.expect_100_continue:
            self._kept_if_whole, self.cycle.keep_alive = self.cycle.keep_alive, False

    def on_chunk_header(self) -> None:
        """A part of a chunked body begins."""
        self._framing.count_chunk()

    def on_body(self, body: bytes) -> None:
        """A part of its body."""
        self._framing.count_body(len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        """It is whole."""
        if self.parser.should_upgrade():
            return
        self._begun = False
        self._framing.expect_head()
        self._socket.unread = False
        if self._kept_if_whole:
            self._kept_if_whole = False
            self.cycle.keep_alive = not self.cycle.response_started
        super().on_message_complete()

    # Answers

    def on_response_complete(self) -> None:
        """The request was answered; the next one, if it has arrived, waits until other sockets had their turn."""
        self.waited_since = self._sockets.clock
        self._head = b""
        if not self._socket.is_closing():
            self.flow.resume_reading()
            if self._backlog:
                self.loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if not self._socket.is_closing():
            self._read_backlog()

    def _open_websocket(self, max_size: int) -> "WebSocket":
        """The request becomes a WebSocket: no answer of HTTP follows, and what comes now are frames."""
        from sandbox_agent.http.websocket import WebSocket

        return WebSocket(self._socket, self.flow, max_size, self._become)

    def _become(self, websocket: "WebSocket") -> None:
        self._websocket = websocket
        self.cycle.disconnected = True
        early, self._backlog = self._backlog, b""
        if early:
            websocket.data_received(early)

    def resume_writing(self) -> None:
        """The client has read on."""
        super().resume_writing()
        if self._websocket is not None:
            self._websocket.writable_again()

    def _refuse(self, error: SandboxAgentError) -> None:
        """Answer what cannot be read, and hang up: what follows on this socket cannot be trusted."""
        if self._socket.is_closing():
            return
        if not self._answered:
            if self.cycle.response_started:
                # Its answer is under way, and closes the socket.
                self._broken = True
                return
            # No handler needs to wait for the rest of its body.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        body = problem_document(error)
        head = [b"%b: %b\r\n" % pair for pair in (*problem_headers(error, body), (b"connection", b"close"))]
        self._socket.write(b"".join([STATUS_LINE[error.status], *head, b"\r\n", body]))
        self._socket.unread = True
        self._socket.close()

    # Time

    def waits_for(self) -> Wait:
        """What the socket waits for now."""
        if self._socket.is_closing():
            return Wait.CLOSING
        if self._websocket is not None:
            return self._websocket.waits_for()
        if self._partial:
            return Wait.BODY
        if self._framing.part is not HEAD:
            return Wait.BODY if self._socket.is_reading() else Wait.SERVER
        if self._begun:
            return Wait.HEAD
        return Wait.REQUEST if self._answered else Wait.SERVER

    def time_out(self, wait: Wait) -> None:
        """The socket has waited too long for its client."""
        if self._partial:
            # The long way knows how to refuse it.
            self._backlog, self._partial = self._partial, b""
            self._read_backlog()
        if wait is Wait.MESSAGE and self._websocket is not None:
            self._websocket.close(PROTOCOL_ERROR, "initialize did not come in time")
        elif wait is Wait.HEAD:
            self._refuse(RequestTimeout("the request line and headers", self._sockets.limits.head_timeout))
        elif wait is Wait.BODY and not self._answered and not self.cycle.response_started:
            self._refuse(RequestTimeout("more of the body", self._sockets.limits.body_timeout))
        elif wait is Wait.REQUEST and not self._socket.get_write_buffer_size():
            self._socket.close()
        else:
            self.abort()

    def abort(self) -> None:
        """Close the socket at once."""
        self._socket.abort()

    def shutdown(self) -> None:
        """The server stops: a request that has not come whole will not be answered."""
        if self._websocket is not None:
            self._websocket.close(GOING_AWAY, "the server is stopping")
            return
        more_body = self.cycle is not None and self.cycle.more_body  # pyright: ignore[reportUnnecessaryComparison]
        if more_body or self._partial or self._socket.lingering is not None:
            self.abort()
        else:
            super().shutdown()
