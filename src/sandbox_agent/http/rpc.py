"""/v1/rpc: POST takes one envelope, GET streams envelopes, DELETE closes the connection. Plain ASGI, for speed.

An upgraded GET is a WebSocket for everything.
"""

from sandbox_agent.envelope import Envelope, Kind, parse
from sandbox_agent.errors import BadRequest, MethodNotAllowed, MissingConnection
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
from sandbox_agent.http.duplex import query
from sandbox_agent.http.exchange import METHODS, ClientGone, Exchange, read_body
from sandbox_agent.http.negotiate import EVENT_STREAM, JSON, check_accept, check_json, wants_async
from sandbox_agent.hub.calls import Answer
from sandbox_agent.hub.connection import Connection
from sandbox_agent.hub.idempotency import MAX_KEY
from sandbox_agent.wire import headers, methods

_CONNECTION = headers.raw(headers.CONNECTION_ID)
_LAST_EVENT = headers.raw(headers.LAST_EVENT)
_AFTER = headers.raw(headers.RESUME_AFTER)
_KEY = headers.raw(headers.IDEMPOTENCY_KEY)
_PREFER = headers.raw(headers.PREFER)
_APPLIED = (headers.raw(headers.PREFERENCE_APPLIED), headers.RESPOND_ASYNC.encode())


class Rpc(Exchange):
    """The transport of the contract, sections 2 to 4."""

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
        connection = None if connection_id is None else self.hub.connections.get(connection_id.decode("latin-1"))
        try:
            envelope = parse(await read_body(scope, receive, self.max_body))
        except ClientGone:
            return
        if connection is None:
            await self._open(envelope, send)
            return
        connection.used_at = self.hub.monotonic()
        connection.busy += 1
        try:
            await self._dispatch(scope, send, connection, envelope)
        finally:
            connection.busy -= 1
            connection.used_at = self.hub.monotonic()

    async def _dispatch(self, scope: Scope, send: Send, connection: Connection, envelope: Envelope) -> None:
        if envelope.kind is Kind.REQUEST:
            key = self._idempotency_key(scope)
            if wants_async(header(scope, _PREFER)):
                await self._accept(connection, envelope, key, send)
                return
            accepted = await self.from_client.accept(connection, envelope, key)
            await self._answer(scope, send, connection, await accepted.answer)
            return
        if envelope.kind is Kind.NOTIFICATION:
            await self.from_client.notify(connection, envelope)
        else:
            await self.from_client.answer(connection, envelope)
        await respond(send, 202, [(b"content-length", b"0")])

    async def _open(self, envelope: Envelope, send: Send) -> None:
        if envelope.kind is not Kind.REQUEST or envelope.method != methods.INITIALIZE:
            raise MissingConnection
        connection, answer = await self.from_client.open(envelope)
        identity = (_CONNECTION, connection.connection_id.encode())
        await _send_json(send, answer.line, [identity, (_LAST_EVENT, b"%d" % connection.last_event)])

    async def _answer(self, scope: Scope, send: Send, connection: Connection, answer: Answer) -> None:
        if answer.commit:
            await self.hub.log.committed(answer.commit)
        last = connection.last_event
        if connection.stream is not None:
            await connection.stream.caught_up(last)
        if is_gone(scope):
            self.hub.tell_connection(connection, answer.line)
            return
        await _send_json(send, answer.line, [(_LAST_EVENT, b"%d" % last)])

    async def _accept(self, connection: Connection, envelope: Envelope, key: str | None, send: Send) -> None:
        """202 as soon as the request is kept; its response comes on the stream."""
        await self.hub.log.committed(await self.delivery.begin(connection, envelope, key))
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
        after = 0 if value is None else self.position(value)
        stream = self.streams.open(connection, after, transport(scope))
        await self.stream_events(scope, send, connection, stream)

    async def _upgrade(self, scope: Scope) -> None:
        await self.upgrade(scope, self._resumed, headers.CONNECTION_ID, [])

    def _resumed(self, scope: Scope) -> tuple[Connection | None, int]:
        """Where a WebSocket goes on; a browser, which sets no headers, names its connection in the query."""
        asked = query(scope)
        named = header(scope, _CONNECTION)
        connection_id = asked.get("connection") if named is None else named.decode("latin-1")
        connection = None if connection_id is None else self.hub.connections.get(connection_id)
        return connection, self.position(asked["after"].encode()) if "after" in asked else 0

    # DELETE

    async def _delete(self, scope: Scope, send: Send) -> None:
        connection_id = header(scope, _CONNECTION)
        if connection_id is None:
            raise MissingConnection
        self.close(connection_id.decode("latin-1"))
        await respond(send, 204, [])

    def _connection(self, scope: Scope) -> Connection:
        connection_id = header(scope, _CONNECTION)
        if connection_id is None:
            raise MissingConnection
        return self.hub.connections.get(connection_id.decode("latin-1"))


async def _send_json(send: Send, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    await respond(send, 200, [*json_headers(body), *headers], body)
