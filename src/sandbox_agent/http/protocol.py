"""HTTP/1.1 on a socket: uvicorn's protocol, with our errors, a bound on headers, and a way to cut off a dead reader.

Who is answered before all of its body was read sees the answer, however much it still sends: the socket is closed for
writing, and what comes is thrown away for a moment. To close it at once would be a reset, which may overtake an answer.
"""

import asyncio
from typing import cast

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from sandbox_agent.errors import BadRequest, HeadersTooLarge, SandboxAgentError
from sandbox_agent.http import problems
from sandbox_agent.http.app import App
from sandbox_agent.http.asgi import Scope, json_headers
from sandbox_agent.http.shortcut import Shortcut
from sandbox_agent.hub.calls import Answer, Continuation
from sandbox_agent.hub.connection import Connection

MAX_HEAD = 64 << 10
"""Bytes of a request line and its headers: they come before anybody has shown a token."""


MAX_HEADERS = 200
GATHERED = 64 << 10
"""Bytes that may wait for the end of a turn; beyond, the socket has to say whether it takes more."""
UNREAD = 1 << 20
"""Bytes of a body that nobody wants and that are read all the same, so that the socket can go on."""
LINGER = 2.0
"""Seconds in which a client that still sends may read its answer, before the socket is closed."""


class GatheringTransport(asyncio.Transport):
    """Gathers what is written in one turn of the event loop into one system call: a head and its body, mostly."""

    def __init__(self, inner: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.unread = False
        """The client is in the middle of a body: to close the socket takes some time then."""
        self.lingering: asyncio.TimerHandle | None = None
        """While what comes is thrown away."""
        self._inner = inner
        self._loop = loop
        self._gathered: list[bytes] = []
        self._gathered_size = 0
        self.get_extra_info = inner.get_extra_info
        self.pause_reading = inner.pause_reading
        self.resume_reading = inner.resume_reading
        self.abort = inner.abort
        self.set_protocol = inner.set_protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write it before the next turn of the event loop."""
        if not self._gathered:
            self._loop.call_soon(self._flush)
        self._gathered.append(bytes(data))
        self._gathered_size += len(data)
        if self._gathered_size > GATHERED:
            self._flush()

    def write_whole(self, data: bytes) -> None:
        """Write at once what needs nothing more."""
        if self._gathered or self.is_closing():
            self.write(data)
        else:
            self._inner.write(data)

    def get_write_buffer_size(self) -> int:
        """What has not gone out yet."""
        return self._inner.get_write_buffer_size() + self._gathered_size

    def is_closing(self) -> bool:
        """Whether nothing more can be written."""
        return self.lingering is not None or self._inner.is_closing()

    def close(self) -> None:
        """Close when everything is written and, of who still sends, when the answer was taken or could have been."""
        self._flush()
        if self.unread and not self.is_closing():
            self.lingering = self._loop.call_later(LINGER, self._inner.close)
            self._inner.write_eof()
            if not self._inner.is_reading():
                self._inner.resume_reading()
        else:
            self._inner.close()

    def closed(self) -> None:
        """The socket is gone."""
        if self.lingering is not None:
            self.lingering.cancel()

    def _flush(self) -> None:
        if self._gathered:
            gathered, self._gathered, self._gathered_size = self._gathered, [], 0
            if not self.is_closing():
                self._inner.write(gathered[0] if len(gathered) == 1 else b"".join(gathered))


class ShortCycle:
    """Stands where uvicorn has the request under way, while that one takes the short way."""

    def __init__(self) -> None:
        self.response_complete = False
        self.response_started = False
        self.disconnected = False
        self.more_body = False
        self.keep_alive = True
        self.message_event = asyncio.Event()


class Protocol(HttpToolsProtocol):
    """One socket."""

    _socket: GatheringTransport
    _kept_if_whole = False
    """The socket goes on after this request if its body is whole by the time it is answered."""
    _waiting: Connection | None = None
    """The connection of a request that may take the short way, while its body is read."""
    _body = b""
    _short: ShortCycle | None = None
    _admitted: Connection | None = None
    _admitted_headers: list[tuple[bytes, bytes]] | None = None
    _used_at = 0.0
    _idle_check: asyncio.TimerHandle | None = None
    _in_head = False
    _head_size = 0
    _read_size = 0
    _begun = False
    """A request began in the read that is being looked at."""
    _refusal: SandboxAgentError | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self._socket = GatheringTransport(cast("asyncio.Transport", transport), self.loop)
        super().connection_made(self._socket)

    def data_received(self, data: bytes) -> None:
        """Bytes from the socket."""
        if self._socket.lingering is not None:
            return
        self._begun = False
        self._read_size = len(data)
        self._used_at = self.loop.time()
        if not self._socket.unread:
            # The rest of a body that was answered has as long as the next request.
            self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._without_upgrade(data[cast("int", upgrade.args[0]) :])
        except httptools.HttpParserError:
            self._refuse(self._refusal or BadRequest("this is not HTTP/1.1 that can be read in one way only"))
        else:
            # Where in this read the head began is not known; the next ones are all head.
            if self._in_head and not self._begun:
                self._head_size += len(data)
                if self._head_size > MAX_HEAD:
                    self._refuse(HeadersTooLarge(MAX_HEAD))

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._unset_keepalive_if_required()
        self._in_head, self._begun, self._head_size = True, True, 0
        extensions: dict[str, object] = {"sandbox_agent.transport": self.transport}
        cast("dict[str, object]", cast("object", self.scope))["extensions"] = extensions

    def on_headers_complete(self) -> None:
        """Its headers are whole."""
        self._in_head = False
        in_one_read = self._begun and self._read_size <= MAX_HEAD
        if len(self.headers) > MAX_HEADERS or (not in_one_read and self._exact_head_size() > MAX_HEAD):
            self._refusal = HeadersTooLarge(MAX_HEAD)
            raise ValueError
        self._check_target()
        if self.parser.should_upgrade():
            return
        self._waiting = self._admit()
        if self._waiting is None:
            super().on_headers_complete()
            self._expect_body()

    def _expect_body(self) -> None:
        """Until it is whole, an answer closes the socket, unless little is left to read."""
        self._socket.unread = True
        length = next((int(value) for name, value in self.headers if name == b"content-length"), None)
        if length is None or length > UNREAD or self.expect_100_continue:
            self._kept_if_whole, self.cycle.keep_alive = self.cycle.keep_alive, False

    def _exact_head_size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def on_body(self, body: bytes) -> None:
        """A part of its body."""
        if self._waiting is not None:
            self._body += body
        elif not self.parser.should_upgrade():
            if len(body) > HIGH_WATER_LIMIT and not self.cycle.body and not self.cycle.response_complete:
                # Large files come so: what the parser gives is passed on as it is, and not copied twice.
                self.cycle.body = cast("bytearray", cast("object", body))
                self.flow.pause_reading()
                self.cycle.message_event.set()
            else:
                super().on_body(body)

    def on_message_complete(self) -> None:
        """It is whole."""
        if self._waiting is not None:
            connection, body = self._waiting, self._body
            self._waiting, self._body = None, b""
            if self._take_short_way(connection, body):
                return
            super().on_headers_complete()
            super().on_body(body)
        self._socket.unread = False
        if self._kept_if_whole:
            self._kept_if_whole = False
            self.cycle.keep_alive = not self.cycle.response_started
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """It was answered."""
        self._used_at = self.loop.time()
        super().on_response_complete()
        if self._refusal is not None:
            self._refuse(self._refusal)

    def shutdown(self) -> None:
        """The server stops: whoever has not sent all of its request will not be answered."""
        more_body = self.cycle is not None and self.cycle.more_body  # pyright: ignore[reportUnnecessaryComparison]
        if more_body or self._socket.lingering is not None:
            self.transport.abort()
        else:
            super().shutdown()

    # The short way

    @property
    def _shortcut(self) -> Shortcut:
        return cast("App", self.app).shortcut

    def _admit(self) -> Connection | None:
        idle = self.cycle is None or self.cycle.response_complete  # pyright: ignore[reportUnnecessaryComparison]
        common = idle and self.url == b"/v1/rpc" and self.parser.get_method() == b"POST"
        if not common or self.parser.get_http_version() != "1.1":
            return None
        if self._admitted is not None and not self._admitted.closed and self.headers == self._admitted_headers:
            # The same headers on the same socket: what was decided then holds.
            return self._admitted
        scope = cast("Scope", cast("object", self.scope))
        scope["method"], scope["path"] = "POST", "/v1/rpc"
        self._admitted, self._admitted_headers = self._shortcut.admit(scope), self.headers
        return self._admitted

    def _take_short_way(self, connection: Connection, body: bytes) -> bool:
        def then(answer: Answer | None, error: SandboxAgentError | None) -> None:
            self._answered(connection, answer, error)

        if not self._shortcut.begin(connection, body, Continuation(then)):
            return False
        if self._short is None:
            self._short = ShortCycle()
        self._short.response_complete = False
        self.cycle = cast("RequestResponseCycle", cast("object", self._short))
        return True

    def _answered(self, connection: Connection, answer: Answer | None, error: SandboxAgentError | None) -> None:
        self._shortcut.end(connection)
        if error is not None:
            body = problems.document(error)
            self._finish(error.status, problems.headers(error, body), body)
        elif answer is not None and (connection.stream is None or connection.stream.is_at(connection.last_event)):
            self._send_answer(connection, answer)
        elif answer is not None:
            task = self.loop.create_task(self._answer_later(connection, answer))
            task.add_done_callback(self.tasks.discard)
            self.tasks.add(task)

    async def _answer_later(self, connection: Connection, answer: Answer) -> None:
        if connection.stream is not None:
            await connection.stream.caught_up(connection.last_event)
        self._send_answer(connection, answer)

    def _send_answer(self, connection: Connection, answer: Answer) -> None:
        if self.transport.is_closing():
            self._shortcut.keep(connection, answer)
        else:
            last = (b"x-acp-last-event-id", b"%d" % connection.last_event)
            in_turn = connection.stream is not None
            self._finish(200, [*json_headers(answer.line), last], answer.line, in_turn=in_turn)

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        if self._idle_check is not None:
            self._idle_check.cancel()
            self._idle_check = None
        self._socket.closed()
        super().connection_lost(exc)

    def _check_idle(self) -> None:
        """Close a socket that has not been used for a while. One timer that looks, not one for each request."""
        idle = self.loop.time() - self._used_at
        self._idle_check = None
        busy = self._waiting is not None or self._in_head or not self.cycle.response_complete
        if idle < self.timeout_keep_alive or busy:
            left = max(self.timeout_keep_alive - idle, 1.0)
            self._idle_check = self.loop.call_later(left, self._check_idle)
        elif not self.transport.is_closing():
            self.transport.close()

    def _finish(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes, *, in_turn: bool = False) -> None:
        """Answer at once or, `in_turn`, after what was written to other sockets before."""
        assert self._short is not None
        self._short.response_complete = True
        if self.transport.is_closing():
            return
        self._used_at = self.loop.time()
        if self._idle_check is None:
            self._idle_check = self.loop.call_later(self.timeout_keep_alive, self._check_idle)
        lines = [b"%b: %b\r\n" % pair for pair in (*self.server_state.default_headers, *headers)]
        if not self._short.keep_alive:
            lines.append(b"connection: close\r\n")
        response = b"".join([STATUS_LINE[status], *lines, b"\r\n", body])
        if in_turn:
            self.transport.write(response)
        else:
            self._socket.write_whole(response)
        if not self._short.keep_alive:
            self.transport.close()
        elif self.pipeline or self._refusal is not None:
            self.on_response_complete()

    # What cannot be read

    def _check_target(self) -> None:
        """An absolute target has a host of its own, and whoever stands between goes by that one."""
        if self.url.startswith(b"/") or self.url == b"*":
            return
        authority = self.url.partition(b"://")[2].partition(b"/")[0].lower()
        if authority not in [value.lower() for name, value in self.headers if name == b"host"]:
            raise ValueError

    def _without_upgrade(self, rest: bytes) -> None:
        """Read a request that asks for another protocol as if it had not: the parser would drop all after its head."""
        dropped = (b"upgrade", b"connection", b"http2-settings")
        kept = [b"%b: %b\r\n" % (name, value) for name, value in self.headers if name not in dropped]
        head = [self.parser.get_method(), b" ", self.url, b" HTTP/1.1\r\n", *kept, b"\r\n"]
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(b"".join(head) + rest)

    def _refuse(self, error: SandboxAgentError) -> None:
        """Answer what never became a request, and hang up: what follows on this socket cannot be trusted."""
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:  # pyright: ignore[reportUnnecessaryComparison]
            if self.pipeline or self.cycle.response_started or not self.cycle.more_body:
                # A good request came before: its answer goes first.
                self._refusal = error
                self.flow.pause_reading()
                return
            # It is the request itself that is broken, and it waits for the rest of its body.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        body = problems.document(error)
        head = [b"%b: %b\r\n" % pair for pair in (*problems.headers(error, body), (b"connection", b"close"))]
        self.transport.write(b"".join([STATUS_LINE[error.status], *head, b"\r\n", body]))
        self._socket.unread = True
        self.transport.close()
