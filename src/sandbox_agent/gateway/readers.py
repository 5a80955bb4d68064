"""Clients of a gateway: their connections, and what they may ask of sessions that they watch."""

import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from itertools import count

import msgspec
from msgspec import Raw

from sandbox_agent import __version__
from sandbox_agent.envelope import META, Envelope, Object, failure, object_at, success, text_at
from sandbox_agent.errors import (
    InvalidParams,
    LogUnavailable,
    NotImplementedYet,
    SandboxAgentError,
    UnknownConnection,
)
from sandbox_agent.gateway.feed import Feed
from sandbox_agent.gateway.roster import Roster
from sandbox_agent.hub.connection import Connection
from sandbox_agent.hub.session import iso
from sandbox_agent.log.event import session_channel
from sandbox_agent.wire import methods
from sandbox_agent.wire.extensions import EventsRange

logger = logging.getLogger(__name__)

MAX_PAGE = 5000

Method = Callable[[Connection, Envelope], Awaitable[object]]


class Readers:
    """All open connections of this gateway, and the methods that it answers."""

    def __init__(self, gateway: str, feed: Feed, roster: Roster) -> None:
        self._gateway = gateway
        self._feed = feed
        feed.fell_behind = self._end_streams
        self._roster = roster
        self._connections: dict[str, Connection] = {}
        self._tags = count(1)
        self._methods: dict[str, Method] = {
            methods.LIST: self._list,
            methods.LIST_SESSIONS: self._list_ours,
            methods.GET_SESSION: self._get,
            methods.ATTACH: self._attach,
            methods.DETACH: self._detach,
            methods.EVENTS: self._events,
            methods.PENDING: self._pending,
        }

    # Connections

    async def open(self, envelope: Envelope) -> tuple[Connection, bytes]:
        """A new connection, and the answer to its `initialize`."""
        assert envelope.id is not None
        connection = Connection(
            connection_id=secrets.token_urlsafe(24),
            tag=f"{self._gateway}-{next(self._tags)}",
            agent="",
            used_at=time.monotonic(),
            opened_at=await self._feed.refresh(),
        )
        connection.last_event = connection.opened_at
        connection.introduce(envelope.params())
        self._connections[connection.connection_id] = connection
        ours = {"version": __version__, "gateway": self._gateway, "extensions": {"methods": list(self._methods)}}
        greeting: Object = {
            "protocolVersion": 1,
            "agentCapabilities": {"sessionCapabilities": {"list": {}}, "_meta": {META: ours}},
            "agentInfo": {"name": "sandbox-agent gateway", "version": __version__},
            "authMethods": [],
        }
        return connection, success(envelope.id, greeting)

    def get(self, connection_id: str) -> Connection:
        """Raises UnknownConnection."""
        connection = self._connections.get(connection_id)
        if connection is None:
            raise UnknownConnection
        connection.used_at = time.monotonic()
        return connection

    def close(self, connection_id: str, reason: str) -> None:
        connection = self._connections.pop(connection_id, None)
        if connection is None:
            return
        connection.closed = True
        for session_id in connection.windows:
            self._feed.unfollow(session_channel(session_id), connection)
        if connection.stream is not None:
            connection.stream.close(reason)

    def _end_streams(self) -> None:
        """Their clients come back by id, and read what they have missed."""
        for connection in self._connections.values():
            if connection.stream is not None:
                connection.stream.close("the gateway fell behind")

    def close_unused(self, ttl: float) -> None:
        """Close what no client has used for so long."""
        now = time.monotonic()
        for connection_id, connection in list(self._connections.items()):
            if connection.stream is None and not connection.busy and now - connection.used_at > ttl:
                self.close(connection_id, "it was not used")

    # Methods

    async def answer(self, connection: Connection, envelope: Envelope) -> bytes:
        """The response to a request. Raises LogUnavailable."""
        assert envelope.id is not None
        method = self._methods.get(envelope.method)
        connection.busy += 1
        try:
            if method is None:
                raise read_only(envelope.method)
            return success(envelope.id, await method(connection, envelope))
        except LogUnavailable:
            raise
        except SandboxAgentError as error:
            return failure(envelope.id, error)
        finally:
            connection.busy -= 1
            connection.used_at = time.monotonic()

    async def _list(self, connection: Connection, envelope: Envelope) -> object:
        params = envelope.params()
        page, following = self._roster.page(text_at(params, "cursor"), text_at(params, "cwd"))
        sessions = [_entry(msgspec.json.decode(seen.view, type=dict[str, object])) for seen in page]
        return {"sessions": sessions, **({} if following is None else {"nextCursor": following})}

    async def _list_ours(self, connection: Connection, envelope: Envelope) -> object:
        params = envelope.params()
        page, following = self._roster.page(text_at(params, "cursor"), text_at(params, "cwd"))
        return {"sessions": [seen.view for seen in page], **({} if following is None else {"nextCursor": following})}

    async def _get(self, connection: Connection, envelope: Envelope) -> object:
        return {"session": self._roster.session(envelope.session_id).view}

    async def _attach(self, connection: Connection, envelope: Envelope) -> object:
        seen = self._roster.session(envelope.session_id)
        channel = session_channel(seen.session_id)

        def begin(position: int) -> None:
            if not connection.attached(seen.session_id):
                connection.attach(seen.session_id, position)

        position = await self._feed.attach(channel, connection, begin)
        if connection.closed:
            self._feed.unfollow(channel, connection)
        return {"session": seen.view, "pending": [], "position": position}

    async def _detach(self, connection: Connection, envelope: Envelope) -> object:
        seen = self._roster.session(envelope.session_id)
        if connection.attached(seen.session_id):
            connection.detach(seen.session_id, self._feed.position)
            self._feed.unfollow(session_channel(seen.session_id), connection)
        return {}

    async def _pending(self, connection: Connection, envelope: Envelope) -> object:
        # Answers do not go through a gateway yet.
        return {"pending": []}

    async def _events(self, connection: Connection, envelope: Envelope) -> object:
        seen = self._roster.session(envelope.session_id)
        try:
            asked = msgspec.convert(envelope.params(), EventsRange)
        except msgspec.ValidationError as error:
            raise InvalidParams(f"events takes after, before and limit: {error}") from None
        limit = min(asked.limit, MAX_PAGE)
        end = await self._feed.refresh() + 1 if asked.before is None else asked.before
        chunks, trimmed = await self._feed.history(seen.session_id, asked.after, end, limit + 1)
        events: list[Object] = []
        for chunk in chunks:
            for position, line in enumerate(chunk.lines, chunk.first):
                if position < end:
                    facts = {"id": position, "at": iso(chunk.at), "direction": chunk.direction}
                    events.append({**facts, "envelope": Raw(line)})
        page = events[:limit]
        result: Object = {"events": page, "next": page[-1]["id"] if len(events) > limit else None}
        if trimmed:
            result["gap"] = {"after": asked.after, "resumesAt": page[0]["id"] if page else end}
        return result


def read_only(what: str) -> NotImplementedYet:
    """What a client gets that wants to change something."""
    return NotImplementedYet(f"{what}: a gateway only shows sessions so far; connect to the node to change one")


def _entry(view: Object) -> Object:
    """A session as ACP's `session/list` shows it, from its view."""
    kept = ("agent", "createdAt", "ended", "resumable", "running", "eventCount", "pending", "node")
    ours = object_at(view, "metadata") | {name: view.get(name) for name in kept}
    return {
        **{name: view.get(name) for name in ("sessionId", "cwd", "title", "updatedAt")},
        "_meta": {META: ours},
    }
