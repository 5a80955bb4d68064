"""The server's sessions, read over HTTP."""

from collections.abc import AsyncGenerator
from datetime import datetime
from urllib.parse import quote

from msgspec import Struct

from sandbox_agent.client.api import Api
from sandbox_agent.envelope import Object


class SessionInfo(Struct, rename="camel", kw_only=True, frozen=True):
    """A session's state at the time of the call."""

    session_id: str
    agent: str
    cwd: str
    title: str | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    ended: bool = False
    """Its agent process is gone; when it is `resumable`, a prompt brings it back."""
    resumable: bool = False
    running: bool = False
    """A turn runs now."""
    event_count: int = 0
    pending: int = 0
    """How many permissions, questions and elicitations wait for an answer."""
    model: str | None = None
    mode: str | None = None
    termination_info: Object | None = None
    """How and why it ended."""
    metadata: Object = {}
    alias: str | None = None
    """Its alias, which you can use in place of the id."""


class _Page(Struct, rename="camel"):
    sessions: list[SessionInfo]
    next_cursor: str | None = None


async def session_info(api: Api, id: str) -> SessionInfo:
    """One session, by id or alias; an unknown one is a ServerProblem, `session-not-found`."""
    return await api.json("GET", f"/v1/sessions/{quote(id, safe='')}", type=SessionInfo)


async def session_list(api: Api, cwd: str | None = None) -> AsyncGenerator[SessionInfo]:
    """All sessions, or those of a directory, newest first; asks for a page when it is needed."""
    cursor = None
    while True:
        page = await api.json("GET", "/v1/sessions", params={"cursor": cursor, "cwd": cwd}, type=_Page)
        for session in page.sessions:
            yield session
        if page.next_cursor is None:
            return
        cursor = page.next_cursor
