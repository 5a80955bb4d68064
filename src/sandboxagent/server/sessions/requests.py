"""Take every request, notification and answer that a client sends."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial

import msgspec
from msgspec import Raw

from sandboxagent import __version__
from sandboxagent.core.tasks import Tasks
from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import (
    LARGE,
    META,
    Envelope,
    LargeEnvelope,
    Object,
    notification,
    object_at,
    parse,
    related,
    success,
    text_at,
    with_id,
)
from sandboxagent.protocol.errors import (
    AlreadyAnswered,
    InvalidRequest,
    MissingAgent,
    NobodyAsked,
    SandboxAgentError,
    ShuttingDown,
    WrongAnswer,
)
from sandboxagent.server.log.event import Direction
from sandboxagent.server.sessions.connection import Connection
from sandboxagent.server.sessions.dispatch import Dispatcher, Method, check_size
from sandboxagent.server.sessions.extensions import advertise
from sandboxagent.server.sessions.hub import Hub
from sandboxagent.server.sessions.idempotency import Idempotency, scope_of
from sandboxagent.server.sessions.pending import METHOD as DECISION
from sandboxagent.server.sessions.pending import (
    QUESTION,
    Decider,
    Outcome,
    PendingRequest,
    read_reason,
    translate_answer,
)
from sandboxagent.server.sessions.reply import Answer, Reply
from sandboxagent.server.sessions.session import Process
from sandboxagent.server.sessions.turns import Turns

logger = logging.getLogger(__name__)

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


class Requests:
    """The way in for envelopes from clients."""

    def __init__(
        self,
        hub: Hub,
        dispatcher: Dispatcher,
        turns: Turns,
        prompt: Callable[[Connection, Envelope, Reply], Coroutine[object, None, None] | None],
        own: Mapping[str, Method],
        request_timeout: float,
        default_agent: str | None = None,
    ) -> None:
        self._hub = hub
        self._dispatcher = dispatcher
        self._turns = turns
        self._prompt = prompt
        self._default_agent = default_agent
        # What we answer or change ourselves. Every other method is the agent's business.
        self._own = {methods.INITIALIZE: _initialize_again, **own}
        self._announced = _ANNOUNCED
        self._extensions = self._advertise()
        self._idempotency = Idempotency(hub.log, request_timeout)
        self._tasks = Tasks()

    def add_methods(self, own: Mapping[str, Method], announced: Sequence[str] = ()) -> None:
        """Answer more methods here. `announced` are notifications that clients may receive."""
        self._own |= own
        self._announced = (*self._announced, *announced)
        self._extensions = self._advertise()

    def _advertise(self) -> Object:
        return advertise([name for name in (*self._own, *self._announced) if name.startswith("_")])

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
        check_size(envelope)
        named = text_at(envelope.params(), "_meta", META, "agent")
        agent = named if named is not None else agent or self._default_agent
        if agent is None:
            raise MissingAgent
        running = await self._dispatcher.start(agent)
        return running, Answer(success(envelope.id, self._greeting(running)))

    def submit(
        self, connection: Connection, envelope: Envelope, key: str | None = None, *, on_stream: bool = False
    ) -> Reply:
        """Take a request: the one way in for every transport. Does not raise.

        It makes no difference here whether the response goes to the stream (`on_stream`): it comes from here anyway.
        A failure of the method is its answer; one of the exchange, such as a timeout, is the reply's exception.
        """
        reply = Reply(envelope)
        try:
            if key is None:
                self._start(connection, envelope, reply)
            else:
                session = self._hub.find_session(envelope.session_id)
                scope = scope_of(connection, session.id if session else envelope.session_id)
                self._idempotency.start(scope, key, envelope, reply, partial(self._start, connection, envelope))
        except Exception as error:
            reply.set_exception(error)
        return reply

    def _start(self, connection: Connection, envelope: Envelope, reply: Reply) -> None:
        """Do at once what can be done at once; whatever has to wait for something else than its agent is a task."""
        if self._hub.stopping:
            raise ShuttingDown
        if len(envelope.line) > LARGE and (envelope.session_id is None or envelope.method in self._own):
            check_size(envelope)
        if envelope.method == methods.PROMPT:
            left = self._prompt(connection, envelope, reply)
        elif envelope.method not in self._own and self._dispatcher.forward(connection, envelope, reply):
            return
        else:
            left = self._work(connection, envelope, reply)
        if left is not None:
            self._tasks.run(_see_to(left, reply), envelope.method)

    async def _work(self, connection: Connection, envelope: Envelope, reply: Reply) -> None:
        # Its client learns that it was taken when it has begun.
        asyncio.get_running_loop().call_soon(reply.accept, self._hub.log.position)
        method = self._own.get(envelope.method, self._dispatcher.request)
        reply.set_result(await method(connection, envelope))

    async def notify(self, connection: Connection, envelope: Envelope) -> None:
        """Take a notification. Errors are only logged: a notification has no response."""
        try:
            match envelope.method:
                case methods.CANCEL:
                    await self._cancel(connection, envelope)
                case methods.CANCEL_REQUEST:
                    self._cancel_request(connection, envelope)
                case _:
                    await self._dispatcher.notify(connection, envelope)
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
            if not connection.repeats_answer(envelope):
                raise
            await self._hub.log.committed(self._hub.log.position)
            if not connection.repeats_answer(envelope):
                # Cancelled while it was written: its client must not take it for decided.
                raise
            return
        if connection not in self._hub.audience(pending):
            # It has detached, so it may no longer decide anything there.
            raise NobodyAsked(envelope.id.decode())
        line, outcome, reason = _read_answer(pending, connection, envelope)
        pending.answered_with = (connection.tag, envelope.digest())
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
        by = Decider("client", {"name": connection.tag, **connection.who}, reason)
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
                session.process.send(self._dispatcher.line_for(session, envelope))
        finally:
            self._turns.cancel(session)

    def _cancel_request(self, connection: Connection, envelope: Envelope) -> None:
        """Translate the id: the agent knows the request under another one."""
        check_size(envelope)
        id = related(envelope.line)
        if id is None or self._turns.cancel_queued(connection, id) or self._dispatcher.cancel_queued(connection, id):
            return
        call = self._hub.calls.find(connection, id)
        if call is not None:
            call.running.send(notification(methods.CANCEL_REQUEST, {"requestId": Raw(call.stdio_id)}))


def _read_answer(
    pending: PendingRequest, connection: Connection, envelope: Envelope
) -> tuple[bytes, Outcome, str | None]:
    """An answer as its agent gets it, what it means, and why it was given. Raises WrongAnswer."""
    if isinstance(envelope, LargeEnvelope):
        if pending.kind != "request":
            raise WrongAnswer(f"the answer has more than {LARGE} bytes")
        return envelope.addressed(pending.agent_id, None), Outcome.ANSWERED, None
    line = with_id(translate_answer(pending.request, connection.request_format, envelope), pending.agent_id)
    return line, pending.outcome_of(parse(line)), read_reason(envelope)


async def _see_to(work: Coroutine[object, None, None], reply: Reply) -> None:
    """Do what is left of a request: it is answered, whatever comes of that."""
    try:
        await work
    except Exception as error:
        reply.set_exception(error)
    except BaseException:
        reply.set_exception(ShuttingDown())
        raise


async def _initialize_again(connection: Connection, envelope: Envelope) -> Answer:
    raise InvalidRequest("this connection is initialized; open another one for another agent")
