"""A session's log, page by page, as the stream would have told it to this client.

The log has prompts as they were sent; the stream shows those of others as `user_message_chunk`, when their turn starts
and the agent does not echo them itself. Knows nothing of feeds' buffers.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from sandbox_agent.client.feed import Heard, Page
from sandbox_agent.client.updates import GAP, TURN, UPDATE
from sandbox_agent.envelope import META, Object, object_at, objects_at, text_at

EVENTS = "_sandboxagent/session/events"
PAGE = 500

Call = Callable[[str, Object], Awaitable[Object]]
"""Makes a request of the server."""


@dataclass(frozen=True, slots=True)
class LogEvent:
    """One event of a session's log: `direction` is fromClient, fromAgent or fromServer."""

    id: int
    at: str
    direction: str
    envelope: Object


@dataclass(frozen=True, slots=True)
class LogPage:
    """A page of the log; `next` is where the following one begins, `gap` what is no longer kept."""

    events: list[LogEvent]
    next: int | None
    gap: Object | None


async def log_page(call: Call, session_id: str, after: int, before: int | None = None) -> LogPage:
    """The events between two positions, both exclusive."""
    params: Object = {"sessionId": session_id, "after": after, "limit": PAGE}
    if before is not None:
        params["before"] = before
    result = await call(EVENTS, params)
    events = msgspec.convert(result.get("events"), list[LogEvent])
    following, gap = result.get("next"), result.get("gap")
    return LogPage(events, following if isinstance(following, int) else None, object_at(result, "gap") if gap else None)


class Past:
    """Reads the past of a session for one feed; `own` are the prompts that this client has sent."""

    def __init__(self, call: Call, session_id: str, own: Callable[[str], bool]) -> None:
        self._call = call
        self._session_id = session_id
        self._own = own
        self._prompts: dict[int, LogEvent] = {}
        self._unechoed: list[Heard] = []
        """The prompt of the turn that has begun, as updates, until its agent speaks."""

    async def page(self, after: int) -> Page:
        """What the stream would have brought next after a position."""
        page = await log_page(self._call, self._session_id, after)
        heard: list[Heard] = []
        if page.gap is not None:
            heard.append(Heard(after, GAP, page.gap, 0))
        for event in page.events:
            heard += await self._heard(event)
        upto = page.events[-1].id if page.events else after
        return Page(heard, upto, more=page.next is not None)

    async def _heard(self, event: LogEvent) -> list[Heard]:
        method, params = text_at(event.envelope, "method"), object_at(event.envelope, "params")
        if event.direction == "fromClient":
            if method == "session/prompt":
                self._prompts[event.id] = event
            return []
        if method is None or "id" in event.envelope:
            return []  # Answers, and what the agent asked: that is asked anew while it is open.
        heard = Heard(event.id, method, params, len(msgspec.json.encode(event.envelope)))
        if method == TURN and params.get("state") == "started":
            self._unechoed = await self._prompt_of(params, event.id)
            return [heard]
        if method == UPDATE and event.direction == "fromAgent" and self._unechoed:
            shown, self._unechoed = self._unechoed, []
            echoes = text_at(params, "update", "sessionUpdate") == "user_message_chunk"
            return [heard] if echoes else [*shown, heard]
        return [heard]

    async def _prompt_of(self, turn: Object, position: int) -> list[Heard]:
        """The prompt of a turn, as the updates that others see; a turn is named after its prompt's position."""
        prompt_id = text_at(turn, "promptId")
        at = (text_at(turn, "turnId") or "").removeprefix("turn-")
        if not at.isdecimal() or (prompt_id is not None and self._own(prompt_id)):
            return []
        event = self._prompts.pop(int(at), None)
        if event is None:
            page = await log_page(self._call, self._session_id, int(at) - 1, int(at) + 1)
            event = page.events[0] if page.events else None
        if event is None:
            return []
        blocks = objects_at(event.envelope, "params", "prompt")
        chunks: list[Object] = [{"sessionUpdate": "user_message_chunk", "content": block} for block in blocks]
        return [Heard(position, UPDATE, {"sessionId": self._session_id, "update": chunk}, 0) for chunk in chunks]


def prompt_id(params: Object) -> str | None:
    """What this client called a prompt."""
    return text_at(params, "_meta", META, "promptId")
