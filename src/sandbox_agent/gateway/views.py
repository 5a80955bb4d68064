"""What a gateway answers itself: health, nodes and sessions. The same kind of table that a server has."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from msgspec import UNSET, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from sandbox_agent import __version__
from sandbox_agent.errors import BadRequest, InvalidParams, NotFound, SessionNotFound, UnknownSession
from sandbox_agent.gateway.roster import NodesView, NodeView, Roster
from sandbox_agent.http.health import AgentHealth
from sandbox_agent.http.views import Endpoint, json_response
from sandbox_agent.wire.sessions import SessionsView, SessionView


class GatewayHealth(Struct, rename="camel"):
    """How the gateway is doing, and what it sees of the fleet."""

    status: Literal["ok", "degraded"]
    """`degraded` while NATS cannot be reached, or no node is there."""
    version: str
    """Of sandbox-agent."""
    uptime_ms: int
    """Since the gateway started."""
    gateway: str
    """Its name, a new one each time it starts."""
    nodes: int
    """That are there."""
    sessions: int
    """In the list, those of nodes that are away included."""
    running: int
    """Turns that run."""
    agents: list[AgentHealth]
    """Empty: agents are on nodes; `GET /v1/agents?node=` has those of one."""
    detail: str | UnsetType = UNSET
    """Why it is degraded."""


@dataclass(frozen=True, slots=True)
class GatewayViews:
    """The handlers. `trouble` says why the bus is not well."""

    gateway: str
    roster: Roster
    trouble: Callable[[], str | None]
    started_at: float = field(default_factory=time.monotonic)

    def endpoints(self) -> list[Endpoint]:
        page = {"cursor": "`nextCursor` of the page before.", "cwd": "Only sessions of this directory."}
        return [
            Endpoint(
                "GET", "/v1/health", self.get_health, "Whether the gateway is well, and what it sees.", GatewayHealth
            ),
            Endpoint("GET", "/v1/nodes", self.get_nodes, "The nodes that are there.", NodesView),
            Endpoint("GET", "/v1/nodes/{node}", self.get_node, "One node.", NodeView, problems=(NotFound,)),
            Endpoint(
                "GET",
                "/v1/sessions",
                self.get_sessions,
                "The sessions of all nodes, newest first, each with its `node`.",
                SessionsView,
                page,
            ),
            Endpoint(
                "GET",
                "/v1/sessions/{id}",
                self.get_session,
                "One session, with its `node`.",
                SessionView,
                problems=(SessionNotFound,),
            ),
        ]

    async def get_health(self, request: Request) -> Response:
        return json_response(self.health())

    def health(self) -> GatewayHealth:
        nodes = self.roster.leases
        trouble = self.trouble() or (None if nodes else "no node is there")
        return GatewayHealth(
            "ok" if trouble is None else "degraded",
            __version__,
            int((time.monotonic() - self.started_at) * 1000),
            self.gateway,
            len(nodes),
            self.roster.count,
            sum(lease.running for lease in nodes.values()),
            [],
            UNSET if trouble is None else trouble,
        )

    async def get_nodes(self, request: Request) -> Response:
        return json_response(NodesView(self.roster.nodes()))

    async def get_node(self, request: Request) -> Response:
        name: str = request.path_params["node"]
        found = next((each for each in self.roster.nodes() if each.node == name), None)
        if found is None:
            raise NotFound(f"/v1/nodes/{name}")
        return json_response(found)

    async def get_sessions(self, request: Request) -> Response:
        query = request.query_params
        try:
            page, following = self.roster.page(query.get("cursor"), query.get("cwd"))
        except InvalidParams as error:
            raise BadRequest(str(error), **error.fields) from error
        more = {} if following is None else {"nextCursor": following}
        return json_response({"sessions": [seen.view for seen in page], **more})

    async def get_session(self, request: Request) -> Response:
        try:
            return json_response(self.roster.session(request.path_params["id"]).view)
        except UnknownSession:
            raise SessionNotFound(request.path_params["id"]) from None
