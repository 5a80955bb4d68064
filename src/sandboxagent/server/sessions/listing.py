"""List sessions for clients, the same over HTTP and ACP.

This module only reads the hub's tables.
"""

import base64
import binascii
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import UNSET, Raw

from sandboxagent.protocol.envelope import META, Object
from sandboxagent.protocol.errors import InvalidParams
from sandboxagent.protocol.views import ActivityView, ContextView, CostView, PendingView, SessionsView, SessionView
from sandboxagent.server.log.session_index import SortKey
from sandboxagent.server.sessions.connection import Connection
from sandboxagent.server.sessions.hub import Hub
from sandboxagent.server.sessions.pending import PendingRequest, kind_of
from sandboxagent.server.sessions.session import Session, iso
from sandboxagent.server.sessions.store import sort_key

PAGE = 200


class SessionListing:
    """Lists sessions and their pending requests."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def page(self, cursor: str | None, cwd: str | None) -> tuple[list[Session], str | None]:
        """Return a page of sessions, newest first, and the next cursor. Raises InvalidParams for a bad cursor."""
        before = None if cursor is None else _decode_cursor(cursor)
        page = self._hub.store.page(before, cwd, PAGE + 1)
        return page[:PAGE], _encode_cursor(page[PAGE - 1]) if len(page) > PAGE else None

    def ids(self) -> Iterator[str]:
        """Yield the ids of all sessions, newest first."""
        cursor: str | None = None
        while True:
            page, cursor = self.page(cursor, None)
            yield from (session.id for session in page)
            if cursor is None:
                return

    def list_sessions(self, cursor: str | None, cwd: str | None, changed_after: str | None) -> SessionsView:
        """Return a page of sessions or, with `changed_after`, the changes after it if they are still known."""
        now = self._hub.changes.cursor
        changed = None if changed_after is None or cursor is not None else self._hub.changes.after(changed_after)
        if changed is None:
            page, following = self.page(cursor, cwd)
            return SessionsView([self.view(one) for one in page], following or UNSET, changes=now)
        found = [session for one in changed.sessions if (session := self._hub.find_session(one)) is not None]
        views = [self.view(one) for one in found if cwd is None or one.facts.cwd == cwd]
        return SessionsView(views, changes=now, gone=changed.gone)

    def view(self, session: Session) -> SessionView:
        facts = session.facts
        return SessionView(
            session_id=session.id,
            agent=facts.agent,
            cwd=facts.cwd,
            title=facts.title,
            created_at=iso(facts.created_at),
            updated_at=iso(facts.updated_at),
            ended=facts.ended,
            resumable=facts.can_resume,
            running=session.running is not None,
            event_count=session.event_count,
            pending=len(self._hub.pending.of_session(session)),
            model=session.model,
            mode=session.mode,
            termination_info=facts.termination,
            metadata=facts.metadata,
            alias=facts.alias or UNSET,
            left_out=facts.left_out or UNSET,
            activity=_activity(session),
        )

    def entry(self, session: Session) -> Object:
        """Return a session as ACP's `session/list` shows it. Metadata never replaces the server's own facts."""
        facts = session.facts
        ours: Object = {
            **facts.metadata,
            "agent": facts.agent,
            "createdAt": iso(facts.created_at),
            "ended": facts.ended,
            "resumable": facts.can_resume,
            "running": session.running is not None,
            "eventCount": session.event_count,
            "pending": len(self._hub.pending.of_session(session)),
            **({"leftOut": facts.left_out} if facts.left_out else {}),
        }
        return {
            "sessionId": session.id,
            "cwd": facts.cwd,
            "title": facts.title,
            "updatedAt": iso(facts.updated_at),
            "_meta": {META: ours},
        }

    def pending(self, connection: Connection, sessions: Sequence[Session]) -> list[PendingView]:
        """Return the pending requests that this connection may answer, as it should read them."""
        return [self._pending(connection, one) for session in sessions for one in self._open(connection, session)]

    def request_ids(self, connection: Connection, session: Session) -> dict[int, bytes]:
        """Return the ids of a session's requests that this connection may answer, by their positions in the log."""
        return {one.key: one.id for one in self._open(connection, session)}

    def _open(self, connection: Connection, session: Session) -> list[PendingRequest]:
        asked = self._hub.pending.of_session(session)
        return [one for one in asked if not one.deciding and not self._hub.belongs_to_other(one, connection)]

    def _pending(self, connection: Connection, pending: PendingRequest) -> PendingView:
        assert pending.session is not None
        if connection in self._hub.audience(pending):
            pending.asked.add(connection.tag)
        envelope = Raw(connection.render_request(pending))
        kind = kind_of(connection.request_format.method(pending.request))
        ids = Raw(pending.id), Raw(pending.agent_id)
        return PendingView(*ids, kind, pending.session.id, iso(pending.asked_at), envelope)


def _activity(session: Session) -> ActivityView:
    if session.running is not None:
        session.note_said()
    known = session.facts.activity
    used, size, amount, currency = known.context_used, known.context_size, known.cost_amount, known.cost_currency
    started = session.turn_started_at if session.running is not None else None
    return ActivityView(
        kind=known.kind,
        said=known.said,
        turn_started_at=None if started is None else iso(started),
        tokens=known.tokens,
        context=None if used is None or size is None else ContextView(used, size),
        cost=None if amount is None or currency is None else CostView(amount, currency),
    )


def _encode_cursor(session: Session) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(sort_key(session))).decode()


def _decode_cursor(cursor: str) -> SortKey:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(cursor), type=SortKey)
    except (binascii.Error, ValueError, msgspec.DecodeError) as error:
        message = "cursor is not one that session/list gave out; leave it out to start at the newest session"
        raise InvalidParams(message, cursor=cursor) from error
