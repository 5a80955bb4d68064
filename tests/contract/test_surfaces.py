"""Section 1: the routes there are, the routes that are gone, and how every error looks."""

import re

import httpx
import pytest

from tests.support.client import Client, run
from tests.support.problems import problem
from tests.support.running import BOUND, Server
from tests.support.wire import Wire

ONE_SERVER = pytest.mark.parametrize("server", ["no-persist"], indirect=True)
"""Routes are the same with both ways of keeping the log."""

LEGACY = [
    ("POST", "/v1/sessions/abc", "session/new"),
    ("POST", "/v1/sessions/abc/messages", "session/prompt"),
    ("POST", "/v1/sessions/abc/messages/stream", "session/prompt"),
    ("GET", "/v1/sessions/abc/events", "_sandboxagent/session/events"),
    ("GET", "/v1/sessions/abc/events/sse", "GET /v1/rpc"),
    ("POST", "/v1/sessions/abc/terminate", "_sandboxagent/session/terminate"),
    ("POST", "/v1/sessions/abc/permissions/p1/reply", "/v1/rpc"),
    ("POST", "/v1/sessions/abc/questions/q1/reply", "/v1/rpc"),
    ("POST", "/v1/sessions/abc/questions/q1/reject", "/v1/rpc"),
    ("GET", "/v1/agents/mock/models", "GET /v1/agents/{agent}"),
    ("GET", "/v1/agents/mock/modes", "GET /v1/agents/{agent}"),
]
FILE_ROUTES = [
    ("GET", "/v1/fs/file"),
    ("PUT", "/v1/fs/file"),
    ("POST", "/v1/fs/upload-batch"),
    ("GET", "/v1/fs/entries"),
    ("GET", "/v1/fs/stat"),
    ("POST", "/v1/fs/mkdir"),
    ("POST", "/v1/fs/move"),
    ("DELETE", "/v1/fs/entry"),
    ("GET", "/v1/fs/archive"),
    ("GET", "/v1/fs/search"),
    ("GET", "/v1/fs/watch"),
]
LIVE = [
    ("/v1/rpc", {"GET", "POST", "DELETE"}),
    ("/v1/health", {"GET"}),
    ("/v1/agents", {"GET"}),
    ("/v1/agents/{agent}", {"GET"}),
    ("/v1/agents/{agent}/stderr", {"GET"}),
    ("/v1/agents/{agent}/install", {"POST"}),
    ("/v1/sessions", {"GET"}),
    ("/v1/sessions/{id}", {"GET"}),
]


def ask(server: Server, method: str, path: str, **headers: str) -> httpx.Response:
    """One request with the server's token."""
    with httpx.Client(base_url=server.url, trust_env=False, verify=False, timeout=BOUND) as http:
        return http.request(method, path, headers={"Authorization": f"Bearer {server.token}", **headers})


@pytest.mark.requirement("1.health")
def test_health_says_status_version_uptime_and_every_agent(server: Server) -> None:
    response = ask(server, "GET", "/v1/health")

    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    health = response.json()
    assert set(health) == {"status", "version", "uptimeMs", "agents"}
    assert health["status"] == "ok"
    assert re.match(r"\d+\.\d+", health["version"])
    assert isinstance(health["uptimeMs"], int)
    assert all(set(agent) == {"agent", "installed", "running"} for agent in health["agents"])
    agents = {agent["agent"]: agent for agent in health["agents"]}
    assert agents.keys() >= {
        "mock",
        "claude",
        "codex",
        "opencode",
        "gemini",
        "qwen",
        "copilot",
        "pi",
        "amp",
        "scripted",
    }
    assert agents["mock"]["installed"] is True


@pytest.mark.requirement("1.health")
def test_health_says_that_an_agent_runs_once_it_was_used() -> None:
    async def main(server: Server) -> tuple[bool, bool]:
        before = running(ask(server, "GET", "/v1/health"))
        async with Client(server):
            return before, running(ask(server, "GET", "/v1/health"))

    def running(response: httpx.Response) -> bool:
        return next(each["running"] for each in response.json()["agents"] if each["agent"] == "scripted")

    with Server("--no-persist") as server:
        assert run(main(server)) == (False, True)


@pytest.mark.requirement("1.health")
def test_health_can_be_read_by_a_checker_that_speaks_http_1_0(server: Server) -> None:
    with Wire(server) as wire:
        wire.send(wire.health().replace(b"HTTP/1.1", b"HTTP/1.0"))
        response = wire.response()
        assert "transfer-encoding" not in response.headers
        assert response.json()["status"] == "ok"
        assert wire.hung_up()


@pytest.mark.requirement("1.agents")
def test_agents_are_listed_and_shown_one_by_one(server: Server) -> None:
    listed = ask(server, "GET", "/v1/agents")
    one = ask(server, "GET", "/v1/agents/scripted")

    assert (listed.status_code, one.status_code) == (200, 200)
    found = next(agent for agent in listed.json()["agents"] if agent["id"] == "scripted")
    assert one.json()["id"] == found["id"] == "scripted"
    assert one.json().keys() == found.keys()


@pytest.mark.requirement("1.agents")
def test_an_unknown_agent_is_a_404_that_lists_the_known_ones(server: Server) -> None:
    document = problem(ask(server, "GET", "/v1/agents/nobody"), 404, "unknown-agent")

    assert document["agent"] == "nobody"
    assert "scripted" in document["known"]


@pytest.mark.requirement("1.install")
def test_installing_what_is_installed_says_so(server: Server) -> None:
    response = ask(server, "POST", "/v1/agents/mock/install")

    assert response.status_code == 200
    assert response.json()["agent"] == "mock"
    assert response.json()["alreadyInstalled"] is True


@pytest.mark.requirement("1.install")
def test_installing_an_unknown_agent_is_a_404(server: Server) -> None:
    assert problem(ask(server, "POST", "/v1/agents/nobody/install"), 404, "unknown-agent")["agent"] == "nobody"


@pytest.mark.requirement("1.sessions")
def test_sessions_are_listed_and_shown_without_a_connection(server: Server) -> None:
    async def main() -> str:
        async with Client(server) as client:
            return await client.new_session()

    session = run(main())

    listed = ask(server, "GET", "/v1/sessions")
    one = ask(server, "GET", f"/v1/sessions/{session}")
    assert (listed.status_code, one.status_code) == (200, 200)
    assert session in [each["sessionId"] for each in listed.json()["sessions"]]
    assert one.json()["sessionId"] == session


@pytest.mark.requirement("1.sessions")
def test_an_unknown_session_is_a_404(server: Server) -> None:
    document = problem(ask(server, "GET", "/v1/sessions/nowhere"), 404, "session-not-found")

    assert document["sessionId"] == "nowhere"


@pytest.mark.requirement("1.files")
@pytest.mark.parametrize(("method", "path"), FILE_ROUTES)
@ONE_SERVER
def test_a_file_route_that_is_asked_for_a_session_that_is_not_there_says_so(
    server: Server, method: str, path: str
) -> None:
    headers = {"Content-Type": "application/json" if path.endswith("move") else "application/x-tar"}
    with httpx.Client(base_url=server.url, trust_env=False, verify=False, timeout=BOUND) as http:
        response = http.request(
            method,
            f"{path}?path=x&name=x&sessionId=nobody",
            content=b'{"from": "x", "to": "y"}',
            headers={"Authorization": f"Bearer {server.token}", **headers},
        )
    document = problem(response, 404, "session-not-found")

    assert document["sessionId"] == "nobody"


@pytest.mark.requirement("1.ui")
@pytest.mark.parametrize("path", ["/ui/", "/ui/sessions/a%2Fb", "/ui/agents", "/ui/embed/s-1", "/ui/../ui/x", "/ui"])
def test_every_path_of_the_inspector_is_its_page(server: Server, path: str) -> None:
    with httpx.Client(base_url=server.url, trust_env=False, verify=False, follow_redirects=True, timeout=BOUND) as http:
        response = http.get(path)

    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/html")
    assert response.headers["cache-control"] == "no-store"
    policy = response.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert "default-src 'self'; img-src 'self' data: blob:; connect-src 'self'" in policy
    assert "<title>" in response.text
    assert not re.search(r"(src|href)=.(https?:)?//", response.text)


@pytest.mark.requirement("1.ui-files")
def test_the_files_of_the_inspector_are_cached_for_ever_by_their_names(server: Server) -> None:
    with httpx.Client(base_url=server.url, trust_env=False, verify=False, timeout=BOUND) as http:
        page = http.get("/ui/").text
        assert "./dev inspector" not in page, "the Inspector is not built; ./dev inspector does that"
        (script,) = re.findall(r'src="(/ui/assets/[^"]+[.]js)"', page)
        packed = http.get(script)
        plain = http.get(script, headers={"Accept-Encoding": "identity"})
        missing = http.get(script.replace(".js", "x.js"))
        outside = http.get("/ui/assets/..%2f..%2fui.py")

    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert packed.text == plain.text
    assert packed.headers["content-type"].startswith("text/javascript")
    assert packed.headers["cache-control"] == "public, max-age=31536000, immutable"
    problem(missing, 404, "not-found")
    assert "import" not in outside.text or outside.headers["content-type"].startswith("text/html")


@pytest.mark.requirement("1.openapi")
def test_openapi_documents_every_live_route(server: Server) -> None:
    response = ask(server, "GET", "/openapi.json")

    assert response.status_code == 200
    document = response.json()
    assert document["openapi"].startswith("3.1")
    documented = {
        path: {method.upper() for method, operation in item.items() if not operation.get("deprecated")}
        for path, item in document["paths"].items()
    }
    assert {path: documented.get(path) for path, _ in LIVE} == dict(LIVE)


@pytest.mark.requirement("1.openapi")
def test_openapi_describes_every_answer_by_a_schema_that_is_there(server: Server) -> None:
    text = ask(server, "GET", "/openapi.json").text
    schemas = ask(server, "GET", "/openapi.json").json()["components"]["schemas"]

    named = set(re.findall(r'"#/components/schemas/([^"]+)"', text))
    assert {"HealthView", "AgentsView", "SessionsView", "Problem"} <= named
    assert named <= schemas.keys()


@pytest.mark.requirement("1.openapi")
def test_openapi_documents_the_headers_of_a_post(server: Server) -> None:
    post = ask(server, "GET", "/openapi.json").json()["paths"]["/v1/rpc"]["post"]

    headers = {parameter["name"] for parameter in post["parameters"] if parameter["in"] == "header"}
    assert {"X-ACP-Connection-Id", "Prefer", "Idempotency-Key"} <= headers
    assert {"200", "202", "400", "404", "406", "409", "413", "415", "504"} <= post["responses"].keys()


@pytest.mark.requirement("1.removed")
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/nothing"),
        ("POST", "/v1/nothing/at/all"),
        ("PUT", "/v1/nothing"),
        ("DELETE", "/v1/nothing"),
        ("GET", "/v1/"),
        ("GET", "/v1/rpc/"),
        ("GET", "/v1/sessions/abc/messages"),
        ("GET", "/v1/fs"),
        ("GET", "/v1/RPC"),
        ("GET", "/v1//rpc"),
    ],
)
@ONE_SERVER
def test_every_other_v1_route_is_gone(server: Server, method: str, path: str) -> None:
    document = problem(ask(server, method, path), 410, "removed")

    assert document["detail"] == "v1 API removed; use /v1"
    assert "replacement" not in document


@pytest.mark.requirement("1.legacy-replacement", "1.legacy-methods")
@pytest.mark.parametrize(("method", "path", "replacement"), LEGACY)
@ONE_SERVER
def test_a_legacy_route_names_what_took_its_place(server: Server, method: str, path: str, replacement: str) -> None:
    document = problem(ask(server, method, path), 410, "removed")

    assert document["detail"] == "v1 API removed; use /v1"
    assert replacement in document["replacement"]


@pytest.mark.requirement("1.removed")
def test_a_removed_route_is_not_shown_without_a_token(server: Server) -> None:
    with httpx.Client(base_url=server.url, trust_env=False, verify=False, timeout=BOUND) as http:
        problem(http.get("/v1/nothing"), 401, "unauthorized")


@pytest.mark.requirement("1.opencode")
@pytest.mark.parametrize("path", ["/opencode", "/opencode/", "/opencode/nothing", "/opencode/api/session"])
@ONE_SERVER
def test_what_the_opencode_api_does_not_have_is_a_404_in_json(server: Server, path: str) -> None:
    response = ask(server, "GET", path)

    assert response.status_code == 404
    assert response.headers["content-type"] == "application/json"
    assert response.json()["name"] == "NotFoundError"


@pytest.mark.requirement("1.opencode")
@pytest.mark.parametrize("path", ["/opencode/global/health", "/global/health"])
@ONE_SERVER
def test_the_opencode_api_tells_its_health_at_the_root_too(server: Server, path: str) -> None:
    assert ask(server, "GET", path).json()["healthy"] is True


@pytest.mark.requirement("1.wrong-method")
@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/rpc", {"GET", "POST", "DELETE"}),
        ("PATCH", "/v1/rpc", {"GET", "POST", "DELETE"}),
        ("OPTIONS", "/v1/rpc", {"GET", "POST", "DELETE"}),
        ("POST", "/v1/health", {"GET"}),
        ("DELETE", "/v1/agents", {"GET"}),
        ("PATCH", "/v1/agents/mock", {"GET"}),
        ("GET", "/v1/agents/mock/install", {"POST"}),
        ("POST", "/v1/sessions", {"GET"}),
        ("DELETE", "/v1/sessions/abc", {"GET"}),
        ("DELETE", "/v1/fs/file", {"GET", "PUT"}),
        ("GET", "/v1/fs/mkdir", {"POST"}),
        ("GET", "/v1/fs/entry", {"DELETE"}),
        ("POST", "/ui/", {"GET"}),
        ("POST", "/openapi.json", {"GET"}),
    ],
)
@ONE_SERVER
def test_a_wrong_method_on_a_live_route_is_refused_with_those_it_takes(
    server: Server, method: str, path: str, allowed: set[str]
) -> None:
    response = ask(server, method, path)

    problem(response, 405, "method-not-allowed")
    assert set(response.headers["allow"].split(", ")) - {"HEAD"} == allowed


@pytest.mark.requirement("1.wrong-method")
def test_head_of_the_stream_is_refused_without_opening_one(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            session = await client.new_session()
            async with client.stream() as stream:
                response = await client.http.head("/v1/rpc", headers=client.headers(Accept="text/event-stream"))
                await client.prompt(session, "still here")
                await stream.turn_ended()

        assert response.status_code == 405
        assert set(response.headers["allow"].split(", ")) - {"HEAD"} == {"GET", "POST", "DELETE"}
        assert response.content == b""

    run(main())


@pytest.mark.requirement("1.problem-documents")
@pytest.mark.parametrize("path", ["/nothing", "/v2/rpc", "/opencodex", "/favicon.ico"])
@ONE_SERVER
def test_a_route_outside_v1_that_does_not_exist_is_a_404_problem(server: Server, path: str) -> None:
    assert problem(ask(server, "GET", path), 404, "not-found")["path"] == path


@pytest.mark.requirement("1.problem-documents")
@pytest.mark.parametrize("accept", ["text/html", "application/xml", "text/event-stream"])
@ONE_SERVER
def test_a_problem_is_a_problem_document_whatever_is_accepted(server: Server, accept: str) -> None:
    problem(ask(server, "GET", "/v1/nothing", Accept=accept), 410)


@pytest.mark.requirement("1.problem-documents")
@pytest.mark.parametrize("path", ["/v1/sessions?cursor=nonsense", "/v1/sessions?cursor=%00"])
def test_a_wrong_parameter_is_a_400_problem(server: Server, path: str) -> None:
    problem(ask(server, "GET", path), 400)


@pytest.mark.requirement("1.method-failure-inside-200")
def test_a_failure_of_a_method_is_a_jsonrpc_error_inside_200(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            body = {"jsonrpc": "2.0", "id": 7, "method": "x/error", "params": {"code": -32050, "message": "no"}}
            response = await client.post(body)

        assert response.status_code == 200
        assert response.headers["content-type"] == "application/json"
        assert response.json() == {"jsonrpc": "2.0", "id": 7, "error": {"code": -32050, "message": "no"}}

    run(main())
