"""What the transports stand on: clients' connections, and the way in for what they send.

A server has the hub behind both, a gateway the nodes of its fleet. Where answers come on the stream (`Delivery`),
requests are accepted at once, and answered later.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

import msgspec
from msgspec import Raw, Struct

from sandbox_agent.envelope import NOTIFICATION, Envelope, failure, parse, success, text_at
from sandbox_agent.errors import (
    AgentTimeout,
    AlreadyAnswered,
    InternalError,
    LogUnavailable,
    NobodyAsked,
    SandboxAgentError,
    TooMany,
    WrongAnswer,
)
from sandbox_agent.fleet_errors import NodeUnreachable
from sandbox_agent.hub.calls import Accepted, Answer, Waiter
from sandbox_agent.hub.connections import Connection
from sandbox_agent.hub.hub import Hub
from sandbox_agent.tasks import Tasks
from sandbox_agent.wire import methods

logger = logging.getLogger(__name__)


def session_named(line: bytes) -> str:
    """The new session in a response; empty when it has none."""
    return text_at(parse(line).result(), "sessionId") or ""


class Clients(Protocol):
    """Connections, and what is sent to them."""

    @property
    def stopping(self) -> bool: ...

    @property
    def position(self) -> int:
        """The last position that was given out, as far as it is known here."""
        ...

    def monotonic(self) -> float: ...

    def make_id(self) -> str:
        """For a connection that is to be opened."""
        ...

    async def has_sent(self, position: int) -> bool:
        """Whether a client can have read up to a position."""
        ...

    async def find(self, connection_id: str) -> Connection | None: ...

    def look_up(self, connection_id: str) -> Connection | None:
        """Find one at once; None when others have to be asked. Raises UnknownConnection for one that nobody knows."""
        ...

    async def close(self, connection: Connection, reason: str) -> None: ...

    async def committed(self, position: int) -> None:
        """Wait until everything up to a position is on disk. Raises LogUnavailable."""
        ...

    def when_committed(self, position: int, callback: Callable[[Exception | None], None]) -> None:
        """Call back when everything up to a position is on disk, or with LogUnavailable."""
        ...

    async def kept(self, connection: Connection, position: int) -> None:
        """Wait until everything up to a position is safe, so that its client may rely on it. Raises LogUnavailable."""
        ...

    def tell(self, connection: Connection, line: bytes, session_id: str | None = None) -> None:
        """Send something to one connection alone."""
        ...

    def note_opened(self, connection: Connection, line: bytes) -> None:
        """A response that names a new session has gone out: from now on its client gets updates of that session."""
        ...

    def find_session(self, name: str) -> str | None:
        """The id of a session, by its id or its alias; None when it is not known. Raises LogUnavailable."""
        ...


class Intake(Protocol):
    """Everything that a client can send."""

    async def open(
        self, envelope: Envelope, agent: str | None = None, connection_id: str | None = None
    ) -> tuple[Connection, Answer]:
        """`initialize` without a connection."""
        ...

    async def accept(self, connection: Connection, envelope: Envelope, key: str | None = None) -> Accepted: ...

    def pass_on(
        self,
        connection: Connection,
        envelope: Envelope,
        key: str | None,
        waiter: Waiter,
        on_accepted: Callable[[int], None] | None = None,
    ) -> bool:
        """Take a request whose answer goes to `waiter`; False for one that has to be accepted.

        `on_accepted` learns which position has to be on disk before the client may learn that it was accepted.
        """
        ...

    async def notify(self, connection: Connection, envelope: Envelope) -> None: ...

    async def answer(self, connection: Connection, envelope: Envelope) -> None: ...


class HubClients(Struct, frozen=True):
    """Those of a server."""

    hub: Hub

    @property
    def stopping(self) -> bool:
        return self.hub.stopping

    @property
    def position(self) -> int:
        return self.hub.log.position

    def monotonic(self) -> float:
        return self.hub.monotonic()

    def make_id(self) -> str:
        return secrets.token_urlsafe(24)

    async def has_sent(self, position: int) -> bool:
        return position <= self.hub.log.position

    async def find(self, connection_id: str) -> Connection | None:
        return self.hub.connections.find(connection_id)

    def look_up(self, connection_id: str) -> Connection:
        return self.hub.connections.get(connection_id)

    async def close(self, connection: Connection, reason: str) -> None:
        self.hub.close_connection(connection, reason)

    async def committed(self, position: int) -> None:
        await self.hub.log.committed(position)

    def when_committed(self, position: int, callback: Callable[[Exception | None], None]) -> None:
        self.hub.log.when_committed(position, callback)

    async def kept(self, connection: Connection, position: int) -> None:
        if connection.is_guest:
            # Its client is elsewhere, and must find there what this answer speaks of.
            await self.hub.log.published(max(position, connection.last_event))
        else:
            await self.hub.log.committed(position)

    def tell(self, connection: Connection, line: bytes, session_id: str | None = None) -> None:
        self.hub.tell_connection(connection, line, session_id)

    def note_opened(self, connection: Connection, line: bytes) -> None:
        self.hub.let_out(session_named(line))

    def find_session(self, name: str) -> str | None:
        session = self.hub.find_session(name)
        return None if session is None else session.id


_ABOUT_CONNECTION = (methods.NEW, methods.LOAD, methods.RESUME, methods.FORK)
"""Requests that make a session, or attach to one: their answers belong to the connection."""


class Delivery:
    """Those that are under way: at most so many of a connection. Each gets its answer, whatever fails."""

    def __init__(self, clients: Clients, intake: Intake, most: int) -> None:
        self._clients = clients
        self._intake = intake
        self._most = most
        self._tasks = Tasks()

    async def begin(
        self,
        connection: Connection,
        envelope: Envelope,
        key: str | None = None,
        *,
        before: Callable[[], Awaitable[None]] | None = None,
        after: Callable[[], None] | None = None,
    ) -> int:
        """Accept a request; returns the position that has to be on disk before its client may learn that.

        Raises what is wrong with the exchange. What fails later comes on the stream. `before` is awaited before the
        response goes there, `after` is called when it has gone.
        """
        if before is None and after is None:
            taken: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            if self.pass_on(connection, envelope, key, partial(_settle, taken)):
                return await taken
        self._take_place(connection)
        try:
            accepted = await self._intake.accept(connection, envelope, key)
        except BaseException:
            connection.delivering -= 1
            raise
        task = self._tasks.run(self._deliver(connection, envelope, accepted.answer, before), "deliver an answer")
        if after is not None:
            task.add_done_callback(lambda _: after())
        return accepted.position

    def pass_on(
        self, connection: Connection, envelope: Envelope, key: str | None, taken: Callable[[int | Exception], None]
    ) -> bool:
        """Accept a request as `begin` does, without a task; False for one that may have to wait for more than an agent.

        `taken` is called once, with that position, or with what is wrong with the exchange.
        """
        self._take_place(connection)
        delivering = _Delivering(self, self._clients, connection, envelope, taken)
        is_taken = False
        try:
            is_taken = self._intake.pass_on(connection, envelope, key, delivering, delivering.accept)
        finally:
            connection.delivering -= not is_taken
        return is_taken

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
        id, receipt = msgspec.json.encode(key), connection.receipts.get(key)
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
            connection.keep_receipt(key, receipt)
        self._clients.tell(connection, receipt)

    def complain(self, connection: Connection, error: SandboxAgentError, **facts: object) -> None:
        """Tell a client of a failure that belongs to no request of its own."""
        error.fields.update(facts)
        self._clients.tell(connection, failure(b"null", error))

    async def _deliver(
        self,
        connection: Connection,
        envelope: Envelope,
        answering: Awaitable[Answer],
        before: Callable[[], Awaitable[None]] | None,
    ) -> None:
        """Put a response on the stream when it is there."""
        assert envelope.id is not None
        opens = envelope.method in methods.MAKE_SESSIONS
        connection.busy += 1
        connection.opening += opens
        try:
            answer = await answering
            await self._clients.committed(answer.commit)
        except Exception as error:
            if _is_answered_late(error):
                return
            answer = Answer(failure(envelope.id, as_answerable(error, envelope.method)))
        finally:
            connection.opening -= opens
            connection.busy -= 1
            connection.delivering -= 1
            connection.used_at = self._clients.monotonic()
        if before is not None:
            try:
                await before()
            except Exception as error:
                # Its place among what else comes is lost, and no more than that.
                as_answerable(error, envelope.method)
        self.send(connection, envelope, answer.line)
        if opens:
            self._clients.note_opened(connection, answer.line)

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


class _Delivering:
    """A request that its agent answers, whose response goes to the stream: called back, without a task."""

    __slots__ = ("_answer", "_clients", "_connection", "_delivery", "_envelope", "_is_accepted", "_is_done", "_taken")

    def __init__(
        self,
        delivery: Delivery,
        clients: Clients,
        connection: Connection,
        envelope: Envelope,
        taken: Callable[[int | Exception], None],
    ) -> None:
        self._delivery = delivery
        self._clients = clients
        self._connection = connection
        self._envelope = envelope
        self._taken = taken
        self._answer: Answer
        self._is_accepted = self._is_done = False

    def accept(self, position: int) -> None:
        self._is_accepted = True
        self._connection.busy += 1
        self._taken(position)
        if self._is_done:
            self._deliver()

    def done(self) -> bool:
        return self._is_done

    def set_result(self, answer: Answer, /) -> None:
        self._is_done = True
        self._answer = answer
        if self._is_accepted:
            self._deliver()

    def set_exception(self, error: Exception, /) -> None:
        self._is_done = True
        if not self._is_accepted:
            self._connection.delivering -= 1
            self._taken(error)
        elif _is_answered_late(error):
            self._leave()
        else:
            self._answer = Answer(failure(self._id, as_answerable(error, self._envelope.method)))
            self._deliver()

    @property
    def _id(self) -> bytes:
        assert self._envelope.id is not None
        return self._envelope.id

    def _deliver(self) -> None:
        self._clients.when_committed(self._answer.commit, self._on_committed)

    def _on_committed(self, problem: Exception | None) -> None:
        self._leave()
        line = self._answer.line
        if problem is not None:
            line = failure(self._id, as_answerable(problem, self._envelope.method))
        self._delivery.send(self._connection, self._envelope, line)

    def _leave(self) -> None:
        self._connection.busy -= 1
        self._connection.delivering -= 1
        self._connection.used_at = self._clients.monotonic()


def as_answerable(error: Exception, method: str) -> SandboxAgentError:
    """What a client may read of a failure; one that is none of ours is reported, and is `internal` to clients."""
    if isinstance(error, SandboxAgentError):
        return error
    logger.error("request failed method=%s", method, exc_info=error)
    return InternalError()


def _is_answered_late(error: Exception) -> bool:
    """Whether a request is answered when its agent answers, and only then: no POST waits for it."""
    return isinstance(error, AgentTimeout) and error.late is not None


def _settle(taken: "asyncio.Future[int]", result: int | Exception) -> None:
    """Unless the caller has left: the request goes on without it."""
    if taken.done():
        return
    if isinstance(result, Exception):
        taken.set_exception(result)
    else:
        taken.set_result(result)


def _refusal(id: bytes, error: SandboxAgentError) -> bytes:
    """With what a client would read in the answer to a POST."""
    error.fields.update(title=error.title, status=error.status)
    return failure(id, error)
