"""Keep clients' requests that wait on an agent process, under the id they have on stdio.

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
    """The id's own text, as the client wrote it."""
    connection: Connection | None
    """None for the server's own requests."""
    running: Process
    session: Session | None
    settle: Callable[["Call", Envelope], Answer]
    """Runs the moment the agent answers, before its next line is looked at, so the log keeps the agent's order."""
    reply: Reply
    deadline: float | None = None
    stdio_id: bytes = b""
    late: Reply | None = None
    """Set once its client got a timeout; the answer then goes to the stream, and here."""
    makes_session: bool = False
    """Until it is answered, updates may arrive for a session that is not known yet."""


class Calls:
    """All of them, by their id on stdio."""

    def __init__(self) -> None:
        self._ids = count(1)
        self._open: dict[bytes, Call] = {}

    @property
    def empty(self) -> bool:
        return not self._open

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._open)

    def open(self, call: Call) -> Call:
        """Give it its id on stdio."""
        call.stdio_id = b"%d" % next(self._ids)
        self._open[call.stdio_id] = call
        return call

    def close(self, running: Process, stdio_id: bytes) -> Call | None:
        """Take out the call an agent answers; None when that agent has no call under this id."""
        call = self._open.get(stdio_id)
        if call is None or call.running is not running:
            return None
        return self._open.pop(stdio_id)

    def close_all(self, running: Process) -> list[Call]:
        """Take out what waits on this process. Not on its agent: a new process may already be taking calls."""
        return [self._open.pop(call.stdio_id) for call in self._of(running)]

    def find(self, connection: Connection, client_id: bytes) -> Call | None:
        """The newest open call a client made under an id."""
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
        """Fail all waiting callers; answers that still arrive go to the log only."""
        for call in self._open.values():
            if call.reply.result is None:
                call.reply.set_exception(error)

    def find_turns(self) -> list[Call]:
        """Calls that are the running turn of a session."""
        return [call for call in self._open.values() if call.method == methods.PROMPT]

    def _of(self, running: Process) -> list[Call]:
        return [call for call in self._open.values() if call.running is running]
