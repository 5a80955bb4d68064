"""Close, terminate and delete sessions."""

import asyncio

from msgspec import Struct, field

from sandboxagent.core.tasks import Shared
from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import (
    META,
    Envelope,
    Object,
    notification,
    parse,
    success,
)
from sandboxagent.protocol.errors import AgentTimeout, SandboxAgentError, ShuttingDown
from sandboxagent.server.sessions.calls import Call
from sandboxagent.server.sessions.connection import Connection
from sandboxagent.server.sessions.dispatch import Dispatcher, make_not_offered, require_advertised
from sandboxagent.server.sessions.hub import Hub
from sandboxagent.server.sessions.lifecycle import Event, State
from sandboxagent.server.sessions.reply import Answer
from sandboxagent.server.sessions.session import TERMINATED, Process, Session
from sandboxagent.server.sessions.turns import Turns

END_TIMEOUT = 2.0
"""Seconds that an agent has to end the turn and close the session when a client terminates it."""


class CloseSession(Struct, frozen=True):
    """Handlers of the methods that end a session."""

    hub: Hub
    dispatcher: Dispatcher
    turns: Turns
    _terminations: Shared[str, None] = field(default_factory=Shared[str, None])

    async def close(self, connection: Connection, envelope: Envelope) -> Answer:
        session = self.hub.session(envelope.session_id)
        running, _ = await self.dispatcher.process(connection, envelope)
        require_advertised(running, envelope.method)
        answer = await self.dispatcher.call(connection, running, session, envelope, self._closed)
        if parse(answer.line).succeeded:
            await self.dispatcher.stop_if_unused(running)
        return answer

    def _closed(self, call: Call, response: Envelope) -> Answer:
        """Handle the agent's response to a close, in time or late."""
        session, answer = call.session, self.dispatcher.return_response(call, response)
        assert session is not None
        if response.succeeded and session.held is call.running:
            self.turns.force_end(session)
            self.hub.move(session, Event.CLOSED, termination={"reason": "closed", "terminatedBy": "client"})
            if call.late is not None:
                self.dispatcher.stop_if_unused_soon(call.running)
        return answer

    # Terminating

    async def terminate(self, connection: Connection, envelope: Envelope) -> Answer:
        assert envelope.id is not None
        session = self.hub.session(envelope.session_id)
        already = session.facts.ended
        if session.state is not State.TERMINATED:
            await self._terminate(session)
        result: Object = {"terminated": True, **TERMINATED}
        result = result | {"alreadyEnded": True} if already else result
        return Answer(success(envelope.id, result), self.hub.log.position)

    async def _terminate(self, session: Session) -> None:
        running = session.process
        if session.held is not None:
            # This move comes before the task runs, so that no further prompt starts.
            self.hub.move(session, Event.TERMINATE)
        if session.state is State.ENDING and running is not None:
            # All clients that ask meanwhile wait for one task: the session ends once.
            name = f"terminate {session.id}"
            await self._terminations.get(session.id, lambda: self._shut_down(session, running), name)
        else:
            # No process holds the session. A resume that is under way will fail.
            self.turns.force_end(session)
            self.hub.move(session, Event.TERMINATE)

    async def _shut_down(self, session: Session, running: Process) -> None:
        """Ask the agent to end the turn and close the session, and wait at most END_TIMEOUT."""
        self.turns.cancel(session)
        own: Object = {"sessionId": session.facts.agent_session_id}
        try:
            async with asyncio.timeout(END_TIMEOUT):
                if session.running is not None:
                    running.send(notification(methods.CANCEL, own))
                    await self.turns.wait_for_end(session)
                if running.handshake.offers("sessionCapabilities", "close"):
                    await self.dispatcher.call_as_server(running, session, methods.CLOSE, own)
        except (TimeoutError, SandboxAgentError):
            # The session ends in any case. An agent that does not respond cannot prevent that.
            pass
        finally:
            self.turns.force_end(session)
            self.hub.move(session, Event.WOUND_DOWN)
        await self.dispatcher.stop_if_unused(running)

    # Deleting

    async def delete(self, connection: Connection, envelope: Envelope) -> Answer:
        named = self.hub.session(envelope.session_id)
        async with self.dispatcher.lock_session(named.id):
            # Another client may have resumed or deleted the session while this one waited for the lock.
            session = self.hub.session(named.id)
            running = session.process
            if running is None:
                answer = await self._delete_at_rest(connection, session, envelope)
            else:
                answer = await self._delete_at(running, connection, session, envelope)
            if not parse(answer.line).succeeded:
                return answer
            self._forget(session)
        if running is not None:
            await self.dispatcher.stop_if_unused(running)
        await self.hub.log.flushed()
        return answer

    def _forget(self, session: Session) -> None:
        if not session.deleted:
            self.turns.force_end(session)
            self.hub.delete_session(session)

    async def _delete_at_rest(self, connection: Connection, session: Session, envelope: Envelope) -> Answer:
        """Delete a session that no process holds.

        A session that could be resumed is deleted only if its agent agrees. Any other is deleted in any case.
        """
        assert envelope.id is not None
        if self.hub.store.shares_agent_id(session):
            return Answer(success(envelope.id, {}))
        try:
            running = await self.dispatcher.start_installed(await self.dispatcher.agent_of(session))
            answer = await self._delete_at(running, connection, session, envelope)
        except ShuttingDown:
            raise
        except SandboxAgentError as error:
            if session.facts.can_resume:
                raise
            self._ignore_late_answer(connection, envelope.id, error)
            warning = str(error)
        else:
            response = parse(answer.line)
            if response.succeeded or session.facts.can_resume:
                return answer
            warning = f"agent {running.agent.id} did not delete it: {response.error().get('message')}"
        return Answer(success(envelope.id, {"_meta": {META: {"warnings": [warning]}}}))

    async def _delete_at(
        self, running: Process, connection: Connection, session: Session, envelope: Envelope
    ) -> Answer:
        if not running.handshake.offers("sessionCapabilities", "delete"):
            needed = session.live or session.facts.can_resume
            more = "terminate the session first, then it can be deleted here" if needed else "its own copy stays"
            raise make_not_offered(running.agent.id, envelope.method, more)
        return await self.dispatcher.call(connection, running, session, envelope, self._deleted)

    def _deleted(self, call: Call, response: Envelope) -> Answer:
        """Handle the agent's response to a deletion, in time or late."""
        session, answer = call.session, self.dispatcher.return_response(call, response)
        assert session is not None
        if response.succeeded:
            self._forget(session)
            if call.late is not None:
                self.dispatcher.stop_if_unused_soon(call.running)
        return answer

    def _ignore_late_answer(self, connection: Connection, client_id: bytes, error: SandboxAgentError) -> None:
        """Drop a timed-out call whose client gets an answer, so that a late response is not a second answer."""
        call = self.hub.calls.find(connection, client_id)
        if isinstance(error, AgentTimeout) and call is not None and call.late is error.late:
            self.hub.calls.close(call.running, call.stdio_id)
