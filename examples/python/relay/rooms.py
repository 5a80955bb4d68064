"""Sessions that browsers look at together. Knows nothing of HTTP.

Nothing is kept here: the server has the log, and the ids that browsers resume by are the log's.
"""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from sandboxagent import Gap, LogEvent, PermissionRequest, QuestionRequest, SandboxAgent, Session

Request = PermissionRequest | QuestionRequest


class Room:
    """One session and its watchers."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._closed = False
        self._changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def asked(self) -> list[Request]:
        """What waits for an answer now."""
        return [each for each in self.session.requests() if isinstance(each, Request)]

    def wake(self) -> None:
        """Notify all watchers of a change."""
        changed, self._changed = self._changed, asyncio.get_running_loop().create_future()
        changed.set_result(None)

    def close(self) -> None:
        """Disconnect all watchers. The session continues."""
        self._closed = True
        self.wake()

    async def watch(self, after: int) -> AsyncGenerator[LogEvent | Gap | list[Request]]:
        """The log from an id on and, at the beginning and whenever it changes, what waits for an answer."""
        log = self.session.log(after)
        event = asyncio.ensure_future(anext(log, None))
        asked = None
        try:
            while not self._closed:
                changed = self._changed
                if asked != (asked := self.asked()):
                    yield asked
                await asyncio.wait([event, changed], return_when=asyncio.FIRST_COMPLETED)
                if event.done():
                    if (happened := event.result()) is None:
                        return  # The session is terminated.
                    yield happened
                    event = asyncio.ensure_future(anext(log, None))
        finally:
            event.cancel()


class Rooms:
    """All of them, on one client of the server."""

    def __init__(self, agent: str) -> None:
        self._agent = agent
        self._rooms: dict[str, Room] = {}
        self.client: SandboxAgent

    @asynccontextmanager
    async def open(self) -> AsyncGenerator["Rooms"]:
        """Be connected for as long as the block lasts."""
        async with self._connect() as self.client:
            yield self

    def _connect(self) -> AbstractAsyncContextManager[SandboxAgent]:
        if url := os.environ.get("SANDBOX_AGENT_URL"):
            token = os.environ.get("SANDBOX_AGENT_TOKEN")
            return SandboxAgent.connect(url, token, name="relay", on_permission=self._ask, on_question=self._ask)
        return SandboxAgent.start(on_permission=self._ask, on_question=self._ask)

    async def _ask(self, request: Request) -> None:
        """Leave a request to the browsers, until one of them or another client settles it."""
        try:
            self._wake(request.session_id)
            await asyncio.Future()
        finally:
            self._wake(request.session_id)

    def _wake(self, session_id: str) -> None:
        if room := self._rooms.get(session_id):
            room.wake()

    async def create(self, title: str | None) -> Room:
        """Start a session in the current directory. Where it works is not for browsers to say."""
        return self._enter(await self.client.sessions.create(self._agent, cwd=Path.cwd(), title=title))

    async def find(self, session_id: str) -> Room:
        """The room of a session, also of one from before we were started. Raises ServerProblem when there is none."""
        return self._rooms.get(session_id) or self._enter(await self.client.sessions.attach(session_id))

    def close(self) -> None:
        """Disconnect all watchers."""
        for room in self._rooms.values():
            room.close()

    def _enter(self, session: Session) -> Room:
        # Two browsers may have come at the same time: both get the same room.
        return self._rooms.setdefault(session.id, Room(session))
