"""What a dialect is, and which there are.

A dialect says what an agent's request means, and an answer to it in the agent's own words; it is pure. A companion runs
beside the process of an agent that asks in another place than on its stdout, and asks there in its stead.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from sandbox_agent.agents.manifest import Dialect as Name
from sandbox_agent.envelope import Envelope


class Dialect(Protocol):
    """How an agent asks people."""

    def translate_request(self, request: Envelope) -> Envelope:
        """Translate an agent's request into the common form; the same envelope when it needs no translation."""
        ...

    def translate_answer(self, request: Envelope, answer: bytes) -> bytes:
        """Translate an answer to this request into the one that its agent expects."""
        ...


class Companion(Protocol):
    """Speaks for an agent process. Answers come back to it; nothing of it outlives the process."""

    def prepare(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The environment of the process, with the address where it can be reached; variables that are set stay."""
        ...

    async def connect(self, pid: int) -> bool:
        """Reach the agent, which has answered its handshake; False when that cannot be done in time."""
        ...

    def start(self, say: Callable[[bytes], None]) -> None:
        """From now on say what the agent would: one envelope at a time, as if it came from its stdout."""
        ...

    def answer(self, line: bytes) -> bool:
        """Take an answer to what was said here; False when the agent itself had asked. Does not raise."""
        ...

    def stop(self) -> None:
        """The process has ended, or is about to."""
        ...


class Plain:
    """An agent that asks in the common form."""

    def translate_request(self, request: Envelope) -> Envelope:
        return request

    def translate_answer(self, request: Envelope, answer: bytes) -> bytes:
        return answer


def dialect_of(name: Name | None) -> Dialect:
    """The dialect of that name; None is no dialect."""
    if name == "qwen":
        from sandbox_agent.agents.dialects.qwen import Qwen

        return Qwen()
    return Plain()


def companion_of(name: Name | None) -> Companion | None:
    """A new companion for a process of an agent with that dialect, where it needs one."""
    if name == "opencode":
        from sandbox_agent.agents.dialects.opencode import OpenCode

        return OpenCode()
    return None
