"""Hold updates of a new session until a client has the response that names the session.

Clients drop updates of sessions that they do not know yet. This module uses neither the log nor the code that sends
responses to clients.
"""

from collections.abc import Callable

from msgspec import Struct

from sandboxagent.server.sessions.budgets import KEPT_COST_BYTES, Budgets
from sandboxagent.server.sessions.session import Session

HOLD_TIMEOUT = 10.0
"""Maximum seconds that updates wait for the response, because a client may never read it."""
MAX_HELD_BYTES = 8 << 20
"""Maximum bytes of waiting updates of one session."""


class _Held(Struct, eq=False):
    """The held updates of one session, in order."""

    session: Session
    process: str
    """Key of the process whose budget has their bytes."""
    until: float
    """Monotonic time at which they are released."""
    updates: list[list[bytes]] = []
    size: int = 0


class HeldUpdates:
    """The held updates of all new sessions, from the agent's response until the client has that response."""

    def __init__(
        self, budgets: Budgets, monotonic: Callable[[], float], record: Callable[[Session, list[bytes]], None]
    ) -> None:
        """`record` is called with the updates that are released."""
        self._budgets = budgets
        self._monotonic = monotonic
        self._record = record
        self.sessions: dict[str, _Held] = {}
        """Sessions whose updates are held, by session id. It is an attribute because every update reads it."""

    def hold(self, session: Session) -> None:
        """Start to hold the updates of a session, until they are released."""
        process = "" if session.process is None else session.process.key
        self.sessions[session.id] = _Held(session, process, self._monotonic() + HOLD_TIMEOUT)

    def add(self, session: Session, lines: list[bytes]) -> None:
        """Hold updates of a session that is in `sessions`; release all of them if there is no room."""
        held = self.sessions[session.id]
        held.updates.append(lines)
        size = sum(map(len, lines)) + KEPT_COST_BYTES
        has_room = self._budgets.take(held.process, size)
        held.size += size if has_room else 0
        if held.size > MAX_HELD_BYTES or not has_room:
            self.release(session.id)

    def release(self, session_id: str) -> None:
        """Record the held updates of a session, if there are any.

        Call it once the client has the response, or something cannot wait longer.
        """
        # Most sessions have none, and this runs for every turn.
        held = self.drop(session_id) if session_id in self.sessions else None
        if held is not None:
            for lines in held.updates:
                self._record(held.session, lines)

    def release_overdue(self, now: float) -> None:
        """Release the updates that have waited too long."""
        for session_id in [one for one, held in self.sessions.items() if held.until <= now]:
            self.release(session_id)

    def drop(self, session_id: str) -> _Held | None:
        """Forget and return the held updates of a session; None if there are none."""
        held = self.sessions.pop(session_id, None)
        if held is not None:
            self._budgets.release_bytes(held.process, held.size)
        return held
