"""Read a session's log: past turns, the present, which prompts are ours."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

import msgspec

from sandboxagent.client import Gap, LogEvent, SandboxAgent, Session, Updates
from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import META, Object, object_at, text_at
from sandboxagent.protocol.methods import PROMPT, TURN

SERVER = "daemon"
"""What has ended a session when its server was stopped."""
MAX_EVENTS, MAX_BYTES = 5000, 4 << 20
"""How much of a session's past is shown again when you go on with it."""
WINDOW = 1000
"""Positions that are looked at first; then four times as many, and so on."""


class OwnPrompts:
    """The prompts that were sent through a client, in their order."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._running = False

    def watch(self, client: SandboxAgent) -> None:
        """See what is sent through a client, and what comes."""
        client.tap(self._saw)

    def runs(self) -> bool:
        """Whether the turn that runs is one of ours."""
        return self._running

    def number(self, name: str | None) -> int | None:
        """Its number among ours, from 0; None for one that another client sent."""
        return None if name is None else self._numbers.get(name)

    def _saw(self, direction: str, envelope: Object, _: int | None) -> None:
        method, params = envelope.get("method"), object_at(envelope, "params")
        if direction == "sent" and method == PROMPT:
            name = text_at(params, "_meta", META, "promptId")
            if name is not None:
                self._numbers.setdefault(name, len(self._numbers))
        elif direction == "received" and method == TURN:
            own = self.number(text_at(params, "promptId")) is not None
            self._running = own and params.get("state") == "started"


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


@dataclass(frozen=True, slots=True)
class Past:
    """The end of a session's past, to be shown again."""

    events: Sequence[LogEvent | Gap]
    is_cut: bool
    """Something came before."""


async def last_turns(session: Session, turns: int, end: int) -> Past:
    """The last so many turns before `end`; fewer, when they are large."""
    # One more is read, to know whether there is one.
    after = await before_last(session, turns + 1, end)
    kept: deque[tuple[LogEvent | Gap, int]] = deque()
    begun = size = 0
    is_cut = False
    async for event in session.history(after, end):
        kept.append((event, len(msgspec.json.encode(event.envelope)) if isinstance(event, LogEvent) else 0))
        begun, size = begun + _begins(event), size + kept[-1][1]
        leaves = begun > turns
        while leaves or len(kept) > MAX_EVENTS or (size > MAX_BYTES and len(kept) > 1):
            first, cost = kept.popleft()
            begun, size, is_cut = begun - _begins(first), size - cost, True
            # The rest of a turn leaves with its beginning.
            leaves = begun > turns or (begun == turns and not _begins(kept[0][0]))
    return Past([event for event, _ in kept], is_cut)


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
    if isinstance(event, Gap) or event.envelope.get("method") != TURN:
        return False
    return text_at(event.envelope, "params", "state") == "started"


def is_end(envelope: Object) -> bool:
    """Whether a session ends here; with a server that was stopped, it may come back."""
    return envelope.get("method") == methods.ENDED and text_at(envelope, "params", "terminatedBy") != SERVER
