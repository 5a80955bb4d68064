"""A command that a person runs from OpenCode, as the session's log has it. Pure.

The agent does not hear of it, and ACP has no place for it: two notes of the server's in the log have it, one when the
command begins and one when it has ended.
"""

from dataclasses import dataclass

from sandbox_agent.envelope import Object, notification, text_at
from sandbox_agent.wire.methods import SHELL

__all__ = ["SHELL", "Shell", "read_shell"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell:
    """One of the two notes; `output` is there in the second."""

    id: str
    command: str
    agent: str | None = None
    message_id: str | None = None
    output: str | None = None
    exit_code: int | None = None

    def write(self, session_id: str) -> bytes:
        """The note for the log."""
        facts = {"shellId": self.id, "command": self.command, "agent": self.agent, "messageId": self.message_id}
        facts |= {"output": self.output, "exitCode": self.exit_code}
        said = {name: value for name, value in facts.items() if value is not None}
        return notification(SHELL, {"sessionId": session_id, **said})

    @property
    def call_id(self) -> str:
        return f"shell-{self.id}"

    def as_call(self) -> Object:
        """The same as an update of a tool call."""
        call: Object = {"toolCallId": self.call_id, "title": self.command, "kind": "execute"}
        call["rawInput"] = {"command": self.command}
        if self.output is None:
            return call | {"status": "in_progress"}
        return call | {"status": "completed", "rawOutput": {"output": self.output, "exit_code": self.exit_code}}


def read_shell(params: Object) -> Shell:
    """A note, as the log has it."""
    code = params.get("exitCode")
    return Shell(
        id=text_at(params, "shellId") or "",
        command=text_at(params, "command") or "",
        agent=text_at(params, "agent"),
        message_id=text_at(params, "messageId"),
        output=text_at(params, "output"),
        exit_code=code if isinstance(code, int) else None,
    )
