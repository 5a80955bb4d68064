"""Turns: prompts of one session run one after another, and everybody attached knows when one starts and ends."""

import asyncio

from sandbox_agent.agents.boot import RunningAgent
from sandbox_agent.envelope import (
    Envelope,
    Object,
    failure,
    notification,
    objects_at,
    parse,
    same_id,
    success,
    text_at,
    with_id,
    with_param,
)
from sandbox_agent.errors import InvalidRequest, RpcError, SandboxAgentError
from sandbox_agent.hub.calls import Answer, Call
from sandbox_agent.hub.connection import Connection
from sandbox_agent.hub.decision import CANCEL
from sandbox_agent.hub.hub import Hub
from sandbox_agent.hub.pending import Outcome, PendingRequest
from sandbox_agent.hub.session import Prompt, Session
from sandbox_agent.log.event import Direction


class Turns:
    """Starts prompts, lets them wait, and ends them."""

    def __init__(self, hub: Hub, queue_limit: int) -> None:
        self._hub = hub
        self._queue_limit = queue_limit
        self._calls: dict[Prompt, Call] = {}

    def check(self, session: Session) -> None:
        """Raises what is known beforehand to keep a prompt from running: QueueFull, or InvalidRequest."""
        session.check_queue(self._queue_limit)
        if not session.live and not session.facts.can_resume:
            raise InvalidRequest(
                f"session {session.id} has ended and cannot be resumed; start a new one with session/new",
                sessionId=session.id,
            )

    def submit(
        self, connection: Connection, session: Session, running: RunningAgent, envelope: Envelope, prompt: Prompt
    ) -> asyncio.Future[Answer]:
        """Start a prompt, or let it wait its turn; raises QueueFull."""
        assert envelope.id is not None
        session.check_queue(self._queue_limit)
        starts = session.queue(prompt)
        call = Call("session/prompt", envelope.id, connection, running, session, self._settle)
        self._calls[prompt] = call
        if starts:
            self._start(session, prompt)
        assert isinstance(call.future, asyncio.Future)
        return call.future

    def cancel(self, session: Session) -> None:
        """Take back what waits: prompts that have not started, and what the agent asked. The agent ends the turn."""
        for prompt in session.drop_waiting():
            self._answer(session, prompt, Direction.FROM_SERVER, self._cancelled(prompt), {"stopReason": "cancelled"})
        for pending in self._hub.pending.of_session(session):
            self._take_back(session, pending)

    def take_back(self, connection: Connection, client_id: bytes) -> bool:
        """Take back a prompt that waits for its turn, by the id its client gave it; False when there is none."""
        for prompt, call in self._calls.items():
            if call.connection is connection and same_id(call.client_id) == same_id(client_id) and call.session:
                if prompt not in call.session.waiting:
                    return False
                call.session.waiting.remove(prompt)
                end: Object = {"stopReason": "cancelled"}
                self._answer(call.session, prompt, Direction.FROM_SERVER, self._cancelled(prompt), end)
                return True
        return False

    def abandon(self, session: Session) -> None:
        """End everything in a session whose agent will not do it."""
        self.cancel(session)
        if session.running is not None:
            prompt, call = session.running, self._calls[session.running]
            self._hub.calls.close(call.running, call.stdio_id)
            self._answer(session, prompt, Direction.FROM_SERVER, self._cancelled(prompt), {"stopReason": "cancelled"})

    async def ended(self, session: Session) -> None:
        """Wait until the running turn is over."""
        if session.running is not None:
            future = self._calls[session.running].future
            assert isinstance(future, asyncio.Future)
            await asyncio.wait([future])

    def give_up(self, error: SandboxAgentError) -> None:
        """Nobody waits any longer; what runs is ended by others."""
        for call in self._calls.values():
            if not call.future.done():
                call.future.set_exception(error)

    def fail_waiting(self, session: Session, error: RpcError) -> None:
        """The process is gone: what waits for its turn fails like the turn that ran."""
        for prompt in session.drop_waiting():
            line = failure(self._calls[prompt].client_id, error)
            self._answer(session, prompt, Direction.FROM_SERVER, line, {"error": _error(parse(line))})

    def show(self, session: Session) -> None:
        """Show the running prompt to everybody attached but its sender, unless the agent echoes prompts itself."""
        prompt, session.unechoed = session.unechoed, None
        if prompt is None or self._calls[prompt].running.echoes_prompts:
            return
        self._calls[prompt].running.echoes_prompts = False
        if not any(one.tag != prompt.tag for one in self._hub.attached(session)):
            return
        for line in user_messages(session, prompt.line):
            self._hub.tell_others(session, line, but=prompt.tag)

    def _start(self, session: Session, prompt: Prompt) -> None:
        call = self._hub.calls.open(self._calls[prompt])
        session.heard_at = self._hub.monotonic()
        session.facts.turn, session.facts.prompt_id = prompt.turn_id, prompt.prompt_id
        self._hub.save(session)
        self._hub.tell_turn(session, prompt.turn_id, prompt.prompt_id, {"state": "started"})
        session.unechoed = prompt
        if call.running.echoes_prompts is False:
            self.show(session)
        line = with_id(prompt.line, call.stdio_id)
        if session.facts.agent_session_id != session.id:
            line = with_param(line, "sessionId", session.facts.agent_session_id)
        try:
            call.running.send(line)
        except RpcError as error:
            self._hub.calls.close(call.running, call.stdio_id)
            line = failure(call.client_id, error)
            self._answer(session, prompt, Direction.FROM_SERVER, line, {"error": _error(parse(line))})

    def _settle(self, call: Call, response: Envelope) -> Answer:
        session = call.session
        assert session is not None
        assert session.running is not None
        self.show(session)
        prompt = session.running
        end: Object = {"stopReason": text_at(response.result(), "stopReason")}
        if not response.succeeded:
            end = {"error": _error(response)}
        line = with_id(response.line, call.client_id)
        self._give_up_on_strange_requests(session)
        return self._finish(session, prompt, Direction.FROM_AGENT, line, end)

    def _give_up_on_strange_requests(self, session: Session) -> None:
        """What an agent asked by a method of its own making it does not wait for beyond the turn."""
        for pending in self._hub.pending.of_session(session):
            if pending.kind == "request":
                self._take_back(session, pending)

    def _take_back(self, session: Session, pending: PendingRequest) -> None:
        line = pending.cancellation()
        self._hub.record(session, line, Direction.FROM_SERVER)
        self._hub.settle(pending, Outcome.CANCELLED, CANCEL, line)
        self._send(pending.process, line)

    def _answer(self, session: Session, prompt: Prompt, direction: Direction, line: bytes, end: Object) -> None:
        call = self._calls[prompt]
        self._hub.resolve(call, self._finish(session, prompt, direction, line, end))

    def _finish(self, session: Session, prompt: Prompt, direction: Direction, line: bytes, end: Object) -> Answer:
        del self._calls[prompt]
        if session.unechoed is prompt:
            session.unechoed = None
        if session.running is prompt:
            session.facts.turn = session.facts.prompt_id = None
        # Saved first: what is on disk up to the position below includes it.
        self._hub.save(session)
        self._hub.record(session, line, direction)
        position = self._hub.tell_turn(session, prompt.turn_id, prompt.prompt_id, {"state": "ended", **end}).last
        following = session.finish(prompt)
        if following is not None:
            self._start(session, following)
        return Answer(line, position)

    def _cancelled(self, prompt: Prompt) -> bytes:
        return success(self._calls[prompt].client_id, {"stopReason": "cancelled"})

    @staticmethod
    def _send(process: object, line: bytes) -> None:
        assert isinstance(process, RunningAgent)
        try:
            process.answer(line)
        except RpcError:
            # It has exited or does not read: it learns nothing any more, and nobody waits for it to.
            return


def user_messages(session: Session, prompt: bytes) -> list[bytes]:
    """A prompt as the updates an agent would echo it with."""
    return [
        notification(
            "session/update",
            {"sessionId": session.id, "update": {"sessionUpdate": "user_message_chunk", "content": block}},
        )
        for block in objects_at(parse(prompt).params(), "prompt")
    ]


def _error(response: Envelope) -> Object:
    error = response.error()
    return {"code": error.get("code"), "message": error.get("message")}
