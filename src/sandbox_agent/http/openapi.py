"""/openapi.json: OpenAPI 3.1, from the endpoints' own types."""

import re
from collections.abc import Sequence

import msgspec

from sandbox_agent import __version__
from sandbox_agent.envelope import Object
from sandbox_agent.errors import (
    AgentBootFailed,
    AgentNotInstalled,
    AgentTimeout,
    AlreadyAnswered,
    BadRequest,
    BodyTooLarge,
    Misdirected,
    NotAcceptable,
    NotAnEnvelope,
    SandboxAgentError,
    Unauthorized,
    UnknownConnection,
    UnsupportedMediaType,
)
from sandbox_agent.http.views import Endpoint

_ALWAYS: tuple[type[SandboxAgentError], ...] = (BadRequest, Unauthorized, Misdirected)
_POST_PROBLEMS = (
    NotAnEnvelope,
    UnknownConnection,
    AgentNotInstalled,
    NotAcceptable,
    AlreadyAnswered,
    BodyTooLarge,
    UnsupportedMediaType,
    AgentBootFailed,
    AgentTimeout,
)


class Problem(msgspec.Struct):
    """An RFC 9457 problem document; further members say what it is about."""

    type: str
    title: str
    status: int
    detail: str


class RpcEnvelope(msgspec.Struct, omit_defaults=True):
    """One JSON-RPC 2.0 object: a request, a notification or a response."""

    jsonrpc: str
    id: int | float | str | None = None
    method: str | None = None
    params: Object | None = None
    result: object = None
    error: Object | None = None


def document(endpoints: Sequence[Endpoint]) -> Object:
    """The whole document."""
    types = [each.returns for each in endpoints if each.returns is not None]
    schemas, components = msgspec.json.schema_components(
        [*types, Problem, RpcEnvelope], schema_hook=_anything, ref_template="#/components/schemas/{name}"
    )
    refs = dict(zip([*types, Problem, RpcEnvelope], schemas, strict=True))
    paths: dict[str, Object] = {"/v1/rpc": _rpc(refs)}
    for each in endpoints:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, refs)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "sandbox-agent",
            "version": __version__,
            "description": "Run and control coding agents inside a sandbox, over HTTP.",
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _anything(type: type) -> Object:
    """JSON that we do not look into."""
    if type is not object:
        raise NotImplementedError
    return {"description": "Any JSON."}


def _operation(endpoint: Endpoint, refs: dict[type, Object]) -> Object:
    path_names: list[str] = re.findall(r"{(\w+)}", endpoint.path)
    parameters: list[Object] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in path_names
    ]
    parameters += [_parameter(name, "query", text) for name, text in endpoint.query.items()]
    responses: Object = {}
    if endpoint.returns is not None:
        content = {"application/json": {"schema": refs[endpoint.returns]}}
        responses[str(endpoint.status)] = {"description": endpoint.summary, "content": content}
    responses |= _problems((*_ALWAYS, *endpoint.problems), refs)
    return {
        "operationId": f"{endpoint.method.lower()}{endpoint.path.replace('/v1', '').replace('/', '_')}",
        "summary": endpoint.summary,
        "parameters": parameters,
        "responses": responses,
    }


def _rpc(refs: dict[type, Object]) -> Object:
    envelope = {"application/json": {"schema": refs[RpcEnvelope]}}
    last_event = _parameter("Last-Event-ID", "header", "Replays what came after this event.")
    needed = "The connection; every call but the first initialize needs it."
    headers = [_parameter("X-ACP-Connection-Id", "header", needed)]
    prefer = _parameter("Prefer", "header", "`respond-async`: 202 at once, the response comes on the stream.")
    key = _parameter("Idempotency-Key", "header", "The same key and body again give the first outcome again.")
    post: Object = {
        "operationId": "post_rpc",
        "summary": "One JSON-RPC envelope from the client.",
        "parameters": [*headers, prefer, key],
        "requestBody": {"required": True, "content": envelope},
        "responses": {
            "200": {"description": "The response to a request.", "content": envelope},
            "202": {"description": "A notification or an answer was taken, or a request was taken asynchronously."},
            **_problems((*_ALWAYS, *_POST_PROBLEMS), refs),
        },
    }
    get: Object = {
        "operationId": "get_rpc",
        "summary": "The stream of envelopes to the client, as server-sent events.",
        "parameters": [*headers, last_event],
        "responses": {
            "200": {"description": "Events.", "content": {"text/event-stream": {"schema": {"type": "string"}}}},
            **_problems((*_ALWAYS, UnknownConnection, NotAcceptable), refs),
        },
    }
    delete: Object = {
        "operationId": "delete_rpc",
        "summary": "Close the connection; never the session, never the agent.",
        "parameters": headers,
        "responses": {"204": {"description": "Closed, now or before."}, **_problems(_ALWAYS, refs)},
    }
    return {"post": post, "get": get, "delete": delete}


def _parameter(name: str, place: str, text: str) -> Object:
    return {"name": name, "in": place, "description": text, "schema": {"type": "string"}}


def _problems(errors: Sequence[type[SandboxAgentError]], refs: dict[type, Object]) -> Object:
    found: dict[int, str] = {}
    for error in errors:
        found[error.status] = f"{found[error.status]}, or {error.title}" if error.status in found else error.title
    content = {"application/problem+json": {"schema": refs[Problem]}}
    return {str(status): {"description": text, "content": content} for status, text in sorted(found.items())}
