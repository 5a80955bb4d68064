"""List a server's sessions, and find one by its id, its alias or the start of either."""

from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw, Struct

from sandboxagent.client.errors import (
    ClientError,
    ServerProblem,
)
from sandboxagent.protocol.json_bounds import read_answer

if TYPE_CHECKING:
    from sandboxagent import SessionInfo
    from sandboxagent.client.api import Api


_EARLIEST = datetime.min.replace(tzinfo=UTC)
MAX_CANDIDATES = 10
_GONE = frozenset({"session-not-found", "removed", "not-found"})
"""Slugs that answer an invalid id. An id with a slash leads to another route."""


class _Page(Struct, rename="camel"):
    sessions: list[Raw]
    next_cursor: str | None = None


async def list_sessions(api: "Api", cwd: str | None = None) -> AsyncGenerator[Raw]:
    """Yield the JSON of each session, newest first. Pages are requested one by one, as they are needed."""
    cursor = None
    while True:
        page = await api.json("GET", "/v1/sessions", params={"cursor": cursor, "cwd": cwd}, type=_Page)
        for session in page.sessions:
            yield session
        cursor = page.next_cursor
        if cursor is None:
            return


async def find_session(api: "Api", name: str) -> Raw:
    """Return the JSON of the session with this id or alias, or of the only session whose id or alias begins with it.

    Raises:
        ClientError: no session matches, or several do.
    """
    from urllib.parse import quote

    if name not in ("", ".", ".."):
        try:
            path = f"/v1/sessions/{quote(name, safe='', errors='surrogateescape')}"
            return await api.json("GET", path, type=Raw)
        except ServerProblem as problem:
            if problem.slug not in _GONE:
                raise
    found = [(read_session(each), each) async for each in list_sessions(api)] if name else []
    same = [raw for each, raw in found if name in (each.session_id, each.alias)]
    begin = [
        (each, raw) for each, raw in found if each.session_id.startswith(name) or (each.alias or "").startswith(name)
    ]
    if same or len(begin) == 1:
        return same[0] if same else begin[0][1]
    if not begin:
        raise ClientError(f"there is no session {name!r:.200}; try: sandbox-agent sessions list")
    listed = [each.session_id for each, _ in begin[:MAX_CANDIDATES]]
    more = f" and {len(begin) - len(listed)} more" if len(begin) > len(listed) else ""
    raise ClientError(f"{len(begin)} sessions begin with {name!r}: {', '.join(listed)}{more}")


def read_session(session: Raw) -> "SessionInfo":
    """Parse the JSON of a session. Raises ClientError."""
    from sandboxagent.client.session import SessionInfo

    try:
        return read_answer(bytes(session), SessionInfo)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ClientError(f"the server's answer is invalid: {error}") from error


def last_use(session: "SessionInfo") -> tuple[datetime, str]:
    """Return the sort key of a session by last use: its time, then its id for equal times."""
    return session.updated_at or session.created_at or _EARLIEST, session.session_id
