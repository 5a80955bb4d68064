"""Holders: agent processes, and which sessions each of them means by its ids, of those that are in memory."""

import secrets

from sandbox_agent.agents.boot import RunningAgent
from sandbox_agent.hub.session import Process, Session


class Holders:
    """Processes by the names that they have on disk, and sessions by the ids that processes use."""

    def __init__(self) -> None:
        self._boot = secrets.token_hex(4)
        self._processes: dict[str, RunningAgent] = {}
        self._sessions: dict[str, dict[str, Session]] = {}

    def name(self, running: RunningAgent) -> str:
        """What to call a process on disk: keys are counted anew by the next server."""
        return f"{self._boot}:{running.key}"

    def hold(self, session: Session, running: RunningAgent) -> None:
        """A process holds the conversation from now on."""
        session.process = running
        session.facts.held_by = self.name(running)
        self._processes[session.facts.held_by] = running
        self.expect(session, running)

    def expect(self, session: Session, process: Process) -> None:
        """What a process says under the agent's id of a session is meant for it."""
        self._sessions.setdefault(process.key, {})[session.facts.agent_session_id] = session

    def unexpect(self, session: Session, process: Process) -> None:
        known = self._sessions.get(process.key, {})
        if known.get(session.facts.agent_session_id) is session:
            del known[session.facts.agent_session_id]
        if not known:
            self._sessions.pop(process.key, None)

    def session(self, running: RunningAgent, agent_session_id: str) -> Session | None:
        """What a process means by an id."""
        known = self._sessions.get(running.key)
        return None if known is None else known.get(agent_session_id)

    def sessions(self, running: RunningAgent) -> list[Session]:
        return list(self._sessions.get(running.key, {}).values())

    def namesakes(self, agent_session_id: str) -> list[Session]:
        """Sessions of any process under the same id."""
        return [known[agent_session_id] for known in self._sessions.values() if agent_session_id in known]

    def holds_any(self, running: RunningAgent) -> bool:
        """Whether a process has held a session since it started."""
        return self.name(running) in self._processes

    def complete(self, session: Session) -> None:
        """A session was read from disk: give it back its process, if that still runs."""
        facts = session.facts
        if facts.held_by is None or not facts.held_by.startswith(f"{self._boot}:"):
            # Of another server: its processes and connections are gone, whatever they were called.
            facts.creator = None
        elif not facts.ended:
            session.process = self._processes.get(facts.held_by)

    def forget(self, running: RunningAgent) -> None:
        """It has exited."""
        self._sessions.pop(running.key, None)
        self._processes.pop(self.name(running), None)
