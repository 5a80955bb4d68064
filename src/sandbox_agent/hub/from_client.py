"""Everything a client can send us: requests, notifications, and answers to what an agent asked."""

import logging
from collections.abc import Mapping

import msgspec
from msgspec import Raw

from sandbox_agent import __version__
from sandbox_agent.agents.boot import RunningAgent
from sandbox_agent.envelope import (
    META,
    Envelope,
    Kind,
    Object,
    failure,
    notification,
    object_at,
    param,
    parse,
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
    RpcError,
    SandboxAgentError,
    ShuttingDown,
)
from sandbox_agent.hub.asking import QUESTION, answered
from sandbox_agent.hub.calls import Answer, Continuation
from sandbox_agent.hub.checks import Method
from sandbox_agent.hub.connection import Connection
from sandbox_agent.hub.decision import METHOD as DECISION
from sandbox_agent.hub.decision import Decider
from sandbox_agent.hub.extension_methods import advertised
from sandbox_agent.hub.forward import Forward
from sandbox_agent.hub.hub import Hub
from sandbox_agent.hub.idempotency import Idempotency, scope_of
from sandbox_agent.hub.turns import Turns
from sandbox_agent.log.event import Direction

logger = logging.getLogger(__name__)

_ABOUT_HTTP = (AgentTimeout, LogUnavailable, ShuttingDown, IdempotencyMismatch)
"""Failures of the exchange, not of the method: these are told as an HTTP status."""
_ANNOUNCED = (
    QUESTION,
    "_sandboxagent/session/ended",
    "_sandboxagent/session/turn",
    "_sandboxagent/session/metadata_update",
    DECISION,
    "_sandboxagent/stream/gap",
    "_sandboxagent/agent/unparsed",
)
"""Extensions that clients receive rather than call."""


class FromClient:
    """The way in for envelopes from clients."""

    def __init__(
        self, hub: Hub, forward: Forward, turns: Turns, own: Mapping[str, Method], request_timeout: float
    ) -> None:
        self._hub = hub
        self._forward = forward
        self._turns = turns
        # What we answer or change ourselves. Every other method is the agent's business.
        self._own = {"initialize": _initialize_again, **own}
        self._extensions = advertised([name for name in (*own, *_ANNOUNCED) if name.startswith("_")])
        self._idempotency = Idempotency(hub.log, request_timeout)

    async def open(self, envelope: Envelope) -> tuple[Connection, Answer]:
        """`initialize` without a connection: opens one. Raises what becomes an HTTP problem."""
        assert envelope.id is not None
        params = envelope.params()
        agent = text_at(params, "_meta", META, "agent")
        if agent is None:
            raise MissingAgent
        running = await self._forward.start(agent)
        connection = self._hub.open_connection(running.agent.id, params)
        return connection, Answer(success(envelope.id, self._greeting(running)))

    def begin(self, connection: Connection, envelope: Envelope, then: Continuation) -> bool:
        """Begin a request that is only passed on, to an agent that runs; False for all others."""
        if envelope.kind is not Kind.REQUEST or envelope.method in self._own or self._hub.stopping:
            return False
        return self._forward.begin(connection, envelope, then)

    async def request(self, connection: Connection, envelope: Envelope, key: str | None = None) -> Answer:
        """Answer a request; a failure of the method is a JSON-RPC error, not an exception."""
        assert envelope.id is not None
        if self._hub.stopping:
            raise ShuttingDown
        try:
            if key is not None:
                session = self._hub.find_session(envelope.session_id)
                scope = scope_of(connection, session.id if session else envelope.session_id)
                return await self._idempotency.once(scope, key, envelope, lambda: self.request(connection, envelope))
            method = self._own.get(envelope.method)
            if method is not None:
                return await method(connection, envelope)
            return await self._forward.request(connection, envelope)
        except _ABOUT_HTTP:
            raise
        except SandboxAgentError as error:
            return Answer(failure(envelope.id, error))
        except Exception:
            logger.exception("request failed method=%s", envelope.method)
            return Answer(failure(envelope.id, InternalError()))

    async def notify(self, connection: Connection, envelope: Envelope) -> None:
        """Take a notification; what is wrong with it is nobody's to hear."""
        try:
            match envelope.method:
                case "session/cancel":
                    await self._cancel(connection, envelope)
                case "$/cancel_request":
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
        pending = connection.request(envelope.id)
        if connection not in self._hub.audience(pending):
            # It has detached: what happens there is no longer its to decide.
            raise NobodyAsked(envelope.id.decode())
        line = with_id(answered(pending.request, connection.speech, envelope), pending.agent_id)
        outcome = pending.outcome_of(parse(line))
        told = pending.told(line)
        if pending.session is not None:
            pending.answering = True
            position = self._hub.record(pending.session, told, Direction.FROM_CLIENT).last
            try:
                # The agent acts on it only after it is kept: an action without a record of who allowed it must not be.
                await self._hub.log.committed(position)
            finally:
                pending.answering = False
            if not pending.open:
                # Cancelled meanwhile, by somebody or with its process: an allow must not come after that.
                raise AlreadyAnswered(envelope.id.decode(), pending.outcome)
        by = Decider("client", {"name": connection.tag, **connection.who})
        self._hub.settle(pending, outcome, by, line, connection)
        assert isinstance(pending.process, RunningAgent)
        try:
            pending.process.answer(told)
        except RpcError as error:
            logger.info("answer not delivered agent=%s reason=%s", pending.process.agent.id, error.slug)

    def _greeting(self, running: RunningAgent) -> Object:
        """The agent's own answer to initialize, with our extensions in it."""
        greeting = msgspec.json.decode(running.handshake.result, type=dict[str, Raw])
        capabilities = dict(running.handshake.capabilities)
        ours = {"version": __version__, "extensions": self._extensions}
        capabilities["_meta"] = object_at(capabilities, "_meta") | {META: ours}
        return {**greeting, "agentCapabilities": capabilities}

    async def _cancel(self, connection: Connection, envelope: Envelope) -> None:
        session = self._hub.session(envelope.session_id)
        self._hub.record(session, envelope.line, Direction.FROM_CLIENT)
        running = session.process
        try:
            if isinstance(running, RunningAgent):
                running.send(self._forward.line_for(session, envelope))
        finally:
            self._turns.cancel(session)

    def _cancel_request(self, connection: Connection, envelope: Envelope) -> None:
        """Ids are each hop's own: the agent is told the one it knows."""
        id = param(envelope.line, "requestId")
        if id is None or self._turns.take_back(connection, id):
            return
        call = self._hub.calls.find(connection, id)
        if call is not None:
            call.running.send(notification("$/cancel_request", {"requestId": Raw(call.stdio_id)}))


async def _initialize_again(connection: Connection, envelope: Envelope) -> Answer:
    raise InvalidRequest("this connection is initialized; open another one for another agent")
