"""Build the route table on Starlette: every route but `/v1/rpc`, `/acp` and health.

Routes that are gone, of an earlier API and of the other product of this name, answer with their replacements.
"""

import re
from collections.abc import Callable, Sequence
from functools import cache
from urllib.parse import unquote

import msgspec
from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, Router

from sandboxagent.protocol.errors import BadRequest, MethodNotAllowed, NotFound, Removed, SandboxAgentError
from sandboxagent.server.http import openapi
from sandboxagent.server.http.asgi import App, Receive, Scope, Send, problem_document, problem_headers
from sandboxagent.server.http.ui import Ui
from sandboxagent.server.http.views import Endpoint, Handler, RemovedRoute, json_bytes

_PROMPT = "POST /v1/rpc session/prompt"
_EVENTS = "GET /v1/rpc, and POST /v1/rpc _sandboxagent/session/events for the past"
_ANSWER = "POST /v1/rpc with the JSON-RPC response to the agent's request"
_OFFERS = "GET /v1/agents/{agent}?models=true"
_MCP = "mcpServers in POST /v1/rpc session/new"
_SKILLS = "PUT /v1/fs/file, to where the agent looks for its skills"

REMOVED = (
    RemovedRoute("POST", "/v1/sessions/{id}", "POST /v1/rpc session/new"),
    RemovedRoute("POST", "/v1/sessions/{id}/messages", _PROMPT),
    RemovedRoute("POST", "/v1/sessions/{id}/messages/stream", _PROMPT),
    RemovedRoute("GET", "/v1/sessions/{id}/events", _EVENTS),
    RemovedRoute("GET", "/v1/sessions/{id}/events/sse", _EVENTS),
    RemovedRoute("POST", "/v1/sessions/{id}/terminate", "POST /v1/rpc _sandboxagent/session/terminate"),
    RemovedRoute("POST", "/v1/sessions/{id}/permissions/{request}/reply", _ANSWER),
    RemovedRoute("POST", "/v1/sessions/{id}/questions/{request}/reply", _ANSWER),
    RemovedRoute("POST", "/v1/sessions/{id}/questions/{request}/reject", _ANSWER),
    RemovedRoute("GET", "/v1/agents/{agent}/models", f"{_OFFERS}, or POST /v1/rpc _sandboxagent/session/list_models"),
    RemovedRoute("GET", "/v1/agents/{agent}/modes", _OFFERS),
    RemovedRoute("GET", "/v1/acp", "GET /v1/sessions"),
    RemovedRoute("POST", "/v1/acp/{server}", "POST /v1/rpc, with the agent named in initialize"),
    RemovedRoute("GET", "/v1/acp/{server}", "GET /v1/rpc"),
    RemovedRoute("DELETE", "/v1/acp/{server}", "DELETE /v1/rpc"),
    *(RemovedRoute(method, "/v1/config/mcp", _MCP) for method in ("GET", "PUT", "DELETE")),
    *(RemovedRoute(method, "/v1/config/skills", _SKILLS) for method in ("GET", "PUT", "DELETE")),
)
_PARAMETER = re.compile(r"{\w+}")
_PATTERNS = [(each, re.compile(_PARAMETER.sub("[^/]+", each.path))) for each in REMOVED]


def make_control_app(endpoints: Sequence[Endpoint], ui: Ui, elsewhere: Callable[[], list[Endpoint]] = list) -> App:
    """Make the app for everything that is not /v1/rpc.

    `elsewhere` returns the endpoints of another app that the OpenAPI document has, too. Raises ValueError if two
    endpoints have the same method and path, or one does not describe a parameter of its path.
    """
    _check(endpoints)

    @cache
    def document_bytes() -> bytes:
        return msgspec.json.encode(openapi.document([*endpoints, *elsewhere()], REMOVED))

    async def document(request: Request) -> Response:
        return json_bytes(document_bytes())

    routes = [Route(each.path, _with_decoded_names(each.handle), methods=[each.method]) for each in endpoints]
    routes += [
        Route("/openapi.json", document, methods=["GET"]),
        Route("/ui/{rest:path}", ui.get, methods=["GET"]),
        Route("/ui", ui.lead_here, methods=["GET"]),
        Route("/", ui.lead_here, methods=["GET"]),
    ]
    router = Router(routes, redirect_slashes=False)

    async def not_routed(request: Request, error: Exception) -> Response:
        # For a path with several routes, Starlette gives the methods of one.
        allowed = {name for route in routes if route.path_regex.match(request.url.path) for name in route.methods or ()}
        return await _not_routed(request, error, sorted(allowed))

    app = ExceptionMiddleware(router, {HTTPException: not_routed, SandboxAgentError: _problem, ClientDisconnect: _gone})

    async def routed(scope: Scope, receive: Receive, send: Send) -> None:
        # Without an app in its scope, Starlette's router answers 404 and 405 itself, in plain text.
        await app({**scope, "app": app, "path": _routable(scope)}, receive, send)

    return routed


def _check(endpoints: Sequence[Endpoint]) -> None:
    """Raise ValueError for a mistake in the table. Paths that differ only in the names of parameters are the same."""
    known: set[str] = set()
    for each in endpoints:
        route = f"{each.method} {_PARAMETER.sub('{}', each.path)}"
        if route in known:
            raise ValueError(f"two endpoints answer {each.method} {each.path}")
        if set(re.findall(r"{(\w+)}", each.path)) != set(each.path_parameters):
            raise ValueError(f"{each.method} {each.path} needs a description of each parameter of its path")
        known.add(route)


def _routable(scope: Scope) -> str:
    """Return the decoded path, except for characters that would split it differently: `a%2Fb` is one name."""
    if "%" not in (raw := scope["raw_path"].decode("ascii")):
        return scope["path"]
    return "/".join(map(_name, raw.split("/")))


def _name(escaped: str) -> str:
    name = unquote(escaped)
    for sign in "%/?#":
        name = name.replace(sign, f"%{ord(sign):02X}")
    return name


def _with_decoded_names(handle: Handler) -> Handler:
    """Wrap a handler so that it gets its path parameters percent-decoded."""

    async def handled(request: Request) -> Response:
        request.scope["path_params"] = {key: unquote(name) for key, name in request.path_params.items()}
        return await handle(request)

    return handled


async def _not_routed(request: Request, error: Exception, allowed: list[str]) -> Response:
    """Answer a request without a route, or with another method than its route has: Starlette's status tells which."""
    assert isinstance(error, HTTPException)
    method, path = request.method, request.url.path
    replacement = find_replacement(method, path)
    if replacement is not None:
        return await _problem(request, Removed(replacement))
    if error.status_code == 405:
        return await _problem(request, MethodNotAllowed(method, path, ", ".join(allowed)))
    return await _problem(request, Removed() if path.startswith("/v1/") else NotFound(path))


async def _problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, SandboxAgentError)
    body = problem_document(error)
    headers = {name.decode(): value.decode() for name, value in problem_headers(error, body)}
    return Response(body, error.status, headers=headers)


async def _gone(request: Request, error: Exception) -> Response:
    """The client left before it sent the whole body, so no one reads this response."""
    return Response(status_code=BadRequest.status)


def find_replacement(method: str, path: str) -> str | None:
    """Return the replacement of a route that is gone; None for a route that never existed."""
    found = (each.replacement for each, pattern in _PATTERNS if each.method == method and pattern.fullmatch(path))
    return next(found, None)
