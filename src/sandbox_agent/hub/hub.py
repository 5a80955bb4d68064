"""The hub: every table the server keeps, and the steps that touch more than one of them.

No method here awaits, so no method can be seen half done.
"""

import logging
import secrets
import time
from collections.abc import Callable, Iterable
from itertools import count
from typing import Protocol

import msgspec
from msgspec import Raw

from sandbox_agent.agents.boot import RunningAgent
from sandbox_agent.agents.process import Exit
from sandbox_agent.envelope import META, Object, notification, with_param
from sandbox_agent.errors import AgentExited, UnknownConnection, UnknownSession
from sandbox_agent.hub.calls import Answer, Call, Calls
from sandbox_agent.hub.connection import Connection
from sandbox_agent.hub.decision import Decider, decision
from sandbox_agent.hub.pending import Outcome, PendingRequest, PendingRequests
from sandbox_agent.hub.session import Session, SessionFacts
from sandbox_agent.log.event import NOBODY, Chunk, Direction, agent_channel, session_channel
from sandbox_agent.log.log import Log

logger = logging.getLogger(__name__)


SERVER_STOPPED = "the server stopped"


class Watcher(Protocol):
    """Who has to know when something is over. Nothing here may raise."""

    def session_over(self, session: Session) -> None:
        """No process holds it any more."""
        ...

    def connection_closed(self, connection: Connection) -> None: ...


class Hub:
    """Connections, sessions, calls and pending requests, over one log."""

    def __init__(
        self, log: Log, clock: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.log = log
        self.clock = clock
        self.monotonic = monotonic
        self.stopping = False
        """The server is about to end: what ends now, ends because of that."""
        self.calls = Calls()
        self.pending = PendingRequests()
        self._connections: dict[str, Connection] = {}
        self._tags = count(1)
        self._attached: dict[str, set[Connection]] = {}
        self._of_agent: dict[str, set[Connection]] = {}
        self._sessions: dict[str, Session] = {}
        self._aliases: dict[str, str] = {}
        self._at_agent: dict[tuple[str, str], Session] = {}
        self._ended: set[str] = set()
        self._watchers: list[Watcher] = []
        self._untold: dict[str, float] = {}
        log.ended_sessions = self._ended
        self._load_sessions()

    def _load_sessions(self) -> None:
        for session_id, record in self.log.stored.sessions.items():
            facts = msgspec.json.decode(record, type=SessionFacts)
            events, at = self.log.stored.event_counts.get(session_id, (0, facts.updated_at))
            facts.updated_at = max(facts.updated_at, at)
            session = Session(facts, event_count=events)
            self._add(session)
            if not facts.ended:
                # Whatever ran before this server started has no process any more, and nobody has said so yet.
                self.interrupted(session)

    def watch(self, watcher: Watcher) -> None:
        self._watchers.append(watcher)

    # Connections

    def open_connection(self, agent: str, introduction: Object | None = None) -> Connection:
        """A new one; `introduction` is what its client says of itself, the params of `initialize`."""
        tag = f"c{next(self._tags)}"
        connection = Connection(
            connection_id=secrets.token_urlsafe(24),
            tag=tag,
            agent=agent,
            used_at=self.monotonic(),
            opened_at=self.log.position,
        )
        connection.introduce(introduction or {})
        self._connections[connection.connection_id] = connection
        self.log.follow(connection.channel, connection)
        self.meet(connection, agent)
        logger.info("connection opened connection=%s agent=%s", tag, agent)
        return connection

    def connection(self, connection_id: str) -> Connection:
        """Raises UnknownConnection."""
        connection = self._connections.get(connection_id)
        if connection is None:
            raise UnknownConnection
        return connection

    def find_connection(self, connection_id: str) -> Connection | None:
        return self._connections.get(connection_id)

    def connections(self) -> Iterable[Connection]:
        return list(self._connections.values())

    def meet(self, connection: Connection, agent: str) -> None:
        """From now on it hears what this agent says outside any session."""
        if agent not in connection.agents and not connection.closed:
            connection.agents[agent] = self.log.position
            self._of_agent.setdefault(agent, set()).add(connection)
            self.log.follow(agent_channel(agent), connection)

    def close_connection(self, connection: Connection, reason: str) -> None:
        """The sessions stay, and so do the agents."""
        if self._connections.pop(connection.connection_id, None) is None:
            return
        connection.closed = True
        for session_id in connection.windows:
            self._detach(connection, session_id)
        for agent in connection.agents:
            self._of_agent[agent].discard(connection)
            self.log.unfollow(agent_channel(agent), connection)
        self.log.unfollow(connection.channel, connection)
        self.log.forget(connection.channel)
        if connection.stream is not None:
            connection.stream.close(reason)
        for watcher in self._watchers:
            watcher.connection_closed(connection)
        logger.info("connection closed connection=%s reason=%s", connection.tag, reason)

    # Sessions

    def session(self, session_id: str | None) -> Session:
        """By id or alias; raises UnknownSession."""
        session = self.find_session(session_id)
        if session is None:
            raise UnknownSession(session_id or "")
        return session

    def find_session(self, session_id: str | None) -> Session | None:
        if session_id is None:
            return None
        alias = self._aliases.get(session_id)
        return self._sessions.get(session_id) or (self._sessions.get(alias) if alias else None)

    def session_at(self, running: RunningAgent, agent_session_id: str) -> Session | None:
        """The session an agent process means by its id."""
        return self._at_agent.get((running.key, agent_session_id))

    def late_session(self, running: RunningAgent, agent_session_id: str) -> Session | None:
        """The session an agent still means by its id, although no process holds it any more."""
        session = self._sessions.get(agent_session_id)
        mine = session is not None and session.facts.agent == running.agent.id and session.process is None
        return session if mine else None

    def id_is_anothers(self, session: Session) -> bool:
        """Whether its agent may mean another session by its id: agents count anew."""
        mine = session.facts.agent, session.facts.agent_session_id
        others = (one.facts for one in self._sessions.values() if one is not session)
        return any((facts.agent, facts.agent_session_id) == mine for facts in others)

    def sessions(self) -> Iterable[Session]:
        return self._sessions.values()

    def newest_session(self, agent: str) -> Session | None:
        """The session in which an agent last told of its models and modes."""
        known = [one for one in self._sessions.values() if one.facts.agent == agent and one.facts.offers]
        return max(known, key=lambda session: session.facts.updated_at, default=None)

    def sessions_of(self, running: RunningAgent) -> list[Session]:
        return [session for session in self._sessions.values() if session.process is running]

    def add_session(self, running: RunningAgent, agent_session_id: str, cwd: str, opened_with: Raw) -> Session:
        """A new session. Its id is the agent's, unless another session has had that before: agents count anew."""
        taken = agent_session_id in self._sessions
        session_id = f"{running.agent.id}-{secrets.token_hex(8)}" if taken else agent_session_id
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
        session = Session(facts)
        self._add(session)
        self._hold(session, running)
        return session

    def revive(self, session: Session, running: RunningAgent) -> None:
        """A process holds it again."""
        session.revive(running)
        self._ended.discard(session.id)
        self._hold(session, running)
        self.learned(session)

    def expect(self, session: Session, running: RunningAgent) -> None:
        """A process is about to hold it: what it says of the session meanwhile belongs to it."""
        self._at_agent[running.key, session.facts.agent_session_id] = session

    def unexpect(self, session: Session, running: RunningAgent) -> None:
        self._at_agent.pop((running.key, session.facts.agent_session_id), None)

    def reserve(self, alias: str) -> bool:
        """Take an alias for a session that is about to be; False when it is taken."""
        if self.find_session(alias) is not None or alias in self._aliases:
            return False
        self._aliases[alias] = ""
        return True

    def free(self, alias: str) -> None:
        """The session for which an alias was taken has not come about."""
        if self._aliases.get(alias) == "":
            del self._aliases[alias]

    def name(self, session: Session, alias: str) -> None:
        session.facts.alias = alias
        self._aliases[alias] = session.id

    def delete_session(self, session: Session) -> None:
        """Forget it, and tell everybody attached, each for itself: the session's own log goes with it."""
        ended = {"sessionId": session.id, "reason": "deleted", "terminatedBy": "client"}
        line = notification("_sandboxagent/session/ended", ended)
        attached = list(self.attached(session))
        self.forget_session(session)
        for connection in attached:
            self.tell_connection(connection, line)

    def forget_session(self, session: Session) -> None:
        """There is no such session any more; the log goes too."""
        if self._sessions.get(session.id) is not session:
            return
        for connection in list(self._attached.get(session.id, ())):
            self.detach(connection, session)
        self._attached.pop(session.id, None)
        self._release(session)
        del self._sessions[session.id]
        self._ended.discard(session.id)
        if session.facts.alias:
            self._aliases.pop(session.facts.alias, None)
        self.log.delete_session(session.id)

    def save(self, session: Session) -> None:
        if self._sessions.get(session.id) is not session:
            # Deleted while something was still under way in it.
            return
        self.log.save_session(session.id, msgspec.json.encode(session.facts))

    def learned(self, session: Session) -> None:
        """More is known of its mode, model or options: keep it, and see to it that clients are told."""
        self.save(session)
        self._untold.setdefault(session.id, self.monotonic())

    def tell_untold(self, before: float) -> None:
        """Tell everybody attached what was learned before then, as far as no agent has told them meanwhile."""
        for session_id in [one for one, at in self._untold.items() if at <= before]:
            del self._untold[session_id]
            session = self._sessions.get(session_id)
            if session is None or not session.live:
                continue
            for update in session.untold():
                params = {"sessionId": session_id, "update": update, "_meta": {META: {"fromServer": True}}}
                self.tell(session, notification("session/update", params))

    def end_session(self, session: Session, termination: Object, resumable: bool) -> None:
        """Mark it ended and tell everybody attached."""
        self._release(session)
        session.facts.can_resume = session.facts.can_resume and resumable
        session.end(termination)
        self._ended.add(session.id)
        self.save(session)
        self.tell(session, notification("_sandboxagent/session/ended", {"sessionId": session.id, **termination}))

    def interrupted(self, session: Session) -> None:
        """The server stopped under it: its turn, if one ran, and the session itself have ended."""
        if session.facts.turn is not None:
            end: Object = {"state": "ended", "error": {"code": -32603, "message": SERVER_STOPPED}}
            self.tell_turn(session, session.facts.turn, session.facts.prompt_id, end)
            session.facts.turn = session.facts.prompt_id = None
        self.end_session(session, server_stopped(), resumable=True)

    def tell_turn(self, session: Session, turn_id: str, prompt_id: str | None, facts: Object) -> Chunk:
        """Tell everybody attached that a turn has started or ended."""
        name = {} if prompt_id is None else {"promptId": prompt_id}
        params = {"sessionId": session.id, "turnId": turn_id, **name, **facts}
        return self.tell(session, notification("_sandboxagent/session/turn", params))

    # Attaching

    def attached(self, session: Session) -> set[Connection]:
        return self._attached.get(session.id, set())

    def attach(self, connection: Connection, session: Session) -> None:
        """From here on it sees what happens in the session, and is asked what waits there."""
        if connection.closed or connection.attached(session.id):
            return
        self.meet(connection, session.facts.agent)
        connection.attach(session.id, self.log.position)
        self._attached.setdefault(session.id, set()).add(connection)
        self.log.follow(session_channel(session.id), connection)
        for pending in self.pending.of_session(session):
            if not pending.deciding and connection in self.audience(pending):
                self._deliver_request(connection, pending)

    def detach(self, connection: Connection, session: Session) -> None:
        if connection.attached(session.id):
            self._detach(connection, session.id)

    def _detach(self, connection: Connection, session_id: str) -> None:
        if connection.attached(session_id):
            connection.detach(session_id, self.log.position)
            self._attached[session_id].discard(connection)
            self.log.unfollow(session_channel(session_id), connection)

    # The log

    def record(self, session: Session, line: bytes, direction: Direction) -> Chunk:
        """Keep an envelope in the session's history that nobody needs to be sent."""
        return self._append(session, [line], direction, NOBODY)

    def tell(self, session: Session, line: bytes, direction: Direction = Direction.FROM_SERVER) -> Chunk:
        """Keep an envelope and send it to everybody attached."""
        return self._append(session, [line], direction, session_channel(session.id))

    def updates(self, session: Session, lines: list[bytes]) -> None:
        """Keep an agent's notifications and send them to whoever is to see them."""
        if session.facts.agent_session_id != session.id:
            lines = [with_param(line, "sessionId", session.id) for line in lines]
        replay = session.replay
        if replay is None:
            self._append(session, lines, Direction.FROM_AGENT, session_channel(session.id))
        elif replay.channel or replay.history:
            self._append(session, lines, Direction.FROM_AGENT, replay.channel, replay.history)

    def _append(
        self, session: Session, lines: list[bytes], direction: Direction, channel: str, history: bool = True
    ) -> Chunk:
        if self._sessions.get(session.id) is not session:
            return self.log.append(lines, direction, None, NOBODY, history=False)
        chunk = self.log.append(lines, direction, session.id, channel, history=history)
        if history:
            session.event_count += len(lines)
        session.facts.updated_at = chunk.at
        return chunk

    def tell_others(self, session: Session, line: bytes, but: str) -> None:
        """Send something to everybody attached except one; the history has it in another form."""
        channel = session_channel(session.id)
        self.log.append([line], Direction.FROM_SERVER, session.id, channel, exclude=but, history=False)

    def tell_connection(self, connection: Connection, line: bytes, session: Session | None = None) -> None:
        """Send something to one connection; the history does not need it."""
        session_id = session.id if session else None
        self.log.append([line], Direction.FROM_SERVER, session_id, connection.channel, history=False)

    def tell_agent_followers(self, agent: str, line: bytes, direction: Direction) -> None:
        """Send something that belongs to no session to every connection of an agent."""
        self.log.append([line], direction, None, agent_channel(agent), history=False)

    def resolve(self, call: Call, answer: Answer) -> None:
        """Give a call its answer: to the POST that waits for it, else to the stream."""
        if not call.future.done():
            call.future.set_result(answer)
        elif call.late is not None:
            call.late.set_result(answer)
            if call.connection is not None:
                self.tell_connection(call.connection, answer.line, call.session)

    # Pending requests

    def ask(self, pending_for: Callable[[int], PendingRequest], line: bytes, channel: str) -> PendingRequest:
        """Put an agent's request before everybody who may answer it."""
        pending = pending_for(self.log.position + 1)
        session_id = pending.session.id if pending.session else None
        self.log.append([line], Direction.FROM_AGENT, session_id, channel, is_request=True, history=bool(session_id))
        if pending.session is not None:
            pending.session.event_count += 1
        self.pending.ask(pending)
        for connection in self.audience(pending):
            connection.open_request(pending)
        return pending

    def hold(self, pending: PendingRequest) -> None:
        """Keep an agent's request that nobody has to be asked."""
        assert pending.session is not None
        line, session = pending.request.line, pending.session
        self.log.append([line], Direction.FROM_AGENT, session.id, NOBODY, is_request=True)
        session.event_count += 1
        self.pending.ask(pending)

    def put(self, pending: PendingRequest) -> None:
        """Put a request that was held before everybody who may answer it."""
        for connection in self.audience(pending):
            self._deliver_request(connection, pending)

    def is_anothers(self, pending: PendingRequest, connection: Connection) -> bool:
        """Whether a request belongs to a call of another connection, which is there to answer it."""
        own = self._own(pending)
        return bool(own) and connection not in own

    def _own(self, pending: PendingRequest) -> list[Connection]:
        return [connection for connection in self._connections.values() if connection.tag == pending.only_tag]

    def audience(self, pending: PendingRequest) -> list[Connection]:
        """Connections that may answer."""
        own = self._own(pending)
        if own:
            return own
        if pending.session is not None:
            return list(self.attached(pending.session))
        if pending.only_tag is not None:
            return []
        assert isinstance(pending.process, RunningAgent)
        return list(self._of_agent.get(pending.process.agent.id, ()))

    def settle(
        self,
        pending: PendingRequest,
        outcome: Outcome,
        by: Decider,
        answer: bytes | None = None,
        connection: Connection | None = None,
    ) -> None:
        """The request has its outcome; whoever was asked is told to stop asking, and all attached who decided what."""
        self.pending.settle(pending, outcome, connection.tag if connection else None)
        self._withdraw(pending, connection)
        line = decision(pending, by, answer)
        if line is not None and pending.session is not None:
            self.tell(pending.session, line)

    def _withdraw(self, pending: PendingRequest, by: Connection | None = None) -> None:
        """Tell everybody who was asked, but the one who answered, what became of a request."""
        if pending.session is not None:
            # The time a human took is not the agent's.
            pending.session.heard_at = self.monotonic()
        for connection in self.audience(pending):
            if connection is not by and connection.knows(pending):
                outcome = {"outcome": pending.outcome, "answeredBy": by.tag if by else None}
                meta = {META: outcome | (by.who if by else {})}
                params = {"requestId": Raw(connection.open_request(pending)), "_meta": meta}
                self.tell_connection(connection, notification("$/cancel_request", params), pending.session)

    def _deliver_request(self, connection: Connection, pending: PendingRequest) -> None:
        connection.open_request(pending)
        session_id = pending.session.id if pending.session else None
        self.log.append(
            [pending.request.line],
            Direction.FROM_AGENT,
            session_id,
            connection.channel,
            history=False,
            repeats=pending.key,
        )

    # Tables behind them

    def _add(self, session: Session) -> None:
        self._sessions[session.id] = session
        if session.facts.alias:
            self._aliases[session.facts.alias] = session.id
        if session.facts.ended:
            self._ended.add(session.id)

    def _hold(self, session: Session, running: RunningAgent) -> None:
        session.process = running
        self.expect(session, running)

    def _release(self, session: Session) -> None:
        if session.process is not None:
            self._at_agent.pop((session.process.key, session.facts.agent_session_id), None)
        for watcher in self._watchers:
            watcher.session_over(session)


def server_stopped() -> Object:
    """Why a session ended that the server stopped under."""
    return {"reason": "error", "terminatedBy": "daemon", "message": SERVER_STOPPED}


def agent_exited(agent: str, exit: Exit) -> AgentExited:
    """The error for whoever waited on a process that is gone."""
    how = f"was ended by {exit.signal}" if exit.signal else f"exited with code {exit.code}"
    return AgentExited(f"agent {agent} {how}", agent=agent, **exit.facts())
