"""What every front door does: look at the headers, guard, route, and answer each failure with a problem document."""

import asyncio
import logging

from sandbox_agent.errors import InternalError, SandboxAgentError
from sandbox_agent.http.asgi import (
    App,
    Headers,
    Message,
    Receive,
    Scope,
    Send,
    admit,
    group_headers,
    header,
    respond,
    transport,
)
from sandbox_agent.http.guard import Guard
from sandbox_agent.http.problems import send_problem

logger = logging.getLogger(__name__)


class FrontDoor:
    """An ASGI app behind a guard; `route` is its own."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["headers_by_name"] = group_headers(scope["headers"])
        if header(scope, b"origin") is not None:
            send = _add_headers(send, self._guard.cors(scope))
        await self._answer(self._route_guarded, scope, receive, send)

    async def answer_gateway(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that came through a flow: the guard of the gateway has let it through."""
        scope["headers_by_name"] = group_headers(scope["headers"])
        await self._answer(self.route, scope, receive, send)

    async def _answer(self, route: App, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await route(scope, receive, send)
        except SandboxAgentError as error:
            await send_problem(send, error)
        except asyncio.CancelledError:
            # Only a server that ends does this, to a request that takes longer than it can wait.
            transport(scope).abort()
        except Exception:
            logger.exception("request failed method=%s path=%s", scope["method"], scope["path"])
            await send_problem(send, InternalError())

    async def _route_guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._guard.check(scope):
            admit(scope)
        if self._guard.is_preflight(scope):
            await respond(send, 204, [])
        else:
            await self.route(scope, receive, send)

    async def route(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that may be made. Raises SandboxAgentError."""
        raise NotImplementedError


def _add_headers(send: Send, headers: Headers) -> Send:
    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *headers]
        await send(message)

    return with_headers
