"""List a server's sessions, and find one by its id, its alias or the beginning of either."""

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
    from sandboxagent.client import SessionInfo
    from sandboxagent.client.api import Api


_EARLIEST = datetime.min.replace(tzinfo=UTC)
MAX_CANDIDATES = 10
_GONE = frozenset({"session-not-found", "removed", "not-found"})
"""What is answered for an invalid id; one with a slash leads to another route."""


class _Page(Struct, rename="camel"):
    sessions: list[Raw]
    next_cursor: str | None = None


async def list_sessions(api: "Api", cwd: str | None = None) -> AsyncGenerator[Raw]:
    """The JSON of each session, newest first; asks for a page when it is needed."""
    cursor = None
    while True:
        page = await api.json("GET", "/v1/sessions", params={"cursor": cursor, "cwd": cwd}, type=_Page)
        for session in page.sessions:
            yield session
        cursor = page.next_cursor
        if cursor is None:
            return


async def find_session(api: "Api", name: str) -> Raw:
    """The JSON of the session with this id or alias, or the only one whose id or alias begins like this.

    Raises:
        ClientError: there is none, or there are several.
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
    raise ClientError(f"{name!r} is the beginning of {len(begin)} sessions: {', '.join(listed)}{more}")


def read_session(session: Raw) -> "SessionInfo":
    """The facts of a session. Raises ClientError."""
    from sandboxagent.client.session import SessionInfo

    try:
        return read_answer(bytes(session), SessionInfo)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ClientError(f"the server's answer is invalid: {error}") from error


def last_use(session: "SessionInfo") -> tuple[datetime, str]:
    """When something happened in it last, and its id, for those of the same moment."""
    return session.updated_at or session.created_at or _EARLIEST, session.session_id
