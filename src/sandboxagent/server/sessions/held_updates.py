"""Hold updates of a new session until a client has the response that names the session.

Clients drop updates of sessions that they do not know yet. Knows neither the log nor how responses reach clients.
"""

from collections.abc import Callable

from msgspec import Struct

from sandboxagent.server.sessions.budgets import KEPT_COST, Budgets
from sandboxagent.server.sessions.session import Session

HOLD_TIMEOUT = 10.0
"""How long updates wait for the response. A client may never take it."""
HOLD_MAX_BYTES = 8 << 20
"""Bytes of updates of one session that wait."""


class _Held(Struct, eq=False):
    """The updates of one session, in order."""

    session: Session
    process: str
    """Whose budget they are in."""
    until: float
    """By the monotonic clock: then they wait no longer."""
    updates: list[list[bytes]] = []
    size: int = 0


class HeldUpdates:
    """Those of all sessions, each from the agent's answer until that answer has gone out to the client."""

    def __init__(
        self, budgets: Budgets, monotonic: Callable[[], float], record: Callable[[Session, list[bytes]], None]
    ) -> None:
        """`record` takes updates that wait no longer."""
        self._budgets = budgets
        self._monotonic = monotonic
        self._record = record
        self.sessions: dict[str, _Held] = {}
        """By session id. Every update looks here, so this is no method."""

    def hold(self, session: Session) -> None:
        """Keep the updates of a session from now on, until they are released."""
        process = "" if session.process is None else session.process.key
        self.sessions[session.id] = _Held(session, process, self._monotonic() + HOLD_TIMEOUT)

    def add(self, session: Session, lines: list[bytes]) -> None:
        """Keep updates of a session that is held; releases all of them when there is no room."""
        held = self.sessions[session.id]
        held.updates.append(lines)
        size = sum(map(len, lines)) + KEPT_COST
        has_room = self._budgets.take(held.process, size)
        held.size += size if has_room else 0
        if held.size > HOLD_MAX_BYTES or not has_room:
            self.release(session.id)

    def release(self, session_id: str) -> None:
        """Record what was kept of a session, if it is held: its client has the response, or can wait no longer."""
        # Most are not, and this runs for every turn.
        held = self.drop(session_id) if session_id in self.sessions else None
        if held is not None:
            for lines in held.updates:
                self._record(held.session, lines)

    def release_overdue(self, now: float) -> None:
        """Release the updates that have waited too long."""
        for session_id in [one for one, held in self.sessions.items() if held.until <= now]:
            self.release(session_id)

    def drop(self, session_id: str) -> _Held | None:
        """Forget what is kept of a session, which may be gone."""
        held = self.sessions.pop(session_id, None)
        if held is not None:
            self._budgets.give_back(held.process, held.size)
        return held
