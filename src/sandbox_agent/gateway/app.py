"""A gateway's front door: the guard, then `/v1/rpc` and `/acp`, what nodes answer, and what it answers itself."""

from collections.abc import Callable

import msgspec

from sandbox_agent.fleet_errors import FleetUnreachable
from sandbox_agent.gateway.forwarding import Forwarding, describe_forwarded, is_forwarded
from sandbox_agent.gateway.views import GatewayViews
from sandbox_agent.http.acp import PATH as ACP
from sandbox_agent.http.acp import Acp
from sandbox_agent.http.app import FrontDoor
from sandbox_agent.http.asgi import Receive, Scope, Send, json_headers, respond
from sandbox_agent.http.control import Ui, make_control_app
from sandbox_agent.http.guard import Guard
from sandbox_agent.http.rpc import Rpc

PATIENCE = 3.0
"""Seconds for which requests wait for NATS: so long a lost connection may take to come back, by another server."""


class GatewayApp(FrontDoor):
    """The ASGI app of a gateway."""

    def __init__(
        self,
        guard: Guard,
        rpc: Rpc,
        acp: Acp,
        views: GatewayViews,
        forwarding: Forwarding,
        ui: Ui,
        cut_off_for: Callable[[], float],
    ) -> None:
        """`cut_off_for` says for how many seconds NATS cannot be reached."""
        super().__init__(guard)
        self._cut_off_for = cut_off_for
        self._rpc = rpc
        self._acp = acp
        self._views = views
        self._forwarding = forwarding
        self._control = make_control_app(views.endpoints(), ui, describe_forwarded)

    async def route(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, path = scope["method"], scope["path"]
        is_acp = path == ACP or path.startswith(f"{ACP}/")
        if (path == "/v1/rpc" or is_acp or is_forwarded(path)) and self._cut_off_for() > PATIENCE:
            raise FleetUnreachable
        if path == "/v1/rpc":
            await self._rpc(scope, receive, send)
        elif is_acp:
            await self._acp(scope, receive, send)
        elif path == "/v1/health" and method == "GET":
            await _send_json(send, self._views.health())
        elif is_forwarded(path):
            await self._forwarding(scope, receive, send)
        else:
            await self._control(scope, receive, send)


async def _send_json(send: Send, value: object) -> None:
    body = msgspec.json.encode(value)
    await respond(send, 200, json_headers(body), body)
