"""/openapi.json: OpenAPI 3.1, from the endpoints' own types."""

import re
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from sandbox_agent import __version__
from sandbox_agent.envelope import Object
from sandbox_agent.errors import (
    AgentBootFailed,
    AgentNotInstalled,
    AgentTimeout,
    AlreadyAnswered,
    BadRequest,
    BodyTooLarge,
    ForbiddenOrigin,
    LogUnavailable,
    Misdirected,
    NobodyAsked,
    NotAcceptable,
    NotAnEnvelope,
    SandboxAgentError,
    ShuttingDown,
    Unauthorized,
    UnknownAgent,
    UnknownConnection,
    UnsupportedMediaType,
)
from sandbox_agent.http.views import Endpoint

_ALWAYS: tuple[type[SandboxAgentError], ...] = (BadRequest, Unauthorized, ForbiddenOrigin, Misdirected)
_POST_PROBLEMS = (
    NotAnEnvelope,
    UnknownConnection,
    UnknownAgent,
    AgentNotInstalled,
    NobodyAsked,
    NotAcceptable,
    AlreadyAnswered,
    BodyTooLarge,
    UnsupportedMediaType,
    AgentBootFailed,
    ShuttingDown,
    AgentTimeout,
    LogUnavailable,
)


class Problem(msgspec.Struct):
    """An RFC 9457 problem document; further members say what it is about."""

    type: str
    title: str
    status: int
    detail: str


_Id = int | float | str
_Method = Annotated[str, Meta(min_length=1)]


class RpcRequest(msgspec.Struct):
    """A JSON-RPC 2.0 request."""

    jsonrpc: Literal["2.0"]
    id: _Id
    method: _Method
    params: Object | list[object] | UnsetType = UNSET


class RpcNotification(msgspec.Struct):
    """A JSON-RPC 2.0 notification."""

    jsonrpc: Literal["2.0"]
    method: _Method
    params: Object | list[object] | UnsetType = UNSET


class RpcSuccess(msgspec.Struct):
    """A JSON-RPC 2.0 response."""

    jsonrpc: Literal["2.0"]
    id: _Id
    result: object


class RpcFailure(msgspec.Struct):
    """A JSON-RPC 2.0 response that tells of an error."""

    jsonrpc: Literal["2.0"]
    id: _Id
    error: Object


_ENVELOPES = (RpcRequest, RpcNotification, RpcSuccess, RpcFailure)


def document(endpoints: Sequence[Endpoint]) -> Object:
    """The whole document."""
    types = [each for end in endpoints for each in (end.returns, end.body) if each is not None]
    schemas, components = msgspec.json.schema_components(
        [*types, Problem, *_ENVELOPES], schema_hook=_anything, ref_template="#/components/schemas/{name}"
    )
    refs = dict(zip([*types, Problem, *_ENVELOPES], schemas, strict=True))
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
    parameters += [
        _parameter(name, "query", text) | ({"required": True} if name in endpoint.required else {})
        for name, text in endpoint.query.items()
    ]
    parameters += [_parameter(name, "header", text) for name, text in endpoint.headers.items()]
    responses: Object = {str(status): {"description": text} for status, text in endpoint.statuses.items()}
    if endpoint.gives is not None:
        responses[str(endpoint.status)] = {"description": endpoint.summary, "content": {endpoint.gives: {}}}
    elif endpoint.returns is not None:
        content = {"application/json": {"schema": refs[endpoint.returns]}}
        responses[str(endpoint.status)] = {"description": endpoint.summary, "content": content}
    responses |= _problems((*_ALWAYS, *endpoint.problems), refs)
    operation: Object = {
        "operationId": endpoint.handle.__name__,
        "summary": endpoint.summary,
        "parameters": parameters,
        "responses": responses,
    }
    if endpoint.body is not None:
        operation["requestBody"] = {"content": {"application/json": {"schema": refs[endpoint.body]}}}
    elif endpoint.takes is not None:
        operation["requestBody"] = {"required": True, "content": {endpoint.takes: {}}}
    return operation


def _rpc(refs: dict[type, Object]) -> Object:
    envelope = {"application/json": {"schema": {"anyOf": [refs[each] for each in _ENVELOPES]}}}
    response = {"application/json": {"schema": {"anyOf": [refs[RpcSuccess], refs[RpcFailure]]}}}
    last_event = _parameter("Last-Event-ID", "header", "Replays what came after this event.")
    needed = "The connection; every call but the first initialize needs it."
    connection = _parameter("X-ACP-Connection-Id", "header", needed)
    required = [connection | {"required": True}]
    prefer = _parameter("Prefer", "header", "`respond-async`: 202 at once, the response comes on the stream.")
    key = _parameter("Idempotency-Key", "header", "The same key and body again give the first outcome again.")
    post: Object = {
        "operationId": "post_rpc",
        "summary": "One JSON-RPC envelope from the client.",
        "parameters": [connection, prefer, key],
        "requestBody": {"required": True, "content": envelope},
        "responses": {
            "200": {
                "description": "The response to a request.",
                "content": response,
                "headers": {
                    "X-ACP-Connection-Id": _header("The new connection, in the answer to the first initialize."),
                    "X-ACP-Last-Event-Id": _header("The last event sent to this connection before the answer."),
                },
            },
            "202": {
                "description": "A notification or an answer was taken, or a request was taken asynchronously.",
                "headers": {"Preference-Applied": _header("`respond-async` when it was asked for.")},
            },
            **_problems((*_ALWAYS, *_POST_PROBLEMS), refs),
        },
    }
    get: Object = {
        "operationId": "get_rpc",
        "summary": "The stream of envelopes to the client, as server-sent events.",
        "parameters": [*required, last_event],
        "responses": {
            "200": {"description": "Events.", "content": {"text/event-stream": {"schema": {"type": "string"}}}},
            **_problems((*_ALWAYS, UnknownConnection, NotAcceptable), refs),
        },
    }
    delete: Object = {
        "operationId": "delete_rpc",
        "summary": "Close the connection; never the session, never the agent.",
        "parameters": required,
        "responses": {"204": {"description": "Closed, now or before."}, **_problems(_ALWAYS, refs)},
    }
    return {"post": post, "get": get, "delete": delete}


def _parameter(name: str, place: str, text: str) -> Object:
    return {"name": name, "in": place, "description": text, "schema": {"type": "string"}}


def _header(text: str) -> Object:
    return {"description": text, "schema": {"type": "string"}}


def _problems(errors: Sequence[type[SandboxAgentError]], refs: dict[type, Object]) -> Object:
    found: dict[int, dict[str, None]] = {}
    for error in errors:
        found.setdefault(error.status, {})[error.title] = None
    content = {"application/problem+json": {"schema": refs[Problem]}}
    return {
        str(status): {"description": ", or ".join(titles), "content": content}
        for status, titles in sorted(found.items())
    }
