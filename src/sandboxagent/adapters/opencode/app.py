"""Serve OpenCode's API below `/opencode`, with the hub's sessions.

Every answer is JSON, also for unknown routes.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, Router

from sandboxagent.adapters.opencode.errors import BridgeError, translate
from sandboxagent.adapters.opencode.event_routes import CatchUp, EventStreams
from sandboxagent.adapters.opencode.events import EventBus
from sandboxagent.adapters.opencode.file_routes import HostFiles, OpenCodeFileRoutes
from sandboxagent.adapters.opencode.hub_client import HubClient
from sandboxagent.adapters.opencode.params import Reading, Table, answer
from sandboxagent.adapters.opencode.paths import PREFIX
from sandboxagent.adapters.opencode.pending import OpenRequests
from sandboxagent.adapters.opencode.providers import Providers
from sandboxagent.adapters.opencode.server_routes import ServerRoutes
from sandboxagent.adapters.opencode.session_ids import project_id
from sandboxagent.adapters.opencode.session_routes import AskingRoutes, SessionRoutes
from sandboxagent.adapters.opencode.sessions import BridgeSessions
from sandboxagent.adapters.opencode.shell import Shells
from sandboxagent.adapters.opencode.transcripts import Transcripts
from sandboxagent.protocol.errors import BadRequest, SandboxAgentError
from sandboxagent.server.agents.views import AgentViews
from sandboxagent.server.http.asgi import App, Receive, Scope, Send
from sandboxagent.server.sessions.hub import Hub
from sandboxagent.server.sessions.policy import PolicyCheck
from sandboxagent.server.sessions.requests import Requests
from sandboxagent.server.sessions.terminals import Terminals

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Streamed:
    """A route for a stream, in plain ASGI: Starlette's responses would relay the stream."""

    streams: EventStreams
    reading: Reading
    wrapped: bool

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        directory = None if self.wrapped else self.reading.named_directory(Request(scope))
        await self.streams.write(scope, send, wrapped=self.wrapped, directory=directory)


def make_app(reading: Reading, streams: EventStreams, *tables: Table) -> App:
    """Return the app, with the routes of all tables and the two streams."""
    routes = [Route(path, handler, methods=[method]) for table in tables for method, path, handler in table]
    routes += [
        Route("/event", _Streamed(streams, reading, wrapped=False), methods=["GET"]),
        Route("/global/event", _Streamed(streams, reading, wrapped=True), methods=["GET"]),
    ]
    router = Router(routes, redirect_slashes=False)
    handlers = {
        HTTPException: _not_routed,
        SandboxAgentError: _answer_failure,
        ClientDisconnect: _gone,
    }
    app = ExceptionMiddleware(router, handlers)

    async def routed(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].removeprefix(PREFIX) or "/"
        # Without `app` in the scope, Starlette's router would answer 404 and 405 itself, in plain text.
        await app({**scope, "app": app, "path": path, "root_path": ""}, receive, send)

    return routed


async def _not_routed(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path} is not part of this server"
    return await _answer_failure(request, BridgeError(404, message))


async def _answer_failure(request: Request, error: Exception) -> Response:
    assert isinstance(error, SandboxAgentError)
    refusal = translate(error)
    return answer(refusal.body, refusal.status)


async def _gone(request: Request, error: Exception) -> Response:
    """Return a response for a client that disconnected before it sent the whole body. Nobody reads it."""
    return Response(status_code=BadRequest.status)


@dataclass(frozen=True, slots=True)
class BridgeLimits:
    """Limits of the bridge, in bytes."""

    body: int
    stream: int
    """Maximum bytes of events that wait for one reader."""
    memory: int
    """Maximum bytes of all transcripts in memory."""


@dataclass(frozen=True, slots=True)
class OpenCodeBridge:
    """The app, and the bridge's parts that the capability uses."""

    app: App
    bus: EventBus
    has_draft: Callable[[str], bool]
    """Returns whether an id is that of a draft, a session before its first prompt."""

    def close(self) -> None:
        """End all streams."""
        self.bus.close()


def make_bridge(
    hub: Hub,
    from_client: Requests,
    views: AgentViews,
    terminals: Terminals,
    files: HostFiles,
    policy_check: PolicyCheck,
    environment: Mapping[str, str],
    default_agent: str | None,
    limits: BridgeLimits,
    *,
    shell: bool,
) -> OpenCodeBridge:
    """Make all parts of the bridge, which follows every session from then on.

    `shell` says whether people may run commands.
    """
    bus = EventBus(limits.stream, project_id, hub.clock)
    transcripts = Transcripts(hub, bus, limits.memory)
    client = HubClient(hub, from_client)
    requests = OpenRequests(client, transcripts, bus)
    providers = Providers(views, default_agent, bus.refresh, hub.monotonic)
    bridge_sessions = BridgeSessions(client, transcripts, bus, providers, hub.clock)
    shells = Shells(
        *(client, bridge_sessions, requests, transcripts, terminals, policy_check, files.roots, environment),
        is_on=shell,
    )
    reading = Reading(limits.body, files.roots.base)
    app = make_app(
        reading,
        EventStreams(bus, requests, CatchUp(hub, transcripts, bus)),
        SessionRoutes(reading, bridge_sessions, requests, shells).table(),
        AskingRoutes(reading, requests).table(),
        ServerRoutes(reading, hub, providers, transcripts).table(),
        OpenCodeFileRoutes(reading, files).table(),
    )
    hub.log.follow_history(transcripts)
    hub.observers.add(requests)
    return OpenCodeBridge(app, bus, bridge_sessions.has_draft)
