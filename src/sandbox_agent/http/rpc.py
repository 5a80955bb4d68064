"""/v1/rpc: POST takes one envelope, GET streams envelopes, DELETE closes the connection. Plain ASGI, for speed.

An upgraded GET is a WebSocket for everything.
"""

import logging
from collections.abc import Awaitable, Callable

from sandbox_agent.envelope import Envelope, Kind, parse
from sandbox_agent.errors import BadRequest, BodyTooLarge, LogUnavailable, MethodNotAllowed, MissingConnection
from sandbox_agent.http.asgi import (
    Receive,
    Scope,
    Send,
    header,
    is_gone,
    json_headers,
    offers_websocket,
    respond,
    transport,
)
from sandbox_agent.http.delivery import Delivery
from sandbox_agent.http.duplex import Duplex, query
from sandbox_agent.http.negotiate import EVENT_STREAM, JSON, check_accept, check_json, wants_async
from sandbox_agent.http.stream import Stream, Streams
from sandbox_agent.hub.calls import Answer
from sandbox_agent.hub.connection import Connection
from sandbox_agent.hub.from_client import FromClient
from sandbox_agent.hub.hub import Hub
from sandbox_agent.hub.idempotency import MAX_KEY
from sandbox_agent.wire import headers, methods

logger = logging.getLogger(__name__)

METHODS = "DELETE, GET, POST"
_CONNECTION = headers.raw(headers.CONNECTION_ID)
_LAST_EVENT = headers.raw(headers.LAST_EVENT)
_AFTER = headers.raw(headers.RESUME_AFTER)
_KEY = headers.raw(headers.IDEMPOTENCY_KEY)
_PREFER = headers.raw(headers.PREFER)
_APPLIED = (headers.raw(headers.PREFERENCE_APPLIED), headers.RESPOND_ASYNC.encode())
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
MAX_DIGITS = 19
"""Of a position in the log."""


class ClientGone(Exception):
    """The client left before it sent the whole body; there is nothing to do."""


class Rpc:
    """The transport of the contract, sections 2 to 4."""

    def __init__(
        self,
        hub: Hub,
        from_client: FromClient,
        streams: Streams,
        delivery: Delivery,
        duplex: Duplex,
        max_body: int,
    ) -> None:
        self._hub = hub
        self._from_client = from_client
        self._streams = streams
        self._delivery = delivery
        self._duplex = duplex
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["method"]:
            case "POST":
                await self._post(scope, receive, send)
            case "GET":
                await (self._upgrade(scope) if offers_websocket(scope) else self._get(scope, send))
            case "DELETE":
                await self._delete(scope, send)
            case method:
                raise MethodNotAllowed(method, "/v1/rpc", METHODS)

    # POST

    async def _post(self, scope: Scope, receive: Receive, send: Send) -> None:
        check_json(header(scope, b"content-type"))
        check_accept(header(scope, b"accept"), JSON)
        connection_id = header(scope, _CONNECTION)
        connection = None if connection_id is None else self._hub.connections.get(connection_id.decode("latin-1"))
        try:
            envelope = parse(await read_body(scope, receive, self._max_body))
        except ClientGone:
            return
        if connection is None:
            await self._open(envelope, send)
            return
        connection.used_at = self._hub.monotonic()
        connection.busy += 1
        try:
            await self._dispatch(scope, send, connection, envelope)
        finally:
            connection.busy -= 1
            connection.used_at = self._hub.monotonic()

    async def _dispatch(self, scope: Scope, send: Send, connection: Connection, envelope: Envelope) -> None:
        if envelope.kind is Kind.REQUEST:
            key = self._idempotency_key(scope)
            if wants_async(header(scope, _PREFER)):
                await self._accept(connection, envelope, key, send)
                return
            accepted = await self._from_client.accept(connection, envelope, key)
            await self._answer(scope, send, connection, await accepted.answer)
            return
        if envelope.kind is Kind.NOTIFICATION:
            await self._from_client.notify(connection, envelope)
        else:
            await self._from_client.answer(connection, envelope)
        await respond(send, 202, [(b"content-length", b"0")])

    async def _open(self, envelope: Envelope, send: Send) -> None:
        if envelope.kind is not Kind.REQUEST or envelope.method != methods.INITIALIZE:
            raise MissingConnection
        connection, answer = await self._from_client.open(envelope)
        identity = (_CONNECTION, connection.connection_id.encode())
        await _send_json(send, answer.line, [identity, (_LAST_EVENT, b"%d" % connection.last_event)])

    async def _answer(self, scope: Scope, send: Send, connection: Connection, answer: Answer) -> None:
        if answer.commit:
            await self._hub.log.committed(answer.commit)
        last = connection.last_event
        if connection.stream is not None:
            await connection.stream.caught_up(last)
        if is_gone(scope):
            self._hub.tell_connection(connection, answer.line)
            return
        await _send_json(send, answer.line, [(_LAST_EVENT, b"%d" % last)])

    async def _accept(self, connection: Connection, envelope: Envelope, key: str | None, send: Send) -> None:
        """202 as soon as the request is kept; its response comes on the stream."""
        await self._hub.log.committed(await self._delivery.begin(connection, envelope, key))
        await respond(send, 202, [(b"content-length", b"0"), _APPLIED])

    @staticmethod
    def _idempotency_key(scope: Scope) -> str | None:
        value = header(scope, _KEY)
        if value is None:
            return None
        if not value or len(value) > MAX_KEY:
            raise BadRequest(f"Idempotency-Key must be 1 to {MAX_KEY} characters long")
        return value.decode("latin-1")

    # GET

    async def _get(self, scope: Scope, send: Send) -> None:
        check_accept(header(scope, b"accept"), EVENT_STREAM)
        connection = self._connection(scope)
        value = header(scope, _AFTER)
        after = 0 if value is None else position(self._hub, value)
        stream = self._streams.open(connection, after, transport(scope))
        await stream_events(scope, send, self._hub, self._streams, connection, stream)

    async def _upgrade(self, scope: Scope) -> None:
        """A WebSocket; a browser, which sets no headers, names its connection in the query."""
        asked = query(scope)
        named = header(scope, _CONNECTION)
        connection_id = asked.get("connection") if named is None else named.decode("latin-1")
        connection = None if connection_id is None else self._hub.connections.get(connection_id)
        after = position(self._hub, asked["after"].encode()) if "after" in asked else 0
        await self._duplex(scope, connection, after, [], headers.CONNECTION_ID)

    # DELETE

    async def _delete(self, scope: Scope, send: Send) -> None:
        connection_id = header(scope, _CONNECTION)
        if connection_id is None:
            raise MissingConnection
        connection = self._hub.connections.find(connection_id.decode("latin-1"))
        if connection is not None:
            self._hub.close_connection(connection, "the client closed the connection")
        await respond(send, 204, [])

    def _connection(self, scope: Scope) -> Connection:
        connection_id = header(scope, _CONNECTION)
        if connection_id is None:
            raise MissingConnection
        return self._hub.connections.get(connection_id.decode("latin-1"))


async def _send_json(send: Send, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    await respond(send, 200, [*json_headers(body), *headers], body)


async def read_body(scope: Scope, receive: Receive, max_body: int) -> bytes:
    """The whole body of a request; raises BodyTooLarge, or ClientGone when it does not come to its end."""
    length = header(scope, b"content-length")
    if length is not None and int(length) > max_body:
        raise BodyTooLarge(max_body)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > max_body:
            raise BodyTooLarge(max_body)
        parts.append(part)
        if not message.get("more_body"):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def position(hub: Hub, value: bytes) -> int:
    """The position that a client has read up to; raises BadRequest for one that it cannot have."""
    if not value.isdigit() or len(value) > MAX_DIGITS:
        raise BadRequest("Last-Event-ID must be the number of an event", lastEventId=value.decode("latin-1"))
    after = int(value)
    if after > hub.log.position:
        raise BadRequest("Last-Event-ID is the number of an event that this server has not sent", lastEventId=after)
    return after


async def stream_events(
    scope: Scope,
    send: Send,
    hub: Hub,
    streams: Streams,
    connection: Connection,
    stream: Stream,
    first: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Answer with a stream, to its end; `first` is awaited when the response has begun, before any event."""
    await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
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
    finally:
        streams.forget(connection, stream)
        connection.used_at = hub.monotonic()
    await send({"type": "http.response.body", "body": b""})
