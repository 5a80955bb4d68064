"""An agent process as the hub sees it: something to send requests and answers to."""

from collections.abc import Mapping
from typing import Protocol

from sandbox_agent.agents.boot import Handshake
from sandbox_agent.agents.dialects.dialect import Dialect
from sandbox_agent.agents.manifest import Agent


class Process(Protocol):
    """`agents.boot.RunningAgent`, or a fake of one in a test."""

    agent: Agent
    handshake: Handshake
    """What it answered to `initialize`."""
    dialect: Dialect
    """How it asks people."""
    echoes_prompts: bool | None
    """Whether it repeats prompts as user_message_chunk; None until it has shown it."""

    environment: Mapping[str, str]
    """What was added to its environment for the one session that it is for; may be secret."""
    alone: bool
    """It is for one session, and ends with it."""

    @property
    def key(self) -> str:
        """Its name; no other process of this server ever has the same."""
        ...

    @property
    def alive(self) -> bool: ...

    def send(self, line: bytes) -> None:
        """Write a line to its stdin; raises AgentExited or AgentNotReading."""
        ...

    def answer(self, line: bytes) -> None:
        """Send it an answer to what it asked, by the way the question came; raises as `send` does."""
        ...

    def pause_reading(self) -> None:
        """Do not read its stdout for now."""
        ...

    def resume_reading(self) -> None: ...
