"""Answer health, nodes and sessions at a gateway.

The endpoints are a table, as at a server.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

import msgspec
from msgspec import UNSET, Raw
from starlette.requests import Request
from starlette.responses import Response

from sandboxagent import __version__
from sandboxagent.fleet.bus.interface import MAX_BODY_BYTES
from sandboxagent.fleet.gateway.registry import ListedSession, NodeRegistry
from sandboxagent.fleet.gateway.tunnels import Caller, NodeRequest
from sandboxagent.fleet.messages import Lease
from sandboxagent.protocol.errors import (
    BadRequest,
    InvalidParams,
    NodeUnreachable,
    NotFound,
    SessionNotFound,
    TooMany,
    UnknownSession,
)
from sandboxagent.protocol.json_bounds import read_answer
from sandboxagent.protocol.views import AgentHealth, GatewayHealth, NodesView, NodeView, SessionsView, SessionView
from sandboxagent.server.http.views import SESSION, Endpoint, json_response

logger = logging.getLogger(__name__)

FACTS_TIMEOUT = 5.0
"""Seconds that a node has for the facts of a session, which the list has, too."""


@dataclass(frozen=True, slots=True)
class GatewayViews:
    """The handlers. `failure_reason` returns why the bus does not work, or None."""

    gateway: str
    registry: NodeRegistry
    caller: Caller
    failure_reason: Callable[[], str | None]
    started_at: float = field(default_factory=time.monotonic)

    def endpoints(self) -> list[Endpoint]:
        page = {
            "cursor": "`nextCursor` of the page before.",
            "cwd": "Only sessions of this directory.",
            "changedAfter": "`changes` of an earlier list: only sessions changed since, if this gateway knows them.",
        }
        return [
            Endpoint(
                "GET",
                "/v1/health",
                self.get_health,
                "The gateway's health, with its numbers of nodes, sessions and running turns.",
                GatewayHealth,
            ),
            Endpoint("GET", "/v1/nodes", self.get_nodes, "The connected nodes.", NodesView),
            Endpoint(
                "GET",
                "/v1/nodes/{node}",
                self.get_node,
                "One node.",
                NodeView,
                problems=(NotFound,),
                path_parameters={"node": "Its name."},
            ),
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
                path_parameters={"id": SESSION},
            ),
        ]

    async def get_health(self, request: Request) -> Response:
        return json_response(self.health())

    def health(self) -> GatewayHealth:
        nodes = self.registry.leases
        failure_reason = self.failure_reason() or (None if nodes else "no node is there")
        return GatewayHealth(
            "ok" if failure_reason is None else "degraded",
            __version__,
            int((time.monotonic() - self.started_at) * 1000),
            self.gateway,
            len(nodes),
            self.registry.count,
            sum(lease.running for lease in nodes.values()),
            _agents(nodes.values()),
            UNSET if failure_reason is None else failure_reason,
        )

    async def get_nodes(self, request: Request) -> Response:
        return json_response(NodesView(self.registry.nodes()))

    async def get_node(self, request: Request) -> Response:
        name: str = request.path_params["node"]
        found = next((each for each in self.registry.nodes() if each.node == name), None)
        if found is None:
            raise NotFound(f"/v1/nodes/{name}")
        return json_response(found)

    async def get_sessions(self, request: Request) -> Response:
        query = request.query_params
        try:
            found = self.registry.list_sessions(query.get("cursor"), query.get("cwd"), query.get("changedAfter"))
        except InvalidParams as error:
            raise BadRequest(str(error), **error.fields) from error
        return json_response(found)

    async def get_session(self, request: Request) -> Response:
        """Answer with a session's view from its node, or from the list if the node gives no useful answer."""
        try:
            seen = self.registry.session(request.path_params["id"])
        except UnknownSession:
            raise SessionNotFound(request.path_params["id"]) from None
        return json_response(await self._ask_node(seen) or seen.view)

    async def _ask_node(self, seen: ListedSession) -> Mapping[str, object] | None:
        asked = NodeRequest("GET", f"/v1/sessions/{quote(seen.session_id, safe='')}".encode())
        try:
            async with asyncio.timeout(FACTS_TIMEOUT):
                answer = await self.caller.call(seen.node, asked, most=MAX_BODY_BYTES)
            view = read_answer(answer.body, dict[str, Raw])
            session_id = msgspec.json.decode(view.get("sessionId", b"null"))
        except (NodeUnreachable, TooMany, TimeoutError, msgspec.DecodeError, UnicodeDecodeError) as error:
            logger.info("session as listed session=%s node=%s reason=%s", seen.session_id, seen.node, error)
            return None
        return {**view, "node": seen.node} if (answer.status, session_id) == (200, seen.session_id) else None


def _agents(leases: Iterable[Lease]) -> list[AgentHealth]:
    installed: set[str] = set()
    started: set[str] = set()
    for lease in leases:
        installed |= set(lease.agents)
        started |= set(lease.started)
    return [AgentHealth(agent, agent in installed, agent in started) for agent in sorted(installed | started)]
