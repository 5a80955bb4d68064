"""Check each request, and pass it to `/v1/rpc`, `/acp`, health, a capability's app or the route table.

Every error is answered with a problem document.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cache

import msgspec

from sandboxagent.protocol.errors import InternalError, SandboxAgentError
from sandboxagent.server.http.acp import PATH as ACP
from sandboxagent.server.http.acp import Acp
from sandboxagent.server.http.asgi import App as Asgi
from sandboxagent.server.http.asgi import (
    Headers,
    Message,
    Receive,
    Scope,
    Send,
    group_headers,
    header,
    json_headers,
    mark_authenticated,
    respond,
    send_problem,
    transport,
)
from sandboxagent.server.http.auth import Access, Auth
from sandboxagent.server.http.health import HealthCheck
from sandboxagent.server.http.posts import Post, PostHead, make_problem
from sandboxagent.server.http.rpc import PATH as RPC
from sandboxagent.server.http.rpc import Rpc

logger = logging.getLogger(__name__)


class BaseApp:
    """An ASGI app that checks each request before it answers. Subclasses define `route`."""

    def __init__(self, auth: Auth) -> None:
        self._auth = auth

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["headers_by_name"] = group_headers(scope["headers"])
        if header(scope, b"origin") is not None:
            send = _add_headers(send, self._auth.cors(scope))
        await self._answer(self._route_authenticated, scope, receive, send)

    def read_post(self, scope: Scope) -> PostHead | None:
        """Check the head of a POST that carries an envelope. Return None for any other POST."""
        transport = self.transport_of(scope["path"])
        if transport is None:
            return None
        scope["headers_by_name"] = group_headers(scope["headers"])
        more = self._auth.cors(scope) if header(scope, b"origin") is not None else ()
        return self._read_post(transport, scope, self._check_head, more)

    def read_gateway_post(self, scope: Scope) -> PostHead | None:
        """Like `read_post`, for a request that came through a tunnel.

        The gateway has checked its Host, Origin and token.
        """
        transport = self.transport_of(scope["path"])
        if transport is None or scope["method"] != "POST":
            return None
        scope["headers_by_name"] = group_headers(scope["headers"])
        return self._read_post(transport, scope, _let_through, ())

    def _read_post(self, transport: Rpc | Acp, scope: Scope, auth: Callable[[Scope], None], more: Headers) -> PostHead:
        try:
            auth(scope)
            return PostHead(self.read_envelopes(transport, scope), transport.max_body, more)
        except SandboxAgentError as error:
            return PostHead(_refused, transport.max_body, more, make_problem(error))
        except Exception:
            logger.exception("request failed method=POST path=%s", scope["path"])
            return PostHead(_refused, transport.max_body, more, make_problem(InternalError()))

    def transport_of(self, path: str) -> Rpc | Acp | None:
        """Return the transport that takes envelopes under a path."""
        raise NotImplementedError

    def read_envelopes(self, transport: Rpc | Acp, scope: Scope) -> Callable[[Post], None]:
        """Return the function that takes envelopes with this head. Raises SandboxAgentError."""
        return transport.read_post(scope)

    async def answer_gateway(self, own: Mapping[str, Asgi], scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that came through a tunnel. The gateway has checked its Host, Origin and token.

        `own` has the routes that only gateways may call, by path.
        """
        scope["headers_by_name"] = group_headers(scope["headers"])
        await self._answer(own.get(scope["path"], self.route), scope, receive, send)

    async def _answer(self, route: Asgi, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await route(scope, receive, send)
        except SandboxAgentError as error:
            await send_problem(send, error)
        except asyncio.CancelledError:
            # Only a stopping server cancels a request, if it takes longer than the server can wait.
            transport(scope).abort()
        except Exception:
            logger.exception("request failed method=%s path=%s", scope["method"], scope["path"])
            await send_problem(send, InternalError())

    async def _route_authenticated(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._check_head(scope)
        if self._auth.is_preflight(scope):
            await respond(send, 204, [])
        else:
            await self.route(scope, receive, send)

    def _check_head(self, scope: Scope) -> None:
        if self._auth.check(scope):
            mark_authenticated(scope)

    async def route(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that has passed the checks. Raises SandboxAgentError."""
        raise NotImplementedError


def _let_through(_: Scope) -> None:
    """Check nothing, because the gateway has checked the request."""


def _refused(_: Post) -> None:
    """Do nothing with the body of a refused request."""


def _add_headers(send: Send, headers: Headers) -> Send:
    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *headers]
        await send(message)

    return with_headers


class App(BaseApp):
    """The app of a server: its transports, health, the apps of capabilities, and all other routes.

    `control` makes the app for all other routes when the first of them is asked for: start-up need not wait. `apps` do
    the same for the paths of capabilities.
    """

    def __init__(
        self,
        auth: Auth,
        rpc: Rpc,
        acp: Acp,
        health: HealthCheck,
        apps: Sequence[tuple[Access, Callable[[], Asgi]]],
        control: Callable[[], Asgi],
    ) -> None:
        super().__init__(auth)
        self._rpc = rpc
        self._acp = acp
        self._health = health
        self._apps = [(access, cache(make)) for access, make in apps]
        self._control = cache(control)

    def transport_of(self, path: str) -> Rpc | Acp | None:
        if path == RPC:
            return self._rpc
        return self._acp if path == ACP or path.startswith(f"{ACP}/") else None

    async def route(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        transport = self.transport_of(path)
        if transport is not None:
            await transport(scope, receive, send)
        elif path == "/v1/health" and scope["method"] == "GET":
            body = msgspec.json.encode(await self._health.view())
            await respond(send, 200, json_headers(body), body)
        else:
            make = next((make for access, make in self._apps if access.has(path)), self._control)
            await make()(scope, receive, send)
