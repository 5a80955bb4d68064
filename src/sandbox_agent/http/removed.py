"""Routes that are gone, of an earlier API and of the other product of this name, and what took the place of each."""

import re
from typing import NamedTuple


class RemovedRoute(NamedTuple):
    """One method of a route that is gone."""

    method: str
    path: str
    """With names in braces for what differs."""
    replacement: str


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
_PATTERNS = [(each, re.compile(re.sub(r"{\w+}", "[^/]+", each.path))) for each in REMOVED]


def find_replacement(method: str, path: str) -> str | None:
    """What took the place of a route that is gone; None for one that never was."""
    found = (each.replacement for each, pattern in _PATTERNS if each.method == method and pattern.fullmatch(path))
    return next(found, None)
