"""Handle every line that an agent process writes, and its exit.

It runs inside the pipe's callback. Nothing here may raise: an exception would close the pipe, and the server would
read nothing more from the agent.
"""

import logging
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec
from msgspec import UNSET, Raw, Struct, field

from sandboxagent.core.reports import Reports
from sandboxagent.core.tasks import Tasks
from sandboxagent.core.threads import Pool
from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import (
    CARRIAGE_RETURN,
    LARGE_BYTES,
    MAX_NAME,
    META,
    MIN_DEEP_BYTES,
    REQUEST,
    RESPONSE,
    Envelope,
    LargeResponse,
    Params,
    Peek,
    Update,
    check_utf8,
    failure,
    fault,
    long_name,
    notification,
    object_at,
    one_line,
    parse,
    peek_lines,
    prepare_response,
    related,
    with_error,
    with_param,
)
from sandboxagent.protocol.errors import (
    AgentAnswerTooLong,
    AgentExited,
    InternalError,
    InvalidRequest,
    MethodNotFound,
    NotAnEnvelope,
    RpcError,
    UnknownSession,
)
from sandboxagent.protocol.json_bounds import MAX_DEPTH, MAX_VALUES, excess
from sandboxagent.server.agents.credentials import find_missing_credentials
from sandboxagent.server.agents.process import Exit
from sandboxagent.server.log.event import Direction, agent_channel, connection_channel, split_lines
from sandboxagent.server.sessions.budgets import KEPT_COST_BYTES
from sandboxagent.server.sessions.calls import Call
from sandboxagent.server.sessions.connection import Connection
from sandboxagent.server.sessions.decision import AGENT
from sandboxagent.server.sessions.host_methods import HostRequests
from sandboxagent.server.sessions.hub import Hub
from sandboxagent.server.sessions.lifecycle import Event, server_stopped
from sandboxagent.server.sessions.pending import QUESTION, Outcome, PendingRequest
from sandboxagent.server.sessions.policy import PolicyCheck
from sandboxagent.server.sessions.reply import Answer
from sandboxagent.server.sessions.sanitize import OURS, needs_check, strip_server_fields
from sandboxagent.server.sessions.session import MAX_OFFERS_BYTES, Process, Session
from sandboxagent.server.sessions.turns import Turns

logger = logging.getLogger(__name__)

MAX_BUFFER_BYTES = 8 << 20
"""Maximum bytes of one process that may wait for the response that names their session."""
MAX_UNPARSED_BYTES = 4096
"""Maximum bytes of a bad line that clients see."""
_SPECIAL_UPDATES = frozenset(
    {
        "session_info_update",
        "current_mode_update",
        "config_option_update",
        "available_commands_update",
        "usage_update",
        "user_message_chunk",
    }
)
"""Updates that are parsed. They change the server's facts, or show whether the agent echoes prompts.

All other updates are passed on without parsing.
"""
_VENDORS_CHOICE = b'"currentMod'
"""Text that vendor notifications about a mode or a model contain. Others are passed on without parsing."""
AUTH_REQUIRED = -32000
_ABOUT_THE_REQUEST = (-32600, -32601, -32602)
"""Codes of errors that are about the prompt itself, so missing credentials cannot be their cause."""
_BRACE, _END_BRACE = b"{}"
_EMPTY_LINES = b"\n\n"
MAX_UNPARSED = 100
"""Maximum number of bad lines of one read that clients see one by one."""
_MAX_BRACKETS = MAX_DEPTH + 1
"""Maximum number of brackets of one kind that are counted: the count only has to exceed MAX_DEPTH."""
_HOST = ("fs/", "terminal/")
"""Prefixes of the methods for the host's files and terminals."""


class _Buffer(Struct):
    lines: list[tuple[str, bytes, Peek]] = field(default_factory=list[tuple[str, bytes, Peek]])
    size: int = 0


class _Bad(Struct, frozen=True):
    """A line that is not a valid envelope, and the reason."""

    line: bytes
    reason: str
    truncated: bool = False


class _Good(Struct):
    """A line that is a valid envelope."""

    line: bytes
    peek: Peek
    prepared: LargeResponse | None = None
    """For a long response that goes to a client unread."""


class AgentEvents:
    """The supervisor's listener: it handles the output and the exit of all agent processes."""

    def __init__(
        self,
        hub: Hub,
        turns: Turns,
        host: HostRequests,
        policy_check: PolicyCheck,
        pool: Pool,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """`pool` runs the threads that parse large lines."""
        self._pool = pool
        self._tasks = Tasks()
        self._late: dict[str, deque[bytes | Callable[[], None]]] = {}
        """For each process: lines that a thread is parsing, and all later lines and events of the process."""
        self._hub = hub
        self._environ = environ or {}
        self._turns = turns
        self._host = host
        self._policy_check = policy_check
        self._buffers: dict[str, _Buffer] = {}
        self._refusals = Reports(hub.monotonic, _report_refusals)
        self._bad_lines = Reports(hub.monotonic, _report_bad_lines)
        self._unasked = Reports(hub.monotonic, _report_unasked)
        self._beyond = Reports(hub.monotonic, _report_beyond)

    def receive(self, running: Process, blob: bytes) -> None:
        """Handle whole lines from an agent's stdout."""
        if len(blob) > LARGE_BYTES or (self._late and running.key in self._late):
            self._take_later(running, blob)
        else:
            self._take(running, _look_at(blob))

    def _take_later(self, running: Process, step: bytes | Callable[[], None]) -> None:
        """Queue lines that a thread has to parse, or a step that follows such lines.

        Reading from this agent pauses meanwhile; other agents are not affected.
        """
        late = self._late.get(running.key)
        running.pause_reading()
        if late is not None:
            late.append(step)
            return
        self._late[running.key] = late = deque((step,))
        self._tasks.run(self._take_late(running, late), f"take large lines of {running.key}")

    async def _take_late(self, running: Process, late: deque[bytes | Callable[[], None]]) -> None:
        while late:
            step = late[0]
            try:
                if isinstance(step, bytes):
                    looked_at = (
                        _look_at(step) if len(step) <= LARGE_BYTES else await self._look_in_thread(running, step)
                    )
                    if len(late) == 1:
                        # Resume before the lines are handled: a slow reader or the disk may then pause it again.
                        running.resume_reading()
                    self._take(running, looked_at)
                else:
                    step()
            except Exception:
                logger.exception("large lines from agent failed agent=%s", running.agent.id)
            late.popleft()
        del self._late[running.key]

    async def _look_in_thread(self, running: Process, blob: bytes) -> "_LookedAt":
        lines, peeks, forged, each = await self._pool.run(_look_at, blob)
        if each is None and any(map(_is_large_response, lines, peeks)):
            each = [_Good(line, peek) for line, peek in zip(lines, peeks, strict=True)]
            lines, peeks = [], []
        for one in each or ():
            if type(one) is not _Good or not _is_large_response(one.line, one.peek) or one.peek.id is UNSET:
                continue
            call = self._hub.calls.get(running, bytes(one.peek.id))
            if call is not None and call.forwarded:
                one.prepared = await self._pool.run(prepare_response, one.line, one.peek, call.client_id)
        return lines, peeks, forged, each

    def _take(self, running: Process, looked_at: "_LookedAt") -> None:
        lines, peeks, forged, each = looked_at
        if forged:
            self._refusals.note(running.key, forged)
        log = self._hub.log
        # A single notification gains nothing from being held.
        is_held = (len(peeks) != 1 or peeks[0].id is not UNSET) and log.hold(join=len(lines) > 1)
        try:
            if each is None:
                self._receive_lines(running, lines, peeks)
            else:
                self._receive_one_by_one(running, each)
        finally:
            if is_held:
                # If no other call runs, no further line will come soon that the same disk write could include.
                log.let_go(at_once=self._hub.calls.empty)
        if log.full:
            running.pause_reading()
            log.when_drained(running.resume_reading)

    def oversized(self, running: Process, head: bytes) -> None:
        if running.key in self._late:
            self._take_later(running, partial(self._report_oversized, running, head))
        else:
            self._report_oversized(running, head)

    def _report_oversized(self, running: Process, head: bytes) -> None:
        self._report_unparsed(running, head, "the line is longer than --max-line", truncated=True)

    def exited(self, running: Process, exit: Exit) -> None:
        """Fail the calls that wait on the process and end its sessions, after all of its output was handled."""
        if running.key in self._late:
            self._take_later(running, partial(self._end, running, exit))
        else:
            self._end(running, exit)

    def _end(self, running: Process, exit: Exit) -> None:
        error = _agent_exited(running.agent.id, exit)
        calls = self._hub.calls.close_all(running)
        for session in self._hub.store.find_all_held(running):
            self._turns.fail_waiting(session, error)
        for call in calls:
            self._resolve(call, parse(failure(call.stdio_id, error)))
        for pending in self._hub.pending.of_process(running):
            self._hub.settle(pending, Outcome.CANCELLED, AGENT)
        # Find them only here: the step above has removed sessions whose load failed.
        sessions = self._hub.store.find_all_held(running)
        for session in sessions:
            facts = {"reason": "error", "terminatedBy": "agent", "message": str(error), **exit.facts()}
            self._hub.move(session, Event.EXITED, termination=server_stopped() if self._hub.stopping else facts)
        self._buffers.pop(running.key, None)
        for reports in (self._refusals, self._bad_lines, self._unasked, self._beyond):
            reports.forget(running.key)
        self._hub.budgets.end(running.key)
        self._hub.store.forget_process(running)
        self._host.exited(running)
        logger.log(
            logging.INFO if exit.code == 0 else logging.WARNING,
            "agent exited agent=%s exit_code=%s signal=%s calls_failed=%d sessions_ended=%d",
            running.agent.id,
            exit.code,
            exit.signal,
            len(calls),
            len(sessions),
        )

    def release(self, running: Process, agent_session_id: str) -> None:
        """Handle the lines that were buffered for a session, because the session is known."""
        buffer = self._buffers.pop(running.key, None)
        if buffer is None:
            return
        self._hub.budgets.release_bytes(running.key, buffer.size)
        for session_id, line, peek in buffer.lines:
            if session_id == agent_session_id or not self._hub.calls.makes_session(running):
                self._receive_checked(running, line, peek)
            else:
                self._buffer(running, session_id, line, peek)

    def _receive_lines(self, running: Process, lines: list[bytes], peeks: list[Peek]) -> None:
        """Handle valid lines. This is the fast path: runs of plain updates of one session are handled together."""
        run: list[bytes] = []
        run_id = ""
        for line, peek in zip(lines, peeks, strict=True):
            params = peek.params
            # Inlined for speed: this runs for every line of every agent.
            if (
                peek.method == methods.UPDATE
                and peek.id is UNSET
                and type(params) is Params
                and type(session_id := params.sessionId) is str
                and peek.jsonrpc == "2.0"
                and (
                    type(update := params.update) is not Update
                    or type(kind := update.sessionUpdate) is not str
                    or kind not in _SPECIAL_UPDATES
                )
            ):
                if session_id != run_id:
                    if run:
                        self._receive_updates(running, run_id, run)
                        run = []
                    run_id = session_id
                run.append(line)
                continue
            if run:
                self._receive_updates(running, run_id, run)
                run = []
            self._receive_checked(running, line, peek)
        if run:
            self._receive_updates(running, run_id, run)

    def _receive_one_by_one(self, running: Process, each: "Sequence[_Bad | _Good]") -> None:
        """Handle lines of which some are invalid. Only the bad lines are set aside.

        Clients see the first `MAX_UNPARSED` bad lines and the number of the others.
        """
        for one in each:
            if type(one) is _Bad:
                self._report_unparsed(running, one.line, one.reason, truncated=one.truncated)
            elif type(one) is _Good:
                self._receive_checked(running, one.line, one.peek, one.prepared)

    def _receive_checked(
        self, running: Process, line: bytes, peek: Peek, prepared: LargeResponse | None = None
    ) -> None:
        reason = fault(peek) or (long_name(peek) if len(line) > MAX_NAME else None)
        if reason is not None:
            self._report_unparsed(running, line, reason)
            return
        # A line that fails here must not affect the others.
        try:
            envelope = prepared or Envelope(line, peek)
            if envelope.kind is RESPONSE:
                self._respond(running, envelope)
            elif envelope.kind is REQUEST:
                self._ask(running, envelope)
            else:
                self._notify(running, envelope)
        except Exception:
            logger.exception("envelope from agent failed agent=%s method=%s", running.agent.id, peek.method)

    # Responses

    def _respond(self, running: Process, response: Envelope) -> None:
        assert response.id is not None
        call = self._hub.calls.close(running, response.id)
        if call is None:
            # No call waits for this response: it is a second one, or the server never sent the request.
            self._unasked.note(running.key)
            return
        if call.session is not None:
            call.session.heard_at = self._hub.monotonic()
        if len(response.line) > LARGE_BYTES:
            if not call.forwarded:
                response = parse(failure(response.id, AgentAnswerTooLong(running.agent.id, call.method, LARGE_BYTES)))
        elif response.peek.error is not UNSET:
            response = self._name_credentials(running, call.method, response)
        self._resolve(call, response)

    def _name_credentials(self, running: Process, method: str, response: Envelope) -> Envelope:
        """Add to an agent's error the credentials that are missing: few agents name those that they need."""
        error = response.error()
        code, data = error.get("code"), error.get("data")
        if code != AUTH_REQUIRED and (method != methods.PROMPT or code in _ABOUT_THE_REQUEST):
            return response
        missing = find_missing_credentials(running.agent, {**self._environ, **running.environment})
        facts = object_at(data)
        if not missing or (data is not None and data != facts):
            return response
        message = (
            f"{error.get('message')}; {running.agent.id} was started without its credentials: {', '.join(missing)}"
        )
        return parse(with_error(response.line, message=message, data=facts | {META: {"credentials": missing}}))

    def _resolve(self, call: Call, response: Envelope) -> None:
        try:
            answer = call.settle(call, response)
        except Exception:
            logger.exception("settling a call failed method=%s", call.method)
            answer = Answer(failure(call.client_id, InternalError()))
        self._hub.resolve(call, answer)

    # Notifications

    def _receive_updates(self, running: Process, agent_session_id: str, lines: list[bytes]) -> None:
        hub = self._hub
        try:
            session = hub.store.find_held(running, agent_session_id)
            if session is None:
                self._receive_stray(running, agent_session_id, lines)
                return
            if session.unechoed is not None and session.replay is None:
                self._turns.show(session)
            session.heard_at = hub.monotonic()
            hub.record_updates(session, lines)
            for connection in hub.connections.attached(session):
                if connection.stream is not None and connection.stream.apply_backpressure(running.resume_reading):
                    running.pause_reading()
        except Exception:
            logger.exception("updates from agent failed agent=%s count=%d", running.agent.id, len(lines))

    def _notify(self, running: Process, envelope: Envelope) -> None:
        if envelope.method == methods.CANCEL_REQUEST:
            self._withdraw(running, envelope)
            return
        if envelope.method.startswith(OURS):
            # Clients trust these notifications: an agent could forge a human's decision, or a gap.
            self._refusals.note(running.key)
            return
        if envelope.session_id is None:
            self._hub.tell_agent_followers(running.agent.id, envelope.line, Direction.FROM_AGENT)
            return
        session = self._hub.store.find_held(running, envelope.session_id)
        if session is None:
            self._receive_stray(running, envelope.session_id, [envelope.line])
            return
        kind = envelope.peek.update_kind
        if kind == "user_message_chunk" and session.replay is None and session.unechoed is not None:
            running.echoes_prompts, session.unechoed = True, None
        if len(envelope.line) > MAX_OFFERS_BYTES:
            # Parsing would take too long, and the session would not keep this much anyway.
            learned = False
        elif kind in _SPECIAL_UPDATES:
            learned = session.note_update(object_at(envelope.params(), "update"))
        else:
            learned = _VENDORS_CHOICE in envelope.line and session.note_vendor(envelope.params())
        if learned:
            self._hub.note_changed_offers(session)
        session.heard_at = self._hub.monotonic()
        self._hub.record_updates(session, [envelope.line])
        if kind == "available_commands_update" and session.replay is not None:
            session.replay.finish()

    def _receive_stray(self, running: Process, agent_session_id: str, lines: list[bytes]) -> None:
        """Handle lines for a session that the process does not hold: it has ended, is being opened, or is unknown."""
        late = self._hub.store.find_late(running, agent_session_id)
        if late is not None:
            self._hub.record_updates(late, lines)
        elif self._hub.calls.makes_session(running):
            for line in lines:
                self._buffer(running, agent_session_id, line, msgspec.json.decode(line, type=Peek))
        elif self._hub.find_session(agent_session_id) is not None:
            # The session belongs to another process. Its readers would take this for output of their own agent.
            self._refusals.note(running.key, len(lines))
        else:
            for line in lines:
                self._hub.tell_agent_followers(running.agent.id, line, Direction.FROM_AGENT)

    def _buffer(self, running: Process, agent_session_id: str, line: bytes, peek: Peek) -> None:
        buffer, size = self._buffers.setdefault(running.key, _Buffer()), len(line) + KEPT_COST_BYTES
        if buffer.size + size > MAX_BUFFER_BYTES or not self._hub.budgets.take(running.key, size):
            self._leave_out(running, Envelope(line, peek))
            return
        buffer.lines.append((agent_session_id, line, peek))
        buffer.size += size

    def _leave_out(self, running: Process, envelope: Envelope) -> None:
        """Reject an envelope for a session that is still being opened, because the buffer is full."""
        reason = "the server's buffer for sessions that are being opened is full"
        if envelope.kind is REQUEST:
            self._beyond.note(running.key, what=reason)
            self._refuse(running, envelope, InvalidRequest(f"{reason}; ask again later"))
        else:
            self._report_unparsed(running, envelope.line, reason)

    def _withdraw(self, running: Process, envelope: Envelope) -> None:
        """Cancel a request that the agent withdraws."""
        id = related(envelope.line)
        if id is None:
            return
        self._host.withdraw(running, id)
        pending = self._hub.pending.find(running, id)
        if pending is not None:
            if pending.session is not None:
                self._hub.record(pending.session, envelope.line, Direction.FROM_AGENT)
            # An agent that withdraws a request still waits for its response.
            self._hub.answer_for_person(pending, Outcome.CANCELLED, AGENT, pending.cancellation())

    # Requests

    def _ask(self, running: Process, request: Envelope) -> None:
        assert request.id is not None
        if request.method.startswith(_HOST):
            self._ask_host(running, request)
        elif request.method in running.agent.refuses or _is_ours_alone(request.method):
            self._refuse(running, request, MethodNotFound(f"{request.method} is not offered", method=request.method))
        elif request.session_id is None:
            self._ask_outside_sessions(running, request)
        elif (session := self._hub.store.find_held(running, request.session_id)) is not None:
            self._ask_session(running, session, request)
        elif self._hub.calls.makes_session(running):
            self._buffer(running, request.session_id, request.line, request.peek)
        else:
            self._refuse(running, request, UnknownSession(request.session_id))

    def _ask_host(self, running: Process, request: Envelope) -> None:
        session = None if request.session_id is None else self._hub.store.find_held(running, request.session_id)
        if session is None:
            # Do not buffer it for a session that is being opened: the agent may need the file before it can answer.
            self._refuse(running, request, UnknownSession(request.session_id or ""))
        elif (client := self._host.client(session, request)) is not None:
            self._ask_session(running, session, request, client)
        else:
            self._host.serve(running, session, request)

    def _ask_session(
        self, running: Process, session: Session, request: Envelope, only: Connection | None = None
    ) -> None:
        self._turns.show(session)
        session.heard_at = self._hub.monotonic()
        line = request.line
        if session.facts.agent_session_id != session.id:
            line = with_param(line, "sessionId", session.id)
        if (id := related(line)) is not None:
            call = self._hub.calls.get(running, id)
            line = with_param(line, "requestId", Raw(call.client_id if call else b"null"))
        # The original line is parsed already; only a changed one must be parsed again.
        asked = request if line is request.line else parse(line)
        pending = self._hub.new_pending(asked, running, session, only and only.tag)
        if self._reject_beyond(pending) or self._policy_check.take(pending, session):
            return
        channel = session.channel if only is None else only.channel
        self._hub.ask(pending, line, channel)

    def _ask_outside_sessions(self, running: Process, request: Envelope) -> None:
        """Ask a request that names no session.

        It belongs to a call (an elicitation during a login), or to all clients of the agent.
        """
        id = related(request.line)
        call = None if id is None else self._hub.calls.get(running, id)
        if call is None or call.connection is None:
            pending = self._hub.new_pending(request, running, None)
            if self._reject_beyond(pending):
                return
            self._hub.ask(pending, request.line, agent_channel(running.agent.id))
            return
        line = with_param(request.line, "requestId", Raw(call.client_id))
        pending = self._hub.new_pending(parse(line), running, call.session, call.connection.tag)
        if self._reject_beyond(pending):
            return
        self._hub.ask(pending, line, connection_channel(call.connection.tag))

    def _reject_beyond(self, pending: PendingRequest) -> bool:
        """Reject a request if its agent process has reached a limit: of requests that wait, or of memory.

        Returns whether it was rejected.
        """
        reason = self._hub.pending.find_limit(pending)
        if reason is None:
            return False
        self._beyond.note(pending.process.key, what=reason)
        self._hub.reject(pending, reason)
        return True

    def _refuse(self, running: Process, request: Envelope, error: RpcError) -> None:
        assert request.id is not None
        self._send(running, failure(request.id, error))

    @staticmethod
    def _send(running: Process, line: bytes) -> None:
        try:
            running.answer(line)
        except RpcError as error:
            logger.debug("agent takes no answer agent=%s reason=%s", running.agent.id, error.slug)

    # Bad lines

    def _report_unparsed(self, running: Process, line: bytes, reason: str, *, truncated: bool = False) -> None:
        """Set a bad line aside: show clients its beginning, and go on reading."""
        self._bad_lines.note(running.key, what=f"bytes={len(line)} reason={reason}")
        shown = line[:MAX_UNPARSED_BYTES].decode(errors="replace")
        truncated = truncated or len(line) > MAX_UNPARSED_BYTES
        params = {"agent": running.agent.id, "reason": reason, "line": shown, "truncated": truncated}
        quarantined = notification(methods.UNPARSED, params)
        self._hub.tell_agent_followers(running.agent.id, quarantined, Direction.FROM_SERVER)


def _is_large_response(line: bytes, peek: Peek) -> bool:
    return peek.method is UNSET and len(line) > LARGE_BYTES


_LookedAt = tuple[list[bytes], list[Peek], int, Sequence[_Bad | _Good] | None]


def _look_at(blob: bytes) -> _LookedAt:
    """Parse a blob: return its lines, a peek at each, the number of lines with forged members, and None.

    Forged members are those that only the server may write; they are removed. If some line is not an envelope on one
    line, the two lists are empty, and the last item has all lines one by one. The function touches no other state,
    because a thread runs it for large blobs.
    """
    try:
        if is_large := len(blob) > MAX_VALUES:
            # Check before parsing: a parsed value takes fifty times its bytes.
            _check_bounds(blob)
        if not blob.isascii():
            check_utf8(blob)
        peeks = peek_lines(blob)
    except (msgspec.DecodeError, UnicodeDecodeError, NotAnEnvelope, RecursionError):
        return _look_closely(blob)
    lines = split_lines(blob, len(peeks))
    lines.pop()
    if CARRIAGE_RETURN in blob or len(peeks) != len(lines):
        return _look_closely(blob)
    # Equal counts do not prove one value per line: one line may have two values, and another none.
    for line in lines:
        if not line or line[0] != _BRACE or line[-1] != _END_BRACE:
            return _look_closely(blob)
        # `opens_little`, inlined for speed: this runs for every line of every agent.
        if not is_large and (size := len(line)) >= MIN_DEEP_BYTES:
            few = line.replace(b"{", b"", _MAX_BRACKETS).replace(b"[", b"", _MAX_BRACKETS)
            if size - len(few) > MAX_DEPTH and excess(line) is not None:
                return _look_closely(blob)
    if needs_check(blob, len(lines)):
        return *_strip_lines(lines, peeks), None
    return lines, peeks, 0, None


def _look_closely(blob: bytes) -> _LookedAt:
    """Parse each line by itself, so that only the bad lines are set aside."""
    if _EMPTY_LINES in blob:
        # Empty lines cost as much as others, and there may be very many. Without them, the blob may be valid.
        return _look_at(re.sub(rb"\n\n++", b"\n", blob))
    return [], [], *_look_one_by_one(blob)


def _look_one_by_one(blob: bytes) -> "tuple[int, list[_Bad | _Good]]":
    each: list[_Bad | _Good] = []
    bad = forged = 0
    for line in map(bytes.strip, blob.split(b"\n")):
        if not line:
            continue
        if bad >= MAX_UNPARSED and line[0] != _BRACE:
            bad += 1
            continue
        try:
            envelope = parse(line)
        except NotAnEnvelope as error:
            bad += 1
            if bad <= MAX_UNPARSED:
                each.append(_Bad(line, str(error)))
            continue
        lines, peeks = [one_line(line)], [envelope.peek]
        if needs_check(line, 1):
            lines, peeks, found = _strip_lines(lines, peeks)
            forged += found
        each.append(_Good(lines[0], peeks[0]))
    if bad > MAX_UNPARSED:
        each.append(_Bad(b"", f"{bad - MAX_UNPARSED} more lines are no envelopes", truncated=True))
    return forged, each


def _strip_lines(lines: list[bytes], peeks: list[Peek]) -> tuple[list[bytes], list[Peek], int]:
    """Remove members that only the server may write; return the lines, their peeks, and how many lines changed."""
    checked: list[bytes] = []
    for line in lines:
        try:
            checked.append(strip_server_fields(line))
        except (msgspec.DecodeError, RecursionError):
            # The peek succeeded, but the line is not an object. The empty object becomes a bad line.
            checked.append(b"{}")
    looks = list(zip(lines, checked, peeks, strict=True))
    now = [peek if line is after else msgspec.json.decode(after, type=Peek) for line, after, peek in looks]
    return checked, now, sum(line is not after for line, after, _ in looks)


def _check_bounds(blob: bytes) -> None:
    """Raise NotAnEnvelope if a line is nested too deep, has too many values, or is empty."""
    if _EMPTY_LINES in blob:
        raise NotAnEnvelope("it is empty")
    is_one = blob.find(b"\n") == len(blob) - 1
    for line in (blob,) if is_one else blob.split(b"\n"):
        if (reason := excess(line)) is not None:
            raise NotAnEnvelope(reason)


def _is_ours_alone(method: str) -> bool:
    """Return whether agents may not use a method under the server's prefix. Only questions are allowed."""
    return method.startswith(OURS) and method != QUESTION


def _report_refusals(process: str, count: int, _: str) -> None:
    logger.warning("agent spoke for the server or another agent process=%s lines=%d", process, count)


def _report_bad_lines(process: str, count: int, newest: str) -> None:
    logger.warning("agent wrote bad lines process=%s lines=%d %s", process, count, newest)


def _report_unasked(process: str, count: int, _: str) -> None:
    logger.warning("agent answered unknown requests process=%s answers=%d", process, count)


def _report_beyond(process: str, count: int, newest: str) -> None:
    logger.warning("agent is beyond its limits process=%s times=%d reason=%s", process, count, newest)


def _agent_exited(agent: str, exit: Exit) -> AgentExited:
    """Return the error for callers that waited on a process that has exited."""
    how = f"was ended by {exit.signal}" if exit.signal else f"exited with code {exit.code}"
    return AgentExited(f"agent {agent} {how}", agent=agent, **exit.facts())
