"""Serve `/acp`, the transport that the SDKs of ACP speak, over the same hub as `/v1/rpc`.

POST takes one envelope, GET streams the events of the connection or of one session, DELETE closes the connection. An
upgraded GET is a WebSocket for everything. All responses come on a stream, except the response to `initialize`.
"""

import secrets
from collections import Counter
from collections.abc import Callable
from functools import partial
from urllib.parse import quote

from msgspec import field

from sandboxagent.core.tasks import Tasks
from sandboxagent.protocol import headers, methods
from sandboxagent.protocol.envelope import LARGE_BYTES, Envelope, Kind, failure, parse_envelope
from sandboxagent.protocol.errors import (
    BadRequest,
    BatchNotSupported,
    MethodNotAllowed,
    MissingConnection,
    NotFound,
    SandboxAgentError,
    TooMany,
)
from sandboxagent.server.http.asgi import (
    EVENT_STREAM,
    JSON,
    Receive,
    Response,
    Scope,
    Send,
    check_accept,
    check_json,
    header,
    json_headers,
    offers_websocket,
    respond,
    transport,
)
from sandboxagent.server.http.body import METHODS, Transport, as_problem, query
from sandboxagent.server.http.posts import Post
from sandboxagent.server.http.stream_source import StreamPart
from sandboxagent.server.sessions.connection import Connection
from sandboxagent.server.sessions.reply import Reply

PATH = "/acp"
_CONNECTION = headers.raw(headers.ACP_CONNECTION_ID)
_OUR_CONNECTION = headers.raw(headers.CONNECTION_ID)
_SESSION = headers.raw(headers.ACP_SESSION_ID)
_AFTER = headers.raw(headers.RESUME_AFTER)
MAX_SESSION_ID = 1024


def _make_affinity() -> str:
    return f"acp-affinity={secrets.token_urlsafe(12)}; Path={PATH}; HttpOnly; SameSite=Strict"


class Acp(Transport, eq=False):
    """The transport of the contract, section 14."""

    path = PATH
    accepted = Transport.taken
    max_streams: int
    _under_way: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """Number of requests that wait for their answers, by connection and session."""
    _affinity: str = field(default_factory=_make_affinity)
    """Cookie by which a load balancer may send a client to the same server again. The server itself ignores it."""
    _tasks: Tasks = field(default_factory=Tasks)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["method"]:
            case "GET":
                await self._get(scope, send)
            case "DELETE":
                await self._delete(scope, send)
            case method:
                raise MethodNotAllowed(method, scope["path"], METHODS)

    # POST

    def read_post(self, scope: Scope) -> Callable[[Post], None]:
        """Return the function that takes POSTs with this head. Raises SandboxAgentError for an invalid head."""
        check_json(header(scope, b"content-type"))
        check_accept(header(scope, b"accept"), JSON)
        agent, connection_id, session = self._agent(scope), _connection_id(scope), _session_named(scope)
        if connection_id is None:
            return partial(self._take_first, agent)
        self.clients.look_up(connection_id)
        return partial(self._take, connection_id, session)

    def _take(self, connection_id: str, session: str | None, post: Post) -> None:
        """Take an envelope from a client."""
        connection: Connection | None = None
        try:
            connection = self.clients.look_up(connection_id)
            if connection is None or len(post.body) > LARGE_BYTES:
                self._tasks.run(self._take_later(connection_id, session, post), "take a post")
            else:
                self._take_from(connection, post, _parse(post.body), session)
        except Exception as error:
            self.recover(connection, post, error)

    async def _take_later(self, connection_id: str, session: str | None, post: Post) -> None:
        """Take an envelope that is large, or whose connection only other servers may know."""
        connection: Connection | None = None
        try:
            envelope = await self.read_envelope(post.body, _parse)
            connection = await self.connection(connection_id)
            self._take_from(connection, post, envelope, session)
        except Exception as error:
            self.recover(connection, post, error)

    def _take_from(self, connection: Connection, post: Post, envelope: Envelope, session: str | None) -> None:
        self._check_session(session, connection, envelope)
        self.begin(connection, post)
        if envelope.kind is Kind.REQUEST:
            post.request_id = envelope.id
            self._begin(connection, envelope).when_accepted(partial(self.on_accepted, connection, post))
        else:
            self.delivery.take(connection, envelope).when_accepted(partial(self.on_taken, connection, post))

    def _take_first(self, agent: str | None, post: Post) -> None:
        self._tasks.run(self._open(agent, post), "open a connection")

    async def _open(self, agent: str | None, post: Post) -> None:
        try:
            post.reply(await self._greet(agent, post))
        except Exception as error:
            post.refuse(as_problem(error, PATH))

    async def _greet(self, agent: str | None, post: Post) -> Response:
        envelope = await self.read_envelope(post.body, _parse)
        if envelope.kind is not Kind.REQUEST or envelope.method != methods.INITIALIZE or envelope.id is None:
            raise MissingConnection
        try:
            connection, answer = await self.intake.open(envelope, agent)
            if post.is_gone():
                await self.close_unheard(connection)
            connection_id, line = connection.connection_id, answer.line
        except SandboxAgentError as error:
            # Clients look for an id even with an error, and show the error only then. This id has no connection.
            connection_id, line = secrets.token_urlsafe(24), failure(envelope.id, error)
        identity = [(_CONNECTION, connection_id.encode()), (b"set-cookie", self._affinity.encode())]
        return Response(200, [*json_headers(line), *identity], line)

    def _begin(self, connection: Connection, envelope: Envelope) -> Reply:
        session_id = self._resolve(envelope.session_id or "")
        flush = None
        if envelope.method in (methods.LOAD, methods.RESUME):
            # Replayed events go to the session's stream, and the response to the connection's.
            flush = partial(self._flush, connection, session_id)
        self._under_way[connection.tag, session_id] += 1
        after = partial(self._answered, connection, session_id)
        return self.delivery.deliver(connection, envelope, before=flush, after=after)

    def _answered(self, connection: Connection, session_id: str) -> None:
        key = (connection.tag, session_id)
        self._under_way[key] -= 1
        if self._under_way[key] > 0:
            return
        del self._under_way[key]
        if self.streams.find(connection, StreamPart(session_id)) is not None:
            connection.session_streams.setdefault(session_id, self.clients.position)

    async def _flush(self, connection: Connection, session_id: str | None) -> None:
        stream = self.streams.find(connection, StreamPart(session_id))
        if stream is not None:
            await stream.flushed()

    def _check_session(self, header: str | None, connection: Connection, envelope: Envelope) -> None:
        """Raise BadRequest if the header names another session than the envelope does. The header may be missing."""
        if header is None or envelope.method == methods.CANCEL_REQUEST:
            return
        named = self._resolve(header)
        meant = envelope.session_id
        if envelope.kind is Kind.RESPONSE:
            meant = connection.session_of_request(envelope.id or b"null")
        if meant is not None and self._resolve(meant) != named:
            raise BadRequest(f"{headers.ACP_SESSION_ID} names another session than the envelope", sessionId=meant)

    # GET

    async def _get(self, scope: Scope, send: Send) -> None:
        if offers_websocket(scope):
            await self._upgrade(scope)
            return
        check_accept(header(scope, b"accept"), EVENT_STREAM)
        self._agent(scope)
        connection, session_id = await self._find_connection(scope), self._session(scope)
        if connection is None:
            raise MissingConnection
        part, given = StreamPart(session_id), header(scope, _AFTER)
        after = self.streams.cursor(connection, part) if given is None else await self.position(given)
        begins = session_id is not None and self._give_stream(connection, session_id)
        if session_id is not None:
            after = max(after, connection.session_streams.get(session_id, self.clients.position))
        stream = self.streams.open(connection, after, transport(scope), part=part)
        # Events that went to the connection's stream so far are read before those on this stream.
        first = partial(self._flush, connection, None) if begins else None
        await self.stream_events(scope, send, connection, stream, first)

    def _give_stream(self, connection: Connection, session_id: str) -> bool:
        """Give the session's events a stream of their own from here on. Return whether that begins now.

        While a request of the session is under way, it begins after the answer.
        """
        given = connection.session_streams
        if session_id in given or self._under_way.get((connection.tag, session_id)):
            return False
        if len(given) >= self.max_streams:
            idle = (one for one in given if self.streams.find(connection, StreamPart(one)) is None)
            oldest = next(idle, None)
            if oldest is None:
                raise TooMany("streams of sessions", self.max_streams, "--session-streams")
            del given[oldest]
            connection.cursors.pop(oldest, None)
        given[session_id] = self.clients.position
        return True

    async def _upgrade(self, scope: Scope) -> None:
        cookie = [("Set-Cookie", self._affinity)]
        await self.upgrade(scope, self._resumed, headers.ACP_CONNECTION_ID, cookie, self._agent(scope))

    async def _resumed(self, scope: Scope) -> tuple[Connection | None, int]:
        connection, given = await self._find_connection(scope), query(scope).get("after")
        if given is not None:
            return connection, await self.position(given.encode())
        return connection, connection.served if connection else 0

    # DELETE

    async def _delete(self, scope: Scope, send: Send) -> None:
        connection_id = _connection_id(scope)
        if connection_id is None:
            raise MissingConnection
        await self.close(connection_id)
        await respond(send, 202, [(b"content-length", b"0")])

    # Names in a request

    async def _find_connection(self, scope: Scope) -> Connection | None:
        """Return the connection that a request names; None when it names none. Raises UnknownConnection."""
        connection_id = _connection_id(scope)
        return None if connection_id is None else await self.connection(connection_id)

    def _session(self, scope: Scope) -> str | None:
        named = _session_named(scope)
        return None if named is None else self._resolve(named)

    def _resolve(self, session_id: str) -> str:
        """Return the id of a session for an alias or an id. The session need not be known yet."""
        return (self.clients.find_session(session_id) if session_id else None) or session_id

    @staticmethod
    def _agent(scope: Scope) -> str | None:
        """Return the agent in the URL: `/acp/claude`, or `/acp?agent=claude`."""
        _, _, name = scope["path"].removeprefix(PATH).partition("/")
        if "/" in name:
            raise NotFound(quote(scope["path"]))
        return name or query(scope).get("agent")


def _connection_id(scope: Scope) -> str | None:
    """Return the connection's id, from a header with either name.

    For a WebSocket it may come from the query, because browsers set no headers.
    """
    named = [value for name in (_CONNECTION, _OUR_CONNECTION) if (value := scope["headers_by_name"].get(name))]
    found = {value.decode("latin-1") for value in named}
    if offers_websocket(scope) and not found and (given := query(scope).get("connection")):
        return given
    if len(found) > 1:
        raise BadRequest(f"{headers.ACP_CONNECTION_ID} and {headers.CONNECTION_ID} name two connections")
    return next(iter(found), None)


def _session_named(scope: Scope) -> str | None:
    value = header(scope, _SESSION)
    if value is None:
        return None
    if not 0 < len(value) <= MAX_SESSION_ID:
        raise BadRequest(f"{headers.ACP_SESSION_ID} must be 1 to {MAX_SESSION_ID} characters long")
    return value.decode("latin-1")


def _parse(body: bytes) -> Envelope:
    if body.lstrip()[:1] == b"[":
        raise BatchNotSupported
    return parse_envelope(body)
