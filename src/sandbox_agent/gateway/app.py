"""A gateway's front door: the guard, then `/v1/rpc`, what nodes answer, and what the gateway answers itself."""

import time

import msgspec

from sandbox_agent.envelope import Kind, parse
from sandbox_agent.errors import (
    BadRequest,
    MethodNotAllowed,
    MissingConnection,
)
from sandbox_agent.gateway.feed import Feed
from sandbox_agent.gateway.forwarding import Forwarding, is_forwarded
from sandbox_agent.gateway.readers import Readers, read_only
from sandbox_agent.gateway.views import GatewayViews
from sandbox_agent.http.asgi import Receive, Scope, Send, header, json_headers, respond, transport
from sandbox_agent.http.control import make_control_app
from sandbox_agent.http.exchange import MAX_DIGITS, METHODS, ClientGone, read_body, write_stream
from sandbox_agent.http.front import FrontDoor
from sandbox_agent.http.guard import Guard
from sandbox_agent.http.negotiate import EVENT_STREAM, JSON, check_accept, check_json
from sandbox_agent.http.stream import Streams
from sandbox_agent.http.ui import Ui
from sandbox_agent.http.views import Endpoint
from sandbox_agent.wire import headers, methods

_CONNECTION = headers.raw(headers.CONNECTION_ID)
_LAST_EVENT = headers.raw(headers.LAST_EVENT)
_AFTER = headers.raw(headers.RESUME_AFTER)


class GatewayApp(FrontDoor):
    """The ASGI app of a gateway."""

    def __init__(
        self,
        guard: Guard,
        readers: Readers,
        feed: Feed,
        streams: Streams,
        max_body: int,
        views: GatewayViews,
        forwarding: Forwarding,
        ui: Ui,
    ) -> None:
        super().__init__(guard)
        self._readers = readers
        self._feed = feed
        self._streams = streams
        self._max_body = max_body
        self._views = views
        self._forwarding = forwarding
        self._control = make_control_app(views.endpoints(), ui, _describe_forwarded)

    async def route(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, path = scope["method"], scope["path"]
        if path == "/v1/rpc":
            match method:
                case "POST":
                    await self._post(scope, receive, send)
                case "GET":
                    await self._stream(scope, send)
                case "DELETE":
                    self._readers.close(self._connection_id(scope), "the client closed the connection")
                    await respond(send, 204, [])
                case _:
                    raise MethodNotAllowed(method, path, METHODS)
            return
        if path == "/v1/health" and method == "GET":
            await _send_json(send, self._views.health())
        elif is_forwarded(path):
            await self._forwarding(scope, receive, send)
        else:
            await self._control(scope, receive, send)

    async def _post(self, scope: Scope, receive: Receive, send: Send) -> None:
        check_json(header(scope, b"content-type"))
        check_accept(header(scope, b"accept"), JSON)
        named = header(scope, _CONNECTION)
        connection = None if named is None else self._readers.get(named.decode("latin-1"))
        try:
            envelope = parse(await read_body(scope, receive, self._max_body))
        except ClientGone:
            return
        if connection is None:
            if envelope.kind is not Kind.REQUEST or envelope.method != methods.INITIALIZE:
                raise MissingConnection
            connection, line = await self._readers.open(envelope)
        elif envelope.kind is not Kind.REQUEST:
            raise read_only(envelope.method or "an answer")
        else:
            line = await self._readers.answer(connection, envelope)
        identity = [(_CONNECTION, connection.connection_id.encode())] if named is None else []
        await _send_json(send, msgspec.Raw(line), [*identity, (_LAST_EVENT, b"%d" % connection.last_event)])

    async def _stream(self, scope: Scope, send: Send) -> None:
        check_accept(header(scope, b"accept"), EVENT_STREAM)
        connection = self._readers.get(self._connection_id(scope))
        after = await self._position(header(scope, _AFTER))
        stream = self._streams.open(connection, after, transport(scope))
        try:
            await write_stream(scope, send, connection, stream)
        finally:
            self._streams.forget(connection, stream)
            connection.used_at = time.monotonic()
        await send({"type": "http.response.body", "body": b""})

    async def _position(self, value: bytes | None) -> int:
        if value is None:
            return 0
        if not value.isdigit() or len(value) > MAX_DIGITS:
            raise BadRequest("Last-Event-ID must be the number of an event", lastEventId=value.decode("latin-1"))
        after = int(value)
        if after > self._feed.position and after > await self._feed.refresh():
            raise BadRequest("Last-Event-ID is the number of an event that this fleet has not sent", lastEventId=after)
        return after

    @staticmethod
    def _connection_id(scope: Scope) -> str:
        named = header(scope, _CONNECTION)
        if named is None:
            raise MissingConnection
        return named.decode("latin-1")


def _describe_forwarded() -> list[Endpoint]:
    # Much to import, for a document that is seldom read.
    from sandbox_agent.gateway.description import describe_forwarded

    return describe_forwarded()


async def _send_json(send: Send, value: object, more: list[tuple[bytes, bytes]] | None = None) -> None:
    body = msgspec.json.encode(value)
    await respond(send, 200, [*json_headers(body), *(more or [])], body)
