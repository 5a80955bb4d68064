"""Handle every request, notification and answer that a client sends."""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from functools import partial

import msgspec
from msgspec import Raw

from sandboxagent import __version__
from sandboxagent.core.tasks import Tasks
from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import (
    LARGE_BYTES,
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
from sandboxagent.server.sessions.decision import METHOD as DECISION
from sandboxagent.server.sessions.decision import Decider, read_reason
from sandboxagent.server.sessions.dispatch import Dispatcher, Method, check_size
from sandboxagent.server.sessions.extensions import advertise
from sandboxagent.server.sessions.hub import Hub
from sandboxagent.server.sessions.idempotency import Idempotency, scope_of
from sandboxagent.server.sessions.pending import QUESTION, Outcome, PendingRequest, translate_answer
from sandboxagent.server.sessions.reply import Answer, Reply
from sandboxagent.server.sessions.session import Process
from sandboxagent.server.sessions.turns import Turns

logger = logging.getLogger(__name__)

_ANNOUNCED = (
    QUESTION,
    methods.ENDED,
    methods.TURN,
    methods.METADATA_UPDATE,
    DECISION,
    methods.GAP,
    methods.UNPARSED,
)
"""Extension methods that clients receive and do not call."""
_BUILT_IN = (methods.PROMPT, methods.CANCEL, methods.CANCEL_REQUEST)
"""Methods that are handled in this module, without an entry in a table."""


class Requests:
    """The entry point for envelopes from clients."""

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
        # Methods that the server answers or changes. It passes all others on to the agent.
        self._own = {methods.INITIALIZE: _initialize_again, **own}
        self._large_methods: frozenset[str] = frozenset()
        self._announced: tuple[str, ...] = _ANNOUNCED
        self._extensions = self._advertise()
        self._idempotency = Idempotency(hub.log, request_timeout)
        self._tasks = Tasks()

    def add_methods(
        self, own: Mapping[str, Method], announced: Sequence[str] = (), large: Collection[str] = ()
    ) -> None:
        """Add methods that the server answers.

        `announced` names notifications that clients may receive, and `large` those methods that accept an envelope of
        any size. Raises ValueError if the server has a method already.
        """
        known = {*self._own, *self._announced, *_BUILT_IN}
        if taken := known.intersection((*own, *announced)):
            raise ValueError(f"the server has these methods already: {', '.join(sorted(taken))}")
        self._own |= own
        self._large_methods |= set(large)
        self._announced = (*self._announced, *announced)
        self._extensions = self._advertise()

    def _advertise(self) -> Object:
        return advertise([name for name in (*self._own, *self._announced) if name.startswith("_")])

    async def open(
        self, envelope: Envelope, agent: str | None = None, connection_id: str | None = None
    ) -> tuple[Connection, Answer]:
        """Handle an `initialize` without a connection: open one, under a new random id unless one is given.

        `agent` is used if the envelope names none. The errors that it raises become HTTP problems.
        """
        running, answer = await self.greet(envelope, agent)
        return self._hub.connections.open(running.agent.id, envelope.params(), connection_id), answer

    async def greet(self, envelope: Envelope, agent: str | None = None) -> tuple[Process, Answer]:
        """Start the agent that `initialize` names, else `agent`, and return its process and its answer."""
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
        """Start a request, and return its reply. Every transport calls this. It does not raise.

        A failure of the method is its answer. A failure of the exchange, such as a timeout, is the reply's exception.
        `on_stream` says that the response goes to the stream, which makes no difference here.
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
        """Start a request at once. If it has to wait for anything but its agent, a task does the rest."""
        if self._hub.stopping:
            raise ShuttingDown
        if len(envelope.line) > LARGE_BYTES and self._limits(envelope):
            check_size(envelope)
        if envelope.method == methods.PROMPT:
            left = self._prompt(connection, envelope, reply)
        elif envelope.method not in self._own and self._dispatcher.forward(connection, envelope, reply):
            return
        else:
            left = self._work(connection, envelope, reply)
        if left is not None:
            self._tasks.run(_finish(left, reply), envelope.method)

    def _limits(self, envelope: Envelope) -> bool:
        """Return whether the server has to parse a request, and so limits its size."""
        if envelope.method in self._own:
            return envelope.method not in self._large_methods
        return envelope.session_id is None

    async def _work(self, connection: Connection, envelope: Envelope, reply: Reply) -> None:
        # Accept the request when it has begun, so that its client learns of it.
        asyncio.get_running_loop().call_soon(reply.accept, self._hub.log.position)
        method = self._own.get(envelope.method, self._dispatcher.request)
        reply.set_result(await method(connection, envelope))

    def notify(self, connection: Connection, envelope: Envelope) -> Reply:
        """Handle a notification. It does not raise. Errors are only logged: a notification has no response."""
        reply = Reply()
        try:
            left = self._notify(connection, envelope)
        except SandboxAgentError as error:
            _log_dropped(envelope, error)
            reply.set_done()
        except Exception as error:
            reply.set_exception(error)
        else:
            if left is None:
                reply.set_done()
            else:
                self._tasks.run(_finish(_finish_notification(left, envelope, reply), reply), envelope.method)
        return reply

    def _notify(self, connection: Connection, envelope: Envelope) -> Coroutine[object, None, None] | None:
        match envelope.method:
            case methods.CANCEL:
                self._cancel(envelope)
            case methods.CANCEL_REQUEST:
                self._cancel_request(connection, envelope)
            case _:
                return self._dispatcher.notify(connection, envelope)
        return None

    def answer(self, connection: Connection, envelope: Envelope) -> Reply:
        """Handle an answer to an agent's request; the first answer wins. It does not raise.

        The reply's exception is NobodyAsked, AlreadyAnswered, LogUnavailable, or WrongAnswer if the answer does not
        fit; the request then stays open.
        """
        reply = Reply()
        try:
            self._answer(connection, envelope, reply)
        except Exception as error:
            reply.set_exception(error)
        return reply

    def _answer(self, connection: Connection, envelope: Envelope, reply: Reply) -> None:
        assert envelope.id is not None
        try:
            pending = connection.request(envelope.id)
        except AlreadyAnswered as error:
            if not connection.repeats_answer(envelope):
                raise
            repeated = partial(self._on_repeat_kept, connection, envelope, reply, error)
            self._hub.log.when_committed(self._hub.log.position, repeated)
            return
        if connection not in self._hub.audience(pending):
            # The client has detached from the session, so it may not decide anything there.
            raise NobodyAsked(envelope.id.decode())
        line, outcome, reason = _read_answer(pending, connection, envelope)
        pending.answered_with = (connection.tag, envelope.digest())
        by = Decider("client", {"name": connection.tag, **connection.who}, reason)
        settle = partial(self._hub.settle, pending, outcome, by, line, connection)
        if pending.session is None:
            settle()
            reply.set_done()
            return
        position = self._hub.record(pending.session, pending.translate(line), Direction.FROM_CLIENT).last
        pending.answering = True
        # The answer goes out only after it is on disk: no action may happen without a record of who allowed it.
        self._hub.log.when_committed(position, partial(self._on_answer_kept, pending, settle, reply))

    def _on_answer_kept(
        self, pending: PendingRequest, settle: Callable[[], None], reply: Reply, failure: Exception | None
    ) -> None:
        pending.answering = False
        if failure is None and not pending.open:
            # A client or the exit of the process has cancelled the request meanwhile: no allow may follow.
            failure = AlreadyAnswered(pending.id.decode(), pending.outcome)
        if failure is not None:
            reply.set_exception(failure)
            return
        try:
            settle()
        except Exception as error:
            reply.set_exception(error)
        else:
            reply.set_done()

    def _on_repeat_kept(
        self,
        connection: Connection,
        envelope: Envelope,
        reply: Reply,
        error: AlreadyAnswered,
        failure: Exception | None,
    ) -> None:
        if failure is not None:
            reply.set_exception(failure)
        elif connection.repeats_answer(envelope):
            reply.set_done()
        else:
            # The request was cancelled during the write: the client must not believe that its answer counts.
            reply.set_exception(error)

    def _greeting(self, running: Process) -> Object:
        """Return the agent's own answer to `initialize`, with the server's extensions added."""
        greeting = msgspec.json.decode(running.handshake.result, type=dict[str, Raw])
        capabilities = dict(running.handshake.capabilities)
        ours = {"version": __version__, "extensions": self._extensions}
        capabilities["_meta"] = object_at(capabilities, "_meta") | {META: ours}
        return {**greeting, "agentCapabilities": capabilities}

    def _cancel(self, envelope: Envelope) -> None:
        session = self._hub.session(envelope.session_id)
        self._hub.record(session, envelope.line, Direction.FROM_CLIENT)
        try:
            # While a session is being resumed, its agent has no turn to cancel. `turns` cancels the waiting prompts.
            if session.live and session.process is not None:
                session.process.send(self._dispatcher.line_for(session, envelope))
        finally:
            self._turns.cancel(session)

    def _cancel_request(self, connection: Connection, envelope: Envelope) -> None:
        """Cancel a request. One that its agent has is cancelled there, under its id on stdio."""
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
    """Return an answer in the agent's form, its outcome, and the person's reason. Raises WrongAnswer."""
    if isinstance(envelope, LargeEnvelope):
        if pending.kind != "request":
            raise WrongAnswer(f"the answer has more than {LARGE_BYTES} bytes")
        return envelope.addressed(pending.agent_id, None), Outcome.ANSWERED, None
    line = with_id(translate_answer(pending.request, connection.request_format, envelope), pending.agent_id)
    return line, pending.outcome_of(parse(line)), read_reason(envelope)


async def _finish(work: Coroutine[object, None, None], reply: Reply) -> None:
    """Do the remaining work of a request. The reply is settled even if that fails."""
    try:
        await work
    except Exception as error:
        reply.set_exception(error)
    except BaseException:
        reply.set_exception(ShuttingDown())
        raise


async def _finish_notification(left: Coroutine[object, None, None], envelope: Envelope, reply: Reply) -> None:
    try:
        await left
    except SandboxAgentError as error:
        _log_dropped(envelope, error)
    reply.set_done()


def _log_dropped(envelope: Envelope, error: SandboxAgentError) -> None:
    logger.info("notification dropped method=%s reason=%s", envelope.method, error.slug)


async def _initialize_again(connection: Connection, envelope: Envelope) -> Answer:
    raise InvalidRequest("this connection is initialized; open another one for another agent")
