"""A gateway's front door: the guard, then `/v1/rpc` and `/acp`, what nodes answer, and what it answers itself."""

import msgspec

from sandbox_agent.gateway.forwarding import Forwarding, is_forwarded
from sandbox_agent.gateway.views import GatewayViews
from sandbox_agent.http.acp import PATH as ACP
from sandbox_agent.http.acp import Acp
from sandbox_agent.http.app import FrontDoor
from sandbox_agent.http.asgi import Receive, Scope, Send, json_headers, respond
from sandbox_agent.http.control import make_control_app
from sandbox_agent.http.guard import Guard
from sandbox_agent.http.rpc import Rpc
from sandbox_agent.http.ui import Ui
from sandbox_agent.http.views import Endpoint


class GatewayApp(FrontDoor):
    """The ASGI app of a gateway."""

    def __init__(self, guard: Guard, rpc: Rpc, acp: Acp, views: GatewayViews, forwarding: Forwarding, ui: Ui) -> None:
        super().__init__(guard)
        self._rpc = rpc
        self._acp = acp
        self._views = views
        self._forwarding = forwarding
        self._control = make_control_app(views.endpoints(), ui, _describe_forwarded)

    async def route(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, path = scope["method"], scope["path"]
        if path == "/v1/rpc":
            await self._rpc(scope, receive, send)
        elif path == ACP or path.startswith(f"{ACP}/"):
            await self._acp(scope, receive, send)
        elif path == "/v1/health" and method == "GET":
            await _send_json(send, self._views.health())
        elif is_forwarded(path):
            await self._forwarding(scope, receive, send)
        else:
            await self._control(scope, receive, send)


def _describe_forwarded() -> list[Endpoint]:
    # Much to import, for a document that is seldom read.
    from sandbox_agent.gateway.description import describe_forwarded

    return describe_forwarded()


async def _send_json(send: Send, value: object) -> None:
    body = msgspec.json.encode(value)
    await respond(send, 200, json_headers(body), body)
