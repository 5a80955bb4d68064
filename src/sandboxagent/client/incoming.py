"""Decode what arrives from the server, put it in order, and read what is missing in the log.

A feed is one consumer's view of a session: a cursor that reads what it missed from the server's log (`LogReader`). That
has prompts as they were sent; the stream shows those of other clients as `user_message_chunk`, when their turn has
started and the agent does not echo them itself.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple, cast

import msgspec

from sandboxagent.client.errors import ClientError, ServerProblem
from sandboxagent.core.cursor import Gap, Page
from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import META, Object, object_at, objects_at, one_line, text_at
from sandboxagent.protocol.json_bounds import excess_of_answer


class Arrival(NamedTuple):
    """An envelope from the server, and the position that it has on the stream."""

    envelope: Object
    position: int | None
    data: str | bytes
    """The envelope as the server wrote it."""
    generation: int
    """Which of the client's connections it came on, one after another."""

    @property
    def size(self) -> int:
        return len(self.data)

    @property
    def line(self) -> bytes:
        """What the server wrote, on one line."""
        return one_line(self.data.encode() if isinstance(self.data, str) else self.data)


class RequestId(NamedTuple):
    """An agent's request as one connection has asked it: an answer to it goes there, and not to the next connection."""

    generation: int
    text: str
    """The id as it is written: `1`, `1.0` and `"1"` are three."""

    @classmethod
    def of(cls, arrival: Arrival, id: object) -> "RequestId":
        return cls(arrival.generation, msgspec.json.encode(id).decode())


def decode(data: str | bytes) -> Object:
    """An envelope; raises ValueError when the data is something else."""
    text = data.encode(errors="surrogatepass") if isinstance(data, str) else data
    reason = excess_of_answer(text)
    if reason is not None:
        raise ValueError(reason)
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        import json

        # Half a surrogate pair, from a program that cuts strings: other parsers accept it as JSON.
        found = json.loads(data)
    if not isinstance(found, dict):
        raise ValueError("not an envelope")  # noqa: TRY004 - what is sent is wrong, not who calls
    return cast("Object", found)


Call = Callable[[str, Object], Awaitable[Object]]
"""Makes a request of the server."""


def _ignore(*_: object) -> None:
    pass


async def _ignore_connection(call: Call) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Hooks:
    """The callbacks of a transport."""

    received: Callable[[Arrival], None]
    """An envelope has arrived: called in the order of the log, for a response after all that came before it."""
    lost: Callable[[], None] = _ignore
    """The server knew nothing of the connection, and there is another: what hung on it has to be set up again."""
    missed: Callable[[], None] = _ignore
    """The stream may not have brought everything up to here; the log has it."""
    answered: Callable[[RequestId, ServerProblem | None], None] = _ignore
    """An answer to an agent's request is under way no more; or it does not fit, and the request is open still."""
    sent: Callable[[Object], None] = _ignore
    """An envelope was sent."""
    interrupted: Callable[[ClientError | None, float], None] = _ignore
    """The stream broke, or the server ended it (None), or it is away still, for so many seconds."""
    reopening: Callable[[Call], Awaitable[None]] = _ignore_connection
    """The server knew nothing of the connection, and there is another, which nothing else uses before this ends."""


logger = logging.getLogger(__name__)

HOLD_TIMEOUT = 10.0
"""Seconds that an answer waits for the stream to bring what came before it."""


class StreamOrder:
    """How far the stream of a connection is, and the calls that wait for more of it."""

    def __init__(self, hold: float = HOLD_TIMEOUT) -> None:
        self._hold = hold
        self.position = 0
        """The newest position that the server has mentioned on this connection."""
        self._brought = 0
        """Up to where the stream has nothing more to bring."""
        self._stalled = False
        """The stream has been silent for too long: do not wait for it until it brings something."""
        self._waiting: dict[asyncio.Future[None], int] = {}

    def brought(self, position: int) -> None:
        """The stream is that far."""
        self._stalled = False
        self._brought = max(self._brought, position)
        self.position = max(self.position, position)
        for future in [future for future, wanted in self._waiting.items() if wanted <= position]:
            _wake(future)

    async def after(self, last: int) -> bool:
        """Wait until the stream has brought this event; False when it stays away."""
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
            logger.warning("the stream stays away; going by the log")
            self._stalled = True
        finally:
            self._waiting.pop(brought, None)
        return not self._stalled

    def begin(self) -> None:
        """There is another connection, with a stream of its own."""
        self.position, self._brought, self._stalled = 0, 0, False

    def release(self) -> None:
        """The stream is gone: release everything that waits for it."""
        for future in self._waiting:
            _wake(future)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


@dataclass(frozen=True, slots=True)
class Notification:
    """A notification of a session: its position in the log, and how many bytes it had."""

    id: int
    method: str
    params: Object
    size: int

    @property
    def last(self) -> int:
        return self.id


def as_notification(item: Notification | Gap) -> Notification:
    """What a feed gives, as the stream would bring it."""
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
"""Updates that come at any time, also before an agent that echoes prompts has done so."""


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


async def read_log_page(call: Call, session_id: str, after: int, before: int | None = None) -> LogPage:
    """The events between two positions, both exclusive."""
    params: Object = {"sessionId": session_id, "after": after, "limit": PAGE}
    if before is not None:
        params["before"] = before
    result = await call(methods.EVENTS, params)
    events = msgspec.convert(result.get("events"), list[LogEvent])
    following, gap = result.get("next"), result.get("gap")
    return LogPage(events, following if isinstance(following, int) else None, object_at(result, "gap") if gap else None)


class LogReader:
    """Where a feed reads the past of a session; `is_own_prompt` knows the prompts that this client has sent."""

    def __init__(self, call: Call, session_id: str, is_own_prompt: Callable[[str], bool]) -> None:
        self._call = call
        self._session_id = session_id
        self._is_own_prompt = is_own_prompt
        self._prompts: dict[int, LogEvent] = {}
        """Prompts of others whose turns are still to come."""
        self._unshown: Object | None = None
        """Another client's turn that has started, and whose prompt has not been shown yet."""

    def in_memory(self, after: int) -> None:
        """All of it is at the server."""

    async def page(self, after: int) -> Page[Notification]:
        """The notifications that come after a position."""
        page = await read_log_page(self._call, self._session_id, after)
        upto = max(after, _read_gap_end(page.gap))
        items: list[Notification | Gap] = [] if page.gap is None else [Gap(after, upto + 1)]
        for event in page.events:
            method, params = text_at(event.envelope, "method"), object_at(event.envelope, "params")
            if event.direction == "fromClient":
                self._keep(event)
            elif method is not None and "id" not in event.envelope:
                # Not answers, and not what the agent asked: that is asked again while it is open.
                items.append(Notification(event.id, method, params, len(msgspec.json.encode(event.envelope))))
        return Page(items, page.events[-1].id if page.events else upto, is_last=page.next is None)

    async def before(self, notification: Notification) -> list[Notification]:
        """What is shown in front of an event: the prompt of another, where neither stream nor agent has shown it."""
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
        """The prompt of a turn, as the updates that others see; a turn is named after its prompt's position."""
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
    """Whether a turn's prompt has been shown by the time of an event."""
    if notification.method == methods.TURN:
        return notification.params.get("turnId") == turn.get("turnId")
    if notification.method == methods.UPDATE:
        return text_at(notification.params, "update", "sessionUpdate") not in INCIDENTAL
    return notification.method == methods.DECISION  # The agent has asked something by then.


def _read_gap_end(gap: Object | None) -> int:
    """The last position that a gap has swallowed."""
    at = (gap or {}).get("resumesAt")
    return at - 1 if isinstance(at, int) else 0
