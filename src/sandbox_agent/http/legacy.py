"""Routes that are gone: 410, with what took their place. Everything under /v1 that is not live ends here."""

import re

_PROMPT = "POST /v1/rpc session/prompt"
_EVENTS = "GET /v1/rpc, and POST /v1/rpc _sandboxagent/session/events for the past"
_ANSWER = "POST /v1/rpc with the JSON-RPC response to the agent's request"

_ROUTES = [
    ("POST", r"/v1/sessions/[^/]+", "POST /v1/rpc session/new"),
    ("POST", r"/v1/sessions/[^/]+/messages(/stream)?", _PROMPT),
    ("GET", r"/v1/sessions/[^/]+/events(/sse)?", _EVENTS),
    ("POST", r"/v1/sessions/[^/]+/terminate", "POST /v1/rpc _sandboxagent/session/terminate"),
    ("POST", r"/v1/sessions/[^/]+/permissions/[^/]+/reply", _ANSWER),
    ("POST", r"/v1/sessions/[^/]+/questions/[^/]+/(reply|reject)", _ANSWER),
    ("GET", r"/v1/agents/[^/]+/models", "GET /v1/agents/{agent}, or POST /v1/rpc _sandboxagent/session/list_models"),
    ("GET", r"/v1/agents/[^/]+/modes", "GET /v1/agents/{agent}"),
]
_COMPILED = [(method, re.compile(pattern), replacement) for method, pattern, replacement in _ROUTES]


def replacement(method: str, path: str) -> str | None:
    """What took the place of a legacy route; None for a route that never was."""
    for legacy_method, pattern, took_its_place in _COMPILED:
        if method == legacy_method and pattern.fullmatch(path):
            return took_its_place
    return None
