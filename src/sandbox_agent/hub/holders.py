"""Holders: agent processes, and which sessions each of them means by its ids, of those that are in memory."""

import secrets

from sandbox_agent.hub.process import Process
from sandbox_agent.hub.session import Session


class Holders:
    """Processes by the names that they have on disk, and sessions by the ids that processes use."""

    def __init__(self) -> None:
        self._boot = secrets.token_hex(4)
        self._processes: dict[str, Process] = {}
        self._sessions: dict[str, dict[str, Session]] = {}

    def name(self, running: Process) -> str:
        """The name of a process on disk: the next server restarts the count of keys."""
        return f"{self._boot}:{running.key}"

    def hold(self, session: Session, running: Process) -> None:
        """From now on, what the process says under the agent's session id belongs to this session."""
        session.facts.held_by = self.name(running)
        self._processes[session.facts.held_by] = running
        self._sessions.setdefault(running.key, {})[session.facts.agent_session_id] = session

    def release(self, session: Session, process: Process) -> None:
        """The process no longer holds the session, or the session rests and can be found on disk."""
        known = self._sessions.get(process.key, {})
        if known.get(session.facts.agent_session_id) is session:
            del known[session.facts.agent_session_id]
        if not known:
            self._sessions.pop(process.key, None)

    def session(self, running: Process, agent_session_id: str) -> Session | None:
        """What a process means by an id."""
        known = self._sessions.get(running.key)
        return None if known is None else known.get(agent_session_id)

    def sessions(self, running: Process) -> list[Session]:
        return list(self._sessions.get(running.key, {}).values())

    def namesakes(self, agent_session_id: str) -> list[Session]:
        """Sessions of any process under the same id."""
        return [known[agent_session_id] for known in self._sessions.values() if agent_session_id in known]

    def holds_any(self, running: Process) -> bool:
        """Whether a process has held a session since it started."""
        return self.name(running) in self._processes

    def complete(self, session: Session) -> None:
        """A session was read from disk: give it back its process, if that still runs."""
        facts = session.facts
        if facts.held_by is None or not facts.held_by.startswith(f"{self._boot}:"):
            # Held by an earlier server: its processes and connections are gone.
            facts.creator = None
        elif session.live:
            session.process = self._processes.get(facts.held_by)

    def forget(self, running: Process) -> None:
        """It has exited."""
        self._sessions.pop(running.key, None)
        self._processes.pop(self.name(running), None)
