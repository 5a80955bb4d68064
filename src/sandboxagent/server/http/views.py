"""Serve health, agents, installs and sessions from one table of endpoints.

The router and the OpenAPI document are both made from the table.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl

import msgspec
from msgspec import Struct
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from sandboxagent.core.threads import Pool
from sandboxagent.protocol.envelope import Object
from sandboxagent.protocol.errors import (
    AgentBootFailed,
    AgentNotInstalled,
    AgentTimeout,
    BadRequest,
    CheckFailed,
    ChecksumMismatch,
    DiskFull,
    DownloadFailed,
    HashMissing,
    InstallFailed,
    InternalError,
    InvalidParams,
    OffersUnknown,
    RegistryUnavailable,
    SandboxAgentError,
    SessionDamaged,
    SessionNotFound,
    ShuttingDown,
    UnknownAgent,
    UnknownVersion,
    UnsafeArchive,
    UnsupportedAgent,
    UnsupportedPlatform,
)
from sandboxagent.protocol.json_bounds import read
from sandboxagent.protocol.views import (
    AgentsView,
    AgentView,
    HealthView,
    InstallRequest,
    InstallResult,
    SessionsView,
    SessionView,
    StderrView,
)
from sandboxagent.server.agents.install.installer import InstallOutcome
from sandboxagent.server.agents.install.plan import Job
from sandboxagent.server.agents.installs import AgentInstalls, read_install_request
from sandboxagent.server.agents.views import AgentViews
from sandboxagent.server.http.asgi import EVENT_STREAM, problem_document
from sandboxagent.server.http.health import HealthCheck
from sandboxagent.server.sessions.hub import Hub
from sandboxagent.server.sessions.listing import SessionListing

MAX_BODY_BYTES = 64 * 1024
MAX_STDERR_BYTES = 64 * 1024
"""Maximum bytes of an agent's stderr in an answer: the newest."""
PROGRESS_INTERVAL = 0.2
"""Seconds between two progress events; npm reports hundreds of files."""

INSTALL_PROBLEMS: tuple[type[SandboxAgentError], ...] = (
    *(UnknownAgent, AgentNotInstalled, UnsupportedAgent, UnsupportedPlatform, UnknownVersion),
    *(
        RegistryUnavailable,
        DownloadFailed,
        ChecksumMismatch,
        HashMissing,
        UnsafeArchive,
        InstallFailed,
        CheckFailed,
        ShuttingDown,
        DiskFull,
    ),
)
ASKING_PROBLEMS: tuple[type[SandboxAgentError], ...] = (
    *(UnknownAgent, AgentNotInstalled, AgentBootFailed, OffersUnknown, AgentTimeout, CheckFailed, ShuttingDown),
)
AGENT = "Its id, or its slug in the ACP registry."
SESSION = "Its id, or its alias."
BOOLEAN: Object = {"type": "boolean"}
"""The schema of a query parameter that is `true` or `false`."""
COUNT: Object = {"type": "integer", "minimum": 1}
"""The schema of a query parameter that limits a number."""
Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Installs:
    """The handler of installs."""

    installs: AgentInstalls
    heartbeat: float

    async def install(self, request: Request) -> Response:
        asked = await _asked(request)
        agent: str = request.path_params["agent"]
        if EVENT_STREAM not in request.headers.get("accept", ""):
            return _json(await self.installs.install(agent, asked))
        begun = await self.installs.begin(agent, asked)
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(self._events(begun), media_type=EVENT_STREAM, headers=headers)

    async def _events(self, begun: "InstallResult | tuple[Job, asyncio.Task[InstallOutcome]]") -> AsyncGenerator[bytes]:
        if isinstance(begun, InstallResult):
            yield _event("result", msgspec.json.encode(begun))
            return
        job, task = begun
        shown = None
        while not task.done():
            if job.progress is not shown:
                shown = job.progress
                yield _event("progress", msgspec.json.encode(shown))
            changed = asyncio.ensure_future(job.changed())
            try:
                # The task is shared: this wait must not cancel it.
                await asyncio.wait({changed, task}, timeout=self.heartbeat, return_when=asyncio.FIRST_COMPLETED)
            finally:
                changed.cancel()
            if not changed.done():
                yield b": still at it\n\n"
            if not task.done():
                await asyncio.wait({task}, timeout=PROGRESS_INTERVAL)
        yield await self._ending(task)

    async def _ending(self, task: "asyncio.Task[InstallOutcome]") -> bytes:
        try:
            return _event("result", msgspec.json.encode(await self.installs.wait_for_result(task)))
        except SandboxAgentError as error:
            return _event("problem", problem_document(error))
        except Exception:
            return _event("problem", problem_document(InternalError()))


async def _asked(request: Request) -> InstallRequest:
    body = await _body(request)
    if not body.strip():
        return InstallRequest()
    try:
        return read_install_request(read(body, Object))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body of an install is a JSON object, or empty: {error}") from None


async def _body(request: Request) -> bytes:
    body = b""
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > MAX_BODY_BYTES:
                raise BadRequest("the body of an install is a small JSON object")
    except ClientDisconnect:  # The client is gone.
        raise BadRequest("the body stops half-way") from None
    return body


def _event(name: str, data: bytes) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data)


def _json(result: InstallResult) -> Response:
    headers = {"cache-control": "no-store"}
    return Response(msgspec.json.encode(result), media_type="application/json", headers=headers)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of one route, with its description in the OpenAPI document."""

    method: str
    path: str
    handle: Handler
    summary: str
    returns: type | None = None
    query: dict[str, str] = field(default_factory=dict[str, str])
    problems: tuple[type[SandboxAgentError], ...] = ()
    status: int = 200
    body: type[Struct] | None = None
    """Type of the request's body. The body may be left out when all of its fields may."""
    path_parameters: dict[str, str] = field(default_factory=dict[str, str])
    """Meaning of each name in braces in the path."""
    required: tuple[str, ...] = ()
    """Names of the required query parameters."""
    schemas: dict[str, Object] = field(default_factory=dict[str, Object])
    """Schemas of the query parameters that are not any string."""
    headers: dict[str, str] = field(default_factory=dict[str, str])
    """Request headers that matter, besides those of every request, and their meaning."""
    takes: str | None = None
    """Media type of a body that is not JSON."""
    gives: str | None = None
    """Media type of an answer that is not JSON."""
    statuses: dict[int, str] = field(default_factory=dict[int, str])
    """Further answers that are no problems: status → meaning."""
    answer: str = ""
    """Description of the answer, unless the summary has it."""
    also: dict[str, str] = field(default_factory=dict[str, str])
    """Further media types of the answer when `Accept` names them: type → content."""


@dataclass(frozen=True, slots=True)
class RemovedRoute:
    """One method of a route that is gone."""

    method: str
    path: str
    """Path, with names in braces for variable parts."""
    replacement: str


@dataclass(frozen=True, slots=True)
class Views:
    """The handlers of all endpoints in the table."""

    hub: Hub
    listing: SessionListing
    agent_views: AgentViews
    installs: Installs
    health: HealthCheck
    logs: Path
    """Folder of the logs of agents' stderr."""
    pool: Pool

    def endpoints(self) -> list[Endpoint]:
        which = {"registry": "`true`: also agents of the ACP registry that are not installed."}
        page = {
            "cursor": "`nextCursor` of the page before.",
            "cwd": "Only sessions of this directory.",
            "changedAfter": "`changes` of an earlier list: only what has changed since, if that is still known.",
        }
        return [
            Endpoint(
                "GET",
                "/v1/health",
                self.get_health,
                "Whether the server is well, and which agents are installed and run.",
                HealthView,
            ),
            Endpoint(
                "GET", "/v1/agents", self.get_agents, "All agents.", AgentsView, which, schemas={"registry": BOOLEAN}
            ),
            Endpoint(
                "GET",
                "/v1/agents/{agent}",
                self.get_agent,
                "One agent.",
                AgentView,
                {"models": "`true`: ask the agent for its models and modes if they are not known."},
                problems=ASKING_PROBLEMS,
                path_parameters={"agent": AGENT},
                schemas={"models": BOOLEAN},
            ),
            Endpoint(
                "GET",
                "/v1/agents/{agent}/stderr",
                self.get_stderr,
                "The newest part of an agent's stderr.",
                StderrView,
                problems=(UnknownAgent,),
                path_parameters={"agent": AGENT},
            ),
            Endpoint(
                "POST",
                "/v1/agents/{agent}/install",
                self.installs.install,
                "Install an agent.",
                InstallResult,
                problems=INSTALL_PROBLEMS,
                body=InstallRequest,
                path_parameters={"agent": AGENT},
                answer="The result, when the install is complete.",
                also={EVENT_STREAM: "Events `progress`, then one `result` or `problem`. They begin at once."},
            ),
            Endpoint(
                "GET",
                "/v1/sessions",
                self.get_sessions,
                "All sessions, newest first.",
                SessionsView,
                page,
                (BadRequest,),
            ),
            Endpoint(
                "GET",
                "/v1/sessions/{id}",
                self.get_session,
                "One session.",
                SessionView,
                problems=(SessionNotFound, SessionDamaged),
                path_parameters={"id": SESSION},
            ),
        ]

    async def get_health(self, request: Request) -> Response:
        return json_response(await self.health.view())

    async def get_agents(self, request: Request) -> Response:
        registry = request.query_params.get("registry") == "true"
        return json_response(await self.agent_views.all(registry=registry))

    async def get_agent(self, request: Request) -> Response:
        views = self.agent_views
        agent = await views.catalog.find(request.path_params["agent"])
        asking = request.query_params.get("models") == "true"
        return json_response(await (views.view_with_models if asking else views.view)(agent))

    async def get_stderr(self, request: Request) -> Response:
        agent = await self.agent_views.catalog.find(request.path_params["agent"])
        return json_response(await self.pool.run(_read_end, self.logs / f"{agent.id}.stderr.log"))

    async def get_sessions(self, request: Request) -> Response:
        query = request.query_params
        try:
            found = self.listing.list_sessions(query.get("cursor"), query.get("cwd"), query.get("changedAfter"))
        except InvalidParams as error:
            raise BadRequest(str(error), **error.fields) from error
        return json_response(found)

    async def get_session(self, request: Request) -> Response:
        session = self.hub.find_session(request.path_params["id"])
        if session is None:
            raise SessionNotFound(request.path_params["id"])
        return json_response(self.listing.view(session))


def _read_end(path: Path) -> StderrView:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - MAX_STDERR_BYTES))
            return StderrView(file.read(MAX_STDERR_BYTES).decode(errors="replace"), size > MAX_STDERR_BYTES)
    except FileNotFoundError:
        return StderrView("", truncated=False)


def json_response(value: object) -> Response:
    """Return a view as JSON, which must not be cached."""
    return json_bytes(msgspec.json.encode(value))


def json_bytes(body: bytes) -> Response:
    """Return encoded JSON as a response, which must not be cached."""
    return Response(body, media_type="application/json", headers={"cache-control": "no-store"})


def read_query(request: Request) -> dict[str, str]:
    """Return the query. Bytes that are not UTF-8 are kept. Raises BadRequest when a name is there twice."""
    text = request.scope["query_string"].decode("ascii", "surrogateescape")
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="surrogateescape", max_num_fields=100)
    except ValueError:
        raise BadRequest("the query has too many parameters") from None
    found = dict(pairs)
    if len(found) != len(pairs):
        raise BadRequest("the query has a parameter twice")
    return found


def read_switch(query: dict[str, str], name: str, *, default: bool = False) -> bool:
    """Return a parameter that is `true` or `false`. Raises BadRequest."""
    if name not in query:
        return default
    value = query[name]
    if value not in ("true", "false"):
        raise BadRequest(f"{name} is true or false", parameter=name)
    return value == "true"
