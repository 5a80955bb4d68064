"""The front door: guards, then /v1/rpc, /acp and health directly, then OpenCode's API and the route table.

No error leaves as anything but a problem document.
"""

from collections.abc import Callable

import msgspec

from sandbox_agent.http.acp import PATH as ACP
from sandbox_agent.http.acp import Acp
from sandbox_agent.http.asgi import App as Asgi
from sandbox_agent.http.asgi import Receive, Scope, Send, json_headers, respond
from sandbox_agent.http.front import FrontDoor
from sandbox_agent.http.guard import Guard, is_opencode
from sandbox_agent.http.health import Health
from sandbox_agent.http.rpc import Rpc


class App(FrontDoor):
    """`control` makes the app for all other routes when the first of them is asked for: start-up need not wait.

    `opencode` does the same for the routes of OpenCode's programs.
    """

    def __init__(
        self,
        guard: Guard,
        rpc: Rpc,
        acp: Acp,
        health: Health,
        opencode: Callable[[], Asgi],
        control: Callable[[], Asgi],
    ) -> None:
        super().__init__(guard)
        self._rpc = rpc
        self._acp = acp
        self._health = health
        self._make_opencode = opencode
        self._opencode: Asgi | None = None
        self._make_control = control
        self._control: Asgi | None = None

    async def route(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if path == "/v1/rpc":
            await self._rpc(scope, receive, send)
        elif path == ACP or path.startswith(f"{ACP}/"):
            await self._acp(scope, receive, send)
        elif path == "/v1/health" and scope["method"] == "GET":
            body = msgspec.json.encode(self._health.view())
            await respond(send, 200, json_headers(body), body)
        elif is_opencode(path):
            if self._opencode is None:
                self._opencode = self._make_opencode()
            await self._opencode(scope, receive, send)
        else:
            if self._control is None:
                self._control = self._make_control()
            await self._control(scope, receive, send)
