"""Ending a session: close, terminate, delete. Each first records the outcome, then notifies the agent."""

import asyncio

from msgspec import Struct, field

from sandbox_agent.envelope import META, Envelope, Object, notification, parse, success
from sandbox_agent.errors import AgentTimeout, SandboxAgentError, ShuttingDown
from sandbox_agent.hub.calls import Answer, Call
from sandbox_agent.hub.connections import Connection
from sandbox_agent.hub.forward import Forward, make_not_offered, require_advertised
from sandbox_agent.hub.hub import Hub
from sandbox_agent.hub.lifecycle import Event, State
from sandbox_agent.hub.process import Process
from sandbox_agent.hub.session import TERMINATED, Session
from sandbox_agent.hub.turns import Turns
from sandbox_agent.wire import methods

END_GRACE = 2.0
"""Seconds in which an agent may end the turn and close the session that is terminated."""


class SessionEnding(Struct, frozen=True):
    """The methods that end a session."""

    hub: Hub
    forward: Forward
    turns: Turns
    _terminations: dict[str, asyncio.Task[None]] = field(default_factory=dict[str, asyncio.Task[None]])

    async def close(self, connection: Connection, envelope: Envelope) -> Answer:
        session = self.hub.session(envelope.session_id)
        running, _ = await self.forward.process(connection, envelope)
        require_advertised(running, envelope.method)
        answer = await self.forward.call(connection, running, session, envelope, self._closed)
        if parse(answer.line).succeeded:
            await self.forward.dismiss(running)
        return answer

    def _closed(self, call: Call, response: Envelope) -> Answer:
        """The agent has answered, in time or late."""
        session, answer = call.session, self.forward.pass_back(call, response)
        assert session is not None
        if response.succeeded and session.held is call.running:
            self.turns.abandon(session)
            self.hub.move(session, Event.CLOSED, termination={"reason": "closed", "terminatedBy": "client"})
            if call.late is not None:
                self.forward.dismiss_soon(call.running)
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
        if session.held is not None:
            task = asyncio.create_task(self._wind_down(session, session.held), name=f"terminate {session.id}")
            self._terminations[session.id] = task
            task.add_done_callback(lambda _: self._terminations.pop(session.id, None))
            # From here on no prompt starts.
            self.hub.move(session, Event.TERMINATE)
        if session.state is State.ENDING:
            # Another client may have asked for it before: it ends once.
            await asyncio.shield(self._terminations[session.id])
        else:
            # No process holds it. A resume that is under way will fail.
            self.turns.abandon(session)
            self.hub.move(session, Event.TERMINATE)

    async def _wind_down(self, session: Session, running: Process) -> None:
        """Ask the agent to end the turn and close the session, and wait a bounded time for it."""
        self.turns.cancel(session)
        own: Object = {"sessionId": session.facts.agent_session_id}
        try:
            async with asyncio.timeout(END_GRACE):
                if session.running is not None:
                    running.send(notification(methods.CANCEL, own))
                    await self.turns.wait_for_end(session)
                if running.handshake.offers("sessionCapabilities", "close"):
                    await self.forward.call_as_server(running, session, methods.CLOSE, own)
        except (TimeoutError, SandboxAgentError):
            # The session ends here anyway: an uncooperative agent cannot keep it alive.
            pass
        finally:
            self.turns.abandon(session)
            self.hub.move(session, Event.WOUND_DOWN)
        await self.forward.dismiss(running)

    # Deleting

    async def delete(self, connection: Connection, envelope: Envelope) -> Answer:
        named = self.hub.session(envelope.session_id)
        async with self.forward.lock_session(named.id):
            # Another client may have taken it up or deleted it while we waited.
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
            await self.forward.dismiss(running)
        await self.hub.log.flushed()
        return answer

    def _forget(self, session: Session) -> None:
        if not session.deleted:
            self.turns.abandon(session)
            self.hub.delete_session(session)

    async def _delete_at_rest(self, connection: Connection, session: Session, envelope: Envelope) -> Answer:
        """Delete a session that no process holds.

        A session that could be resumed is deleted only if its agent agrees. Any other is deleted in any case.
        """
        assert envelope.id is not None
        if self.hub.shelf.shares_agent_id(session):
            return Answer(success(envelope.id, {}))
        try:
            running = await self.forward.start_installed(self.forward.agent_of(session))
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
            more = "terminate the session first, then it can be deleted here" if needed else "it keeps what it has"
            raise make_not_offered(running.agent.id, envelope.method, more)
        return await self.forward.call(connection, running, session, envelope, self._deleted)

    def _deleted(self, call: Call, response: Envelope) -> Answer:
        """The agent has answered, in time or late."""
        session, answer = call.session, self.forward.pass_back(call, response)
        assert session is not None
        if response.succeeded:
            self._forget(session)
            if call.late is not None:
                self.forward.dismiss_soon(call.running)
        return answer

    def _ignore_late_answer(self, connection: Connection, client_id: bytes, error: SandboxAgentError) -> None:
        """Its client gets an answer now: what the agent says after a timeout is no second one."""
        call = self.hub.calls.find(connection, client_id)
        if isinstance(error, AgentTimeout) and call is not None and call.late is error.late:
            self.hub.calls.close(call.running, call.stdio_id)
