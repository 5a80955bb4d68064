"""What an editor and a server have sent each other through a bridge, and what of it is open. Pure.

It knows what has to be sent again after a cut, and what a connection means to the editor that is not the first.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec import Raw

from sandbox_agent.envelope import (
    Envelope,
    Kind,
    failure,
    notification,
    param,
    parse,
    request,
    text_at,
    with_id,
    with_param,
    with_result,
)
from sandbox_agent.errors import LogUnavailable, NotAnEnvelope, OutcomeUnknown, ShuttingDown
from sandbox_agent.fleet_errors import NodeUnreachable
from sandbox_agent.wire import methods

_OPENING = (methods.NEW, methods.LOAD, methods.RESUME, methods.FORK)
"""Requests that attach a client to a session."""
_STILL_OPEN = (LogUnavailable.slug, NodeUnreachable.slug)
"""Refusals of an answer after which the agent still waits for it."""
_REPEATABLE = (methods.INITIALIZE, methods.LIST)
"""Requests that name no session, and may be made any number of times."""


class UnansweredRequest(NamedTuple):
    """A request of the editor's that is not answered."""

    method: str
    session_id: str | None
    frame: bytes


@dataclass(slots=True)
class Notice:
    """A notification or an answer of the editor's that the server has not acknowledged."""

    frame: bytes
    answers: bytes | None = None
    """The id of the request of the agent's, as this connection knows it."""
    refusals: int = 0
    """How often the server could not take it, and may take it later."""


@dataclass(slots=True)
class Ledger:
    """Lines of an editor become frames for the server, and frames of the server become lines."""

    session: str | None = None
    """The session that the editor gets instead of a new one."""
    last: int = 0
    """The id of the last event."""
    introduction: bytes | None = None
    """The editor's `initialize`."""
    sessions: dict[str, None] = field(default_factory=dict[str, None])
    """Those that the editor is attached to."""
    _generation: int = 0
    """How many connections there have been before this one."""
    _requests: dict[bytes, UnansweredRequest] = field(default_factory=dict[bytes, UnansweredRequest])
    _notices: dict[bytes, Notice] = field(default_factory=dict[bytes, Notice])
    """By their keys."""
    _refused: list[bytes] = field(default_factory=list[bytes])
    """Keys of answers that the server could not take, and may take later."""
    _questions: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    """Open requests of the agent: their ids as the editor knows them, and as this connection does."""
    _opened: set[bytes] = field(default_factory=set[bytes])
    """Requests for a new session that became requests for this one."""

    def outgoing(self, line: bytes, key: str) -> bytes | None:
        """The frame of a line; None for an answer that no connection waits for any more."""
        try:
            envelope = parse(line)
        except NotAnEnvelope:
            # The server says what is wrong with it.
            return line
        match envelope.kind:
            case Kind.REQUEST:
                return self._ask(envelope, key)
            case Kind.RESPONSE:
                return self._answer(envelope, key)
            case Kind.NOTIFICATION:
                return self._keep(envelope.line, key)

    def _ask(self, envelope: Envelope, key: str) -> bytes:
        assert envelope.id is not None
        line, session_id = envelope.line, envelope.session_id
        if envelope.method == methods.NEW and self.session is not None:
            self._opened.add(envelope.id)
            session_id = self.session
            line = request(envelope.id, methods.RESUME, {"sessionId": session_id})
        frame = b"%b\n%b" % (key.encode(), line)
        if envelope.method == methods.INITIALIZE:
            # It opens the connection, so there is nothing yet that a key could belong to.
            self.introduction = frame = line
        self._requests[envelope.id] = UnansweredRequest(envelope.method, session_id, frame)
        return frame

    def _answer(self, envelope: Envelope, key: str) -> bytes | None:
        assert envelope.id is not None
        id = self._questions.pop(envelope.id, None)
        if id is None and self._generation:
            return None
        return self._keep(envelope.line if id is None else with_id(envelope.line, id), key, id or envelope.id)

    def _keep(self, line: bytes, key: str, answers: bytes | None = None) -> bytes:
        frame = b"%b\n%b" % (key.encode(), line)
        self._notices[b'"%b"' % key.encode()] = Notice(frame, answers)
        return frame

    def incoming(self, frame: bytes) -> bytes | None:
        """The line of a frame; None for what is not for the editor, or what it has got already."""
        number, _, line = frame.partition(b"\n")
        if number.isdigit():
            self.last = max(self.last, int(number))
        try:
            envelope = parse(line)
        except NotAnEnvelope:
            # A sign of life, or a complaint that belongs to no request.
            return None
        match envelope.kind:
            case Kind.REQUEST:
                return self._question(envelope)
            case Kind.RESPONSE:
                return self._answered(envelope)
            case Kind.NOTIFICATION:
                return self._renamed(envelope)

    def _question(self, envelope: Envelope) -> bytes:
        assert envelope.id is not None
        shown = self._name(envelope.id)
        self._questions[shown] = envelope.id
        return envelope.line if shown == envelope.id else with_id(envelope.line, shown)

    def _answered(self, envelope: Envelope) -> bytes | None:
        if envelope.id is None:
            return None
        if envelope.id in self._notices:
            notice = self._notices[envelope.id]
            if notice.answers is not None and text_at(envelope.error(), "data", "type") in _STILL_OPEN:
                notice.refusals += 1
                self._refused.append(envelope.id)
            else:
                del self._notices[envelope.id]
            return None
        if text_at(envelope.error(), "data", "type") == ShuttingDown.slug:
            # A server that stops says so to all; the outcome is known when it is back.
            return None
        asked = self._requests.pop(envelope.id, None)
        if asked is None:
            return None
        if not envelope.succeeded:
            return envelope.line
        found = text_at(envelope.result(), "sessionId") or asked.session_id
        if found is not None and asked.method in _OPENING:
            self.sessions[found] = None
        elif asked.method == methods.CLOSE and asked.session_id is not None:
            self.sessions.pop(asked.session_id, None)
        if envelope.id in self._opened:
            self._opened.discard(envelope.id)
            return with_result(envelope.line, "sessionId", self.session)
        return envelope.line

    def _renamed(self, envelope: Envelope) -> bytes:
        """A notification; one that withdraws a request names it as the editor knows it."""
        id = param(envelope.line, "requestId") if envelope.method == methods.CANCEL_REQUEST else None
        if id is None:
            return envelope.line
        shown = self._name(id)
        self._questions.pop(shown, None)
        # An answer that the server could not take is of no use any more.
        self._notices = {key: notice for key, notice in self._notices.items() if notice.answers != id}
        return envelope.line if shown == id else with_param(envelope.line, "requestId", Raw(shown))

    def _name(self, id: bytes) -> bytes:
        """What the editor knows an agent's request by: another connection may use the same ids for other requests."""
        return id if not self._generation else b'"%d/%b"' % (self._generation, id.replace(b'"', b"'"))

    def take_refused(self) -> dict[bytes, int]:
        """Those that were refused since, by their keys, and how often each was by now."""
        refused, self._refused = self._refused, []
        return {key: self._notices[key].refusals for key in refused if key in self._notices}

    def find_unacknowledged(self, key: bytes) -> bytes | None:
        """The frame of a notification or an answer; None for one that needs not be sent again."""
        notice = self._notices.get(key)
        return None if notice is None else notice.frame

    def again(self) -> list[bytes]:
        """Frames to send once more after a cut: those that had arrived change nothing."""
        return [each.frame for each in (*self._notices.values(), *self._requests.values())]

    def renew(self) -> list[bytes]:
        """The server has forgotten the connection, and there is another. Gives the lines that tell the editor so.

        What the agent has asked is withdrawn: what is still open is asked again. A request fails if its outcome is
        unknown, unless its session knows.
        """
        lines = [notification(methods.CANCEL_REQUEST, {"requestId": Raw(id)}) for id in self._questions]
        for id, asked in list(self._requests.items()):
            if asked.session_id is None and asked.method not in _REPEATABLE:
                del self._requests[id]
                lines.append(failure(id, OutcomeUnknown()))
        self._questions.clear()
        self._notices = {key: notice for key, notice in self._notices.items() if notice.answers is None}
        self._generation += 1
        self.last = 0
        return lines
