"""Keep clients' requests that wait on an agent process, by their ids on stdio.

Pure.
"""

from collections.abc import Callable
from itertools import count

from msgspec import Struct

from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import Envelope, same_id
from sandboxagent.protocol.errors import SandboxAgentError
from sandboxagent.server.sessions.connection import Connection
from sandboxagent.server.sessions.reply import Answer, Reply
from sandboxagent.server.sessions.session import Process, Session


class Call(Struct, eq=False):
    """One request that waits on an agent process."""

    method: str
    client_id: bytes
    """The id's JSON text, exactly as the client wrote it."""
    connection: Connection | None
    """The client's connection; None for the server's own requests."""
    running: Process
    session: Session | None
    settle: Callable[["Call", Envelope], Answer]
    """Handles the agent's response. It runs before the agent's next line is handled, so the log keeps their order."""
    reply: Reply
    deadline: float | None = None
    stdio_id: bytes = b""
    late: Reply | None = None
    """Set after the client got a timeout. The late answer settles it, and goes to the client's stream."""
    forwarded: bool = False
    """Whether the response goes to the client unread. Any other response must be short."""
    makes_session: bool = False
    """Whether the call opens a session. Until its response, updates may arrive for a session that is not known yet."""


class Calls:
    """All open calls, by their ids on stdio."""

    def __init__(self) -> None:
        self._ids = count(1)
        self._open: dict[bytes, Call] = {}

    @property
    def empty(self) -> bool:
        return not self._open

    @property
    def count(self) -> int:
        """Number of open calls."""
        return len(self._open)

    def open(self, call: Call) -> Call:
        """Add a call, and assign its id on stdio."""
        call.stdio_id = b"%d" % next(self._ids)
        self._open[call.stdio_id] = call
        return call

    def close(self, running: Process, stdio_id: bytes) -> Call | None:
        """Remove and return the call that an agent answers; None if that process has no call under this id."""
        call = self._open.get(stdio_id)
        if call is None or call.running is not running:
            return None
        return self._open.pop(stdio_id)

    def close_all(self, running: Process) -> list[Call]:
        """Remove and return the calls that wait on this process.

        Calls on other processes of the same agent stay: a new process may already handle calls.
        """
        return [self._open.pop(call.stdio_id) for call in self._of(running)]

    def find(self, connection: Connection, client_id: bytes) -> Call | None:
        """Return the newest open call that a client made under an id; None if there is none."""
        wanted = same_id(client_id)
        for call in reversed(self._open.values()):
            if call.connection is connection and same_id(call.client_id) == wanted:
                return call
        return None

    def get(self, running: Process, stdio_id: bytes) -> Call | None:
        call = self._open.get(stdio_id)
        return call if call is not None and call.running is running else None

    def makes_session(self, running: Process) -> bool:
        return any(call.makes_session for call in self._of(running))

    def find_overdue(self, now: float) -> list[Call]:
        waiting = (call for call in self._open.values() if call.late is None)
        return [call for call in waiting if call.deadline is not None and call.deadline <= now]

    def fail_all(self, error: SandboxAgentError) -> None:
        """Fail all waiting callers. Responses that still arrive go only to the log."""
        for call in self._open.values():
            if call.reply.result is None:
                call.reply.set_exception(error)

    def find_turns(self) -> list[Call]:
        """Return the calls of all running turns."""
        return [call for call in self._open.values() if call.method == methods.PROMPT]

    def _of(self, running: Process) -> list[Call]:
        return [call for call in self._open.values() if call.running is running]
