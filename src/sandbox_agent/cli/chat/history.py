"""Read a session's log: past turns, the present, which prompts are ours, and turns as JSON lines."""

import asyncio
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

import msgspec

from sandbox_agent.cli.failures import Failure, document
from sandbox_agent.cli.output import write_json
from sandbox_agent.client import Gap, LogEvent, SandboxAgent, Session, Turn, TurnEnded, TurnStarted, Updates
from sandbox_agent.client.updates import read_item, text_of
from sandbox_agent.envelope import META, Object, object_at, text_at
from sandbox_agent.wire import methods
from sandbox_agent.wire.methods import PROMPT, TURN
from sandbox_agent.wire.reading import to_json

SERVER = "daemon"
"""What has ended a session when its server was stopped."""
MOST_EVENTS, MOST_BYTES = 5000, 4 << 20
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
        while leaves or len(kept) > MOST_EVENTS or (size > MOST_BYTES and len(kept) > 1):
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


class JsonLines:
    """What is written of one turn."""

    def __init__(self, client: SandboxAgent, session: Session, own: OwnPrompts) -> None:
        self._client = client
        self._session = session
        self._own = own
        self._at = 0
        self._turn_id: str | None = None
        self._text: list[str] = []

    async def begin(self) -> None:
        """Note where the log ends before the prompt."""
        self._at = await end_of_log(self._client, self._session)

    async def write(self, turn: Turn) -> TurnEnded:
        """Write what comes, up to the end of the turn."""
        ended = asyncio.ensure_future(_end(turn))
        following = self._session.follow(self._at)
        try:
            while not ended.done():
                event = asyncio.ensure_future(anext(following))
                await asyncio.wait([event, ended], return_when=asyncio.FIRST_COMPLETED)
                if event.done():
                    self._event(event.result())
                else:
                    event.cancel()
            # What has come meanwhile.
            async for each in self._session.history(self._at):
                self._event(each)
            return await ended
        finally:
            ended.cancel()

    def end(self, end: TurnEnded) -> None:
        """The last line."""
        told = {} if end.response is None else to_json(end.response)
        result = {**self._facts(), "text": "".join(self._text), "stopReason": end.stop_reason, **told}
        write_line({"result": result})

    def fail(self, failure: Failure) -> None:
        """The last line, too."""
        write_line({"error": {**document(failure), **self._facts()}})

    def _facts(self) -> Object:
        return {"sessionId": self._session.id, "agent": self._session.agent, "cwd": self._session.cwd}

    def _event(self, event: LogEvent | Gap) -> None:
        if isinstance(event, Gap):
            write_line(gap(event))
            return
        self._at = event.id
        method = text_at(event.envelope, "method")
        if method is None or "id" in event.envelope or event.direction == "fromClient":
            return
        item = read_item(method, object_at(event.envelope, "params"))
        if isinstance(item, TurnStarted) and self._own.number(item.prompt_id) is not None:
            self._turn_id = item.turn_id
        if self._turn_id is None:
            return
        self._text.append(text_of(item))
        write_line(event.envelope)
        if isinstance(item, TurnEnded) and item.turn_id == self._turn_id:
            self._turn_id = None


def is_end(envelope: Object) -> bool:
    """Whether a session ends here; with a server that was stopped, it may come back."""
    return envelope.get("method") == methods.ENDED and text_at(envelope, "params", "terminatedBy") != SERVER


def gap(item: Gap) -> Object:
    """What is no longer kept, as the stream reports it."""
    return {"jsonrpc": "2.0", "method": methods.GAP, "params": {"after": item.after, "resumesAt": item.resumes_at}}


def write_line(document: Object) -> None:
    """One line, at once."""
    write_json(msgspec.json.encode(document))
    sys.stdout.flush()


async def _end(turn: Turn) -> TurnEnded:
    return await turn
