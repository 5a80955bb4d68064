"""Deliver responses on the stream of a client: requests are accepted at once, and answered later."""

from collections.abc import Awaitable, Callable
from functools import partial

import msgspec
from msgspec import Raw, Struct

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
from sandboxagent.server.sessions.reply import NO_RESPONSE, Answer, Reply, as_answerable

_ABOUT_CONNECTION = (methods.NEW, methods.LOAD, methods.RESUME, methods.FORK)
"""Requests that make a session, or attach to one: their answers belong to the connection."""


class _Asked(Struct, eq=False, frozen=True):
    """A request whose response goes to the stream."""

    connection: Connection
    envelope: Envelope
    before: Callable[[], Awaitable[None]] | None
    after: Callable[[], None] | None


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
        asked = _Asked(connection, envelope, before, after)
        if connection.delivering >= self._most:
            error = TooMany("requests that wait for their answers on this stream", self._most, "--stream-requests")
            return _refuse(asked, error)
        self._enter(connection)
        try:
            reply = self._intake.submit(connection, envelope, key, on_stream=True)
        except Exception as error:
            self._leave(connection)
            return _refuse(asked, error)
        reply.when_answered(partial(self._on_answered, asked, reply))
        return reply

    @staticmethod
    def _enter(connection: Connection) -> None:
        connection.delivering += 1
        connection.busy += 1

    def _leave(self, connection: Connection) -> None:
        connection.delivering -= 1
        connection.busy -= 1
        connection.used_at = self._clients.monotonic()

    # The steps of a response, in callbacks of the agent's process or of the log. None of them raises.

    def _on_answered(self, asked: _Asked, reply: Reply, result: Answer | Exception) -> None:
        if isinstance(result, Answer) and result is not NO_RESPONSE:
            on_committed = partial(self._on_committed, asked, result)
            try:
                self._clients.when_committed(result.commit, on_committed)
            except Exception as error:
                on_committed(error)
        elif reply.position is None or isinstance(result, Answer) or _comes_late(result):
            # The request was refused, or another part of the server sends the response.
            self._leave(asked.connection)
            _end(asked)
        else:
            self._respond(asked, _failed(asked, result))

    def _on_committed(self, asked: _Asked, answer: Answer, problem: Exception | None) -> None:
        self._respond(asked, answer if problem is None else _failed(asked, problem, answer.session_opened))

    def _respond(self, asked: _Asked, answer: Answer) -> None:
        self._leave(asked.connection)
        if asked.before is None:
            self._send(asked, answer)
        else:
            self._tasks.run(self._respond_after(asked.before, asked, answer), "deliver an answer")

    async def _respond_after(self, before: Callable[[], Awaitable[None]], asked: _Asked, answer: Answer) -> None:
        try:
            await before()
        except Exception as error:
            # Only the order of the response among other events is lost.
            as_answerable(error, asked.envelope.method)
        self._send(asked, answer)

    def _send(self, asked: _Asked, answer: Answer) -> None:
        try:
            self.send(asked.connection, asked.envelope, answer.line)
            answer.release_updates()
        except Exception as error:
            as_answerable(error, asked.envelope.method)
        _end(asked)

    def take(self, connection: Connection, envelope: Envelope) -> Reply:
        """Take a notification or an answer. An answer that comes too late is no error.

        An invalid answer is reported on the stream, because an answer has no response.
        """
        if envelope.kind is NOTIFICATION:
            return self._intake.notify(connection, envelope)
        reply = Reply()
        taken = self._intake.answer(connection, envelope)
        taken.when_answered(partial(self._on_answer_taken, connection, envelope, reply))
        return reply

    def _on_answer_taken(
        self, connection: Connection, envelope: Envelope, reply: Reply, result: Answer | Exception
    ) -> None:
        try:
            if isinstance(result, NobodyAsked | WrongAnswer):
                self.complain(connection, result, requestId=Raw(envelope.id or b"null"))
                result = NO_RESPONSE
        except Exception as error:
            result = error
        # After AlreadyAnswered, the client gets `$/cancel_request` with the outcome of the request.
        if isinstance(result, Answer | AlreadyAnswered):
            reply.set_done()
        else:
            reply.set_exception(result)

    async def acknowledge(self, connection: Connection, envelope: Envelope, key: str) -> None:
        """Take a notification or an answer once for its key, and send its client an acknowledgement or an error."""
        id, acknowledgement = msgspec.json.encode(key), connection.acknowledgements.get(key)
        if acknowledgement is None:
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
                acknowledgement = _refusal(id, error)
            else:
                acknowledgement = success(id, {})
            connection.remember_acknowledgement(key, acknowledgement)
        self._clients.tell(connection, acknowledgement)

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


def _comes_late(error: Exception) -> bool:
    """Whether the agent's late answer is the response."""
    return isinstance(error, AgentTimeout) and error.late is not None


def _failed(asked: _Asked, error: Exception, session_opened: Callable[[], None] | None = None) -> Answer:
    """Return the response for a failure. Updates of a session that was made are released even then."""
    assert asked.envelope.id is not None
    line = failure(asked.envelope.id, as_answerable(error, asked.envelope.method))
    return Answer(line, session_opened=session_opened)


def _refuse(asked: _Asked, error: Exception) -> Reply:
    reply = Reply()
    _end(asked)
    reply.set_exception(error)
    return reply


def _end(asked: _Asked) -> None:
    if asked.after is not None:
        try:
            asked.after()
        except Exception as error:
            as_answerable(error, asked.envelope.method)


def _refusal(id: bytes, error: SandboxAgentError) -> bytes:
    """Return an error with the same members as the answer to a POST."""
    error.fields.update(title=error.title, status=error.status)
    return failure(id, error)
