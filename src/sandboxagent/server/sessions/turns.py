"""Run the prompts of a session one after another, and tell clients when a turn starts and ends.

A prompt waits while another runs, and while its session is being resumed.
"""

import asyncio
from collections.abc import Awaitable

import msgspec
from msgspec import Raw, Struct

from sandboxagent.core.tasks import Tasks
from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import (
    Envelope,
    Object,
    ReplaceableRanges,
    address,
    failure,
    notification,
    objects_at,
    param,
    parse,
    same_id,
    success,
    with_id,
    with_param,
)
from sandboxagent.protocol.errors import RpcError, SandboxAgentError
from sandboxagent.server.log.event import FROM_AGENT, FROM_SERVER, Direction
from sandboxagent.server.sessions.activity import read_result
from sandboxagent.server.sessions.calls import Call
from sandboxagent.server.sessions.connection import Connection
from sandboxagent.server.sessions.decision import CANCEL
from sandboxagent.server.sessions.hub import Hub
from sandboxagent.server.sessions.pending import Outcome
from sandboxagent.server.sessions.reply import Answer, Reply
from sandboxagent.server.sessions.session import Prompt, Session

_FIRST_OF_AN_OBJECT = ord("{")


class _Turn(Struct, eq=False):
    """A prompt that is not answered yet."""

    connection: Connection
    client_id: bytes
    reply: Reply
    call: Call | None = None
    """The call to the agent; None until the prompt starts."""
    checked: bool | None = None
    """Whether all capabilities have agreed that the prompt starts; None until they are asked."""
    ended: asyncio.Future[None] | None = None
    """Completes when the turn ends, for callers that do not need the answer."""


class Turns:
    """Starts prompts, queues them, and ends them."""

    def __init__(self, hub: Hub, queue_limit: int) -> None:
        self._hub = hub
        self._queue_limit = queue_limit
        self._turns: dict[Prompt, _Turn] = {}
        self._tasks = Tasks()

    def check(self, session: Session) -> None:
        """Raise QueueFull or InvalidRequest if it is already clear that a prompt cannot run."""
        session.check_promptable()
        session.check_queue(self._queue_limit)

    def submit(
        self, connection: Connection, session: Session, envelope: Envelope, prompt: Prompt, reply: Reply
    ) -> None:
        """Start a prompt, or queue it until its turn, or until its session is resumed."""
        assert envelope.id is not None
        self._turns[prompt] = _Turn(connection, envelope.id, reply)
        session.waiting.append(prompt)
        self.advance(session)

    def advance(self, session: Session) -> None:
        """Start the next prompt, if a process holds the session and no other prompt runs."""
        if self._hub.before_prompt.checks and not self._may_start(session):
            return
        prompt = session.start_next()
        if prompt is not None:
            self._start(session, prompt)

    def _may_start(self, session: Session) -> bool:
        """Return whether capabilities agree to the next prompt. If they need time, a task waits, and starts it."""
        prompt = session.next_prompt
        if prompt is None:
            return False
        turn = self._turns[prompt]
        if turn.checked is None:
            turn.checked = False
            try:
                wait = self._hub.before_prompt.ask(session, prompt)
            except SandboxAgentError as error:
                self._fail(session, prompt, error)
                return False
            if wait is not None:
                self._tasks.run(self._wait_for_checks(session, prompt, turn, wait), f"check {prompt.turn_id}")
                return False
            turn.checked = True
        return turn.checked

    async def _wait_for_checks(self, session: Session, prompt: Prompt, turn: _Turn, wait: Awaitable[None]) -> None:
        try:
            await wait
        except SandboxAgentError as error:
            # The prompt may have been cancelled meanwhile.
            if prompt in self._turns:
                self._fail(session, prompt, error)
        else:
            turn.checked = True
            self.advance(session)

    def _fail(self, session: Session, prompt: Prompt, error: SandboxAgentError) -> None:
        line = failure(self._turns[prompt].client_id, error)
        self._answer(session, prompt, line, {"error": _error(parse(line))})

    def drop(self, session: Session, prompt: Prompt, error: SandboxAgentError) -> None:
        """Remove a prompt that cannot start, and record why; the caller raises the error."""
        turn = self._turns.get(prompt)
        if turn is not None:
            line = failure(turn.client_id, error)
            self._finish(session, prompt, FROM_SERVER, line, {"error": _error(parse(line))})

    def cancel(self, session: Session) -> None:
        """Cancel the queued prompts and the agent's pending requests. The agent itself ends the turn."""
        for prompt in list(session.waiting):
            self._cancel(session, prompt)
        for pending in self._hub.pending.of_session(session):
            self._hub.answer_for_person(pending, Outcome.CANCELLED, CANCEL, pending.cancellation())

    def cancel_queued(self, connection: Connection, client_id: bytes) -> bool:
        """Cancel a queued prompt by its client's id; return False if there is none."""
        wanted = same_id(client_id)
        for prompt, turn in self._turns.items():
            if turn.call is None and turn.connection is connection and same_id(turn.client_id) == wanted:
                self._cancel(self._hub.session(prompt.session_id), prompt)
                return True
        return False

    def force_end(self, session: Session) -> None:
        """End everything in a session whose agent does not respond."""
        self.cancel(session)
        if session.running is not None:
            call = self._turns[session.running].call
            assert call is not None
            self._hub.calls.close(call.running, call.stdio_id)
            self._cancel(session, session.running)

    async def wait_for_end(self, session: Session) -> None:
        """Wait until the running turn is over."""
        if session.running is not None:
            turn = self._turns[session.running]
            turn.ended = turn.ended or asyncio.get_running_loop().create_future()
            await asyncio.wait([turn.ended])

    def fail_all(self, error: SandboxAgentError) -> None:
        """Fail all waiting callers; running turns are ended elsewhere."""
        for turn in self._turns.values():
            if turn.reply.result is None:
                turn.reply.set_exception(error)

    def fail_waiting(self, session: Session, error: RpcError) -> None:
        """Fail the queued prompts of a session whose process is gone, like the running turn."""
        for prompt in list(session.waiting):
            self._fail(session, prompt, error)

    def show(self, session: Session) -> None:
        """Show the running prompt to all attached clients but its sender, unless the agent echoes prompts itself."""
        prompt, session.unechoed = session.unechoed, None
        process = session.process
        if prompt is None or process is None or process.echoes_prompts:
            return
        process.echoes_prompts = False
        # Written without `any` for speed: this runs for every turn.
        for connection in self._hub.connections.attached(session):
            if connection.tag != prompt.tag:
                self._hub.tell_others(session, user_messages(session, prompt.line, prompt.places), but=prompt.tag)
                return

    def _start(self, session: Session, prompt: Prompt) -> None:
        process, turn = session.held, self._turns[prompt]
        assert process is not None
        call = Call(methods.PROMPT, turn.client_id, turn.connection, process, session, self._settle, turn.reply)
        call.forwarded = True
        turn.call = self._hub.calls.open(call)
        session.heard_at = self._hub.monotonic()
        turn_id = prompt.turn_id
        session.facts.turn, session.facts.prompt_id = turn_id, prompt.prompt_id
        remarks, session.facts.remarks = session.facts.remarks, []
        self._hub.save(session)
        started = self._hub.tell_turn(session, turn_id, prompt.prompt_id, {"state": "started"})
        session.turn_started_at = started.at
        for notify in self._hub.observers.turn_started:
            notify(session, turn_id)
        session.unechoed = prompt
        if process.echoes_prompts is False:
            self.show(session)
        line = _line_for_agent(prompt, remarks, call.stdio_id, session)
        try:
            process.send(line)
        except RpcError as error:
            self._hub.calls.close(process, call.stdio_id)
            line = failure(call.client_id, error)
            self._answer(session, prompt, line, {"error": _error(parse(line))})

    def _settle(self, call: Call, response: Envelope) -> Answer:
        session = call.session
        assert session is not None
        assert session.running is not None
        if session.unechoed is not None:
            self.show(session)
        prompt = session.running
        if response.succeeded:
            reason, tokens = read_result(response)
            session.facts.activity.note_tokens(tokens)
            end: Object = {"stopReason": reason}
        else:
            end = {"error": _error(response)}
        line = response.addressed(call.client_id, None)
        self._give_up_on_strange_requests(session)
        return self._finish(session, prompt, FROM_AGENT, line, end)

    def _give_up_on_strange_requests(self, session: Session) -> None:
        """Cancel the agent's vendor-specific requests: it does not wait for them beyond the turn."""
        for pending in self._hub.pending.of_session(session):
            if pending.kind == "request":
                self._hub.answer_for_person(pending, Outcome.CANCELLED, CANCEL, pending.cancellation())

    def _cancel(self, session: Session, prompt: Prompt) -> None:
        end: Object = {"stopReason": "cancelled"}
        self._answer(session, prompt, success(self._turns[prompt].client_id, end), end)

    def _answer(self, session: Session, prompt: Prompt, line: bytes, end: Object) -> None:
        """Answer a prompt on behalf of its agent."""
        turn = self._turns[prompt]
        answer = self._finish(session, prompt, FROM_SERVER, line, end)
        if turn.call is not None:
            self._hub.resolve(turn.call, answer)
        elif turn.reply.result is None:
            turn.reply.set_result(answer)

    def _finish(self, session: Session, prompt: Prompt, direction: Direction, line: bytes, end: Object) -> Answer:
        turn = self._turns.pop(prompt)
        if turn.ended is not None and not turn.ended.done():
            turn.ended.set_result(None)
        if session.unechoed is prompt:
            session.unechoed = None
        if session.running is prompt:
            session.facts.turn = session.facts.prompt_id = None
        session.finish(prompt)
        session.note_said()
        # Save before the events below, so that a disk that has these events has the facts, too.
        self._hub.save(session)
        self._hub.record(session, line, direction)
        position = self._hub.tell_turn(session, prompt.turn_id, prompt.prompt_id, {"state": "ended", **end}).last
        for notify in self._hub.observers.turn_ended:
            notify(session, prompt.turn_id, end)
        self.advance(session)
        return Answer(line, position)


def user_messages(session: Session, prompt: bytes, places: ReplaceableRanges | None = None) -> list[bytes]:
    """Return the updates with which an agent would echo a prompt."""
    if places is not None:
        before, after = _user_message(session, Raw(b"{}")).split(b"{}")
        view = memoryview(prompt)
        return [
            b"".join((before, view[start:end], after))
            for start, end in places.blocks
            if prompt[start] == _FIRST_OF_AN_OBJECT
        ]
    return [_user_message(session, block) for block in objects_at(parse(prompt).params(), "prompt")]


def _user_message(session: Session, block: object) -> bytes:
    update = {"sessionUpdate": "user_message_chunk", "content": block}
    return notification(methods.UPDATE, {"sessionId": session.id, "update": update})


def _line_for_agent(prompt: Prompt, remarks: list[str], id: bytes, session: Session) -> bytes:
    """Return a prompt for the agent: with the agent's session id, and with people's remarks added."""
    session_id = None if session.facts.agent_session_id == session.id else session.facts.agent_session_id
    if prompt.places is not None:
        remark = msgspec.json.encode(_remark(remarks)) if remarks else b""
        return address(prompt.line, prompt.places, id, session_id, remark)
    line = with_id(_with_remarks(prompt.line, remarks) if remarks else prompt.line, id)
    return line if session_id is None else with_param(line, "sessionId", session_id)


def _remark(remarks: list[str]) -> Object:
    return {"type": "text", "text": "\n".join(remarks)}


def _error(response: Envelope) -> Object:
    error = response.error()
    return {"code": error.get("code"), "message": error.get("message")}


def _with_remarks(line: bytes, remarks: list[str]) -> bytes:
    """Add people's remarks on earlier requests before a prompt's blocks."""
    prompt = param(line, "prompt")
    if prompt is None or prompt[:1] != b"[":
        return line
    return with_param(line, "prompt", [_remark(remarks), *msgspec.json.decode(prompt, type=list[Raw])])
