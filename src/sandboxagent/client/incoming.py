"""Decode messages from the server, put them in order, and read missing ones in the log.

A feed is one consumer's view of a session: a cursor that reads what it missed from the server's log (`LogReader`). The
log has prompts as they were sent. The stream shows another client's prompt as `user_message_chunk`, after its turn has
started, unless the agent echoes prompts itself.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

import msgspec
from msgspec import Struct

from sandboxagent.client.errors import ClientError, ServerProblem
from sandboxagent.core.cursor import Gap, Page
from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import META, Object, object_at, objects_at, one_line, text_at
from sandboxagent.protocol.json_bounds import excess_of_answer


class Arrival(NamedTuple):
    """An envelope from the server, and its position on the stream."""

    envelope: Object
    position: int | None
    """Position on the stream; None for the response of a POST."""
    data: str | bytes
    """The envelope as the server wrote it."""
    generation: int
    """Number of the connection that the envelope came on, among all connections of this client."""

    @property
    def size(self) -> int:
        return len(self.data)

    @property
    def line(self) -> bytes:
        """The envelope as the server wrote it, on one line."""
        return one_line(self.data.encode() if isinstance(self.data, str) else self.data)


class RequestId(NamedTuple):
    """The id of an agent's request on one connection. Only that connection may send the answer."""

    generation: int
    text: str
    """The id as JSON. `1`, `1.0` and `"1"` are different ids."""

    @classmethod
    def of(cls, arrival: Arrival, id: object) -> "RequestId":
        return cls(arrival.generation, msgspec.json.encode(id).decode())


def decode(data: str | bytes) -> Object:
    """Parse an envelope. Raises ValueError if the data is something else."""
    text = data.encode(errors="surrogatepass") if isinstance(data, str) else data
    reason = excess_of_answer(text)
    if reason is not None:
        raise ValueError(reason)
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        import json

        # Other parsers accept half a surrogate pair, which programs produce that cut strings.
        found = json.loads(data)
    if not isinstance(found, dict):
        raise ValueError("not an envelope")  # noqa: TRY004 - the data is wrong, not the call
    return cast("Object", found)


Call = Callable[[str, Object], Awaitable[Object]]
"""Sends a request to the server and returns its result."""


def _ignore(*_: object) -> None:
    pass


async def _ignore_connection(call: Call) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Hooks:
    """The callbacks of a transport."""

    received: Callable[[Arrival], None]
    """Called for each envelope in the order of the log. A response comes after all events before it."""
    lost: Callable[[], None] = _ignore
    """Called after the server has forgotten the connection and another one is open. Attachments to sessions must be
    renewed."""
    missed: Callable[[], None] = _ignore
    """Called if the stream may have skipped events, which the log has."""
    answered: Callable[[RequestId, ServerProblem | None], None] = _ignore
    """Called when an answer to an agent's request was sent. With a ServerProblem, the answer does not fit, and the
    request is still open."""
    sent: Callable[[Object], None] = _ignore
    """Called for each envelope that is sent."""
    interrupted: Callable[[ClientError | None, float], None] = _ignore
    """Called when the stream ends or cannot be opened. It gets the failure, and the seconds for which there has been no
    stream. The failure is None if the server ended the stream."""
    reopening: Callable[[Call], Awaitable[None]] = _ignore_connection
    """Called before another connection replaces one that the server has forgotten. Nothing else uses the new connection
    before the call has ended."""


logger = logging.getLogger(__name__)

HOLD_TIMEOUT = 10.0
"""Seconds that an answer waits for events before it on the stream."""


class StreamOrder:
    """The progress of a connection's stream, and the calls that wait for its events."""

    def __init__(self, hold: float = HOLD_TIMEOUT) -> None:
        self._hold = hold
        self.position = 0
        """The newest position that the server has mentioned on this connection."""
        self._brought = 0
        """The position up to which the stream has delivered all events."""
        self._stalled = False
        """Whether the stream has been silent for too long. No call waits for it then, until it delivers an event."""
        self._waiting: dict[asyncio.Future[None], int] = {}

    def brought(self, position: int) -> None:
        """Record that the stream has delivered all events up to a position."""
        self._stalled = False
        self._brought = max(self._brought, position)
        self.position = max(self.position, position)
        for future in [future for future, wanted in self._waiting.items() if wanted <= position]:
            _wake(future)

    async def after(self, last: int) -> bool:
        """Wait until the stream has delivered this event. Return False if it does not come in time."""
        self.position = max(self.position, last)
        if self._brought >= last:
            return True
        if self._stalled:
            return False
        brought: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[brought] = last
        try:
            async with asyncio.timeout(self._hold):
                await brought
        except TimeoutError:
            logger.warning("the stream is late, so the log is read instead")
            self._stalled = True
        finally:
            self._waiting.pop(brought, None)
        return not self._stalled

    def begin(self) -> None:
        """Start again for a new connection, which has its own stream."""
        self.position, self._brought, self._stalled = 0, 0, False

    def release(self) -> None:
        """Release all waiting calls, because the stream is gone."""
        for future in self._waiting:
            _wake(future)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


@dataclass(frozen=True, slots=True)
class Notification:
    """A notification of a session, and its position in the log."""

    id: int
    method: str
    params: Object
    size: int
    """Number of bytes that came on the stream; 0 if it was read from the log, because it does not wait in a queue."""

    @property
    def last(self) -> int:
        return self.id


def as_notification(item: Notification | Gap) -> Notification:
    """Return an item of a feed as a notification. A gap becomes the notification that the stream has for it."""
    if isinstance(item, Gap):
        return Notification(item.after, methods.GAP, {"after": item.after, "resumesAt": item.resumes_at}, 0)
    return item


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
"""Updates that may come at any time, even before an agent that echoes prompts has echoed one."""


class LogEvent(Struct, frozen=True, rename="camel", omit_defaults=True):
    """An event of a session's log. `msgspec` encodes it as the server writes it."""

    id: int
    """Position of the event in the log."""
    at: str
    """The time when the event was stored: UTC, ISO 8601 with milliseconds."""
    direction: Literal["fromClient", "fromAgent", "fromServer"]
    """Origin of the envelope."""
    envelope: Object
    """The JSON-RPC envelope."""
    request_id: str | None = None
    """The id to answer by, while the event is an agent's request that this client may answer."""


@dataclass(frozen=True, slots=True)
class LogPage:
    """A page of the log."""

    events: list[LogEvent]
    next: int | None
    """The `after` of the next page; None at the end of the log."""
    gap: Object | None
    """Events of the page that were deleted from the log."""


async def read_log_page(call: Call, session_id: str, after: int, before: int | None = None) -> LogPage:
    """Read the events between two positions, both exclusive."""
    params: Object = {"sessionId": session_id, "after": after, "limit": PAGE}
    if before is not None:
        params["before"] = before
    result = await call(methods.EVENTS, params)
    events = msgspec.convert(result.get("events"), list[LogEvent])
    following, gap = result.get("next"), result.get("gap")
    return LogPage(events, following if isinstance(following, int) else None, object_at(result, "gap") if gap else None)


@dataclass(frozen=True, slots=True)
class LogEntry:
    """An event of the log for a cursor that reads all events from the log. The stream has only some of them."""

    event: LogEvent

    @property
    def last(self) -> int:
        return self.event.id

    @property
    def size(self) -> int:
        """Return 0, because no entry is pushed and waits."""
        return 0


class LogSource:
    """All events of a session's log, before a position if one is given."""

    def __init__(self, call: Call, session_id: str, before: int | None = None) -> None:
        self._call = call
        self._session_id = session_id
        self._before = before

    def in_memory(self, after: int) -> None:
        """Return None, because the whole log is at the server."""

    async def page(self, after: int) -> Page[LogEntry]:
        """Read the events after a position."""
        page = await read_log_page(self._call, self._session_id, after, self._before)
        upto = max(after, _read_gap_end(page.gap))
        items: list[LogEntry | Gap] = [] if page.gap is None else [Gap(after, upto + 1)]
        items += map(LogEntry, page.events)
        if page.next is not None:
            return Page(items, page.next)
        return Page(items, page.events[-1].id if page.events else upto, is_last=True)


class LogReader:
    """Reads a session's past for a feed. `is_own_prompt` returns whether this client has sent a prompt."""

    def __init__(self, call: Call, session_id: str, is_own_prompt: Callable[[str], bool]) -> None:
        self._call = call
        self._session_id = session_id
        self._log = LogSource(call, session_id)
        self._is_own_prompt = is_own_prompt
        self._prompts: dict[int, LogEvent] = {}
        """Prompts of other clients whose turns have not been read yet, by position."""
        self._unshown: Object | None = None
        """A started turn of another client whose prompt has not been shown yet."""

    def in_memory(self, after: int) -> None:
        """Return None, because the whole past is at the server."""

    async def page(self, after: int) -> Page[Notification]:
        """Read the notifications after a position."""
        page = await self._log.page(after)
        items: list[Notification | Gap] = []
        for entry in page.items:
            if isinstance(entry, Gap):
                items.append(entry)
                continue
            event = entry.event
            method, params = text_at(event.envelope, "method"), object_at(event.envelope, "params")
            if event.direction == "fromClient":
                self._keep(event)
            elif method is not None and "id" not in event.envelope:
                # Answers and agents' requests are left out. The server sends open requests again by itself.
                items.append(Notification(event.id, method, params, 0))
        return Page(items, page.upto, is_last=page.is_last)

    async def before(self, notification: Notification) -> list[Notification]:
        """Return the notifications to show before an event: another client's prompt that was not shown yet."""
        if notification.method == methods.TURN and notification.params.get("state") == "started":
            self._unshown = None if self._is_own(notification.params) else notification.params
            return []
        if self._unshown is None or not _follows_prompt(notification, self._unshown):
            return []
        echoed = text_at(notification.params, "update", "sessionUpdate") == USER_MESSAGE
        shown = [] if echoed else await self._prompt_of(self._unshown, notification.id)
        self._unshown = None
        return shown

    def _keep(self, event: LogEvent) -> None:
        name = text_at(event.envelope, "params", "_meta", META, "promptId")
        if text_at(event.envelope, "method") == methods.PROMPT and not self._is_own({"promptId": name}):
            self._prompts[event.id] = event

    def _is_own(self, turn: Object) -> bool:
        name = text_at(turn, "promptId")
        return name is not None and self._is_own_prompt(name)

    async def _prompt_of(self, turn: Object, position: int) -> list[Notification]:
        """Return a turn's prompt as the updates that other clients see. A turn's id has the position of its prompt."""
        at = (text_at(turn, "turnId") or "").removeprefix("turn-")
        if not at.isdecimal():
            return []
        event = self._prompts.pop(int(at), None)
        if event is None:
            page = await read_log_page(self._call, self._session_id, int(at) - 1, int(at) + 1)
            event = page.events[0] if page.events else None
        blocks = [] if event is None else objects_at(event.envelope, "params", "prompt")
        chunks: list[Object] = [{"sessionUpdate": USER_MESSAGE, "content": block} for block in blocks]
        return [
            Notification(position, methods.UPDATE, {"sessionId": self._session_id, "update": chunk}, 0)
            for chunk in chunks
        ]


def _follows_prompt(notification: Notification, turn: Object) -> bool:
    """Return whether an event comes after the prompt of its turn."""
    if notification.method == methods.TURN:
        return notification.params.get("turnId") == turn.get("turnId")
    if notification.method == methods.UPDATE:
        return text_at(notification.params, "update", "sessionUpdate") not in INCIDENTAL
    return notification.method == methods.DECISION  # An agent makes requests only after the prompt.


def _read_gap_end(gap: Object | None) -> int:
    """Return the last position of a gap."""
    at = (gap or {}).get("resumesAt")
    return at - 1 if isinstance(at, int) else 0
