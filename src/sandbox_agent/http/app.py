"""The front door: guards, then /v1/rpc, /acp and health directly, then OpenCode's API and the route table.

No error leaves as anything but a problem document.
"""

import asyncio
import logging
from collections.abc import Callable

import msgspec

from sandbox_agent.errors import InternalError, SandboxAgentError
from sandbox_agent.http.acp import PATH as ACP
from sandbox_agent.http.acp import Acp
from sandbox_agent.http.asgi import App as Asgi
from sandbox_agent.http.asgi import (
    Headers,
    Message,
    Receive,
    Scope,
    Send,
    admit,
    group_headers,
    header,
    json_headers,
    respond,
    transport,
)
from sandbox_agent.http.guard import Guard, is_opencode
from sandbox_agent.http.health import Health
from sandbox_agent.http.problems import send_problem
from sandbox_agent.http.rpc import Rpc

logger = logging.getLogger(__name__)


class App:
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
        self._guard = guard
        self._rpc = rpc
        self._acp = acp
        self._health = health
        self._make_opencode = opencode
        self._opencode: Asgi | None = None
        self._make_control = control
        self._control: Asgi | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["headers_by_name"] = group_headers(scope["headers"])
        if header(scope, b"origin") is not None:
            send = add_headers(send, self._guard.cors(scope))
        try:
            if self._guard.check(scope):
                admit(scope)
            await self._route(scope, receive, send)
        except SandboxAgentError as error:
            await send_problem(send, error)
        except asyncio.CancelledError:
            # Only a server that ends does this, to a request that takes longer than it can wait.
            transport(scope).abort()
        except Exception:
            logger.exception("request failed method=%s path=%s", scope["method"], scope["path"])
            await send_problem(send, InternalError())

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if self._guard.is_preflight(scope):
            await respond(send, 204, [])
        elif path == "/v1/rpc":
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


def add_headers(send: Send, headers: Headers) -> Send:
    """A `send` that adds headers to every response."""

    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *headers]
        await send(message)

    return with_headers
