"""The end of a session's past: the last turns, bounded, and whether there was more."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

from sandboxagent import Gap, LogEvent, Session
from sandboxagent.cli.chat.history import MAX_BYTES, MAX_EVENTS, Past, last_turns


class Kept:
    """A log to be read."""

    def __init__(self, events: Sequence[LogEvent | Gap]) -> None:
        self._events = events

    async def log(self, after: int = 0, before: int | None = None) -> AsyncIterator[LogEvent | Gap]:
        for event in self._events:
            if isinstance(event, LogEvent) and after < event.id and (before is None or event.id < before):
                yield event


def event(id: int, method: str, **params: Any) -> LogEvent:
    return LogEvent(id, "", "fromAgent", {"method": method, "params": params})


def log(turns: int, updates: int = 1, size: int = 0) -> list[LogEvent]:
    """A beginning, and turns with so many updates each."""
    kept = [event(1, "session/update", name="beginning")]
    for turn in range(turns):
        kept.append(event(len(kept) + 1, "_sandboxagent/session/turn", state="started", turnId=f"turn-{turn}"))
        kept += [event(len(kept) + 1 + each, "session/update", text="x" * size) for each in range(updates)]
        kept.append(event(len(kept) + 1, "_sandboxagent/session/turn", state="ended", turnId=f"turn-{turn}"))
    return kept


def past(events: Sequence[LogEvent | Gap], turns: int) -> Past:
    session = cast("Session", Kept(events))
    return asyncio.run(last_turns(session, turns, len(events) + 1))


def test_a_short_past_is_whole() -> None:
    for turns in (0, 1, 3):
        kept = log(turns)
        assert past(kept, 3) == Past(kept, is_cut=False)


def test_of_a_long_past_the_last_turns_are_left_and_that_is_known() -> None:
    kept = log(5)

    assert past(kept, 3) == Past(kept[-9:], is_cut=True)
    assert past(kept, 1) == Past(kept[-3:], is_cut=True)


def test_a_past_is_bounded_whatever_its_turns_are() -> None:
    many, large = past(log(1, MAX_EVENTS + 10), 3), past(log(1, 10, MAX_BYTES // 4), 3)

    assert many.is_cut
    assert len(many.events) == MAX_EVENTS
    assert large.is_cut
    assert 3 <= len(large.events) <= 6
