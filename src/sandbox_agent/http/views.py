"""The control plane: health, agents, sessions, the page at /ui/, and what answers for routes that are not there yet.

One table of endpoints: the router and the OpenAPI document are both made from it.
"""

import html
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import msgspec
from msgspec import UNSET, Struct
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from sandbox_agent import __version__
from sandbox_agent.errors import (
    AgentNotInstalled,
    BadRequest,
    BridgeDisabled,
    ChecksumMismatch,
    DiskFull,
    DownloadFailed,
    HashMissing,
    InstallFailed,
    InvalidParams,
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
from sandbox_agent.http.health import Health, HealthView
from sandbox_agent.http.installs import Installs
from sandbox_agent.http.negotiate import EVENT_STREAM
from sandbox_agent.hub.agent_views import AgentViews
from sandbox_agent.hub.hub import Hub
from sandbox_agent.hub.inventory import Inventory
from sandbox_agent.wire.agents import AgentsView, AgentView, InstallRequest, InstallResult
from sandbox_agent.wire.sessions import SessionsView, SessionView

INSTALL_PROBLEMS: tuple[type[SandboxAgentError], ...] = (
    *(UnknownAgent, AgentNotInstalled, UnsupportedAgent, UnsupportedPlatform, UnknownVersion),
    *(
        RegistryUnavailable,
        DownloadFailed,
        ChecksumMismatch,
        HashMissing,
        UnsafeArchive,
        InstallFailed,
        ShuttingDown,
        DiskFull,
    ),
)

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of one route, and what is to be said about it."""

    method: str
    path: str
    handle: Handler
    summary: str
    returns: type | None = None
    query: dict[str, str] = field(default_factory=dict[str, str])
    problems: tuple[type[SandboxAgentError], ...] = ()
    status: int = 200
    body: type[Struct] | None = None
    """What may be sent; it may be left out when all of its fields may."""
    required: tuple[str, ...] = ()
    """Names of the query that must be there."""
    headers: dict[str, str] = field(default_factory=dict[str, str])
    """Headers of the request that matter, beside those of every request."""
    takes: str | None = None
    """The media type of a body that is no JSON."""
    gives: str | None = None
    """The media type of an answer that is no JSON."""
    statuses: dict[int, str] = field(default_factory=dict[int, str])
    """Further answers that are no problems, and what they mean."""
    answer: str = ""
    """What the answer is, where the summary does not say it."""
    also: dict[str, str] = field(default_factory=dict[str, str])
    """Further media types that the answer has when `Accept` names them, and what they hold."""


@dataclass(frozen=True, slots=True)
class Views:
    """The handlers."""

    hub: Hub
    inventory: Inventory
    agent_views: AgentViews
    installs: Installs
    health: Health

    def endpoints(self) -> list[Endpoint]:
        which = {"registry": "`true`: also agents of the ACP registry that are not installed."}
        page = {"cursor": "`nextCursor` of the page before.", "cwd": "Only sessions of this directory."}
        return [
            Endpoint(
                "GET",
                "/v1/health",
                self.get_health,
                "Whether the server is well, and which agents are installed and run.",
                HealthView,
            ),
            Endpoint("GET", "/v1/agents", self.get_agents, "All agents.", AgentsView, which),
            Endpoint("GET", "/v1/agents/{agent}", self.get_agent, "One agent.", AgentView, problems=(UnknownAgent,)),
            Endpoint(
                "POST",
                "/v1/agents/{agent}/install",
                self.installs.install,
                "Install an agent.",
                InstallResult,
                problems=INSTALL_PROBLEMS,
                body=InstallRequest,
                answer="What is installed now. It comes when it is done.",
                also={EVENT_STREAM: "Events `progress`, then one `result` or `problem`. It comes at once."},
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
            ),
        ]

    async def get_health(self, request: Request) -> Response:
        return json_response(self.health.view())

    async def get_agents(self, request: Request) -> Response:
        registry = request.query_params.get("registry") == "true"
        return json_response(await self.agent_views.all(registry=registry))

    async def get_agent(self, request: Request) -> Response:
        agent = await self.agent_views.catalog.find(request.path_params["agent"])
        return json_response(self.agent_views.view(agent))

    async def get_sessions(self, request: Request) -> Response:
        query = request.query_params
        try:
            page, following = self.inventory.page(query.get("cursor"), query.get("cwd"))
        except InvalidParams as error:
            raise BadRequest(str(error), **error.fields) from error
        return json_response(SessionsView([self.inventory.view(one) for one in page], following or UNSET))

    async def get_session(self, request: Request) -> Response:
        session = self.hub.find_session(request.path_params["id"])
        if session is None:
            raise SessionNotFound(request.path_params["id"])
        return json_response(self.inventory.view(session))

    async def page(self, request: Request) -> Response:
        """What /ui/ shows until the Inspector is there."""
        catalog = self.agent_views.catalog
        ready = [each.id for each in catalog.agents() if catalog.program(each)]
        url = html.escape(str(request.base_url).rstrip("/"))
        body = _PAGE.format(version=__version__, url=url, agents=html.escape(", ".join(ready)))
        csp = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
        headers = {"content-security-policy": csp, "cache-control": "no-store"}
        return Response(body, media_type="text/html", headers=headers)

    async def to_page(self, request: Request) -> Response:
        return RedirectResponse("/ui/")

    async def opencode(self, request: Request) -> Response:
        raise BridgeDisabled


def json_response(value: object) -> Response:
    """A view as JSON, which must not be cached."""
    return json_bytes(msgspec.json.encode(value))


def json_bytes(body: bytes) -> Response:
    """The same, of JSON that is there already."""
    return Response(body, media_type="application/json", headers={"cache-control": "no-store"})


_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>sandbox-agent</title>
<style>
  :root {{ color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }}
  body {{ max-width: 46rem; margin: 3rem auto; padding: 0 1rem; }}
  pre {{ padding: 1rem; overflow: auto; border: 1px solid; border-radius: .5rem; font-size: .85rem; }}
</style>
<main>
<h1>sandbox-agent {version}</h1>
<p>The server is running. Agents that are ready: {agents}. The web Inspector is not part of this version; everything it
will show is there over HTTP, and <a href="/openapi.json">/openapi.json</a> describes it.</p>
<h2>A first prompt</h2>
<p>With <code>TOKEN</code> set to the server's token, which it printed when it started unless you gave it one:</p>
<pre>rpc() {{ curl -s {url}/v1/rpc -H "Authorization: Bearer $TOKEN" -H 'Content-Type: application/json' "$@"; }}

# initialize opens a connection; its id comes back in the header X-ACP-Connection-Id
rpc -i -d '{{"jsonrpc":"2.0","id":1,"method":"initialize","params":
  {{"protocolVersion":1,"_meta":{{"sandboxagent.dev":{{"agent":"mock"}}}}}}}}'

ID=...        # as it came back; it goes into every later call

# in the background: what the agent says
curl -sN {url}/v1/rpc -H "Authorization: Bearer $TOKEN" -H "X-ACP-Connection-Id: $ID" &amp;

# a session, and a prompt in it
rpc -H "X-ACP-Connection-Id: $ID" -d '{{"jsonrpc":"2.0","id":2,"method":"session/new","params":
  {{"cwd":"/tmp","mcpServers":[]}}}}'
SESSION=...   # the sessionId that came back
rpc -H "X-ACP-Connection-Id: $ID" -d '{{"jsonrpc":"2.0","id":3,"method":"session/prompt","params":
  {{"sessionId":"'"$SESSION"'","prompt":[{{"type":"text","text":"help"}}]}}}}'</pre>
</main>
</html>
"""
