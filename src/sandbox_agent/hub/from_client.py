"""Everything a client can send us: requests, notifications, and answers to what an agent asked."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import msgspec
from msgspec import Raw

from sandbox_agent import __version__
from sandbox_agent.envelope import (
    META,
    Envelope,
    Object,
    failure,
    notification,
    object_at,
    parse,
    related,
    success,
    text_at,
    with_id,
)
from sandbox_agent.errors import (
    AgentTimeout,
    AlreadyAnswered,
    IdempotencyMismatch,
    InternalError,
    InvalidRequest,
    LogUnavailable,
    MissingAgent,
    NobodyAsked,
    SandboxAgentError,
    ShuttingDown,
)
from sandbox_agent.hub.calls import Accepted, Answer, Waiter
from sandbox_agent.hub.connections import Connection, digest_of
from sandbox_agent.hub.extension_methods import advertise
from sandbox_agent.hub.forward import Forward, Method
from sandbox_agent.hub.hub import Hub
from sandbox_agent.hub.idempotency import Idempotency, scope_of
from sandbox_agent.hub.pending import METHOD as DECISION
from sandbox_agent.hub.pending import QUESTION, Decider, read_reason, translate_answer
from sandbox_agent.hub.session import Process
from sandbox_agent.hub.turns import Turns
from sandbox_agent.log.event import Direction
from sandbox_agent.wire import methods

logger = logging.getLogger(__name__)

_ABOUT_HTTP = (AgentTimeout, LogUnavailable, ShuttingDown, IdempotencyMismatch)
"""Failures of the exchange, not of the method: these become an HTTP status."""
_ANNOUNCED = (
    QUESTION,
    methods.ENDED,
    methods.TURN,
    methods.METADATA_UPDATE,
    methods.SHELL,
    DECISION,
    methods.GAP,
    methods.UNPARSED,
)
"""Extensions that clients receive rather than call."""


class FromClient:
    """The way in for envelopes from clients."""

    def __init__(
        self,
        hub: Hub,
        forward: Forward,
        turns: Turns,
        prompt: Callable[[Connection, Envelope], Awaitable[Accepted]],
        prompt_now: Callable[[Connection, Envelope, Waiter], int | None],
        own: Mapping[str, Method],
        request_timeout: float,
        default_agent: str | None = None,
    ) -> None:
        self._hub = hub
        self._forward = forward
        self._turns = turns
        self._prompt = prompt
        self._prompt_now = prompt_now
        self._default_agent = default_agent
        # What we answer or change ourselves. Every other method is the agent's business.
        self._own = {methods.INITIALIZE: _initialize_again, **own}
        self._extensions = advertise([name for name in (*own, *_ANNOUNCED) if name.startswith("_")])
        self._idempotency = Idempotency(hub.log, request_timeout)

    async def open(
        self, envelope: Envelope, agent: str | None = None, connection_id: str | None = None
    ) -> tuple[Connection, Answer]:
        """`initialize` without a connection: opens one, under a new id of its own unless one is given.

        `agent` is for an envelope that names none. Raises what becomes an HTTP problem.
        """
        running, answer = await self.greet(envelope, agent)
        return self._hub.connections.open(running.agent.id, envelope.params(), connection_id), answer

    async def greet(self, envelope: Envelope, agent: str | None = None) -> tuple[Process, Answer]:
        """Start the agent that `initialize` names, else this one, and answer as it does."""
        assert envelope.id is not None
        named = text_at(envelope.params(), "_meta", META, "agent")
        agent = named if named is not None else agent or self._default_agent
        if agent is None:
            raise MissingAgent
        running = await self._forward.start(agent)
        return running, Answer(success(envelope.id, self._greeting(running)))

    async def accept(self, connection: Connection, envelope: Envelope, key: str | None = None) -> Accepted:
        """Accept a request; raises when it is invalid.

        What fails later fails in the answer: as a JSON-RPC error, or as an exception of the exchange (`_ABOUT_HTTP`).
        """
        if self._hub.stopping:
            raise ShuttingDown
        awaited = _Awaited()
        if self.pass_on(connection, envelope, key, awaited, awaited.accept):
            return await awaited.accepted()
        return await self._accept_slowly(connection, envelope, key)

    async def _accept_slowly(self, connection: Connection, envelope: Envelope, key: str | None) -> Accepted:
        """Accept what is not passed on at once: because of its method, session or files, or an earlier request."""
        if key is not None:
            session = self._hub.find_session(envelope.session_id)
            scope = scope_of(connection, session.id if session else envelope.session_id)
            return await self._idempotency.accept(scope, key, envelope, lambda: self.accept(connection, envelope))
        if envelope.method == methods.PROMPT:
            return await self._accept_prompt(connection, envelope)
        method = self._own.get(envelope.method, self._forward.request)
        return Accepted(self._hub.log.position, self._answer(envelope, method(connection, envelope)))

    def pass_on(
        self,
        connection: Connection,
        envelope: Envelope,
        key: str | None,
        waiter: Waiter,
        on_accepted: Callable[[int], None] | None = None,
    ) -> bool:
        """Pass a request to the agent that has its session; False for one that may have to wait for something else.

        The first step for every request, and all there is for most: without a task. Its answer goes to `waiter`.
        `on_accepted` learns which position has to be on disk before the client may learn that it was accepted. Raises
        what is wrong with the exchange.
        """
        session = self._hub.find_session(envelope.session_id)
        if self._hub.stopping or session is None or session.held is None or envelope.method in self._own:
            return False
        if key is None:
            position = self._pass_on(connection, envelope, waiter)
            if position is not None and on_accepted is not None:
                on_accepted(position)
            return position is not None
        scope, begin = scope_of(connection, session.id), partial(self.accept, connection, envelope)
        start = partial(self._pass_on, connection, envelope)
        return self._idempotency.pass_on(scope, key, envelope, start, begin, waiter, on_accepted)

    def _pass_on(self, connection: Connection, envelope: Envelope, waiter: Waiter) -> int | None:
        start = self._prompt_now if envelope.method == methods.PROMPT else self._forward.pass_on
        try:
            return start(connection, envelope, waiter)
        except Exception as error:
            waiter.set_result(answer_failure(envelope, error))
            return self._hub.log.position

    async def _accept_prompt(self, connection: Connection, envelope: Envelope) -> Accepted:
        """The one request that is kept before it is answered: a client that learns it was taken finds it in the log."""
        try:
            accepted = await self._prompt(connection, envelope)
        except Exception as error:
            return Accepted(self._hub.log.position, _resolve_to(answer_failure(envelope, error)))
        return Accepted(accepted.position, self._answer(envelope, accepted.answer))

    @staticmethod
    async def _answer(envelope: Envelope, answer: Awaitable[Answer]) -> Answer:
        try:
            return await answer
        except Exception as error:
            return answer_failure(envelope, error)

    async def notify(self, connection: Connection, envelope: Envelope) -> None:
        """Take a notification. Errors are only logged: a notification has no response."""
        try:
            match envelope.method:
                case methods.CANCEL:
                    await self._cancel(connection, envelope)
                case methods.CANCEL_REQUEST:
                    self._cancel_request(connection, envelope)
                case _:
                    await self._forward.notify(connection, envelope)
        except SandboxAgentError as error:
            logger.info("notification dropped method=%s reason=%s", envelope.method, error.slug)

    async def answer(self, connection: Connection, envelope: Envelope) -> None:
        """Take an answer to what an agent asked; the first one wins.

        Raises NobodyAsked, AlreadyAnswered, or WrongAnswer for one that does not fit; the request stays open then.
        """
        assert envelope.id is not None
        try:
            pending = connection.request(envelope.id)
        except AlreadyAnswered:
            if not connection.stands_by(envelope):
                raise
            await self._hub.log.committed(self._hub.log.position)
            if not connection.stands_by(envelope):
                # Cancelled while it was written: its client must not take it for decided.
                raise
            return
        if connection not in self._hub.audience(pending):
            # It has detached, so it may no longer decide anything there.
            raise NobodyAsked(envelope.id.decode())
        line = with_id(translate_answer(pending.request, connection.speech, envelope), pending.agent_id)
        outcome = pending.outcome_of(parse(line))
        pending.answered_with = (connection.tag, digest_of(envelope))
        if pending.session is not None:
            pending.answering = True
            position = self._hub.record(pending.session, pending.translate(line), Direction.FROM_CLIENT).last
            try:
                # The agent acts on it only after it is kept: no action may happen without a record of who allowed it.
                await self._hub.log.committed(position)
            finally:
                pending.answering = False
            if not pending.open:
                # Cancelled in the meantime, by a client or because its process exited: no allow may follow.
                raise AlreadyAnswered(envelope.id.decode(), pending.outcome)
        by = Decider("client", {"name": connection.tag, **connection.who}, read_reason(envelope))
        self._hub.settle(pending, outcome, by, line, connection)

    def _greeting(self, running: Process) -> Object:
        """The agent's own answer to initialize, with our extensions in it."""
        greeting = msgspec.json.decode(running.handshake.result, type=dict[str, Raw])
        capabilities = dict(running.handshake.capabilities)
        ours = {"version": __version__, "extensions": self._extensions}
        capabilities["_meta"] = object_at(capabilities, "_meta") | {META: ours}
        return {**greeting, "agentCapabilities": capabilities}

    async def _cancel(self, connection: Connection, envelope: Envelope) -> None:
        session = self._hub.session(envelope.session_id)
        self._hub.record(session, envelope.line, Direction.FROM_CLIENT)
        try:
            # While it is on its way back, its agent has no turn to cancel: what waits is cancelled here.
            if session.live and session.process is not None:
                session.process.send(self._forward.line_for(session, envelope))
        finally:
            self._turns.cancel(session)

    def _cancel_request(self, connection: Connection, envelope: Envelope) -> None:
        """Translate the id: the agent knows the request under another one."""
        id = related(envelope.line)
        if id is None or self._turns.take_back(connection, id) or self._forward.take_back(connection, id):
            return
        call = self._hub.calls.find(connection, id)
        if call is not None:
            call.running.send(notification(methods.CANCEL_REQUEST, {"requestId": Raw(call.stdio_id)}))


class _Awaited:
    """A waiter for code that awaits what becomes of a request: that it is accepted, then its answer."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._position: asyncio.Future[int] = loop.create_future()
        self._answer: asyncio.Future[Answer] = loop.create_future()
        # The caller may have left.
        self._answer.add_done_callback(lambda answer: answer.cancelled() or answer.exception())

    def accept(self, position: int) -> None:
        if not self._position.done():
            self._position.set_result(position)

    async def accepted(self) -> Accepted:
        return Accepted(await self._position, self._answer)

    def done(self) -> bool:
        return self._answer.done()

    def set_result(self, answer: Answer, /) -> None:
        if not self._answer.done():
            self._answer.set_result(answer)

    def set_exception(self, error: Exception, /) -> None:
        if not self._position.done():
            self._position.set_exception(error)
        elif not self._answer.done():
            self._answer.set_exception(error)


def answer_failure(envelope: Envelope, error: Exception) -> Answer:
    """Turn a failure of the method into its response; re-raise one of the exchange."""
    assert envelope.id is not None
    if isinstance(error, _ABOUT_HTTP):
        raise error
    if isinstance(error, SandboxAgentError):
        return Answer(failure(envelope.id, error))
    logger.error("request failed method=%s", envelope.method, exc_info=error)
    return Answer(failure(envelope.id, InternalError()))


async def _resolve_to(answer: Answer) -> Answer:
    return answer


async def _initialize_again(connection: Connection, envelope: Envelope) -> Answer:
    raise InvalidRequest("this connection is initialized; open another one for another agent")
