"""Serve changes in a directory as server-sent events."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sandboxagent.protocol.errors import (
    TooMany,
    WatchesExhausted,
)
from sandboxagent.protocol.files import ChangesEvent
from sandboxagent.server.file_api.routes import PATH, PROBLEMS, SESSION, Paths
from sandboxagent.server.files.watch import Watch, Watches
from sandboxagent.server.http.asgi import EVENT_STREAM
from sandboxagent.server.http.downloads import Streamed
from sandboxagent.server.http.views import BOOLEAN, Endpoint, read_query, read_switch


@dataclass(frozen=True, slots=True)
class Watching:
    """The handler of the watch route."""

    paths: Paths
    watches: Watches
    heartbeat: float

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                "GET",
                "/v1/fs/watch",
                self.get_watch,
                "Changes in a directory, as server-sent events.",
                None,
                {"path": PATH, "sessionId": SESSION, "recursive": "`false` ignores changes in directories below it."},
                (*PROBLEMS, TooMany, WatchesExhausted),
                required=("path",),
                schemas={"recursive": BOOLEAN},
                gives=EVENT_STREAM,
                answer="Events `changes`, `overflow` and `ended`.",
            )
        ]

    async def get_watch(self, request: Request) -> Response:
        path = self.paths.read_path(request)
        recursive = read_switch(read_query(request), "recursive", default=True)
        # Watch before the response starts: a client that has the headers misses nothing.
        opened = AsyncExitStack()
        watch = await opened.enter_async_context(
            self.watches.open(self.paths.roots.confined, path, recursive=recursive)
        )
        return _Events(watch, opened, self.heartbeat)


class _Events(Streamed):
    """The response with the events. It owns the watch."""

    def __init__(self, watch: Watch, opened: AsyncExitStack, heartbeat: float) -> None:
        self._watch = watch
        self._opened = opened
        self._heartbeat = heartbeat
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(self._events(), EVENT_STREAM, headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._opened:
            if scope["method"] == "HEAD":
                await Response(headers=dict(self.headers))(scope, receive, send)
            else:
                await super().__call__(scope, receive, send)

    async def _events(self) -> AsyncGenerator[bytes]:
        yield b": watching\n\n"
        while True:
            changes, missed = await self._watch.take(self._heartbeat)
            if missed:
                yield _event("overflow", {"detail": "some changes are missing; list the directory again"})
            if changes:
                yield _event("changes", ChangesEvent(changes))
            if self._watch.ended is not None:
                yield _event("ended", {"reason": self._watch.ended})
                return
            if not changes and not missed:
                yield b": still here\n\n"


def _event(name: str, data: object) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(data))
