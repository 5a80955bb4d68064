"""A session's log, page by page, as the stream would have told it to this client.

The log has prompts as they were sent; the stream shows those of others as `user_message_chunk`, when their turn has
started and the agent does not echo them itself. Knows nothing of feeds' buffers.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from sandbox_agent.client.feed import Heard, Page
from sandbox_agent.envelope import META, Object, object_at, objects_at, text_at
from sandbox_agent.wire import methods

PAGE = 500
USER_MESSAGE = "user_message_chunk"
INCIDENTAL = frozenset(
    {
        "session_info_update",
        "current_mode_update",
        "config_option_update",
        "available_commands_update",
        "usage_update",
    }
)
"""Updates that come at any time, also before an agent that echoes prompts has done so."""

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
    result = await call(methods.EVENTS, params)
    events = msgspec.convert(result.get("events"), list[LogEvent])
    following, gap = result.get("next"), result.get("gap")
    return LogPage(events, following if isinstance(following, int) else None, object_at(result, "gap") if gap else None)


class PastReader:
    """Reads the past of a session for one reader; `own` are the prompts that this client has sent."""

    def __init__(self, call: Call, session_id: str, own: Callable[[str], bool]) -> None:
        self._call = call
        self._session_id = session_id
        self._own = own
        self._prompts: dict[int, LogEvent] = {}
        """Prompts of others whose turns are still to come."""
        self._unshown: Object | None = None
        """Another client's turn that has started, and whose prompt has not been shown yet."""

    async def page(self, after: int) -> Page:
        """The notifications that come after a position."""
        page = await log_page(self._call, self._session_id, after)
        heard = [] if page.gap is None else [Heard(after, methods.GAP, page.gap, 0)]
        for event in page.events:
            method, params = text_at(event.envelope, "method"), object_at(event.envelope, "params")
            if event.direction == "fromClient":
                self._keep(event)
            elif method is not None and "id" not in event.envelope:
                # Not answers, and not what the agent asked: that is asked anew while it is open.
                heard.append(Heard(event.id, method, params, len(msgspec.json.encode(event.envelope))))
        upto = page.events[-1].id if page.events else max(after, _resumed(page.gap))
        return Page(heard, upto, more=page.next is not None)

    async def before(self, heard: Heard) -> list[Heard]:
        """What is shown in front of an event: the prompt of another, where neither stream nor agent has shown it."""
        if heard.method == methods.TURN and heard.params.get("state") == "started":
            self._unshown = None if self._is_own(heard.params) else heard.params
            return []
        if self._unshown is None or not _follows_prompt(heard, self._unshown):
            return []
        echoed = text_at(heard.params, "update", "sessionUpdate") == USER_MESSAGE
        shown = [] if echoed else await self._prompt_of(self._unshown, heard.id)
        self._unshown = None
        return shown

    def _keep(self, event: LogEvent) -> None:
        name = text_at(event.envelope, "params", "_meta", META, "promptId")
        if text_at(event.envelope, "method") == methods.PROMPT and not self._is_own({"promptId": name}):
            self._prompts[event.id] = event

    def _is_own(self, turn: Object) -> bool:
        name = text_at(turn, "promptId")
        return name is not None and self._own(name)

    async def _prompt_of(self, turn: Object, position: int) -> list[Heard]:
        """The prompt of a turn, as the updates that others see; a turn is named after its prompt's position."""
        at = (text_at(turn, "turnId") or "").removeprefix("turn-")
        if not at.isdecimal():
            return []
        event = self._prompts.pop(int(at), None)
        if event is None:
            page = await log_page(self._call, self._session_id, int(at) - 1, int(at) + 1)
            event = page.events[0] if page.events else None
        blocks = [] if event is None else objects_at(event.envelope, "params", "prompt")
        chunks: list[Object] = [{"sessionUpdate": USER_MESSAGE, "content": block} for block in blocks]
        return [
            Heard(position, methods.UPDATE, {"sessionId": self._session_id, "update": chunk}, 0) for chunk in chunks
        ]


def _follows_prompt(heard: Heard, turn: Object) -> bool:
    """Whether a turn's prompt has been shown by the time of an event."""
    if heard.method == methods.TURN:
        return heard.params.get("turnId") == turn.get("turnId")
    if heard.method == methods.UPDATE:
        return text_at(heard.params, "update", "sessionUpdate") not in INCIDENTAL
    return heard.method == methods.DECISION  # The agent has asked something by then.


def _resumed(gap: Object | None) -> int:
    """The last position that a gap has swallowed."""
    at = (gap or {}).get("resumesAt")
    return at - 1 if isinstance(at, int) else 0
