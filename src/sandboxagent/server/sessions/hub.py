"""Keep every table of the server, and do the steps that change more than one table.

No method here awaits, so no other code can see a step half done.
"""

import logging
import time
from collections.abc import Callable
from functools import partial

from msgspec import Raw, Struct

from sandboxagent.core.gates import Gate
from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import META, Envelope, Object, notification, with_param
from sandboxagent.protocol.errors import RpcError, UnknownSession
from sandboxagent.protocol.request_ids import RequestIds
from sandboxagent.server.log.event import FROM_AGENT, FROM_SERVER, NO_CLIENT, Chunk, Direction, agent_channel
from sandboxagent.server.log.log import Log
from sandboxagent.server.sessions.activity import Changes
from sandboxagent.server.sessions.budgets import Budgets
from sandboxagent.server.sessions.calls import Call, Calls
from sandboxagent.server.sessions.connection import Connection
from sandboxagent.server.sessions.connections import Connections
from sandboxagent.server.sessions.decision import Decider, make_decision, make_withdrawal, write_refusal
from sandboxagent.server.sessions.held_updates import HeldUpdates
from sandboxagent.server.sessions.lifecycle import (
    AT_REST,
    DELETED,
    SERVER_STOPPED,
    TRANSIENT,
    Effect,
    Event,
    server_stopped,
)
from sandboxagent.server.sessions.observers import Observers
from sandboxagent.server.sessions.pending import MAX_OPEN, Outcome, PendingRequest, PendingRequests
from sandboxagent.server.sessions.reply import Answer
from sandboxagent.server.sessions.session import Process, Prompt, Session, SessionFacts
from sandboxagent.server.sessions.store import SessionStore

logger = logging.getLogger(__name__)

TRIMS = 1000
"""Number of trimmed channels above which the hub forgets those that no connection can ask for."""


class HubLimits(Struct, frozen=True):
    """Limits of one agent process: bytes in the server's memory, and requests that wait for people."""

    memory: int = 256 << 20
    pending: int = MAX_OPEN


class Hub:
    """Connections, sessions, calls and pending requests, with one log."""

    def __init__(
        self,
        log: Log,
        limits: HubLimits | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        node: str = "",
    ) -> None:
        """`node` is the server's name in its fleet, if it is in one."""
        limits = limits or HubLimits()
        self.log = log
        self.clock = clock
        self.monotonic = monotonic
        self.stopping = False
        """Whether the server is stopping. Sessions that end then get that as the reason."""
        self.calls = Calls()
        self.budgets = Budgets(limits.memory)
        """Bytes that the server keeps in memory for each agent process."""
        self.pending = PendingRequests(RequestIds(node), self.budgets, limits.pending)
        self.changes = Changes()
        self.connections = Connections(log, monotonic, self.pending)
        self.store = SessionStore(log, clock)
        self.observers = Observers()
        self.before_session: Gate[Connection, Envelope] = Gate("a new session")
        self.before_prompt: Gate[Session, Prompt] = Gate("a prompt")
        self._namings: list[Callable[[str], bool]] = []
        self._unreported: dict[str, float] = {}
        self.held_updates = HeldUpdates(self.budgets, monotonic, self.record_updates)
        self._trims_checked_above = TRIMS

    def end_interrupted(self) -> None:
        """End the sessions that an earlier server process left running. Call it once, when all observers are there."""
        for session in self.store.not_ended():
            self._end_interrupted(session)

    def watch_names(self, is_name: Callable[[str], bool]) -> None:
        """Register a check of names: no new session gets an id for which `is_name` returns True.

        Capabilities use it for their own names of sessions.
        """
        self._namings.append(is_name)

    # Connections

    def close_connection(self, connection: Connection, reason: str) -> None:
        """Close a connection. Its sessions and agents stay."""
        if self.connections.find(connection.connection_id) is None:
            return
        for session_id in self.connections.close(connection, reason):
            self.store.load_by_id(session_id)
        for notify in self.observers.connection_closed:
            notify(connection)

    # Sessions

    def session(self, session_id: str | None) -> Session:
        """Return a session by its id or alias. Raises UnknownSession."""
        session = self.find_session(session_id)
        if session is None:
            raise UnknownSession(session_id or "")
        return session

    def find_session(self, session_id: str | None) -> Session | None:
        if session_id is None:
            return None
        return self.store.find(session_id) or self.store.find_by_alias(session_id)

    def drop_idle(self) -> None:
        """Drop idle sessions from memory. They stay on disk."""
        self.store.evict(self._is_busy)
        if len(self.log.trims) > self._trims_checked_above:
            self.log.keep_trims(self.connections.channels())
            self._trims_checked_above = 2 * len(self.log.trims) + TRIMS

    def _is_busy(self, session: Session) -> bool:
        return (
            session.state in TRANSIENT
            or session.running is not None
            or bool(session.waiting)
            or (session.state not in AT_REST and self.connections.has_attached(session))
            or session.id in self._unreported
            or session.id in self.held_updates.sessions
            or self.pending.has(session)
        )

    def is_taken(self, name: str) -> bool:
        """Return whether a name is the id or alias of a session, or reserved for one."""
        return self.store.is_taken(name) or any(is_name(name) for is_name in self._namings)

    def add_session(self, running: Process, agent_session_id: str, cwd: str, opened_with: Raw) -> Session:
        """Add a session that its agent opens, and return it.

        Its id is the agent's, unless that is another session's id or alias: agents reuse ids, and may choose one that
        clients use for another session. All later messages of the process with the agent's id belong to this session.
        """
        taken = self.is_taken(agent_session_id)
        session_id = self.store.make_id(running.agent.id) if taken else agent_session_id
        now = self.clock()
        facts = SessionFacts(
            session_id=session_id,
            agent_session_id=agent_session_id,
            agent=running.agent.id,
            cwd=cwd,
            created_at=now,
            updated_at=now,
            can_resume=running.handshake.resumes,
            opened_with=opened_with,
        )
        session = Session(facts, process=running)
        self.store.add(session)
        self._hold(session, running)
        return session

    def move(
        self, session: Session, event: Event, process: Process | None = None, termination: Object | None = None
    ) -> None:
        """Apply an event to a session, and carry out its effects."""
        before = session.process
        for effect in session.move(event, process, termination).effects:
            match effect:
                case Effect.HOLD:
                    assert session.process is not None
                    self._hold(session, session.process)
                case Effect.RELEASE:
                    self._release(session, before)
                case Effect.SAVE:
                    self.save(session)
                case Effect.TELL_ENDED:
                    ended = {"sessionId": session.id, **(session.facts.termination or {})}
                    self.tell(session, notification(methods.ENDED, ended))
                case Effect.FORGET:
                    self._forget(session)

    def mark_opened(self, session: Session, running: Process) -> bool:
        """Note that the agent has opened a session; return False if a client has ended it in the meantime."""
        if session.held is running:
            return True
        if session.allows(Event.RESUME):
            # This is a late response: its caller has stopped waiting.
            self.move(session, Event.RESUME, running)
        if session.process is not running or not session.allows(Event.OPENED):
            return False
        self.move(session, Event.OPENED)
        self._unreported.setdefault(session.id, self.monotonic())
        return True

    def delete_session(self, session: Session) -> None:
        """Delete a session with its log, and notify each attached connection on its own channel."""
        ended = {"sessionId": session.id, "reason": "deleted", "terminatedBy": "client"}
        line = notification(methods.ENDED, ended)
        attached = list(self.connections.attached(session))
        self.move(session, Event.DELETE)
        for connection in attached:
            self.tell_connection(connection, line)
        for notify in self.observers.session_deleted:
            notify(session)

    def _forget(self, session: Session) -> None:
        for connection in list(self.connections.attached(session)):
            self.detach(connection, session)
        self._unreported.pop(session.id, None)
        self.held_updates.drop(session.id)
        self.store.remove(session)
        self.changes.note(session.id, gone=True)

    def save(self, session: Session) -> None:
        self.store.save(session)

    def note_changed_offers(self, session: Session) -> None:
        """Save changed modes, models or options, and schedule an update to clients."""
        self.save(session)
        self._unreported.setdefault(session.id, self.monotonic())

    def report_changes(self, before: float) -> None:
        """Report changes noted up to a time to all attached clients, unless the agent has reported them itself."""
        for session_id in [one for one, at in self._unreported.items() if at <= before]:
            if session_id in self.held_updates.sessions:
                continue
            del self._unreported[session_id]
            session = self.store.find(session_id)
            if session is None:
                continue
            self.store.load_into_memory(session)
            if not session.live:
                continue
            for update in session.take_unreported_changes():
                params = {"sessionId": session_id, "update": update, "_meta": {META: {"fromServer": True}}}
                self.tell(session, notification(methods.UPDATE, params))

    def _end_interrupted(self, session: Session) -> None:
        turn_id = session.facts.turn
        if turn_id is not None:
            end: Object = {"error": {"code": -32603, "message": SERVER_STOPPED}}
            self.tell_turn(session, turn_id, session.facts.prompt_id, {"state": "ended", **end})
            session.facts.turn = session.facts.prompt_id = None
            for notify in self.observers.turn_ended:
                notify(session, turn_id, end)
        self.move(session, Event.EXITED, termination=server_stopped())

    def tell_turn(self, session: Session, turn_id: str, prompt_id: str | None, facts: Object) -> Chunk:
        """Notify all attached clients that a turn has started or ended."""
        name = {} if prompt_id is None else {"promptId": prompt_id}
        params = {"sessionId": session.id, "turnId": turn_id, **name, **facts}
        # In a fleet, a start may be published together with the events that follow. That is early enough for the
        # prompt's sender; only other clients would need it at once.
        return self._append(
            session,
            [notification(methods.TURN, params)],
            FROM_SERVER,
            session.channel,
            can_wait=facts.get("state") == "started",
        )

    # Attaching

    def attach(self, connection: Connection, session: Session) -> None:
        """Attach a connection to a session: it receives later events, and the session's pending requests."""
        if connection.closed or connection.attached(session.id):
            return
        self.connections.follow_agent(connection, session.facts.agent)
        self.connections.attach(connection, session)
        self.store.load_into_memory(session)
        for pending in self.pending.of_session(session):
            # Skip requests that the client has: a remote connection that its node had forgotten attaches again.
            if connection.tag not in pending.asked and not pending.deciding and connection in self.audience(pending):
                self._deliver_request(connection, pending)

    def detach(self, connection: Connection, session: Session) -> None:
        for pending in self.pending.of_session(session):
            pending.asked.discard(connection.tag)
        if self.connections.detach(connection, session.id, deleted=session.deleted):
            self.store.load_by_id(session.id)

    # The log

    def record(self, session: Session, line: bytes, direction: Direction) -> Chunk:
        """Record an envelope in the session's history without sending it to clients."""
        return self._append(session, [line], direction, NO_CLIENT)

    def tell(self, session: Session, line: bytes, direction: Direction = FROM_SERVER) -> Chunk:
        """Record an envelope and send it to all attached clients."""
        return self._append(session, [line], direction, session.channel)

    def record_updates(self, session: Session, lines: list[bytes]) -> None:
        """Record an agent's notifications and send them to the clients that should see them."""
        if session.id in self.held_updates.sessions:
            self.held_updates.add(session, lines)
            return
        if session.facts.agent_session_id != session.id:
            lines = [with_param(line, "sessionId", session.id) for line in lines]
        replay = session.replay
        if replay is None:
            session.recent.add(lines)
            self._append(session, lines, FROM_AGENT, session.channel)
        elif replay.history and self.connections.is_remote_channel(replay.channel):
            # Gateways read the history and events for a single client from two different places.
            self._append(session, lines, FROM_AGENT, NO_CLIENT)
            self._append(session, lines, FROM_AGENT, replay.channel, history=False)
        elif replay.channel or replay.history:
            self._append(session, lines, FROM_AGENT, replay.channel, replay.history)

    def _append(
        self,
        session: Session,
        lines: list[bytes],
        direction: Direction,
        channel: str,
        history: bool = True,
        *,
        can_wait: bool = False,
    ) -> Chunk:
        if session.state is DELETED:
            return self.log.append(lines, direction, None, NO_CLIENT, history=False)
        if channel != NO_CLIENT and session.id in self.held_updates.sessions:
            # Release the held updates first, so that clients see events in order.
            self.held_updates.release(session.id)
        chunk = self.log.append(lines, direction, session.id, channel, history=history, can_wait=can_wait)
        self._happened(session, len(lines) if history else 0, chunk.at)
        return chunk

    def _happened(self, session: Session, events: int, at: float) -> None:
        session.event_count += events
        session.facts.updated_at = at
        session.unsaved = True
        self.store.load_into_memory(session)
        self.changes.note(session.id)

    def tell_others(self, session: Session, lines: list[bytes], but: str) -> None:
        """Send lines to all attached clients except one. The history already has them in another form."""
        channel = session.channel
        if lines:
            self.log.append(lines, FROM_SERVER, session.id, channel, exclude=but, history=False)

    def tell_connection(self, connection: Connection, line: bytes, session_id: str | None = None) -> None:
        """Send an envelope to one connection, without adding it to the history."""
        self.log.append([line], FROM_SERVER, session_id, connection.channel, history=False)

    def tell_agent_followers(self, agent: str, line: bytes, direction: Direction) -> None:
        """Send an envelope that belongs to no session to every connection of an agent."""
        self.log.append([line], direction, None, agent_channel(agent), history=False)
        for connection in self.connections.of_agent(agent):
            if connection.is_remote:
                self.tell_connection(connection, line)

    def resolve(self, call: Call, answer: Answer) -> None:
        """Answer a call: settle its reply or, if the client has stopped waiting, send the answer on the stream."""
        if call.reply.result is None:
            call.reply.set_result(answer)
        elif call.late is not None:
            call.late.set_result(answer)
            if call.connection is not None:
                stream = call.connection.own_stream_of(call.session and call.session.id)
                self.tell_connection(call.connection, answer.line, stream)
            answer.release_updates()

    # Pending requests

    def new_pending(
        self, request: Envelope, process: Process, session: Session | None, only_tag: str | None = None
    ) -> PendingRequest:
        """Return a pending request for an agent's request, translated from the agent's dialect."""
        if session is not None:
            self.held_updates.release(session.id)
        key, at, since = self.log.position + 1, self.clock(), self.monotonic()
        asked, translate = (
            process.dialect.translate_request(request),
            partial(process.dialect.translate_answer, request),
        )
        id = self.pending.ids.make(key)
        return PendingRequest(key, id, asked, process, session, at, since, only_tag, translate=translate)

    def ask(self, pending: PendingRequest, line: bytes, channel: str) -> PendingRequest:
        """Record an agent's request and send it to all clients that may answer it."""
        history, session_id = pending.session is not None, pending.session_id
        chunk = self.log.append([line], FROM_AGENT, session_id, channel, is_request=True, history=history)
        pending.asked_at = chunk.at
        if pending.session is not None:
            self._happened(pending.session, 1, chunk.at)
        self.pending.ask(pending)
        for connection in self.audience(pending):
            if connection.is_remote:
                self._deliver_request(connection, pending)
            else:
                pending.asked.add(connection.tag)
        for notify in self.observers.request_opened:
            notify(pending)
        return pending

    def record_request(self, pending: PendingRequest) -> None:
        """Record an agent's request without sending it to clients."""
        assert pending.session is not None
        line, session = pending.request.line, pending.session
        chunk = self.log.append([line], FROM_AGENT, session.id, NO_CLIENT, is_request=True)
        pending.asked_at = chunk.at
        self._happened(session, 1, chunk.at)
        self.pending.ask(pending)

    def publish_request(self, pending: PendingRequest) -> None:
        """Send a request that is already recorded to all clients that may answer it."""
        for connection in self.audience(pending):
            self._deliver_request(connection, pending)
        for notify in self.observers.request_opened:
            notify(pending)

    def belongs_to_other(self, pending: PendingRequest, connection: Connection) -> bool:
        """Return whether a request belongs to a call of another connection, which is still open."""
        callers = self._callers(pending)
        return bool(callers) and connection not in callers

    def _callers(self, pending: PendingRequest) -> list[Connection]:
        return [connection for connection in self.connections.all() if connection.tag == pending.only_tag]

    def audience(self, pending: PendingRequest) -> list[Connection]:
        """Return the connections that may answer a request."""
        callers = self._callers(pending)
        if callers:
            return callers
        if pending.session is not None:
            return list(self.connections.attached(pending.session))
        if pending.only_tag is not None:
            return []
        return self.connections.of_agent(pending.process.agent.id)

    def settle(
        self,
        pending: PendingRequest,
        outcome: Outcome,
        by: Decider,
        answer: bytes | None = None,
        connection: Connection | None = None,
    ) -> None:
        """Settle a request: answer its agent, and notify all clients that were asked or are attached.

        The log must already have the answer in the agent's form. Without an answer, the agent gets none.
        """
        self.pending.settle(pending, outcome, connection.tag if connection else None)
        self._withdraw(pending, connection)
        line = make_decision(pending, by, answer)
        if line is not None and pending.session is not None:
            self.tell(pending.session, line)
        for notify in self.observers.request_settled:
            notify(pending, line)
        if answer is None:
            return
        if by.kind == "client" and by.reason is not None:
            self._explain(pending, answer, by.reason)
        try:
            pending.process.answer(pending.translate(answer))
        except RpcError as error:
            # The agent has exited, or does not read.
            logger.info("answer not delivered agent=%s reason=%s", pending.process.agent.id, error.slug)

    def answer_for_person(self, pending: PendingRequest, outcome: Outcome, by: Decider, answer: bytes) -> None:
        """Answer a request on behalf of a person: record the answer, then settle the request."""
        if pending.session is not None:
            self.record(pending.session, pending.translate(answer), FROM_SERVER)
        self.settle(pending, outcome, by, answer)

    def reject(self, pending: PendingRequest, reason: str) -> None:
        """Reject a request that exceeds a limit, without asking any client, and notify attached clients."""
        answer = pending.refusal(reason)
        if pending.session is not None and pending.kind != "request":
            self.record_request(pending)
            self.answer_for_person(pending, Outcome.REJECTED, Decider("limit", reason=reason), answer)
            return
        try:
            pending.process.answer(pending.translate(answer))
        except RpcError as error:
            logger.info("answer not delivered agent=%s reason=%s", pending.process.agent.id, error.slug)

    def _explain(self, pending: PendingRequest, answer: bytes, reason: str) -> None:
        """Keep a person's reason for a refusal for the next prompt: ACP has no place for it in the answer."""
        said = write_refusal(pending, answer, reason)
        if said is not None and pending.session is not None:
            pending.session.add_remark(said)
            self.save(pending.session)

    def _withdraw(self, pending: PendingRequest, by: Connection | None = None) -> None:
        """Notify all clients that were asked, except the one that answered, of a request's outcome."""
        if pending.session is not None:
            # The time that a person took to answer does not count as the agent's silence.
            pending.session.heard_at = self.monotonic()
            self.store.load_into_memory(pending.session)
        for connection in self.audience(pending):
            if connection is not by and connection.tag in pending.asked:
                line = make_withdrawal(pending, by.who if by else {})
                self.tell_connection(connection, line, pending.session_id)

    def _deliver_request(self, connection: Connection, pending: PendingRequest) -> None:
        session_id = pending.session_id
        pending.asked.add(connection.tag)
        if connection.is_remote:
            self.tell_connection(connection, connection.render_request(pending), session_id)
            return
        asked = [pending.request.line]
        self.log.append(asked, FROM_AGENT, session_id, connection.channel, history=False, repeats=pending.key)

    # The store, and its observers

    def _hold(self, session: Session, process: Process) -> None:
        self.store.hold(session, process)
        for notify in self.observers.session_opened:
            notify(session)

    def _release(self, session: Session, process: Process | None) -> None:
        if process is not None:
            self.store.release(session, process)
        for notify in self.observers.session_ended:
            notify(session)
