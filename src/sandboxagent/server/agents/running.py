"""Represent an agent process after its handshake: send to it, and pass on its output."""

from collections.abc import Callable, Mapping
from typing import Protocol

from sandboxagent.server.agents.dialects.dialect import Companion, dialect_of
from sandboxagent.server.agents.handshake import Handshake
from sandboxagent.server.agents.manifest import Agent
from sandboxagent.server.agents.process import AgentProcess, Exit


class Listener(Protocol):
    """The receiver of the output of agent processes. Its methods must not raise."""

    def receive(self, running: "RunningAgent", blob: bytes) -> None: ...
    def oversized(self, running: "RunningAgent", head: bytes) -> None: ...
    def exited(self, running: "RunningAgent", exit: Exit) -> None: ...


Gone = Callable[["RunningAgent", Exit], None]


class RunningAgent:
    """One agent process after its handshake."""

    def __init__(
        self,
        agent: Agent,
        process: AgentProcess,
        handshake: Handshake,
        listener: Listener,
        gone: Gone,
        companion: Companion | None = None,
    ) -> None:
        self.agent = agent
        self.process = process
        self.handshake = handshake
        self.dialect = dialect_of(agent.dialect)
        """The translation of the agent's questions to people."""
        self.echoes_prompts: bool | None = agent.echoes_prompts
        """Whether the agent repeats prompts as user_message_chunk; None until it has shown that."""
        self.environment: Mapping[str, str] = {}
        """Variables added to the environment of a process for one session. They may be secret."""
        self.alone = False
        """Whether the process is for one session, and ends with it."""
        self._listener = listener
        self._gone = gone
        self._companion = companion
        if companion is not None:
            companion.start(self._say)

    @property
    def key(self) -> str:
        return self.process.key

    @property
    def alive(self) -> bool:
        return self.process.alive

    def send(self, line: bytes) -> None:
        self.process.send(line)

    def pause_reading(self) -> None:
        self.process.pause_reading()

    def resume_reading(self) -> None:
        self.process.resume_reading()

    def answer(self, line: bytes) -> None:
        """Send an answer to an agent's request, to the place where the request came from."""
        if self._companion is None or not self._companion.answer(line):
            self.send(line)

    def _say(self, line: bytes) -> None:
        self._listener.receive(self, line + b"\n")

    def lines(self, process: AgentProcess, blob: bytes) -> None:
        self._listener.receive(self, blob)

    def oversized(self, process: AgentProcess, head: bytes) -> None:
        self._listener.oversized(self, head)

    def exited(self, process: AgentProcess, exit: Exit) -> None:
        if self._companion is not None:
            self._companion.stop()
        self._gone(self, exit)
        self._listener.exited(self, exit)
