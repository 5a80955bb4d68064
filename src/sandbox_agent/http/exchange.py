"""What `/v1/rpc` and `/acp` do alike: read a body, write a stream, go on as a WebSocket, close a connection."""

import logging
from collections.abc import Awaitable, Callable

from msgspec import Struct

from sandbox_agent.errors import BadRequest, BodyTooLarge, LogUnavailable, SandboxAgentError, UnknownConnection
from sandbox_agent.http.asgi import Receive, Scope, Send, header, is_gone, write_part
from sandbox_agent.http.clients import Clients, Intake
from sandbox_agent.http.delivery import Delivery
from sandbox_agent.http.duplex import Duplex, offers_ids
from sandbox_agent.http.stream import Stream, Streams
from sandbox_agent.hub.connections import Connection

logger = logging.getLogger(__name__)

METHODS = "DELETE, GET, POST"
MAX_DIGITS = 19
"""Of a position in the log."""
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class ClientGone(Exception):
    """The client left before it sent the whole body; there is nothing to do."""


class Exchange(Struct, eq=False):
    """The parts of the server that both transports stand on."""

    clients: Clients
    intake: Intake
    streams: Streams
    delivery: Delivery
    duplex: Duplex
    max_body: int

    async def position(self, value: bytes) -> int:
        """The position that a client has read up to; raises BadRequest for one that it cannot have."""
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
        """Answer with a stream, to its end; `first` is awaited when the response has begun, before any event."""
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
        """Go on as a WebSocket, with the connection and the cursor that `find` finds.

        A client that knows our subprotocol learns why it is refused from a close code: browsers show no status.
        """
        try:
            connection, after = await find(scope)
        except SandboxAgentError as error:
            if not offers_ids(scope):
                raise
            self.duplex.refuse(scope, error)
            return
        await self.duplex(scope, connection, after, headers, id_header, agent)

    async def connection(self, connection_id: str) -> Connection:
        """Raises UnknownConnection."""
        connection = await self.clients.find(connection_id)
        if connection is None:
            raise UnknownConnection
        return connection

    async def close(self, connection_id: str) -> None:
        """Close a connection for its client, if it is there."""
        connection = await self.clients.find(connection_id)
        if connection is not None:
            await self.clients.close(connection, "the client closed the connection")


async def read_body(scope: Scope, receive: Receive, most: int) -> bytes:
    """The whole body of a request; raises BodyTooLarge, or ClientGone when it does not come to its end."""
    length = header(scope, b"content-length")
    if length is not None and int(length) > most:
        raise BodyTooLarge(most)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
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
        # The response has begun, so all that is left is to end it; the client resumes by id.
        logger.warning("stream ended connection=%s reason=%s", connection.tag, error)
