"""Read a session's log: past turns, its end, and which prompts this client has sent."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

import msgspec

from sandboxagent import Gap, LogEvent, SandboxAgent, Session
from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import META, Object, object_at, text_at
from sandboxagent.protocol.methods import PROMPT, TURN

SERVER = "daemon"
"""`terminatedBy` of a session that ended because its server was stopped."""
MAX_EVENTS, MAX_BYTES = 5000, 4 << 20
"""Maximum number and bytes of past events that are shown when the user continues a session."""
WINDOW = 1000
"""Number of positions in the first search from the end. Each further search is four times as large."""


class OwnPrompts:
    """The prompts that this client has sent, in order."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._running = False

    def watch(self, client: SandboxAgent) -> None:
        """Observe the messages of a client."""
        client.tap(self._saw)

    def runs(self) -> bool:
        """Whether the running turn began with a prompt of this client."""
        return self._running

    def number(self, name: str | None) -> int | None:
        """Return a prompt's number among this client's, from 0; None for another client's prompt."""
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


async def end_of_log(client: SandboxAgent, session: Session) -> int:
    """Attach to a session. Return the position after which all of its events are new."""
    attached = await client.request("_sandboxagent/session/attach", {"sessionId": session.id})
    position = attached.get("position")
    return position if isinstance(position, int) else 0


async def before_last(session: Session, turns: int, end: int) -> int:
    """Return the position before the last `turns` turns that began before `end`; 0 if there are fewer."""
    begun: list[int] = []
    size, last = WINDOW, end - 1
    while turns and end > 1:
        start = max(0, end - 1 - size)
        begun = [event.id async for event in session.log(start, end) if _begins(event)] + begun
        if len(begun) >= turns:
            return begun[-turns] - 1
        end, size = start + 1, 4 * size
    return 0 if turns else last


@dataclass(frozen=True, slots=True)
class Past:
    """The last events of a session, to show again."""

    events: Sequence[LogEvent | Gap]
    is_cut: bool
    """Whether there are earlier events."""


async def last_turns(session: Session, turns: int, end: int) -> Past:
    """Return the last `turns` turns before `end`; fewer when they exceed `MAX_EVENTS` or `MAX_BYTES`."""
    # Read one turn more, to know whether there are earlier ones.
    after = await before_last(session, turns + 1, end)
    kept: deque[tuple[LogEvent | Gap, int]] = deque()
    begun = size = 0
    is_cut = False
    async for event in session.log(after, end):
        kept.append((event, len(msgspec.json.encode(event.envelope)) if isinstance(event, LogEvent) else 0))
        begun, size = begun + _begins(event), size + kept[-1][1]
        leaves = begun > turns
        while leaves or len(kept) > MAX_EVENTS or (size > MAX_BYTES and len(kept) > 1):
            first, cost = kept.popleft()
            begun, size, is_cut = begun - _begins(first), size - cost, True
            # A turn is dropped as a whole.
            leaves = begun > turns or (begun == turns and not _begins(kept[0][0]))
    return Past([event for event, _ in kept], is_cut)


async def prompt_of(session: Session, turn_id: str) -> Object:
    """Return the params of the prompt that began a turn, by the position in the turn's id; empty if it was deleted."""
    at = turn_id.removeprefix("turn-")
    if at.isdecimal():
        async for event in session.log(int(at) - 1, int(at) + 1):
            if isinstance(event, LogEvent):
                return object_at(event.envelope, "params")
    return {}


def _begins(event: LogEvent | Gap) -> TypeGuard[LogEvent]:
    """Whether a turn starts with this event."""
    if isinstance(event, Gap) or event.envelope.get("method") != TURN:
        return False
    return text_at(event.envelope, "params", "state") == "started"


def is_end(envelope: Object) -> bool:
    """Whether a session ends with this envelope. After a stop of the server, it may continue."""
    return envelope.get("method") == methods.ENDED and text_at(envelope, "params", "terminatedBy") != SERVER
