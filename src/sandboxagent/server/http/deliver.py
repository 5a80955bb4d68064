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
    """The requests whose responses go to a stream, up to a limit for each connection.

    Each gets a response, whatever fails.
    """

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
        """Take a request whose response goes to its client's stream. The reply tells when the request was accepted.

        `before` is awaited before the response goes there. `after` is called when the request has ended.
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
        """Run work that a response has to wait for."""
        self._tasks.run(work, "deliver an answer")

    def _take_place(self, connection: Connection) -> None:
        if connection.delivering >= self._most:
            raise TooMany("requests that wait for their answers on this stream", self._most, "--stream-requests")
        connection.delivering += 1

    async def take(self, connection: Connection, envelope: Envelope) -> None:
        """Take a notification or an answer. An answer that comes too late is no error.

        An invalid answer is reported on the stream, because an answer has no response.
        """
        if envelope.kind is NOTIFICATION:
            await self._intake.notify(connection, envelope)
            return
        try:
            await self._intake.answer(connection, envelope)
        except AlreadyAnswered:
            # The client gets `$/cancel_request`, with the outcome of the request.
            return
        except (NobodyAsked, WrongAnswer) as error:
            self.complain(connection, error, requestId=Raw(envelope.id or b"null"))

    async def acknowledge(self, connection: Connection, envelope: Envelope, key: str) -> None:
        """Take a notification or an answer once for its key, and send its client an acknowledgement or an error."""
        id, receipt = msgspec.json.encode(key), connection.acknowledgements.get(key)
        if receipt is None:
            try:
                if envelope.kind is NOTIFICATION:
                    await self._intake.notify(connection, envelope)
                else:
                    await self._intake.answer(connection, envelope)
            except (LogUnavailable, NodeUnreachable) as error:
                # Nothing was taken, so it may come again under the same key.
                self._clients.tell(connection, _refusal(id, error))
                return
            except SandboxAgentError as error:
                receipt = _refusal(id, error)
            else:
                receipt = success(id, {})
            connection.remember_acknowledgement(key, receipt)
        self._clients.tell(connection, receipt)

    def complain(self, connection: Connection, error: SandboxAgentError, **facts: object) -> None:
        """Send a client an error that belongs to no request of its own."""
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
        """Return the session whose own stream gets a response; None for the connection's stream.

        A session's own stream has the updates that came before the response.
        """
        session_id = None if envelope.method in _ABOUT_CONNECTION else connection.own_stream_of(envelope.session_id)
        if session_id is None:
            return None
        try:
            return self._clients.find_session(session_id)
        except LogUnavailable:
            return None


class StreamedResponse:
    """A request under way whose response goes to the stream."""

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
            # The request was refused, or another part of the server sends the response.
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
            # Only the order of the response among other events is lost.
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
    """Whether another part sends the response: a node, or the agent's late answer. No POST waits for it."""
    return isinstance(error, AnsweredOnStream) or (isinstance(error, AgentTimeout) and error.late is not None)


def _refusal(id: bytes, error: SandboxAgentError) -> bytes:
    """Return an error with the same members as the answer to a POST."""
    error.fields.update(title=error.title, status=error.status)
    return failure(id, error)
