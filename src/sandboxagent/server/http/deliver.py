"""Deliver responses on the stream of a client: requests are accepted at once, and answered later."""

from collections.abc import Awaitable, Callable, Coroutine
from functools import partial

import msgspec
from msgspec import Raw

from sandboxagent.core.tasks import Tasks
from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import NOTIFICATION, Envelope, failure, success
from sandboxagent.protocol.errors import (
    AgentTimeout,
    AlreadyAnswered,
    LogUnavailable,
    NobodyAsked,
    NodeUnreachable,
    SandboxAgentError,
    TooMany,
    WrongAnswer,
)
from sandboxagent.server.http.ports import Clients, RequestHandler
from sandboxagent.server.sessions.connection import Connection
from sandboxagent.server.sessions.reply import Answer, AnsweredOnStream, Reply, as_answerable

_ABOUT_CONNECTION = (methods.NEW, methods.LOAD, methods.RESUME, methods.FORK)
"""Requests that make a session, or attach to one: their answers belong to the connection."""


class Delivery:
    """Those that are under way: at most so many of a connection. Each gets its answer, whatever fails."""

    def __init__(self, clients: Clients, intake: RequestHandler, most: int) -> None:
        self._clients = clients
        self._intake = intake
        self._most = most
        self._tasks = Tasks()

    def deliver(
        self,
        connection: Connection,
        envelope: Envelope,
        key: str | None = None,
        *,
        before: Callable[[], Awaitable[None]] | None = None,
        after: Callable[[], None] | None = None,
    ) -> Reply:
        """Take a request, whose response goes to its client's stream; the reply says when it was accepted.

        `before` is awaited before the response goes there, `after` is called when nothing more comes of the request.
        """
        try:
            self._take_place(connection)
        except TooMany as error:
            if after is not None:
                after()
            reply = Reply()
            reply.set_exception(error)
            return reply
        delivering = StreamedResponse(self, self._clients, connection, envelope, before, after)
        reply = self._intake.submit(connection, envelope, key, on_stream=True)
        delivering.follow(reply)
        return reply

    def run(self, work: Coroutine[object, None, None]) -> None:
        """Do what has to wait before a response goes out."""
        self._tasks.run(work, "deliver an answer")

    def _take_place(self, connection: Connection) -> None:
        if connection.delivering >= self._most:
            raise TooMany("requests that wait for their answers on this stream", self._most, "--stream-requests")
        connection.delivering += 1

    async def take(self, connection: Connection, envelope: Envelope) -> None:
        """Take a notification or an answer. A client that comes too late with one has done nothing wrong.

        One that makes no sense is complained of on the stream: an answer has no response.
        """
        if envelope.kind is NOTIFICATION:
            await self._intake.notify(connection, envelope)
            return
        try:
            await self._intake.answer(connection, envelope)
        except AlreadyAnswered:
            # Its client gets `$/cancel_request`, which says what became of it.
            return
        except (NobodyAsked, WrongAnswer) as error:
            self.complain(connection, error, requestId=Raw(envelope.id or b"null"))

    async def acknowledge(self, connection: Connection, envelope: Envelope, key: str) -> None:
        """Take a notification or an answer once, and tell its client under the key that it was taken, or why not."""
        id, receipt = msgspec.json.encode(key), connection.acknowledgements.get(key)
        if receipt is None:
            try:
                if envelope.kind is NOTIFICATION:
                    await self._intake.notify(connection, envelope)
                else:
                    await self._intake.answer(connection, envelope)
            except (LogUnavailable, NodeUnreachable) as error:
                # Nothing was taken: it may come again under the same key.
                self._clients.tell(connection, _refusal(id, error))
                return
            except SandboxAgentError as error:
                receipt = _refusal(id, error)
            else:
                receipt = success(id, {})
            connection.remember_acknowledgement(key, receipt)
        self._clients.tell(connection, receipt)

    def complain(self, connection: Connection, error: SandboxAgentError, **facts: object) -> None:
        """Tell a client of a failure that belongs to no request of its own."""
        error.fields.update(facts)
        self._clients.tell(connection, failure(b"null", error))

    def send(self, connection: Connection, envelope: Envelope, line: bytes) -> None:
        """Put the response to a request on its client's stream."""
        try:
            session_id = self._session_of_answer(connection, envelope)
        except Exception as error:
            as_answerable(error, envelope.method)
            session_id = None
        self._clients.tell(connection, line, session_id)

    def _session_of_answer(self, connection: Connection, envelope: Envelope) -> str | None:
        """The session on whose own stream a response goes, behind the updates that came before it."""
        session_id = None if envelope.method in _ABOUT_CONNECTION else connection.own_stream_of(envelope.session_id)
        if session_id is None:
            return None
        try:
            return self._clients.find_session(session_id)
        except LogUnavailable:
            return None


class StreamedResponse:
    """A request under way, whose response goes to the stream."""

    __slots__ = ("_after", "_before", "_clients", "_connection", "_delivery", "_envelope", "_reply")

    def __init__(
        self,
        delivery: Delivery,
        clients: Clients,
        connection: Connection,
        envelope: Envelope,
        before: Callable[[], Awaitable[None]] | None,
        after: Callable[[], None] | None,
    ) -> None:
        self._delivery = delivery
        self._clients = clients
        self._connection = connection
        self._envelope = envelope
        self._before = before
        self._after = after
        self._reply: Reply
        connection.busy += 1

    def follow(self, reply: Reply) -> None:
        self._reply = reply
        reply.when_answered(self._on_answered)

    def _on_answered(self, result: Answer | Exception) -> None:
        if isinstance(result, Answer):
            self._clients.when_committed(result.commit, partial(self._on_committed, result))
        elif self._reply.position is None or _comes_by_itself(result):
            # It was refused, or its response is put there by another part.
            self._leave()
            self._end()
        else:
            self._respond(self._failed(result))

    def _on_committed(self, answer: Answer, problem: Exception | None) -> None:
        self._respond(answer if problem is None else self._failed(problem))

    def _respond(self, answer: Answer) -> None:
        self._leave()
        if self._before is None:
            self._send(answer)
        else:
            self._delivery.run(self._respond_after(self._before, answer))

    async def _respond_after(self, before: Callable[[], Awaitable[None]], answer: Answer) -> None:
        try:
            await before()
        except Exception as error:
            # Its place among what else comes is lost, and no more than that.
            as_answerable(error, self._envelope.method)
        self._send(answer)

    def _send(self, answer: Answer) -> None:
        try:
            self._delivery.send(self._connection, self._envelope, answer.line)
            if answer.session_opened is not None:
                answer.session_opened()
        finally:
            self._end()

    def _failed(self, error: Exception) -> Answer:
        assert self._envelope.id is not None
        return Answer(failure(self._envelope.id, as_answerable(error, self._envelope.method)))

    def _leave(self) -> None:
        self._connection.busy -= 1
        self._connection.delivering -= 1
        self._connection.used_at = self._clients.monotonic()

    def _end(self) -> None:
        if self._after is not None:
            self._after()


def _comes_by_itself(error: Exception) -> bool:
    """Whether the response comes from a node, or when its agent answers, and only then: no POST waits for it."""
    return isinstance(error, AnsweredOnStream) or (isinstance(error, AgentTimeout) and error.late is not None)


def _refusal(id: bytes, error: SandboxAgentError) -> bytes:
    """With what a client would read in the answer to a POST."""
    error.fields.update(title=error.title, status=error.status)
    return failure(id, error)
