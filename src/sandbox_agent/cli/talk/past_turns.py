"""Where in a session's log its last turns begin, and with what."""

from typing import TypeGuard

from sandbox_agent.client import Gap, LogEvent, Session
from sandbox_agent.envelope import Object, object_at, text_at
from sandbox_agent.wire import methods

WINDOW = 1000
"""Positions that are looked at first; then four times as many, and so on."""


async def before_last(session: Session, turns: int, end: int) -> int:
    """The position before the last so many turns that began before `end`; 0 when there are not so many."""
    begun: list[int] = []
    size, last = WINDOW, end - 1
    while turns and end > 1:
        start = max(0, end - 1 - size)
        begun = [event.id async for event in session.history(start, end) if _begins(event)] + begun
        if len(begun) >= turns:
            return begun[-turns] - 1
        end, size = start + 1, 4 * size
    return 0 if turns else last


async def prompt_of(session: Session, turn_id: str) -> Object:
    """What was sent to begin a turn, which is named after its position; empty when that is no longer kept."""
    at = turn_id.removeprefix("turn-")
    if at.isdecimal():
        async for event in session.history(int(at) - 1, int(at) + 1):
            if isinstance(event, LogEvent):
                return object_at(event.envelope, "params")
    return {}


def _begins(event: LogEvent | Gap) -> TypeGuard[LogEvent]:
    """Whether a turn starts here."""
    if isinstance(event, Gap) or event.envelope.get("method") != methods.TURN:
        return False
    return text_at(event.envelope, "params", "state") == "started"
