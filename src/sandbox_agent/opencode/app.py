"""OpenCode's API as an ASGI app, below `/opencode`. Every answer is JSON, those to unknown routes too."""

import logging
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, Router

from sandbox_agent.errors import BadRequest, SandboxAgentError
from sandbox_agent.http.asgi import App, Receive, Scope, Send
from sandbox_agent.opencode.reading import Reading, answer
from sandbox_agent.opencode.refusals import Refused, translate
from sandbox_agent.opencode.routing import Table
from sandbox_agent.opencode.streams import EventStreams

logger = logging.getLogger(__name__)

PREFIX = "/opencode"


@dataclass(frozen=True, slots=True)
class _Streamed:
    """A stream is written by plain ASGI: Starlette's responses would relay it."""

    streams: EventStreams
    reading: Reading
    wrapped: bool

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        directory = None if self.wrapped else self.reading.named_directory(Request(scope))
        await self.streams.write(scope, send, wrapped=self.wrapped, directory=directory)


def make_app(reading: Reading, streams: EventStreams, *tables: Table) -> App:
    """The app; it has the routes of all tables, and the two streams."""
    routes = [Route(path, handler, methods=[method]) for table in tables for method, path, handler in table]
    routes += [
        Route("/event", _Streamed(streams, reading, wrapped=False), methods=["GET"]),
        Route("/global/event", _Streamed(streams, reading, wrapped=True), methods=["GET"]),
    ]
    router = Router(routes, redirect_slashes=False)
    handlers = {HTTPException: _not_routed, Refused: _refused, SandboxAgentError: _failed, ClientDisconnect: _gone}
    app = ExceptionMiddleware(router, handlers)

    async def routed(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].removeprefix(PREFIX) or "/"
        # Without an app in its scope, Starlette's router answers 404 and 405 itself, in plain text.
        await app({**scope, "app": app, "path": path, "root_path": ""}, receive, send)

    return routed


async def _not_routed(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path} is not part of this server"
    return await _refused(request, Refused(404, message))


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return answer(error.body, error.status)


async def _failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, SandboxAgentError)
    return await _refused(request, translate(error))


async def _gone(request: Request, error: Exception) -> Response:
    """The client left before it sent the whole body, so no one reads this response."""
    return Response(status_code=BadRequest.status)
