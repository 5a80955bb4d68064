"""Serve `/v1/rpc`: POST takes one envelope, GET streams envelopes, DELETE closes the connection.

An upgraded GET is a WebSocket for everything.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial

from msgspec import field

from sandboxagent.core.tasks import Tasks
from sandboxagent.fleet.messages import SAFE_AT
from sandboxagent.protocol import headers, methods
from sandboxagent.protocol.envelope import LARGE_BYTES, NOTIFICATION, REQUEST, Envelope, parse
from sandboxagent.protocol.errors import BadRequest, MethodNotAllowed, MissingConnection
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
    wants_async,
)
from sandboxagent.server.http.body import METHODS, Transport, as_problem, query, step
from sandboxagent.server.http.posts import GatewayPost, Post
from sandboxagent.server.sessions.connection import Connection, StreamSink
from sandboxagent.server.sessions.idempotency import MAX_KEY
from sandboxagent.server.sessions.reply import Answer

PATH = "/v1/rpc"
_CONNECTION = headers.raw(headers.CONNECTION_ID)
_LAST_EVENT = headers.raw(headers.LAST_EVENT)
_AFTER = headers.raw(headers.RESUME_AFTER)
_PREFER = headers.raw(headers.PREFER)
_APPLIED = (headers.raw(headers.PREFERENCE_APPLIED), headers.RESPOND_ASYNC.encode())
_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\ncache-control: no-store\r\n"
    + _LAST_EVENT
    + b": %d\r\n"
)
"""Head of a response, without date and blank line."""
_EARLY_HEAD = _HEAD + SAFE_AT + b": %d\r\n"

logger = logging.getLogger(__name__)


class Rpc(Transport, eq=False):
    """The transport of the contract, sections 2 to 4."""

    path = PATH
    accepted = b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n%b: %b\r\n" % _APPLIED
    _tasks: Tasks = field(default_factory=Tasks)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["method"]:
            case "GET":
                await (self._upgrade(scope) if offers_websocket(scope) else self._get(scope, send))
            case "DELETE":
                await self._delete(scope, send)
            case method:
                raise MethodNotAllowed(method, PATH, METHODS)

    # POST

    def read_post(self, scope: Scope) -> Callable[[Post], None]:
        """Return the function that takes POSTs with this head. Raises SandboxAgentError for an invalid head."""
        check_json(header(scope, b"content-type"))
        check_accept(header(scope, b"accept"), JSON)
        named = header(scope, _CONNECTION)
        if named is None:
            return self._take_first
        connection_id = named.decode("latin-1")
        # A connection that cannot exist is refused before the body is read.
        self.clients.look_up(connection_id)
        return partial(self._take, connection_id, wants_async(header(scope, _PREFER)))

    def _take(self, connection_id: str, is_async: bool, post: Post) -> None:
        """Take an envelope from a client."""
        connection: Connection | None = None
        try:
            connection = self.clients.look_up(connection_id)
            if connection is None or len(post.body) > LARGE_BYTES:
                self.run(self._take_later(connection_id, is_async, post))
            else:
                self._take_from(connection, post, parse(post.body), is_async)
        except Exception as error:
            self.recover(connection, post, error)

    async def _take_later(self, connection_id: str, is_async: bool, post: Post) -> None:
        """Take an envelope that is large, or whose connection only other servers may know."""
        connection: Connection | None = None
        try:
            envelope = await self.read_envelope(post.body)
            connection = await self.connection(connection_id)
            self._take_from(connection, post, envelope, is_async)
        except Exception as error:
            self.recover(connection, post, error)

    def _take_from(self, connection: Connection, post: Post, envelope: Envelope, is_async: bool) -> None:
        if envelope.kind is not REQUEST:
            self.begin(connection, post)
            take = self.intake.notify if envelope.kind is NOTIFICATION else self.intake.answer
            take(connection, envelope).when_accepted(partial(self.on_taken, connection, post))
            return
        key = None if post.key is None else _idempotency_key(post.key)
        post.request_id = envelope.id
        self.begin(connection, post)
        if is_async:
            reply = self.delivery.deliver(connection, envelope, key)
            reply.when_accepted(partial(self.on_accepted, connection, post))
        else:
            reply = self.intake.submit(connection, envelope, key)
            reply.when_answered(partial(self._on_answered, connection, post))

    # The steps of an answer, in callbacks of the agent's process or of the log

    @step
    def _on_answered(self, connection: Connection, post: Post, result: Answer | Exception) -> None:
        if isinstance(result, Exception):
            self.fail(connection, post, result)
            return
        if isinstance(post, GatewayPost):
            # A gateway sees by itself when the fleet's stream has the events that the answer refers to.
            last, line = connection.last_event, result.line
            post.respond_early(_EARLY_HEAD % (len(line), last, max(result.commit, last)), line)
        self.clients.when_safe(connection, result.commit, partial(self._on_answer_kept, connection, post, result))

    @step
    def _on_answer_kept(self, connection: Connection, post: Post, answer: Answer, failure: Exception | None) -> None:
        # When a gateway is gone, the fleet's stream brings the answer after all events that it refers to.
        if failure is not None and not (isinstance(post, GatewayPost) and post.is_gone()):
            self.fail(connection, post, failure)
            answer.release_updates()
            return
        stream, last = connection.stream, connection.last_event
        if stream is None or stream.has_sent(last):
            self._answer(connection, post, answer, last)
        else:
            self.run(self._answer_after(stream, connection, post, answer, last))

    async def _answer_after(
        self, stream: StreamSink, connection: Connection, post: Post, answer: Answer, last: int
    ) -> None:
        try:
            await stream.wait_sent(last)
            self._answer(connection, post, answer, last)
        except Exception as error:
            self.recover(connection, post, error)

    def _answer(self, connection: Connection, post: Post, answer: Answer, last: int) -> None:
        line = answer.line
        if not post.respond(_HEAD % (len(line), last), line):
            self.clients.tell(connection, line)
            answer.release_updates()
        elif answer.session_opened is not None and not isinstance(post, GatewayPost):
            # Writes in one turn of the event loop may reach their sockets in any order. A gateway tells this server
            # when it has sent the response.
            asyncio.get_running_loop().call_soon(answer.session_opened)
        self.end(connection, post)

    def _take_first(self, post: Post) -> None:
        """Take the envelope that opens a connection."""
        self.run(self._open(post))

    async def _open(self, post: Post) -> None:
        try:
            connection, answer = await self.intake.open(await self._read_first(post))
            if post.is_gone():
                await self.close_unheard(connection)
            ours = [(_CONNECTION, connection.connection_id.encode()), (_LAST_EVENT, b"%d" % connection.last_event)]
            post.reply(Response(200, [*json_headers(answer.line), *ours], answer.line))
        except Exception as error:
            post.refuse(as_problem(error, PATH))

    async def _read_first(self, post: Post) -> Envelope:
        envelope = await self.read_envelope(post.body)
        if envelope.kind is not REQUEST or envelope.method != methods.INITIALIZE:
            raise MissingConnection
        return envelope

    def run(self, work: Coroutine[object, object, None]) -> None:
        self._tasks.run(work, "answer a post")

    # GET

    async def _get(self, scope: Scope, send: Send) -> None:
        check_accept(header(scope, b"accept"), EVENT_STREAM)
        connection = await self._connection(scope)
        value = header(scope, _AFTER)
        after = 0 if value is None else await self.position(value)
        stream = self.streams.open(connection, after, transport(scope))
        await self.stream_events(scope, send, connection, stream)

    async def _upgrade(self, scope: Scope) -> None:
        await self.upgrade(scope, self._resumed, headers.CONNECTION_ID, [])

    async def _resumed(self, scope: Scope) -> tuple[Connection | None, int]:
        """Return the connection and the position at which a WebSocket continues.

        A browser cannot set headers, and names its connection in the query.
        """
        asked = query(scope)
        named = header(scope, _CONNECTION)
        connection_id = asked.get("connection") if named is None else named.decode("latin-1")
        connection = None if connection_id is None else await self.connection(connection_id)
        return connection, await self.position(asked["after"].encode()) if "after" in asked else 0

    # DELETE

    async def _delete(self, scope: Scope, send: Send) -> None:
        connection_id = header(scope, _CONNECTION)
        if connection_id is None:
            raise MissingConnection
        await self.close(connection_id.decode("latin-1"))
        await respond(send, 204, [])

    async def _connection(self, scope: Scope) -> Connection:
        connection_id = header(scope, _CONNECTION)
        if connection_id is None:
            raise MissingConnection
        return await self.connection(connection_id.decode("latin-1"))


def _idempotency_key(value: bytes) -> str:
    if not value or len(value) > MAX_KEY:
        raise BadRequest(f"Idempotency-Key must be 1 to {MAX_KEY} characters long")
    return value.decode("latin-1")
