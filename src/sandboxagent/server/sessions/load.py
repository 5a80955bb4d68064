"""Load and resume sessions at the agent or from the log."""

from collections.abc import Mapping
from functools import partial

from msgspec import Raw, Struct

from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import (
    Envelope,
    failure,
    params_text,
    parse,
    success,
    text_at,
)
from sandboxagent.protocol.errors import AgentTimeout, InvalidParams, InvalidRequest
from sandboxagent.server.agents.options import complete_answer
from sandboxagent.server.log.event import Chunk, Direction
from sandboxagent.server.sessions.calls import Call
from sandboxagent.server.sessions.connection import Connection
from sandboxagent.server.sessions.dispatch import (
    Dispatcher,
    fill_from_session,
    require_advertised,
    take_environment,
)
from sandboxagent.server.sessions.hub import Hub
from sandboxagent.server.sessions.lifecycle import Event, State
from sandboxagent.server.sessions.reply import Answer
from sandboxagent.server.sessions.session import Process, Replay, Session
from sandboxagent.server.sessions.turns import user_messages

MAX_HISTORY_PAGE = 1000
"""Maximum number of events of the history that are read at a time."""


class LoadSession(Struct, frozen=True):
    """Handlers of `session/load` and `session/resume`."""

    hub: Hub
    dispatcher: Dispatcher

    async def load(self, connection: Connection, envelope: Envelope) -> Answer:
        environment, envelope = take_environment(envelope)
        session = self.hub.find_session(envelope.session_id)
        if session is not None and session.held is not None:
            return await self._join(connection, session, envelope, environment)
        if envelope.session_id is None:
            raise InvalidParams(f"{envelope.method} needs a sessionId")
        async with self.dispatcher.lock_session(session.id if session else envelope.session_id):
            # Another client may have resumed the session while this one waited for the lock.
            session = self.hub.find_session(envelope.session_id)
            if session is None:
                return await self._load_unknown(connection, envelope.session_id, envelope, environment)
            if session.held is not None:
                return await self._join(connection, session, envelope, environment)
            return await self._resume_known(connection, session, envelope, environment)

    resume = load

    async def _join(
        self, connection: Connection, session: Session, envelope: Envelope, environment: Mapping[str, str]
    ) -> Answer:
        """Attach a client to a session that a process holds already. A load first replays the server's own log."""
        assert envelope.id is not None
        if environment:
            raise InvalidParams(
                f"a process holds session {session.id} already; env is only for a session that none holds",
                sessionId=session.id,
            )
        if envelope.method == methods.LOAD:
            await self._replay(connection, session)
        self.hub.attach(connection, session)
        return Answer(complete_answer(success(envelope.id, session.facts.offers), session.facts.offers))

    async def _replay(self, connection: Connection, session: Session) -> None:
        """Replay the session's history from the server's log to one connection; the agent would send it to all.

        The connection is attached in the step that reads the last events, so that it misses and repeats none.
        """
        log, after = self.hub.log, 0
        attached_at = log.position if connection.attached(session.id) else None
        while True:
            end = log.position if attached_at is None else attached_at
            chunks = await log.history(session.id, after, end + 1, MAX_HISTORY_PAGE)
            for chunk in chunks:
                self._repeat(connection, session, chunk)
            after = chunks[-1].last if chunks else end
            if attached_at is not None and not chunks:
                # Later events reached the connection live.
                return
            rest = None if chunks else log.in_memory([session.channel], after, log.limits.tail_bytes)
            if rest is not None and rest[1]:
                break
        for chunk in rest[0]:
            self._repeat(connection, session, chunk)
        self.hub.attach(connection, session)

    def _repeat(self, connection: Connection, session: Session, chunk: Chunk) -> None:
        to_come = {prompt.position for prompt in (session.unechoed, *session.waiting) if prompt is not None}
        for position, line in enumerate(chunk.lines, chunk.first):
            envelope = parse(line)
            if envelope.method == methods.UPDATE and chunk.direction is not Direction.FROM_CLIENT:
                self.hub.tell_connection(connection, line, session.id)
            elif envelope.method == methods.PROMPT and position not in to_come and not _agent_echoes(session):
                for update in user_messages(session, line):
                    self.hub.tell_connection(connection, update, session.id)

    async def _load_unknown(
        self, connection: Connection, session_id: str, envelope: Envelope, environment: Mapping[str, str]
    ) -> Answer:
        """Send a load or resume to the agent: it may know sessions that the server has never seen."""
        agent = await self.dispatcher.agent(connection, envelope)
        cwd = await self.dispatcher.directory(envelope.params())
        running = await self.dispatcher.spawn(agent, environment)
        session = None
        try:
            require_advertised(running, envelope.method)
            self._check_free(session_id)
            opened_with = Raw(params_text(envelope.line))
            session = self.hub.add_session(running, session_id, cwd, opened_with)
            session.facts.own_environment = bool(environment)
            return await self._load_at(connection, running, session, envelope, known=False)
        except AgentTimeout:
            # Keep the session: the agent may still open it. The late response goes to the stream.
            raise
        except BaseException:
            if session is not None:
                self.hub.move(session, Event.FAILED)
            await self.dispatcher.stop_if_unused(running)
            raise

    def _check_free(self, session_id: str) -> None:
        """Raise InvalidRequest if another session has got this id since the client's request arrived."""
        if self.hub.is_taken(session_id):
            message = f"another session has the name {session_id!r} by now, or is about to get it; ask again"
            raise InvalidRequest(message, sessionId=session_id)

    async def _resume_known(
        self, connection: Connection, session: Session, envelope: Envelope, environment: Mapping[str, str]
    ) -> Answer:
        self._check_loadable(session)
        session.check_environment(environment)
        line = fill_from_session(envelope.line, session)
        running = await self.dispatcher.spawn(await self.dispatcher.agent_of(session), environment)
        try:
            require_advertised(running, envelope.method)
            # The session may have ended while its agent was started.
            self._check_loadable(session)
            self.hub.move(session, Event.RESUME, running)
            session.facts.own_environment = bool(environment)
            return await self._load_at(connection, running, session, parse(line), known=True)
        except BaseException as error:
            # Keep the process of an agent that took too long: it may still answer, and then holds the session.
            self.hub.move(session, Event.FAILED)
            if not isinstance(error, AgentTimeout):
                await self.dispatcher.stop_if_unused(running)
            raise

    @staticmethod
    def _check_loadable(session: Session) -> None:
        """Raise InvalidRequest if a session cannot be loaded.

        Unlike a prompt, a load may ask for a session that the agent did not promise to resume.
        """
        if session.over:
            raise InvalidRequest(f"session {session.id} was terminated; start a new one", sessionId=session.id)
        if session.state is not State.ENDED:
            session.check_resumable()

    async def _load_at(
        self, connection: Connection, running: Process, session: Session, envelope: Envelope, *, known: bool
    ) -> Answer:
        session.replay = Replay(connection.channel, history=not known)
        session.facts.creator = connection.tag
        settle = partial(self._loaded, request=envelope, known=known)
        answer = await self.dispatcher.call(connection, running, session, envelope, settle)
        if not parse(answer.line).succeeded:
            await self.dispatcher.stop_if_unused(running)
            return answer
        await self.dispatcher.wait_for_replay(running, session)
        session.replay = None
        return Answer(answer.line, self.hub.log.position)

    def _loaded(self, call: Call, response: Envelope, *, request: Envelope, known: bool) -> Answer:
        session = call.session
        assert session is not None
        assert call.connection is not None
        if not response.succeeded or not call.running.agent.replays_late:
            session.replay = None
        line = response.addressed(call.client_id, None)
        if not response.succeeded:
            self.hub.move(session, Event.FAILED)
            session.replay = None
        elif not self.hub.mark_opened(session, call.running):
            # A client has ended the session in the meantime: notify the agent, and the client that loads it.
            self.dispatcher.close_at_agent_soon(call.running, session.facts.agent_session_id)
            return Answer(failure(call.client_id, session.ended_error()), self.hub.log.position)
        else:
            line = self._take_in(call.connection, session, request, line, known=known)
        if call.late is not None:
            self.dispatcher.stop_if_unused_soon(call.running)
        return Answer(line, self.hub.log.position)

    def _take_in(
        self, connection: Connection, session: Session, request: Envelope, line: bytes, *, known: bool
    ) -> bytes:
        """Save a session that its agent has loaded, and return the answer for the client."""
        session.learn_offers(parse(line).result())
        cwd = text_at(request.params(), "cwd") or session.facts.cwd
        session.note_reopened(cwd, Raw(params_text(request.line)))
        line = complete_answer(line, session.facts.offers)
        if not known:
            session.mark_reported()
        self.hub.note_changed_offers(session)
        self.hub.attach(connection, session)
        self.hub.record(session, line, Direction.FROM_AGENT)
        return line


def _agent_echoes(session: Session) -> bool:
    """Return whether the agent itself echoes prompts, so that the log has them as updates already."""
    return session.process is not None and bool(session.process.echoes_prompts)
