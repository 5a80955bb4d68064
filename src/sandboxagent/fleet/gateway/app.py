"""Route a gateway's HTTP requests: answer them here, or pass them to the node that they are for.

Nodes answer requests about agents, and requests to capabilities. This module finds the right node. The OpenAPI document
has these routes as at a server, with the additional parameter `node`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar, cast
from urllib.parse import unquote, unquote_plus

import msgspec
from starlette.requests import Request

from sandboxagent.core.settings import Settings
from sandboxagent.core.threads import Pool
from sandboxagent.fleet.bus.subjects import is_name
from sandboxagent.fleet.gateway.registry import NodeRegistry
from sandboxagent.fleet.gateway.tunnels import GatewayTunnels
from sandboxagent.fleet.gateway.views import GatewayViews
from sandboxagent.protocol.errors import (
    BadRequest,
    FleetUnreachable,
    MissingNode,
    NodeUnreachable,
    NoNode,
    SessionNotFound,
    TooMany,
    UnknownSession,
)
from sandboxagent.server.agents.installs import AgentInstalls
from sandboxagent.server.agents.views import AgentViews
from sandboxagent.server.capability import Capability, describing_core
from sandboxagent.server.http.acp import PATH as ACP
from sandboxagent.server.http.acp import Acp
from sandboxagent.server.http.app import BaseApp
from sandboxagent.server.http.asgi import Receive, Scope, Send, json_headers, respond
from sandboxagent.server.http.auth import Access, Auth
from sandboxagent.server.http.health import HealthCheck
from sandboxagent.server.http.posts import Post
from sandboxagent.server.http.routes import make_control_app
from sandboxagent.server.http.rpc import PATH as RPC
from sandboxagent.server.http.rpc import Rpc
from sandboxagent.server.http.ui import Ui
from sandboxagent.server.http.views import Endpoint, Installs, Views, read_query
from sandboxagent.server.sessions.hub import Hub
from sandboxagent.server.sessions.listing import SessionListing

NATS_TIMEOUT = 3.0
"""Seconds for which requests wait for NATS, because a lost connection may take that long to return at another
server."""
NODE = "Name of the node. Required if the fleet has several nodes and there is no `sessionId`."

_AGENTS = "/v1/agents"
_SECRETS = ("auth_token",)
"""Names of query parameters that only the gateway may see."""


@dataclass(frozen=True, slots=True)
class Forwarding:
    """Passes requests to the right node."""

    registry: NodeRegistry
    flows: GatewayTunnels
    capabilities: Sequence[type[Capability]]

    def has(self, path: str) -> bool:
        """Return whether a node answers requests for this path."""
        return is_forwarded(path, self.capabilities) or self._access(path) is not None

    def _access(self, path: str) -> Access | None:
        accesses = (each.access for each in self.capabilities)
        return next((access for access in accesses if access is not None and access.has(path)), None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the right node answer. Raises MissingNode, NoNode, NodeUnreachable, SessionNotFound or TooMany."""
        query = _without_secrets(scope["query_string"])
        access = self._access(scope["path"])
        if access is None:
            node, target = self._choose(scope), scope["raw_path"]
        else:
            node, target = self._choose_for_app(access, scope)
        await self.flows.proxy(node, {**scope, "raw_path": target, "query_string": query}, receive, send)

    def _choose(self, scope: Scope) -> str:
        query = read_query(Request(scope))
        named, session_id = query.get("node"), query.get("sessionId")
        if session_id is None:
            return self._only_node() if named is None else _read_name(named)
        try:
            owner = self.registry.session(session_id).node
        except UnknownSession:
            raise SessionNotFound(session_id.encode(errors="replace").decode()) from None
        if named not in (None, owner):
            raise BadRequest("node is not the one that has the session", parameter="node", node=owner)
        return owner

    def _choose_for_app(self, access: Access, scope: Scope) -> tuple[str, bytes]:
        """Return the node for a request to the app of a capability, and the path there.

        The clients of an app may know no nodes. So a path can name one, as in `/app/@node/path`.
        """
        prefix, path = access.path.encode(), cast("bytes", scope["raw_path"])
        if path.startswith(prefix + b"/@"):
            name, slash, rest = path.removeprefix(prefix + b"/@").partition(b"/")
            return _read_name(unquote(name.decode("latin-1"))), prefix + slash + rest
        return self._choose_by_directory(access, scope), path

    def _choose_by_directory(self, access: Access, scope: Scope) -> str:
        """Return the node that has all sessions of the directory, or the only node."""
        if scope["path"] == access.health and self.registry.leases:
            return min(self.registry.leases)
        query = read_query(Request(scope))
        if "node" in query:
            return _read_name(query["node"])
        directory = None if access.find_directory is None else access.find_directory(scope)
        owners = set[str]() if directory is None else self.registry.owners(directory)
        return owners.pop() if len(owners) == 1 else self._only_node()

    def _only_node(self) -> str:
        nodes = list(self.registry.leases)
        if not nodes:
            raise NoNode("the fleet has no node")
        if len(nodes) > 1:
            raise MissingNode(len(nodes))
        return nodes[0]


def _read_name(text: str) -> str:
    """Check a node's name. Raises NoNode with an ASCII text, because the name may not be valid UTF-8."""
    if not is_name(text):
        raise NoNode(f"no node can be called {text[:40]!a}")
    return text


def _without_secrets(query: bytes) -> bytes:
    parts = query.split(b"&")
    return b"&".join(part for part in parts if unquote_plus(part.partition(b"=")[0].decode("latin-1")) not in _SECRETS)


_PROBLEMS = (MissingNode, NoNode, NodeUnreachable, FleetUnreachable, SessionNotFound, TooMany)
T = TypeVar("T")


def is_forwarded(path: str, capabilities: Sequence[type[Capability]]) -> bool:
    """Return whether a node answers requests for this path below `/v1/`."""
    prefixes = (_AGENTS, *(prefix for each in capabilities for prefix in each.forwarded))
    return any(path == prefix or path.startswith(f"{prefix}/") for prefix in prefixes)


def describe_forwarded(capabilities: Sequence[type[Capability]], settings: Settings) -> list[Endpoint]:
    """Return the endpoints that nodes answer, with the parameter `node`.

    Their handlers come from an empty server, and are never called.
    """
    views = Views(
        _absent(Hub),
        _absent(SessionListing),
        _absent(AgentViews),
        Installs(_absent(AgentInstalls), 0),
        _absent(HealthCheck),
        Path(),
        Pool("none", 1),
    )
    core = describing_core(settings)
    tables = [views.endpoints(), *(each(core).endpoints() for each in capabilities)]
    return [
        replace(each, query={**each.query, "node": NODE}, problems=tuple(dict.fromkeys((*each.problems, *_PROBLEMS))))
        for table in tables
        for each in table
        if is_forwarded(each.path, capabilities)
    ]


def _absent(kind: type[T]) -> T:
    """Return a placeholder for a part that does not exist."""
    return cast("T", object())


class GatewayApp(BaseApp):
    """The ASGI app of a gateway."""

    def __init__(
        self,
        auth: Auth,
        rpc: Rpc,
        acp: Acp,
        views: GatewayViews,
        forwarding: Forwarding,
        ui: Ui,
        settings: Settings,
        cut_off_for: Callable[[], float],
    ) -> None:
        """Create the app. `cut_off_for` returns for how many seconds NATS has not been reachable."""
        super().__init__(auth)
        self._cut_off_for = cut_off_for
        self._rpc = rpc
        self._acp = acp
        self._views = views
        self._forwarding = forwarding
        self._control = make_control_app(
            views.endpoints(), ui, partial(describe_forwarded, forwarding.capabilities, settings)
        )

    def transport_of(self, path: str) -> Rpc | Acp | None:
        if path == RPC:
            return self._rpc
        return self._acp if path == ACP or path.startswith(f"{ACP}/") else None

    def read_envelopes(self, transport: Rpc | Acp, scope: Scope) -> Callable[[Post], None]:
        self._check_fleet()
        return partial(self._take, super().read_envelopes(transport, scope))

    def _take(self, take: Callable[[Post], None], post: Post) -> None:
        try:
            self._check_fleet()
        except FleetUnreachable as error:
            post.refuse(error)
        else:
            take(post)

    def _check_fleet(self) -> None:
        if self._cut_off_for() > NATS_TIMEOUT:
            raise FleetUnreachable

    async def route(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, path = scope["method"], scope["path"]
        transport = self.transport_of(path)
        if transport is not None or self._forwarding.has(path):
            self._check_fleet()
        if transport is not None:
            await transport(scope, receive, send)
        elif path == "/v1/health" and method == "GET":
            await _send_json(send, self._views.health())
        elif self._forwarding.has(path):
            await self._forwarding(scope, receive, send)
        else:
            await self._control(scope, receive, send)


async def _send_json(send: Send, value: object) -> None:
    body = msgspec.json.encode(value)
    await respond(send, 200, json_headers(body), body)
