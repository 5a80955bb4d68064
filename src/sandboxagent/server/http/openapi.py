"""Generate `/openapi.json` from the endpoints' own types and the strings below their fields."""

import ast
import inspect
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Annotated, Literal, cast

import msgspec
from msgspec import UNSET, Meta, UnsetType

from sandboxagent import __version__
from sandboxagent.protocol import headers
from sandboxagent.protocol.envelope import Object
from sandboxagent.protocol.errors import (
    AgentBootFailed,
    AgentTimeout,
    AlreadyAnswered,
    BadRequest,
    BatchNotSupported,
    BodyTooLarge,
    ForbiddenOrigin,
    HeadersTooLarge,
    IdempotencyMismatch,
    InternalError,
    LogUnavailable,
    Misdirected,
    MissingAgent,
    MissingConnection,
    NobodyAsked,
    NotAcceptable,
    NotAnEnvelope,
    Removed,
    RequestTimeout,
    SandboxAgentError,
    ShuttingDown,
    TooMany,
    Unauthorized,
    UnknownConnection,
    UnsupportedMediaType,
    WrongAnswer,
)
from sandboxagent.server.http.views import AGENT, INSTALL_PROBLEMS, SESSION, Endpoint, RemovedRoute

ALWAYS: tuple[type[SandboxAgentError], ...] = (
    *(BadRequest, Unauthorized, ForbiddenOrigin, Misdirected, RequestTimeout, HeadersTooLarge, InternalError),
)
"""Problems that any route may answer."""
_POST_PROBLEMS = (
    *(NotAnEnvelope, MissingConnection, MissingAgent, UnknownConnection, NobodyAsked, NotAcceptable),
    *(AlreadyAnswered, IdempotencyMismatch, BodyTooLarge, UnsupportedMediaType, WrongAnswer),
    *INSTALL_PROBLEMS,
    *(AgentBootFailed, AgentTimeout, LogUnavailable),
)
_ACP_PROBLEMS = (
    *(NotAnEnvelope, MissingConnection, UnknownConnection, NotAcceptable, BodyTooLarge, UnsupportedMediaType),
    *(BatchNotSupported, ShuttingDown, LogUnavailable),
)
PARTIAL_CONTENT = 206
_TEXT: Object = {"type": "string"}
_IN_REMOVED_PATHS = {
    "agent": AGENT,
    "id": SESSION,
    "request": "The agent's request.",
    "server": "A connection, by the name that its client made up.",
}


class Problem(msgspec.Struct):
    """An RFC 9457 problem document. Further members are facts about what went wrong, such as `agent` or `limit`."""

    type: str
    """`urn:sandbox-agent:error:` and the slug, which does not change."""
    title: str
    """Meaning of the slug, for people."""
    status: int
    """The HTTP status."""
    detail: str
    """Cause of this error, and what to do. The wording may change at any time."""


_Id = int | float | str
_Method = Annotated[str, Meta(min_length=1)]


class RpcRequest(msgspec.Struct):
    """A JSON-RPC 2.0 request."""

    jsonrpc: Literal["2.0"]
    """The version of JSON-RPC."""
    id: _Id
    """Id of the request. The response has the same id, byte for byte."""
    method: _Method
    """Name of the method, such as `session/prompt`."""
    params: Object | list[object] | UnsetType = UNSET
    """Parameters of the method."""


class RpcNotification(msgspec.Struct):
    """A JSON-RPC 2.0 notification."""

    jsonrpc: Literal["2.0"]
    """The version of JSON-RPC."""
    method: _Method
    """Name of the method, such as `session/prompt`."""
    params: Object | list[object] | UnsetType = UNSET
    """Parameters of the method."""


class RpcSuccess(msgspec.Struct):
    """A JSON-RPC 2.0 response; from a client, the answer to an agent's request."""

    jsonrpc: Literal["2.0"]
    """The version of JSON-RPC."""
    id: _Id
    """Id of the request."""
    result: object
    """Result of the method."""


class RpcFailure(msgspec.Struct):
    """A JSON-RPC 2.0 response with an error."""

    jsonrpc: Literal["2.0"]
    """The version of JSON-RPC."""
    id: _Id
    """Id of the request."""
    error: Object
    """`code`, `message`, and `data` with the slug as `type`."""


_ENVELOPES = (RpcRequest, RpcNotification, RpcSuccess, RpcFailure)


def document(endpoints: Sequence[Endpoint], removed: Sequence[RemovedRoute] = ()) -> Object:
    """Return the whole document."""
    types = [each for end in endpoints for each in (end.returns, end.body) if each is not None]
    refs, components = components_of([*types, Problem, *_ENVELOPES])
    paths: dict[str, Object] = {"/v1/rpc": _rpc(refs), "/acp": _acp(refs)}
    for each in endpoints:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, refs)
    for gone in removed:
        paths.setdefault(gone.path, {})[gone.method.lower()] = _removed_operation(gone, refs)
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


def components_of(types: Sequence[type]) -> tuple[dict[type, Object], dict[str, Object]]:
    """Return the schema of each type, and by name the components that the schemas refer to."""
    template = "#/components/schemas/{name}"
    schemas, components = msgspec.json.schema_components(types, schema_hook=_anything, ref_template=template)
    _describe(components, types)
    return dict(zip(types, schemas, strict=True)), components


def _anything(type: type) -> Object:
    """Return the schema of any JSON value."""
    if type is not object:
        raise NotImplementedError
    return {"description": "Any JSON."}


def _operation(endpoint: Endpoint, refs: dict[type, Object]) -> Object:
    parameters = _path_parameters(endpoint.path, endpoint.path_parameters)
    parameters += [
        _parameter(name, "query", text, endpoint.schemas.get(name, _TEXT))
        | ({"required": True} if name in endpoint.required else {})
        for name, text in endpoint.query.items()
    ]
    parameters += [_parameter(name, "header", text) for name, text in endpoint.headers.items()]
    content: Object = {} if endpoint.gives is None else {endpoint.gives: {}}
    if endpoint.returns is not None:
        content = {"application/json": {"schema": refs[endpoint.returns]}}
    content |= {type: {"schema": {"type": "string", "description": text}} for type, text in endpoint.also.items()}
    responses: Object = {str(endpoint.status): {"description": endpoint.answer or endpoint.summary, "content": content}}
    for status, text in endpoint.statuses.items():
        responses[str(status)] = {"description": text} | ({"content": content} if status == PARTIAL_CONTENT else {})
    responses |= _problems((*ALWAYS, *endpoint.problems), refs)
    operation: Object = {
        "operationId": endpoint.handle.__name__,
        "summary": endpoint.summary,
        "parameters": parameters,
        "responses": responses,
    }
    if endpoint.body is not None:
        needed = any(each.required for each in msgspec.structs.fields(endpoint.body))
        content = {"application/json": {"schema": refs[endpoint.body]}}
        operation["requestBody"] = {"required": needed, "content": content}
    elif endpoint.takes is not None:
        operation["requestBody"] = {"required": True, "content": {endpoint.takes: {}}}
    return operation


def _removed_operation(route: RemovedRoute, refs: dict[type, Object]) -> Object:
    words: list[str] = re.findall(r"\w+", route.path.removeprefix("/v1"))
    return {
        "operationId": "_".join(("removed", route.method.lower(), *words)),
        "summary": f"Gone. Use {route.replacement}.",
        "deprecated": True,
        "parameters": _path_parameters(route.path, _IN_REMOVED_PATHS),
        "responses": _problems((*ALWAYS, Removed), refs),
    }


def _path_parameters(path: str, meanings: Mapping[str, str]) -> list[Object]:
    names: list[str] = re.findall(r"{(\w+)}", path)
    return [_parameter(name, "path", meanings[name]) | {"required": True} for name in names]


def _rpc(refs: dict[type, Object]) -> Object:
    envelope = {"application/json": {"schema": {"anyOf": [refs[each] for each in _ENVELOPES]}}}
    response = {"application/json": {"schema": {"anyOf": [refs[RpcSuccess], refs[RpcFailure]]}}}
    last_event = _parameter(
        headers.RESUME_AFTER, "header", "Go on after this event; else where the connection was opened."
    )
    needed = "The connection; every call but the first initialize needs it."
    connection = _parameter(headers.CONNECTION_ID, "header", needed)
    required = [connection | {"required": True}]
    prefer = _parameter(headers.PREFER, "header", "`respond-async`: 202 at once, the response comes on the stream.")
    key = _parameter(headers.IDEMPOTENCY_KEY, "header", "The same key and body again give the first outcome again.")
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
                    headers.CONNECTION_ID: _header("The new connection, in the answer to the first initialize."),
                    headers.LAST_EVENT: _header("The last event meant for this connection before the answer."),
                },
            },
            "202": {
                "description": "A notification or an answer was taken, or a request was taken asynchronously.",
                "headers": {headers.PREFERENCE_APPLIED: _header("`respond-async` when it was asked for.")},
            },
            **_problems((*ALWAYS, *_POST_PROBLEMS), refs),
        },
    }
    get: Object = {
        "operationId": "get_rpc",
        "summary": "The stream of envelopes to the client, as server-sent events.",
        "parameters": [*required, last_event],
        "responses": {
            "200": {
                "description": "Events, each an envelope with its position as `id`.",
                "content": {"text/event-stream": {"schema": {"type": "string"}}},
            },
            **_problems((*ALWAYS, MissingConnection, UnknownConnection, NotAcceptable), refs),
        },
    }
    delete: Object = {
        "operationId": "delete_rpc",
        "summary": "Close the connection; never the session, never the agent.",
        "parameters": required,
        "responses": {
            "204": {"description": "The connection is closed, or was closed before."},
            **_problems((*ALWAYS, MissingConnection), refs),
        },
    }
    return {"post": post, "get": get, "delete": delete}


def _acp(refs: dict[type, Object]) -> Object:
    """Describe the transport of ACP's own SDKs."""
    envelope = {"application/json": {"schema": {"anyOf": [refs[each] for each in _ENVELOPES]}}}
    response = {"application/json": {"schema": {"anyOf": [refs[RpcSuccess], refs[RpcFailure]]}}}
    connection = _parameter(headers.ACP_CONNECTION_ID, "header", "The connection; only the first initialize has none.")
    required = connection | {"required": True}
    session = _parameter(headers.ACP_SESSION_ID, "header", "The session that this is about; may be missing.")
    agent = _parameter("agent", "query", "The agent of a client that names none; `/acp/{agent}` is the same.")
    last_event = _parameter(headers.RESUME_AFTER, "header", "Go on after this event; else where the last stream ended.")
    identity = {headers.ACP_CONNECTION_ID: _header("The new connection.")}
    post: Object = {
        "operationId": "post_acp",
        "summary": "One JSON-RPC envelope from a client of ACP's own transport.",
        "parameters": [connection, session, agent],
        "requestBody": {"required": True, "content": envelope},
        "responses": {
            "200": {"description": "The response to initialize.", "content": response, "headers": identity},
            "202": {"description": "The envelope was taken. The response to a request comes on a stream."},
            **_problems((*ALWAYS, *_ACP_PROBLEMS), refs),
        },
    }
    get: Object = {
        "operationId": "get_acp",
        "summary": "A stream of the connection or of one session; with an upgrade, a WebSocket for everything.",
        "parameters": [required, session, last_event],
        "responses": {
            "200": {
                "description": "Events, each an envelope with its position as `id`.",
                "content": {"text/event-stream": {"schema": {"type": "string"}}},
            },
            **_problems((*ALWAYS, MissingConnection, UnknownConnection, NotAcceptable, TooMany), refs),
        },
    }
    delete: Object = {
        "operationId": "delete_acp",
        "summary": "Close the connection; never the session, never the agent.",
        "parameters": [required],
        "responses": {
            "202": {"description": "The connection is closed, or was closed before."},
            **_problems((*ALWAYS, MissingConnection), refs),
        },
    }
    return {"post": post, "get": get, "delete": delete}


def _parameter(name: str, place: str, text: str, schema: Object = _TEXT) -> Object:
    return {"name": name, "in": place, "description": text, "schema": schema}


def _header(text: str) -> Object:
    return {"description": text, "schema": {"type": "string"}}


def _problems(errors: Sequence[type[SandboxAgentError]], refs: dict[type, Object]) -> Object:
    """Return one response for each status. `x-problems` has the slugs that may come with it."""
    found: dict[int, dict[str, str]] = {}
    for error in errors:
        found.setdefault(error.status, {})[error.slug] = error.title
    content = {"application/problem+json": {"schema": refs[Problem]}}
    return {
        str(status): {"description": ", or ".join(titles.values()), "content": content, "x-problems": list(titles)}
        for status, titles in sorted(found.items())
    }


# --- descriptions of fields -------------------------------------------------------------------------------------------


def _describe(components: dict[str, Object], types: Iterable[type]) -> None:
    """Copy each field's description, the string below it, into its schema."""
    for each in {found for type in types for found in find_structs(msgspec.inspect.type_info(type))}:
        properties = cast("dict[str, Object]", components[each.__name__]["properties"])
        for name, text in read_meanings(each).items():
            properties[name]["description"] = text


def find_structs(info: object) -> Iterable[type]:
    """Yield all types with fields in a type, including the type itself."""
    match info:
        case msgspec.inspect.StructType() | msgspec.inspect.DataclassType():
            yield info.cls
            for field in info.fields:
                yield from find_structs(field.type)
        case msgspec.inspect.ListType():
            yield from find_structs(info.item_type)
        case msgspec.inspect.UnionType():
            for one in info.types:
                yield from find_structs(one)
        case _:
            pass


def read_meanings(type: type) -> dict[str, str]:
    """Return the description of each field, by its name in JSON."""
    said: dict[str, str] = {}
    for each in reversed(type.__mro__):
        said |= _strings_below(each.__module__).get(each.__name__, {})
    if not issubclass(type, msgspec.Struct):
        return said
    return {each.encode_name: said[each.name] for each in msgspec.structs.fields(type) if each.name in said}


@cache
def _strings_below(module: str) -> dict[str, dict[str, str]]:
    """Return, for every class in a module, the string below each of its fields. Python itself does not keep them."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError):
        return {}  # Installed without its source, or built in.
    return {node.name: dict(_read_field_docs(node)) for node in tree.body if isinstance(node, ast.ClassDef)}


def _read_field_docs(node: ast.ClassDef) -> Iterable[tuple[str, str]]:
    for above, below in pairwise(node.body):
        match above, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, text
            case _:
                pass
