"""Answer lists and history at a gateway, from the fleet's tables and its stream.

These answers also cover lost nodes. A turn is named after the position of its prompt in its node's log. The prompt is
found in the stream, because each message has its node's position.
"""

from collections import Counter
from collections.abc import Awaitable, Callable

import msgspec
from msgspec.structs import replace

from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.bus.interface import BusError, StreamRecord
from sandboxagent.fleet.gateway.connection import FleetConnection
from sandboxagent.fleet.gateway.feed import Feed
from sandboxagent.fleet.gateway.owners import Owners
from sandboxagent.fleet.gateway.registry import ListedSession, NodeRegistry
from sandboxagent.fleet.records import PART, end_of, ownership, position_of, read_part
from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import META, Envelope, Object, object_at, parse, same_id, text_at
from sandboxagent.protocol.errors import InvalidParams, InvalidRequest, LogUnavailable, NotAnEnvelope
from sandboxagent.protocol.extensions import ChangesParams, EventsRange
from sandboxagent.server.log.event import Chunk, session_channel
from sandboxagent.server.sessions.extensions import MAX_PAGE, MAX_WAIT_TIMEOUT, shown, wait_for_change
from sandboxagent.server.sessions.session import iso

ONE = 2
"""Distance between the ends of a range with one position. Clients request such a range for the prompt of a turn. If the
stream has no event there, the position is one of the node's own."""

Method = Callable[[FleetConnection, Envelope], Awaitable[object]]
ListRequests = Callable[[FleetConnection, Envelope, ListedSession], Awaitable[list[Object]]]


class GatewayMethods:
    """The methods that a gateway answers itself."""

    def __init__(self, feed: Feed, registry: NodeRegistry, owners: Owners) -> None:
        self.list_open: ListRequests = _list_none
        """Lists the requests of a session that a client may answer. Set by the module that calls nodes."""
        self._feed = feed
        self._registry = registry
        self._owners = owners

    def table(self) -> dict[str, Method]:
        return {
            methods.INITIALIZE: self._initialize_again,
            methods.LIST: self._list,
            methods.LIST_SESSIONS: self._list_ours,
            methods.EVENTS: self.read_log,
            methods.SESSION_CHANGES: self._await_changes,
        }

    def table_without_node(self) -> dict[str, Method]:
        """Return the methods that are answered here if a session's node is not connected."""
        return {methods.GET_SESSION: self._get, methods.ATTACH: self._attach, methods.DETACH: self._detach}

    async def owner(self, session_id: str) -> str | None:
        """Return the node of a session: as it is listed, or else as it was granted. Raises LogUnavailable."""
        seen = self._registry.find(session_id)
        if seen is not None:
            return seen.node
        subject = subjects.session_events(session_id)
        try:
            owner = await self._owners.find(subject)
        except BusError as error:
            raise LogUnavailable.of_fleet(error) from error
        if owner is not None:
            return owner.node
        # The session may have been granted before the table of owners existed.
        record = await self._feed.last(subject)
        return None if record is None else ownership(record.headers).node

    async def _initialize_again(self, connection: FleetConnection, envelope: Envelope) -> object:
        raise InvalidRequest("this connection is initialized; open another one for another agent")

    async def _list(self, connection: FleetConnection, envelope: Envelope) -> object:
        params = envelope.params()
        page, following = self._registry.page(text_at(params, "cursor"), text_at(params, "cwd"))
        sessions = [_entry(msgspec.json.decode(seen.view, type=dict[str, object])) for seen in page]
        return {"sessions": sessions, **({} if following is None else {"nextCursor": following})}

    async def _list_ours(self, connection: FleetConnection, envelope: Envelope) -> object:
        params = envelope.params()
        cursor, cwd, changed_after = (text_at(params, name) for name in ("cursor", "cwd", "changedAfter"))
        return self._registry.list_sessions(cursor, cwd, changed_after)

    async def _await_changes(self, connection: FleetConnection, envelope: Envelope) -> object:
        try:
            asked = msgspec.convert(envelope.params(), ChangesParams)
        except msgspec.ValidationError as error:
            raise InvalidParams(f"changes takes after and wait: {error}") from None
        await wait_for_change(self._registry.changes, asked.after, min(asked.wait, MAX_WAIT_TIMEOUT))
        return {"changes": self._registry.changes.cursor}

    async def _get(self, connection: FleetConnection, envelope: Envelope) -> object:
        return {"session": self._registry.session(envelope.session_id).view}

    async def _attach(self, connection: FleetConnection, envelope: Envelope) -> object:
        """Attach to a session whose node is lost. The client can read it, and gets its events when the node is back."""
        seen = self._registry.session(envelope.session_id)
        channel = session_channel(seen.session_id)

        def begin(position: int) -> None:
            if not connection.attached(seen.session_id):
                connection.attach(seen.session_id, position)

        position = await self._feed.attach(channel, connection, begin)
        if connection.closed:
            self._feed.unfollow(channel, connection)
        return {"session": seen.view, "pending": [], "position": position}

    async def _detach(self, connection: FleetConnection, envelope: Envelope) -> object:
        seen = self._registry.session(envelope.session_id)
        if connection.attached(seen.session_id):
            connection.end_attachment(seen.session_id, self._feed.position)
        return {}

    async def read_log(self, connection: FleetConnection, envelope: Envelope) -> object:
        """Return a page of a session's log."""
        seen = self._registry.session(envelope.session_id)
        try:
            asked = msgspec.convert(envelope.params(), EventsRange)
        except msgspec.ValidationError as error:
            raise InvalidParams(f"events takes after, before and limit: {error}") from None
        limit = min(asked.limit, MAX_PAGE)
        end = await self._feed.refresh() + 1 if asked.before is None else asked.before
        chunks, trimmed = await self._feed.history(seen.session_id, asked.after, end, limit + 1)
        if end - asked.after == ONE and not any(is_prompt(line) for chunk in chunks for line in chunk.lines):
            prompt = await find_prompt(self._feed, seen.session_id, asked.after + 1)
            chunks, end = ([prompt], prompt.last + 1) if prompt is not None else (chunks, end)
        events: list[Object] = []
        requests: dict[object, bytes] = {}
        for chunk in chunks:
            for position, line in enumerate(chunk.lines, chunk.first):
                if position < end:
                    facts = {"id": position, "at": iso(chunk.at), "direction": chunk.direction}
                    events.append({**facts, "envelope": shown(line)})
                    if chunk.request is not None:
                        requests[position] = line
        page = events[:limit]
        of_requests = [(event, requests[event["id"]]) for event in page if event["id"] in requests]
        if of_requests:
            _name_requests(of_requests, await self.list_open(connection, envelope, seen))
        result: Object = {"events": page, "next": page[-1]["id"] if len(events) > limit else None}
        if trimmed:
            result["gap"] = {"after": asked.after, "resumesAt": page[0]["id"] if page else end}
        return result


def _entry(view: Object) -> Object:
    """Convert a session's view to the form of ACP's `session/list`."""
    kept = ("agent", "createdAt", "ended", "resumable", "running", "eventCount", "pending", "node")
    ours = object_at(view, "metadata") | {name: view.get(name) for name in kept}
    return {
        **{name: view.get(name) for name in ("sessionId", "cwd", "title", "updatedAt")},
        "_meta": {META: ours},
    }


async def _list_none(connection: FleetConnection, envelope: Envelope, session: ListedSession) -> list[Object]:
    return []


def _name_requests(asked: list[tuple[Object, bytes]], open: list[Object]) -> None:
    """Give the events of open requests the ids by which clients answer.

    A node's list has no positions in the stream, but the time and the agent's id of each request. Events that share
    both stay without an id: an answer would be for another request than the one that a person saw.
    """
    ids = {_mark(each.get("askedAt"), msgspec.json.encode(each.get("agentRequestId"))): each.get("id") for each in open}
    marks = [_mark(event["at"], parse(line).id or b"") for event, line in asked]
    counts = Counter(marks)
    for mark, (event, _) in zip(marks, asked, strict=True):
        if mark in ids and counts[mark] == 1:
            event["requestId"] = ids[mark]


def _mark(at: object, id: bytes) -> tuple[object, bytes]:
    return at, same_id(id)


def is_prompt(line: bytes) -> bool:
    """Return whether an envelope starts a turn."""
    try:
        return parse(line).method == methods.PROMPT
    except NotAnEnvelope:
        return False


async def find_prompt(feed: Feed, session_id: str, position: int) -> Chunk | None:
    """Return the prompt at one of its node's positions, as a chunk of one event. Raises LogUnavailable."""
    record = await _find_record(feed, session_id, position)
    if record is None:
        return None
    last, first = ownership(record.headers).last, await _first_part(feed, record)
    chunks, _ = await feed.history(session_id, position_of(first) - 1, end_of(record.sequence) + 1, 1)
    for chunk in chunks:
        # The last line of a message has the position that the message names.
        place = len(chunk.lines) - 1 - (last - position)
        if chunk.first == position_of(record.sequence) and place >= 0 and is_prompt(chunk.lines[place]):
            return replace(chunk, first=chunk.first + place, lines=[chunk.lines[place]])
    return None


async def _find_record(feed: Feed, session_id: str, position: int) -> StreamRecord | None:
    """Find the first message of a session that reaches one of its node's positions, by binary search."""
    subject = subjects.session_events(session_id)
    found = await feed.last(subject)
    if found is None or ownership(found.headers).last < position:
        return None
    low, high = 0, found.sequence - 1
    while low < high:
        middle = (low + high) // 2
        record = await feed.next(subject, middle)
        if record is None:
            return None
        if ownership(record.headers).last >= position:
            found, high = record, middle
        else:
            low = record.sequence
    return found


async def _first_part(feed: Feed, record: StreamRecord) -> int:
    """Return the sequence at which a message's line begins. A long line has several parts."""
    part = record.headers.get(PART)
    number = read_part(part)[0] if part else 1
    while number > 1 and record.predecessor:
        before = await feed.next(record.subject, record.predecessor - 1)
        if before is None:
            break
        record, number = before, number - 1
    return record.sequence
