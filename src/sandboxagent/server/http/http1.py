"""Speak HTTP/1.1 on a socket, one request at a time, with a bound on everything a client may send.

llhttp (`httptools`) parses. This module and `framing` decide where a request ends, and which requests are refused. The
app behind them speaks ASGI.
"""

import asyncio
import logging
import re
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, cast
from urllib.parse import unquote

import httptools

from sandboxagent.core.tasks import Tasks
from sandboxagent.protocol.errors import BadRequest, InternalError, RequestTimeout, SandboxAgentError
from sandboxagent.protocol.headers import IDEMPOTENCY_KEY, raw
from sandboxagent.server.http.asgi import (
    STATUS_LINE,
    App,
    Message,
    Scope,
    problem_document,
    problem_headers,
    send_problem,
)
from sandboxagent.server.http.framing import (
    CHUNKS,
    HEAD,
    Framing,
    body_length,
    check_head,
    offers_websocket,
    without_upgrade,
)
from sandboxagent.server.http.head import MAX_MEMO_HEAD_BYTES, HeadMemo
from sandboxagent.server.http.posts import Post, PostHead
from sandboxagent.server.http.sockets import LightEvent, Sockets, Wait
from sandboxagent.server.http.transport import BufferedTransport, FlowControl

if TYPE_CHECKING:
    from sandboxagent.server.http.websocket import WebSocket

MAX_DISCARDED_BYTES = 1 << 20
"""Maximum bytes of an unwanted body that the server still reads, so that the socket can be reused."""

PROTOCOL_ERROR, GOING_AWAY = 1002, 1001
"""Codes of a WebSocket's close frame."""

MAX_KNOWN_REQUEST_BYTES = 64 << 10
"""Maximum bytes of a request whose head is compared with the known head."""

MAX_BACKLOG_BYTES = 64 << 10
"""Maximum bytes received after the request under way before the server stops reading the socket. While it reads, it
notices that the client leaves."""

MAX_BODY_QUEUE_BYTES = 64 << 10
"""Maximum bytes of a body that wait for the app before the server stops reading the socket."""

LAST_ANSWERS_TIMEOUT = 1.0
"""Seconds that a stopping server gives to the answers under way."""

_KEY = raw(IDEMPOTENCY_KEY)
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_UNSAFE = re.compile(rb"[\x00\r\n]")
"""Bytes that would end a header early, and could begin one that nobody meant."""

logger = logging.getLogger(__name__)


class HttpServer:
    """The objects that all sockets of a server share: the app, their clock, the tasks that answer, and the date."""

    def __init__(
        self,
        app: App,
        sockets: Sockets,
        read_post: Callable[[Scope], PostHead | None] | None = None,
        backlog: int = 64,
    ) -> None:
        self.app = app
        self.read_post = read_post or _leave_to_app
        """Function that checks the head of a POST. It returns None for a POST that the app has to answer."""
        self.sockets = sockets
        self.tasks = Tasks()
        self._backlog = backlog
        """Maximum number of connections that the system keeps until they are accepted."""
        self._listening: asyncio.Server | None = None
        self._second = 0
        self._date = b""

    async def start(self, listener: socket.socket) -> None:
        """Accept connections on a bound socket."""
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_server(partial(Http1, self), sock=listener, backlog=self._backlog)

    async def stop(self) -> None:
        """Accept no more connections, and close all sockets. Answers under way have a second."""
        if self._listening is not None:
            self._listening.close()
        self.sockets.shut_down()
        try:
            async with asyncio.timeout(LAST_ANSWERS_TIMEOUT):
                await self.sockets.closed()
                await self.tasks.settle()
        except TimeoutError:
            logger.warning("requests were cut off requests=%d", len(self.tasks))
            self.tasks.cancel()
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_ANSWERS_TIMEOUT):
                    await self.tasks.settle()

    def run(self, cycle: "Cycle") -> None:
        """Have the app answer a request."""
        self.tasks.run(cycle.run(self.app), "answer a request")

    def date(self) -> bytes:
        """Return the Date header of an answer."""
        second = int(time.time())
        if second != self._second:
            self._second, self._date = second, b"date: %b\r\n" % format_date(second).encode()
        return self._date


def format_date(second: int) -> str:
    """Format a time as HTTP has it. The import of `email.utils` for that would add two milliseconds to every start."""
    at = time.gmtime(second)
    day, month = _DAYS[at.tm_wday], _MONTHS[at.tm_mon - 1]
    return f"{day}, {at.tm_mday:02} {month} {at.tm_year} {at.tm_hour:02}:{at.tm_min:02}:{at.tm_sec:02} GMT"


def _leave_to_app(_: Scope) -> None:
    return None


class Cycle:
    """A request and its response, as an ASGI app sees them."""

    __slots__ = (
        "__weakref__",
        "_body",
        "_chunked",
        "_expects_continue",
        "_flow",
        "_left",
        "_on_complete",
        "_scope",
        "_server",
        "_transport",
        "disconnected",
        "keep_alive",
        "message_event",
        "more_body",
        "response_complete",
        "response_started",
    )

    def __init__(self, http: "Http1", scope: Scope, *, expects_continue: bool, keep_alive: bool) -> None:
        self._scope = scope
        self._server, self._transport, self._flow = http.server, http.transport, http.flow
        self._on_complete: Callable[[], None] | None = http.on_response_complete
        self._expects_continue = expects_continue
        """Whether the client waits for `100 Continue` before it sends the body."""
        self._body = bytearray()
        self._chunked = False
        self._left = 0
        """Bytes that are still to come of a response with a Content-Length."""
        self.keep_alive = keep_alive
        self.disconnected = False
        """Whether the socket is closed, or has become a WebSocket."""
        self.more_body = True
        self.message_event = LightEvent()
        """Set when more of the body has come, or the request or its response has ended."""
        self.response_started = self.response_complete = False

    async def run(self, app: App) -> None:
        """Have an app answer. Close the socket if the app does not complete the response."""
        try:
            await app(self._scope, self.receive, self.send)
        except Exception:
            logger.exception("request failed method=%s path=%s", self._scope["method"], self._scope["path"])
            if not self.response_started:
                self.keep_alive = False
                await send_problem(self.send, InternalError())
        finally:
            if not self.response_complete and not self.disconnected:
                self._transport.close()
            # Break the reference cycle between this object and the socket.
            self._on_complete = None

    def take_body(self, body: bytes) -> None:
        """Add a received part of the body."""
        if self.response_complete:
            return
        self._body += body
        if len(self._body) > MAX_BODY_QUEUE_BYTES:
            self._flow.pause_reading()
        self.message_event.set()

    def end_body(self) -> None:
        """Note that the body is whole."""
        self.more_body = False
        self.message_event.set()

    def disconnect(self) -> None:
        """Note that the client is gone: nothing more comes from it, and nothing more is sent."""
        self.disconnected = True
        self.message_event.set()

    async def receive(self) -> Message:
        """Return the next part of the request."""
        if self._expects_continue and not self._transport.is_closing():
            self._expects_continue = False
            self._transport.write(_CONTINUE)
        if not self.disconnected and not self.response_complete:
            self._flow.resume_reading()
            await self.message_event.wait()
            self.message_event.clear()
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        body, self._body = bytes(self._body), bytearray()
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    async def send(self, message: Message) -> None:
        """Send the next part of the response."""
        if self._flow.write_paused and not self.disconnected:
            await self._flow.drain()
        if self.disconnected:
            return
        if self.response_complete:
            raise RuntimeError(f"{message['type']} comes after the response")
        if self.response_started:
            self._send_body(message)
        else:
            self._send_head(message)

    def _send_head(self, message: Message) -> None:
        status: int = message["status"]
        self.response_started, self._expects_continue = True, False
        lines, length, closes = [STATUS_LINE[status]], None, False
        for name, value in message.get("headers", ()):
            if _UNSAFE.search(value):
                raise RuntimeError(f"the header {name!r} has a line break or a NUL")
            if name == b"content-length":
                length = int(value)
            elif name == b"connection" and value.lower() == b"close":
                self.keep_alive, closes = False, True
            lines.append(b"%b: %b\r\n" % (name, value))
        if not self.keep_alive and not closes:
            lines.append(b"connection: close\r\n")
        if self._scope["method"] == "HEAD" or status in (204, 304):
            length = 0
        elif length is None:
            self._chunked = True
            lines.append(b"transfer-encoding: chunked\r\n")
        self._left = length or 0
        lines += (self._server.date(), b"\r\n")
        self._transport.write(b"".join(lines))

    def _send_body(self, message: Message) -> None:
        body: bytes = message.get("body", b"")
        ends = not message.get("more_body", False)
        if self._chunked:
            self._write_chunk(body, ends=ends)
        elif self._scope["method"] != "HEAD":
            if len(body) > self._left or (ends and len(body) < self._left):
                raise RuntimeError("the response is not as long as its Content-Length says")
            self._left -= len(body)
            self._transport.write(body)
        if ends:
            self.response_complete = True
            self.message_event.set()
            if not self.keep_alive:
                self._transport.close()
            if self._on_complete is not None:
                self._on_complete()

    def _write_chunk(self, body: bytes, *, ends: bool) -> None:
        chunk = [b"%x\r\n" % len(body), body, b"\r\n"] if body else []
        if ends:
            chunk.append(b"0\r\n\r\n")
        self._transport.write(b"".join(chunk))


Request: TypeAlias = Cycle | Post
"""A request under way: a POST with an envelope, which the app does not see, or any other request."""


class Http1(asyncio.Protocol):
    """The HTTP protocol on one socket."""

    __slots__ = (
        "__weakref__",
        "_address",
        "_backlog",
        "_begun",
        "_broken",
        "_client",
        "_expects_continue",
        "_framing",
        "_head",
        "_headers",
        "_kept_if_whole",
        "_known",
        "_loop",
        "_offers_websocket",
        "_parser",
        "_partial",
        "_rests",
        "_sockets",
        "_url",
        "_websocket",
        "cycle",
        "flow",
        "server",
        "transport",
        "waited_since",
    )

    transport: BufferedTransport
    flow: FlowControl

    def __init__(self, server: HttpServer) -> None:
        self.server = server
        self.cycle: Request | None = None
        """The newest request."""
        self.waited_since = 0.0
        self._sockets = server.sockets
        self._loop = asyncio.get_running_loop()
        self._address: tuple[str, int] | None = None
        self._client: tuple[str, int] | None = None
        self._framing = Framing()
        self._parser = self._make_parser()
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._expects_continue = False
        self._begun = False
        """Whether the first bytes of the next request have arrived. Blank lines before it do not count."""
        self._backlog = b""
        """Received bytes that are not parsed yet: the next request, while this one is answered."""
        self._rests = False
        """Whether received bytes wait for another turn of the event loop, so that other sockets are served before."""
        self._kept_if_whole = False
        """Whether the socket stays open after this request if its body is whole by the time of the answer."""
        self._broken = False
        """Whether the body is malformed. The answer under way then closes the socket."""
        self._offers_websocket = False
        """Whether the head that is being read offers a WebSocket."""
        self._websocket: WebSocket | None = None
        """The WebSocket that the socket has become. HTTP is over then."""
        self._head = b""
        """The head of the POST under way, if it came in one piece."""
        self._known: tuple[HeadMemo, PostHead] | None = None
        """The head of an earlier request, and the result of checking it."""
        self._partial = b""
        """The beginning of a request whose head is known: many clients send head and body separately."""

    def _make_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        # Bytes after a request that closes the socket are not parsed, and are no reason to refuse the request.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the socket of a new client."""
        admitted = partial(self._sockets.mark_authenticated, self)
        self.transport = BufferedTransport(cast("asyncio.Transport", transport), self._loop, admitted)
        self.flow = FlowControl(self.transport)
        self._address = _internet_address(transport.get_extra_info("sockname"))
        self._client = _internet_address(transport.get_extra_info("peername"))
        self._sockets.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Release everything that belongs to a closed socket."""
        self._sockets.remove(self)
        self.transport.closed()
        if self._websocket is not None:
            self._websocket.lost()
        self._backlog = self._partial = b""
        # Break reference cycles, which only the garbage collector would free.
        if isinstance(self.cycle, Post):
            self.cycle.detach()
        elif self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnect()
        self.flow.resume_writing()
        if exc is None:
            self.transport.close()
        del self._parser

    def eof_received(self) -> None:
        """Let asyncio close the socket, because the client sends nothing more."""

    def pause_writing(self) -> None:
        """Pause writing, because the client does not read."""
        self.flow.pause_writing()

    # Bytes from the socket

    def data_received(self, data: bytes) -> None:
        """Take bytes from the socket."""
        if self.transport.lingering is not None or self._broken:
            return
        if self._websocket is not None:
            self.waited_since = self._sockets.clock
            self._websocket.data_received(data)
            return
        if self._partial:
            data, self._partial = self._partial + data, b""
        if self._known is not None and self._take_known(*self._known, data):
            return
        if self._framing.part is not HEAD or not self._framing.overhead:
            # The timeout of a head begins with its first byte. Further bytes do not extend it.
            self.waited_since = self._sockets.clock
        self._backlog = self._backlog + data if self._backlog else data
        self._read_backlog()

    def _take_known(self, known: HeadMemo, head: PostHead, data: bytes) -> bool:
        """Take a request whose head is known. Return False when it has to be parsed."""
        if self._backlog or self._begun or self._framing.part is not HEAD or not self._may_begin:
            return False
        read = known.read(data)
        if read is None or len(data) > read[1] or read[1] > MAX_KNOWN_REQUEST_BYTES:
            return False
        begin, end, key = read
        if end - begin > head.most:
            # The parser refuses it before the body has come.
            return False
        self.waited_since = self._sockets.clock
        if len(data) < end:
            self._partial = data
            return True
        self.cycle = post = Post(self, head, key)
        post.body = data[begin:]
        post.end_body()
        return True

    def is_gone(self) -> bool:
        """Whether the client has left."""
        return self.transport.is_closing()

    def reply(self, head: bytes, body: bytes, *, keep_alive: bool) -> bool:
        """Answer a POST. `head` has neither date nor blank line. Return False when the client has left."""
        transport = self.transport
        if transport.is_closing():
            return False
        end = b"\r\n" if keep_alive else b"connection: close\r\n\r\n"
        transport.write_through(b"".join((head, self.server.date(), end, body)))
        if not keep_alive:
            transport.close()
        self.on_response_complete()
        return True

    def _read_backlog(self) -> None:
        """Parse received bytes up to the end of a request. The next request is parsed when this one is answered.

        Even if that happens at once, other sockets are served before the next request.
        """
        if self._rests:
            self.transport.set_backlogged(len(self._backlog) > MAX_BACKLOG_BYTES)
            return
        data, start, before = self._backlog, 0, self.cycle
        self._framing.chunks = 0
        try:
            with memoryview(data) as view:
                while start < len(data) and not self.transport.is_closing():
                    if self._framing.part is HEAD and (self.cycle is not before or not self._may_begin):
                        break
                    end = self._framing.end_of_piece(data, start, has_begun=self._begun)
                    if self._framing.part is HEAD:
                        # Only the head of a POST is kept: a stream would keep its head for as long as it lasts.
                        is_post = not self._framing.overhead and data.startswith(b"POST ", start)
                        self._head = data[start:end] if is_post and end - start <= MAX_MEMO_HEAD_BYTES else b""
                    self._framing.advance(data, start, end)
                    self._parse(view[start:end])
                    self._framing.check()
                    start = end
                    if self._framing.chunks > CHUNKS:
                        self._rests = True
                        self._loop.call_soon(self._go_on)
                        break
        except SandboxAgentError as error:
            self._backlog = b""
            self._refuse(error)
        else:
            self._backlog = data[start:]
        self.transport.set_backlogged(len(self._backlog) > MAX_BACKLOG_BYTES)

    def _parse(self, piece: memoryview) -> None:
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            # The parser leaves all bytes after such a head to the other protocol, even the body.
            method, version = self._parser.get_method(), self._parser.get_http_version()
            head = without_upgrade(method, self._url, version, self._headers)
            self._offers_websocket = offers_websocket(method, version, self._headers)
            self._parser = self._make_parser()
            self._parse(memoryview(head))
            self._offers_websocket = False
        except httptools.HttpParserError as error:
            # The error that a callback raised is the context of the parser's error.
            if isinstance(error.__context__, SandboxAgentError):
                raise error.__context__ from None
            raise BadRequest("this is not unambiguous HTTP/1.1") from None

    @property
    def _answered(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    @property
    def _may_begin(self) -> bool:
        """Whether a request may begin: the client has the answers so far, or reads them."""
        # `_answered` written inline, because this runs for every message.
        return (self.cycle is None or self.cycle.response_complete) and not self.flow.write_paused

    # Called by the parser

    def on_message_begin(self) -> None:
        """Reset the state for a new request."""
        self._begun = True
        self._url, self._headers, self._expects_continue = b"", [], False

    def on_url(self, url: bytes) -> None:
        """Add a part of the request's target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header. A trailer is no header, and says nothing about the request."""
        if self._framing.part is HEAD:
            name = name.lower()
            if name == b"expect" and value.lower() == b"100-continue":
                self._expects_continue = True
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Check the whole head, and begin to answer the request."""
        method, version = self._parser.get_method(), self._parser.get_http_version()
        check_head(method, self._url, version, self._headers)
        if self._parser.should_upgrade():
            return
        scope = self._make_scope(method, version)
        keep_alive = version != "1.0" and self._parser.should_keep_alive()
        head = self.server.read_post(scope) if method == b"POST" else None
        length = body_length(self._headers)
        if head is None:
            self.cycle = cycle = Cycle(self, scope, expects_continue=self._expects_continue, keep_alive=keep_alive)
            self._expect_body(cycle, length)
            self.server.run(cycle)
            return
        self.cycle = post = Post(self, head, scope["headers_by_name"].get(_KEY), keep_alive=keep_alive)
        self._expect_body(post, length)
        post.begin(length)
        if self._expects_continue and not post.response_complete:
            self.transport.write(_CONTINUE)

    def _make_scope(self, method: bytes, version: str) -> Scope:
        extensions: dict[str, object] = {"sandboxagent.transport": self.transport}
        if self._offers_websocket:
            extensions["sandboxagent.websocket"] = self._open_websocket
        url = httptools.parse_url(self._url)
        raw_path = url.path or b"/"
        path = raw_path.decode("ascii")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": version,
            "method": method.decode("ascii"),
            "scheme": "http",
            "path": unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": url.query or b"",
            "root_path": "",
            "headers": self._headers,
            "client": self._client,
            "server": self._address,
            "extensions": extensions,
        }

    def _expect_body(self, cycle: Request, length: int | None) -> None:
        """Expect a body. Until it is whole, an answer closes the socket, unless little is left to read."""
        if length == 0:
            return
        self._framing.expect_body(length)
        self.transport.unread = True
        if length is None or length > MAX_DISCARDED_BYTES or self._expects_continue:
            self._kept_if_whole, cycle.keep_alive = cycle.keep_alive, False

    def on_chunk_header(self) -> None:
        """Count a chunk of the body."""
        self._framing.count_chunk()

    def on_body(self, body: bytes) -> None:
        """Add a part of the request's body."""
        self._framing.count_body(len(body))
        if self.cycle is not None:
            self.cycle.take_body(body)

    def on_message_complete(self) -> None:
        """Finish a request that has come whole."""
        if self._parser.should_upgrade():
            return
        self._begun = False
        self._framing.expect_head()
        self.transport.unread = False
        cycle = self.cycle
        if cycle is None:
            return
        if self._kept_if_whole:
            self._kept_if_whole = False
            cycle.keep_alive = not cycle.response_started
        if isinstance(cycle, Post) and self._head and cycle.keep_alive and not self._expects_continue:
            self._remember(self._head, cycle.head)
        cycle.end_body()

    def _remember(self, head: bytes, says: PostHead) -> None:
        """Remember a head, so that requests that repeat it need not be parsed."""
        if says.refusal is None and not says.more:
            known = HeadMemo.of(head, self._headers)
            self._known = None if known is None else (known, says)

    # Answers

    def on_response_complete(self) -> None:
        """Go on after an answer. The next request, if it has arrived, waits until other sockets were served."""
        self.waited_since = self._sockets.clock
        self._head = b""
        # A closing socket ignores both.
        self.flow.resume_reading()
        if self._backlog:
            self._loop.call_soon(self._read_on)

    def _go_on(self) -> None:
        self._rests = False
        self._read_on()

    def _read_on(self) -> None:
        if not self.transport.is_closing():
            self._read_backlog()

    def _open_websocket(self, max_size: int) -> "WebSocket":
        """Make the request a WebSocket. No HTTP answer follows, and the next bytes are frames."""
        from sandboxagent.server.http.websocket import WebSocket

        return WebSocket(self.transport, self.flow, max_size, self._become)

    def _become(self, websocket: "WebSocket") -> None:
        self._websocket = websocket
        if self.cycle is not None:
            self.cycle.disconnected = True
        early, self._backlog = self._backlog, b""
        if early:
            websocket.data_received(early)

    def resume_writing(self) -> None:
        """Resume writing, because the client reads again."""
        self.flow.resume_writing()
        if self._websocket is not None:
            self._websocket.writable_again()
        elif self._backlog:
            self._loop.call_soon(self._read_on)

    def _refuse(self, error: SandboxAgentError) -> None:
        """Refuse an invalid request and close the socket, because later bytes on it cannot be trusted."""
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self._answered:
            if self.cycle.response_started:
                # The answer under way closes the socket.
                self._broken = True
                return
            # No handler needs to wait for the rest of its body.
            self.cycle.disconnect()
        body = problem_document(error)
        head = [b"%b: %b\r\n" % pair for pair in (*problem_headers(error, body), (b"connection", b"close"))]
        self.transport.write(b"".join([STATUS_LINE[error.status], *head, b"\r\n", body]))
        self.transport.unread = True
        self.transport.close()

    # Time

    def waits_for(self) -> Wait:
        """Return what kind of event the socket waits for."""
        if self.transport.is_closing():
            return Wait.CLOSING
        if self._websocket is not None:
            return self._websocket.waits_for()
        if self._partial:
            return Wait.BODY
        if self._framing.part is not HEAD:
            return Wait.BODY if self.transport.is_reading() else Wait.SERVER
        if self._begun:
            return Wait.HEAD
        return Wait.REQUEST if self._answered else Wait.SERVER

    def time_out(self, wait: Wait) -> None:
        """End a wait that has taken too long."""
        if self._partial:
            # Parse the request, so that it can be refused like any other.
            self._backlog, self._partial = self._partial, b""
            self._read_backlog()
        if wait is Wait.MESSAGE and self._websocket is not None:
            self._websocket.close(PROTOCOL_ERROR, "initialize did not come in time")
        elif wait is Wait.HEAD:
            self._refuse(RequestTimeout("the request line and headers", self._sockets.limits.head_timeout))
        elif wait is Wait.BODY and self.cycle is not None and not self.cycle.response_started:
            self._refuse(RequestTimeout("more of the body", self._sockets.limits.body_timeout))
        elif wait is Wait.REQUEST and not self.transport.get_write_buffer_size():
            self.transport.close()
        else:
            self.abort()

    def abort(self) -> None:
        """Close the socket at once."""
        self.transport.abort()

    def shutdown(self) -> None:
        """Close the socket, because the server stops. An incomplete request gets no answer."""
        if self._websocket is not None:
            self._websocket.close(GOING_AWAY, "the server is stopping")
            return
        if self._is_incomplete or self.transport.lingering is not None:
            self.abort()
        elif self.cycle is None or self.cycle.response_complete:
            self.transport.close()
        else:
            self.cycle.keep_alive = False

    @property
    def _is_incomplete(self) -> bool:
        """Whether a request has not come whole."""
        return bool(self._partial) or (self.cycle is not None and self.cycle.more_body)


def _internet_address(address: object) -> tuple[str, int] | None:
    if not isinstance(address, tuple):
        return None
    host, port, *_ = cast("tuple[object, ...]", address)
    return (host, port) if isinstance(host, str) and isinstance(port, int) else None
