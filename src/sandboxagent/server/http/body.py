"""Share the code of `/v1/rpc` and `/acp`: bodies, streams and closing."""

import logging
from collections.abc import Awaitable, Callable
from functools import partial, wraps
from typing import ClassVar, Concatenate, ParamSpec, TypeVar
from urllib.parse import parse_qs

from msgspec import Struct

from sandboxagent.core.threads import Pool
from sandboxagent.protocol.envelope import LARGE_BYTES, Envelope, failure, parse_envelope
from sandboxagent.protocol.errors import (
    AgentTimeout,
    BadRequest,
    BodyTooLarge,
    InternalError,
    LogUnavailable,
    SandboxAgentError,
    UnknownConnection,
)
from sandboxagent.server.http.asgi import Receive, Scope, Send, header, is_gone, write_part
from sandboxagent.server.http.deliver import Delivery
from sandboxagent.server.http.duplex import WebSocketTransport, offers_ids
from sandboxagent.server.http.ports import Clients, RequestHandler
from sandboxagent.server.http.posts import Post
from sandboxagent.server.http.stream import Stream, Streams
from sandboxagent.server.sessions.connection import Connection

logger = logging.getLogger(__name__)
P = ParamSpec("P")
AnyTransport = TypeVar("AnyTransport", bound="Transport")


def query(scope: Scope) -> dict[str, str]:
    """Return the query of a request. Of a repeated name, the last value counts. Raises BadRequest."""
    try:
        found = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=100)
    except ValueError:
        raise BadRequest("the query has too many parameters") from None
    return {name: values[-1] for name, values in found.items()}


METHODS = "DELETE, GET, POST"
MAX_DIGITS = 19
"""Maximum number of digits of a position in the log."""
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class ClientDisconnected(Exception):
    """The client left before it sent the whole body. No answer is needed."""


def step(
    work: Callable[Concatenate[AnyTransport, Connection, Post, P], None],
) -> Callable[Concatenate[AnyTransport, Connection, Post, P], None]:
    """Guard a step of answering a POST: the POST is answered even if the step raises."""

    @wraps(work)
    def guarded(
        transport: AnyTransport, connection: Connection, post: Post, *arguments: P.args, **named: P.kwargs
    ) -> None:
        try:
            work(transport, connection, post, *arguments, **named)
        except Exception as error:
            transport.recover(connection, post, error)

    return guarded


class Transport(Struct, eq=False):
    """The base of both transports: the parts of the server that they use, and their common steps."""

    path: ClassVar[str]
    accepted: ClassVar[bytes]
    """Head of the answer to a request whose response comes on the stream. Date and blank line are added later."""
    taken: ClassVar[bytes] = b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n"
    """Head of the answer to an envelope that has no response."""
    clients: Clients
    intake: RequestHandler
    streams: Streams
    delivery: Delivery
    websockets: WebSocketTransport
    lines: Pool
    """Threads that parse large bodies."""
    max_body: int

    async def read_envelope(self, body: bytes, read: Callable[[bytes], Envelope] = parse_envelope) -> Envelope:
        """Parse the envelope in a body. A large body is parsed in a thread. Raises the parser's errors."""
        return read(body) if len(body) <= LARGE_BYTES else await self.lines.run(read, body)

    def begin(self, connection: Connection, post: Post) -> None:
        """Note that a client waits for the answer to a POST."""
        post.is_counted = True
        connection.busy += 1

    @step
    def on_accepted(self, connection: Connection, post: Post, taken: int | Exception) -> None:
        """Answer a POST whose request was accepted or refused. The response comes on the stream."""
        if isinstance(taken, Exception):
            self.fail(connection, post, taken)
        else:
            # The stream brings the response, whatever becomes of this POST.
            post.request_id = None
            self.clients.when_safe(connection, taken, partial(self._on_kept, connection, post))

    @step
    def _on_kept(self, connection: Connection, post: Post, failure: Exception | None) -> None:
        if failure is None:
            post.respond(self.accepted, b"")
            self.end(connection, post)
        else:
            self.fail(connection, post, failure)

    @step
    def on_taken(self, connection: Connection, post: Post, taken: int | Exception) -> None:
        """Answer a POST of a notification or of an answer, which has no response."""
        if isinstance(taken, Exception):
            self.fail(connection, post, taken)
        else:
            post.respond(self.taken, b"")
            self.end(connection, post)

    def fail(self, connection: Connection, post: Post, error: Exception) -> None:
        """Answer a POST with an error. If the client of a request has left, the error goes to the stream."""
        problem = as_problem(error, self.path)
        try:
            is_late = isinstance(error, AgentTimeout) and error.late is not None
            if not post.refuse(problem) and post.request_id is not None and not is_late:
                self.clients.tell(connection, failure(post.request_id, problem))
        finally:
            self.end(connection, post)

    def recover(self, connection: Connection | None, post: Post, error: Exception) -> None:
        """Answer a POST after a step of its answer failed. If it has an answer already, the error is only logged."""
        if connection is None:
            post.refuse(as_problem(error, self.path))
        elif post.response_complete:
            logger.error("answer not finished path=%s", self.path, exc_info=error)
            self.end(connection, post)
        else:
            self.fail(connection, post, error)

    def end(self, connection: Connection, post: Post) -> None:
        """Note that a POST has ended. Later calls are ignored."""
        if post.is_counted:
            post.is_counted = False
            connection.busy -= 1
            connection.used_at = self.clients.monotonic()

    async def position(self, value: bytes) -> int:
        """Return the position that a client has read up to. Raises BadRequest for an impossible position."""
        if not value.isdigit() or len(value) > MAX_DIGITS:
            raise BadRequest("Last-Event-ID must be the number of an event", lastEventId=value.decode("latin-1"))
        after = int(value)
        if not await self.clients.has_sent(after):
            raise BadRequest("Last-Event-ID is the number of an event that this server has not sent", lastEventId=after)
        return after

    async def stream_events(
        self,
        scope: Scope,
        send: Send,
        connection: Connection,
        stream: Stream,
        first: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Answer with a stream until it ends. `first` is awaited when the response has begun, before any event."""
        try:
            await write_stream(scope, send, connection, stream, first)
        finally:
            self.streams.forget(connection, stream)
            connection.used_at = self.clients.monotonic()
        await send({"type": "http.response.body", "body": b""})

    async def upgrade(
        self,
        scope: Scope,
        find: Callable[[Scope], Awaitable[tuple[Connection | None, int]]],
        id_header: str,
        headers: list[tuple[str, str]],
        agent: str | None = None,
    ) -> None:
        """Serve a request as a WebSocket, with the connection and the cursor that `find` returns.

        A client that offers our subprotocol gets the reason for a refusal as a close code: browsers show no status.
        """
        try:
            connection, after = await find(scope)
        except SandboxAgentError as error:
            if not offers_ids(scope):
                raise
            self.websockets.refuse(scope, error)
            return
        await self.websockets(scope, connection, after, headers, id_header, agent)

    async def connection(self, connection_id: str) -> Connection:
        """Return the connection with an id. Raises UnknownConnection."""
        connection = await self.clients.find(connection_id)
        if connection is None:
            raise UnknownConnection
        return connection

    async def close_unheard(self, connection: Connection) -> None:
        """Close a connection whose client left before it got the id: nobody else knows the id."""
        await self.clients.close(connection, "the client left before it was open")

    async def close(self, connection_id: str) -> None:
        """Close a connection at its client's request, if it exists."""
        connection = await self.clients.find(connection_id)
        if connection is not None:
            await self.clients.close(connection, "the client closed the connection")


def as_problem(error: Exception, path: str) -> SandboxAgentError:
    """Return the error that a client gets for a failure. An unexpected failure is logged."""
    if isinstance(error, SandboxAgentError):
        return error
    logger.error("request failed method=POST path=%s", path, exc_info=error)
    return InternalError()


async def read_body(scope: Scope, receive: Receive, most: int) -> bytes:
    """Read the whole body of a request.

    Raises BodyTooLarge, or ClientDisconnected when the client leaves before its end.
    """
    length = header(scope, b"content-length")
    if length is not None and int(length) > most:
        raise BodyTooLarge(most)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > most:
            raise BodyTooLarge(most)
        parts.append(part)
        if not message.get("more_body"):
            return parts[0] if len(parts) == 1 else b"".join(parts)


async def write_stream(
    scope: Scope,
    send: Send,
    connection: Connection,
    stream: Stream,
    first: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Begin a response, and write events until the stream or its reader ends; the caller ends the response."""
    await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
    stream.direct = write_part(scope)
    try:
        while (data := await stream.next()) is not None:
            await send({"type": "http.response.body", "body": data, "more_body": True})
            if is_gone(scope):
                break
            if first is not None:
                await first()
                first = None
    except LogUnavailable as error:
        # The response has begun, so the server can only end it. The client resumes by id.
        logger.warning("stream ended connection=%s reason=%s", connection.tag, error)
