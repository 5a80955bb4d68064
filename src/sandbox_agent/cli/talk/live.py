"""What happens in a session from a moment on, and which part of its log lies before that: together, all of it."""

from sandbox_agent.client import SandboxAgent, Session, Updates
from sandbox_agent.envelope import Object, text_at


class Live:
    """Begins when it is made."""

    def __init__(self, client: SandboxAgent, session: Session) -> None:
        self._client = client
        self._session = session
        self._first: int | None = None
        """The position of the first event that came since."""
        self.updates: Updates = session.updates()
        self._stop = client.tap(self._saw)

    async def boundary(self) -> int:
        """The position before which everything is history, and from which on everything is among the updates."""
        # The answer comes after all that was in the log before it: what has not come by then comes later.
        end = await end_of_log(self._client, self._session)
        self._stop()
        return end + 1 if self._first is None else self._first

    def _saw(self, direction: str, envelope: Object, position: int | None) -> None:
        if direction == "received" and position is not None and self._first is None and "id" not in envelope:
            self._first = position if text_at(envelope, "params", "sessionId") == self._session.id else None


async def end_of_log(client: SandboxAgent, session: Session) -> int:
    """The position after which everything is new."""
    attached = await client.request("_sandboxagent/session/attach", {"sessionId": session.id})
    position = attached.get("position")
    return position if isinstance(position, int) else 0
