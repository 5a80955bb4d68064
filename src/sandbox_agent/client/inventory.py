"""All sessions of a server, kept up to date: first all of them, then those that have changed.

The server says when something has changed; what it is comes from its list. However much happens meanwhile, it is one
answer, and nothing is asked while nothing happens.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Self

from msgspec import Struct

from sandbox_agent.client.connection import BUNDLED_AGENT
from sandbox_agent.client.session import SessionInfo, SessionParts
from sandbox_agent.envelope import text_at
from sandbox_agent.wire import methods


@dataclass(frozen=True, slots=True)
class SessionChanges:
    """What has changed among the sessions of a server."""

    sessions: list[SessionInfo]
    """Those that are new or have changed; all of them when `all` is set."""
    gone: list[str]
    """The ids of those that were deleted."""
    all: bool
    """These are all sessions: what is not among them is gone."""


class _Page(Struct, rename="camel"):
    sessions: list[SessionInfo]
    changes: str
    next_cursor: str | None = None
    gone: list[str] | None = None


class SessionWatch(AsyncIterator[SessionChanges]):
    """The changes, from the first step on, until it is left. A server that was restarted gives all sessions again."""

    def __init__(self, parts: SessionParts, agent: str | None, every: float) -> None:
        self._parts = parts
        self._agent = agent or BUNDLED_AGENT
        self._every = every
        self._changes = self._run()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def __anext__(self) -> SessionChanges:
        return await anext(self._changes)

    async def close(self) -> None:
        """End it now instead of when it is garbage-collected."""
        await self._changes.aclose()

    async def _run(self) -> AsyncGenerator[SessionChanges]:
        clock = asyncio.get_running_loop().time
        page = await self._changed_after(None)
        while True:
            looked = clock()
            if page.gone is None or page.gone or page.sessions:
                yield SessionChanges(page.sessions, page.gone or [], all=page.gone is None)
            while not await self._has_changed(page.changes):
                pass
            await asyncio.sleep(max(0.0, looked + self._every - clock()))
            page = await self._changed_after(page.changes)

    async def _changed_after(self, moment: str | None) -> _Page:
        """The sessions that have changed since a moment; all of them when the server cannot tell."""
        first = await self._read(changedAfter=moment)
        cursor = first.next_cursor
        while first.gone is None and cursor is not None:
            page = await self._read(cursor=cursor)
            first.sessions.extend(page.sessions)
            cursor = page.next_cursor
        return first

    async def _read(self, **params: str | None) -> _Page:
        api = self._parts.api
        return await self._parts.connection.read(lambda: api.json("GET", "/v1/sessions", params=params, type=_Page))

    async def _has_changed(self, after: str) -> bool:
        """Wait for a change; False when none has come in the time that a server lets a request wait."""
        connection = self._parts.connection
        answer = await connection.request(methods.SESSION_CHANGES, {"after": after}, agent=self._agent)
        return text_at(answer, "changes") != after
