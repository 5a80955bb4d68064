"""Routes that are gone (contract, sections 1 and 12): each names what took its place, and nothing else does."""

import pytest

from sandboxagent.server.http.routes import find_replacement

GONE = [
    ("POST", "/v1/sessions/abc", "session/new"),
    ("POST", "/v1/sessions/abc/messages", "session/prompt"),
    ("POST", "/v1/sessions/abc/messages/stream", "session/prompt"),
    ("GET", "/v1/sessions/abc/events", "_sandboxagent/session/events"),
    ("GET", "/v1/sessions/abc/events/sse", "_sandboxagent/session/events"),
    ("POST", "/v1/sessions/abc/terminate", "_sandboxagent/session/terminate"),
    ("POST", "/v1/sessions/abc/permissions/p1/reply", "JSON-RPC response"),
    ("POST", "/v1/sessions/abc/questions/q1/reply", "JSON-RPC response"),
    ("POST", "/v1/sessions/abc/questions/q1/reject", "JSON-RPC response"),
    ("GET", "/v1/agents/claude/models", "_sandboxagent/session/list_models"),
    ("GET", "/v1/agents/claude/modes", "GET /v1/agents/{agent}?models=true"),
    ("POST", "/v1/acp/main", "POST /v1/rpc"),
    ("GET", "/v1/acp/main", "GET /v1/rpc"),
    ("DELETE", "/v1/acp/main", "DELETE /v1/rpc"),
    ("GET", "/v1/acp", "GET /v1/sessions"),
    ("PUT", "/v1/config/mcp", "session/new"),
    ("GET", "/v1/config/skills", "PUT /v1/fs/file"),
]


@pytest.mark.parametrize(("method", "path", "named"), GONE)
def test_a_legacy_route_names_what_took_its_place(method: str, path: str, named: str) -> None:
    found = find_replacement(method, path)

    assert found is not None
    assert named in found


@pytest.mark.parametrize(("method", "path", "_"), GONE)
def test_another_method_of_its_path_was_never_there(method: str, path: str, _: str) -> None:
    assert find_replacement("PATCH", path) is None
    assert find_replacement("HEAD", path) is None


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/sessions"),
        ("POST", "/v1/sessions"),
        ("POST", "/v1/sessions/"),
        ("POST", "/v1/sessions//messages"),
        ("POST", "/v1/sessions/abc/messages/"),
        ("POST", "/v1/sessions/abc/messages/streams"),
        ("POST", "/v1/sessions/abc/questions/q1/accept"),
        ("POST", "/v1/sessions/abc/permissions/reply"),
        ("GET", "/v1/agents/claude/models/x"),
        ("GET", "/v2/agents/claude/models"),
        ("GET", "/x/v1/agents/claude/models"),
    ],
)
def test_a_route_that_never_was_has_no_replacement(method: str, path: str) -> None:
    assert find_replacement(method, path) is None
