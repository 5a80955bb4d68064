"""Contract, section 10: who may call, decided before a body is read; and that the token stays where it belongs."""

import json
import socket
from collections.abc import Generator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.bytewise import Reply, ask, exchange, read_reply
from tests.support.client import META, NO_CERTIFICATES, Client, run
from tests.support.running import BOUND, TOKEN, Server, scripted
from tests.support.saying import said

SECRET = "s3cret-Token_that.nobody~else-has"
APP = "https://app.example"
ROUTES = [
    ("POST", "/v1/rpc"),
    ("GET", "/v1/rpc"),
    ("DELETE", "/v1/rpc"),
    ("PATCH", "/v1/rpc"),
    ("OPTIONS", "/v1/rpc"),
    ("GET", "/v1/rpc/"),
    ("GET", "/v1/health"),
    ("HEAD", "/v1/health"),
    ("GET", "/v1/agents"),
    ("GET", "/v1/agents/mock"),
    ("GET", "/v1/agents/nobody"),
    ("POST", "/v1/agents/mock/install"),
    ("GET", "/v1/sessions"),
    ("GET", "/v1/sessions/nothing"),
    ("GET", "/v1/fs/file?path=/etc/passwd"),
    ("PUT", "/v1/fs/file?path=/tmp/x"),
    ("POST", "/v1/fs/upload-batch"),
    ("GET", "/v1/fs/entries"),
    ("GET", "/v1/fs/stat"),
    ("POST", "/v1/fs/mkdir"),
    ("POST", "/v1/fs/move"),
    ("DELETE", "/v1/fs/entry"),
    ("POST", "/v1/sessions/x/messages"),
    ("GET", "/v1/agents/mock/models"),
    ("GET", "/v1/unknown"),
    ("GET", "/v1/"),
    ("PROPFIND", "/v1/agents"),
    ("GET", "/v1%2Fagents"),
    ("GET", "/%761/agents"),
    ("GET", "/v1/../v1/agents"),
    ("GET", "http://localhost/v1/agents"),
]


@pytest.fixture(scope="module")
def guarded() -> Generator[Server]:
    """A server that lets one more host and one origin in."""
    flags = ("--no-persist", "--allow-host", "box.example", "--allow-host", "192.0.2.7", "--cors-origin", APP)
    with Server(*flags) as running:
        yield running


def is_unauthorized(reply: Reply) -> bool:
    return (
        reply.status == 401
        and reply.headers["www-authenticate"].startswith("Bearer")
        and reply.problem["type"] == "urn:sandbox-agent:error:unauthorized"
        and reply.problem["status"] == 401
    )


# --- the token --------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("10.bearer-everywhere")
@pytest.mark.requirement("10.unauthorized")
@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_no_route_answers_without_the_token(server: Server, method: str, path: str) -> None:
    reply = ask(server, path, method=method)

    assert reply.status == 401, reply.head
    assert reply.headers["www-authenticate"].startswith("Bearer")
    if method != "HEAD":
        assert is_unauthorized(reply)


@pytest.mark.requirement("10.bearer-everywhere")
def test_no_rpc_method_is_carried_out_without_the_token(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            session = await client.new_session()
            async with Client(server) as another:
                another.id = None
                greeting = await another.initialize()
            ours = greeting["result"]["agentCapabilities"]["_meta"][META]["extensions"]["methods"]
            standard = ["initialize", "session/new", "session/load", "session/prompt", "session/cancel", "session/list"]
            assert len(ours) > 5
            async with httpx.AsyncClient(
                base_url=server.url, trust_env=False, timeout=BOUND, verify=NO_CERTIFICATES
            ) as stranger:
                for method in [*standard, *ours, "x/echo"]:
                    params = {"sessionId": session, "prompt": [], "_meta": {META: {"agent": "scripted"}}}
                    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
                    refused = await stranger.post("/v1/rpc", json=body, headers=client.headers())
                    assert refused.status_code == 401, method
            view = (await client.http.get(f"/v1/sessions/{session}")).json()
            assert (view["ended"], view["title"], view["running"]) == (False, None, False)
            received = (await client.result("x/received"))["lines"]
            assert not [line for line in received if "x/echo" in line and session in line]

    run(main())


@pytest.mark.requirement("10.before-the-body")
@pytest.mark.parametrize("extra", [["Expect: 100-continue"], []])
def test_a_client_that_may_not_call_is_refused_before_its_body_is_read(guarded: Server, extra: list[str]) -> None:
    announced = ["Content-Type: application/json", "Content-Length: 33000000", *extra]

    stranger = ask(guarded, "/v1/rpc", *announced, method="POST")
    rebound = ask(guarded, "/v1/rpc", *announced, method="POST", host="evil.example", token=TOKEN)
    page = ask(guarded, "/v1/rpc", *announced, "Origin: https://evil.example", method="POST", token=TOKEN)

    assert [reply.status for reply in (stranger, rebound, page)] == [401, 421, 403]


@pytest.mark.requirement("10.before-the-body")
def test_a_chunked_body_without_the_token_is_not_waited_for(guarded: Server) -> None:
    reply = ask(guarded, "/v1/rpc", "Content-Type: application/json", "Transfer-Encoding: chunked", method="POST")

    assert is_unauthorized(reply)


@pytest.mark.requirement("10.bearer-everywhere")
@pytest.mark.parametrize(
    "credentials",
    [
        "",
        "Bearer",
        "Bearer ",
        f"Basic {TOKEN}",
        f"Token {TOKEN}",
        TOKEN,
        f"Bearer{TOKEN}",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN} {TOKEN}",
        f"Bearer {TOKEN},{TOKEN}",
        f"Bearer {TOKEN.upper()}",
        f'Bearer "{TOKEN}"',
        f"Bearer Bearer {TOKEN}",
        f"Bearer {TOKEN}é",
        f"Bearer {TOKEN}".encode() + b"\xff\xfe",
        b"Bearer \xe9\x80\x80",
        b"Bearer \xc3\xa9",
    ],
)
def test_only_the_whole_token_as_bearer_counts(guarded: Server, credentials: str | bytes) -> None:
    value = credentials.encode() if isinstance(credentials, str) else credentials

    assert is_unauthorized(ask(guarded, "/v1/agents", b"Authorization: " + value))


@pytest.mark.requirement("10.bearer-everywhere")
@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_scheme_is_known_in_any_case(guarded: Server, scheme: str) -> None:
    assert ask(guarded, "/v1/agents", f"Authorization: {scheme} {TOKEN}").status == 200


@pytest.mark.requirement("10.bearer-everywhere")
def test_a_token_in_the_query_or_in_another_header_opens_nothing(guarded: Server) -> None:
    query = ask(guarded, f"/v1/agents?token={TOKEN}&access_token={TOKEN}")
    headers = ask(guarded, "/v1/agents", f"X-Authorization: Bearer {TOKEN}", f"Cookie: token={TOKEN}")

    assert is_unauthorized(query)
    assert is_unauthorized(headers)


@pytest.mark.requirement("10.bearer-everywhere")
def test_two_authorization_headers_are_refused(guarded: Server) -> None:
    wrong = "Authorization: Bearer wrong"

    assert ask(guarded, "/v1/agents", wrong, token=TOKEN).status in (400, 401)
    assert ask(guarded, "/v1/agents", f"Authorization: Bearer {TOKEN}", token="wrong").status in (400, 401)


@pytest.mark.requirement("10.bearer-everywhere")
def test_what_looks_like_a_preflight_reaches_no_handler_without_the_token(guarded: Server) -> None:
    asked = "Access-Control-Request-Method: POST"

    for path in ("/v1/rpc", "/v1/agents", "/v1/unknown"):
        assert is_unauthorized(ask(guarded, path, asked, method="OPTIONS"))
        assert is_unauthorized(ask(guarded, path, asked, "Origin: http://localhost", method="OPTIONS"))


@pytest.mark.requirement("10.public-health")
def test_health_and_nothing_else_is_opened_by_public_health() -> None:
    with Server("--no-persist", "--public-health") as server:
        assert ask(server, "/v1/health").status == 200
        assert ask(server, "/v1/health", "Authorization: Bearer wrong").status == 200
        assert ask(server, "/v1/health", host="evil.example").status == 421
        for path in ("/v1/agents", "/v1/health/", "/v1/health/../agents", "/v1/sessions"):
            assert is_unauthorized(ask(server, path))


@pytest.mark.requirement("10.page-without-token")
def test_the_page_and_the_api_document_load_without_the_token(server: Server) -> None:
    page = ask(server, "/ui/")

    assert page.status == 200
    assert page.headers["content-type"].startswith("text/html")
    assert ask(server, "/openapi.json").status == 200


@pytest.mark.requirement("10.frames")
def test_only_pages_of_a_frame_origin_may_show_an_embedded_session() -> None:
    with Server("--frame-origin", "https://app.example") as server:
        embedded = ask(server, "/ui/embed/s-1").headers["content-security-policy"]
        others = [ask(server, path).headers["content-security-policy"] for path in ("/ui/", "/ui/sessions/s-1")]

    assert embedded.endswith("frame-ancestors https://app.example")
    assert all(policy.endswith("frame-ancestors 'none'") for policy in others)


# --- Host -------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("10.host")
@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "LocalHost", "localhost:1", "localhost:65535", "localhost."),
        *("127.0.0.1", "127.0.0.1:80", "127.8.9.10:1234", "[::1]", "[::1]:443"),
        *("box.example", "BOX.example:8443", "192.0.2.7", "192.0.2.7:80"),
    ],
)
def test_loopback_and_allowed_hosts_are_answered_with_any_port(guarded: Server, host: str) -> None:
    assert ask(guarded, "/v1/agents", host=host, token=TOKEN).status == 200


@pytest.mark.requirement("10.host")
@pytest.mark.parametrize(
    "host",
    [
        None,
        "",
        "evil.example",
        "evil.example:2468",
        "evil.example.",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "box.example.evil.example",
        "notbox.example",
        "localhost@evil.example",
        "localhost:evil.example",
        "[::1].evil.example",
        "[::1",
        "0.0.0.0",
        "[::]",
        "192.0.2.8",
        "169.254.169.254",
        "2130706433",
        "*",
    ],
)
def test_any_other_host_is_misdirected(guarded: Server, host: str | None) -> None:
    for path in ("/v1/agents", "/ui/", "/openapi.json", "/v1/health", "/opencode/x", "/nothing"):
        reply = ask(guarded, path, host=host, token=TOKEN)

        assert reply.status == 421, reply.head
        assert reply.problem["type"] == "urn:sandbox-agent:error:misdirected"


@pytest.mark.requirement("10.host")
def test_two_host_headers_are_refused(guarded: Server) -> None:
    assert ask(guarded, "/v1/agents", "Host: evil.example", token=TOKEN).status in (400, 421)
    assert ask(guarded, "/v1/agents", "Host: localhost", host="evil.example", token=TOKEN).status in (400, 421)


@pytest.mark.requirement("10.host")
def test_the_bound_host_is_answered_and_a_name_that_resolves_to_it_is_not() -> None:
    with Server("--no-persist", "--host", "127.0.0.9") as server:
        assert urlsplit(server.url).hostname == "127.0.0.9"
        assert ask(server, "/v1/agents", host=server.url.removeprefix("http://"), token=TOKEN).status == 200
        assert ask(server, "/v1/agents", host="rebound.example", token=TOKEN).status == 421


@pytest.mark.requirement("10.host")
def test_bound_to_all_addresses_it_answers_to_the_address_that_was_called() -> None:
    with Server("--no-persist", "--host", "0.0.0.0") as server:
        server.url = server.url.replace("0.0.0.0", "127.0.0.1")
        assert ask(server, "/v1/agents", host="127.0.0.1", token=TOKEN).status == 200
        assert ask(server, "/v1/agents", host="rebound.example", token=TOKEN).status == 421


# --- Origin -----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("10.origin")
@pytest.mark.parametrize("host", ["localhost", "localhost:2468", "127.0.0.1:80", "[::1]:9", "box.example"])
def test_a_page_of_the_same_origin_may_call(guarded: Server, host: str) -> None:
    assert ask(guarded, "/v1/agents", f"Origin: http://{host}", host=host, token=TOKEN).status == 200


@pytest.mark.requirement("10.origin")
@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "",
        "https://evil.example",
        "http://localhost:1",
        "http://localhost.evil.example",
        "https://localhost",
        "http://127.0.0.1",
        "http://app.example",
        "https://app.example:8443",
        "https://app.example.evil.example",
        "https://evil.example/https://app.example",
        "https://app.example, https://evil.example",
        "chrome-extension://abc",
        "file://",
        "*",
    ],
)
def test_a_page_of_another_origin_is_forbidden_even_with_the_token(guarded: Server, origin: str) -> None:
    for path in ("/v1/agents", "/ui/", "/openapi.json"):
        reply = ask(guarded, path, f"Origin: {origin}", token=TOKEN)

        assert reply.status == 403, reply.head
        assert reply.problem["type"] == "urn:sandbox-agent:error:forbidden-origin"
        assert "access-control-allow-origin" not in reply.headers


@pytest.mark.requirement("10.origin")
def test_a_preflight_of_another_origin_is_forbidden(guarded: Server) -> None:
    asked = ("Origin: https://evil.example", "Access-Control-Request-Method: POST")

    reply = ask(guarded, "/v1/rpc", *asked, method="OPTIONS")

    assert reply.status == 403
    assert "access-control-allow-origin" not in reply.headers


@pytest.mark.requirement("10.cors")
def test_a_preflight_of_an_allowed_origin_is_granted_without_the_token(guarded: Server) -> None:
    wanted = ["authorization", "content-type", "x-acp-connection-id", "last-event-id", "prefer", "idempotency-key"]
    for method, path in (("POST", "/v1/rpc"), ("GET", "/v1/rpc"), ("DELETE", "/v1/rpc"), ("GET", "/v1/agents")):
        asked = (f"Access-Control-Request-Method: {method}", f"Access-Control-Request-Headers: {','.join(wanted)}")

        reply = ask(guarded, path, f"Origin: {APP}", *asked, method="OPTIONS")

        assert (reply.status, reply.body) == (204, b"")
        assert reply.headers["access-control-allow-origin"] == APP
        assert method in reply.headers["access-control-allow-methods"].replace(" ", "").split(",")
        allowed = reply.headers["access-control-allow-headers"].lower().replace(" ", "").split(",")
        assert set(wanted) <= set(allowed)
        assert reply.headers["vary"].lower() == "origin"


@pytest.mark.requirement("10.cors")
def test_a_page_of_an_allowed_origin_can_read_the_answer_and_its_headers(guarded: Server) -> None:
    params = {"protocolVersion": 1, "_meta": {META: {"agent": "scripted"}}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).encode()
    headers = (f"Origin: {APP}", "Content-Type: application/json")

    reply = ask(guarded, "/v1/rpc", *headers, method="POST", token=TOKEN, body=body)

    assert reply.status == 200
    assert reply.headers["access-control-allow-origin"] == APP
    exposed = reply.headers["access-control-expose-headers"].lower().replace(" ", "").split(",")
    assert {"x-acp-connection-id", "x-acp-last-event-id", "preference-applied"} <= set(exposed)
    assert "access-control-allow-credentials" not in reply.headers


@pytest.mark.requirement("10.cors")
@pytest.mark.parametrize(("path", "status"), [("/v1/agents", 401), ("/v1/agents/nobody", 404), ("/v1/unknown", 410)])
def test_a_page_of_an_allowed_origin_can_read_errors_too(guarded: Server, path: str, status: int) -> None:
    reply = ask(guarded, path, f"Origin: {APP}", token=None if status == 401 else TOKEN)

    assert reply.status == status
    assert reply.headers["access-control-allow-origin"] == APP
    assert reply.problem["status"] == status


@pytest.mark.requirement("10.origin")
def test_without_a_cors_origin_a_preflight_grants_nothing(server: Server) -> None:
    reply = ask(server, "/v1/rpc", f"Origin: {APP}", "Access-Control-Request-Method: POST", method="OPTIONS")

    assert reply.status == 403
    assert not [name for name in reply.headers if name.startswith("access-control-")]


# --- what is not HTTP at all ------------------------------------------------------------------------------------------


@pytest.mark.requirement("10.before-the-body")
def test_endless_headers_are_refused_before_a_token_is_shown(guarded: Server) -> None:
    address = urlsplit(guarded.url)
    with socket.create_connection((address.hostname, address.port), timeout=BOUND) as link:
        link.sendall(b"GET /v1/agents HTTP/1.1\r\nHost: localhost\r\n" + b"X-Much: " + b"x" * 200_000)
        reply = read_reply(link)

    assert reply.status == 431
    assert reply.problem["status"] == 431


@pytest.mark.requirement("10.before-the-body")
@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 this is TLS\r\n\r\n",
        b"GET /ui/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /ui/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        b"GET /ui/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    ],
)
def test_what_can_be_read_in_two_ways_is_refused(guarded: Server, data: bytes) -> None:
    reply = exchange(guarded, data)

    assert reply.status == 400
    assert reply.problem["status"] == 400


# --- the token stays where it belongs ---------------------------------------------------------------------------------


@pytest.mark.requirement("10.token-in-no-log")
@pytest.mark.parametrize("form", ["text", "json"])
def test_the_token_is_in_no_log_and_in_no_error(form: str, tmp_path: Path) -> None:
    token_file = tmp_path / "given"
    token_file.write_text(SECRET)
    flags = ("--log-level", "debug", "--log-format", form, "--token-file", str(token_file))
    replies: list[str] = []

    async def main(server: Server) -> None:
        async with Client(server) as client:
            session = await client.new_session()
            await client.prompt(session, [["stderr", "a line"], ["say", "hello"]])
            for path in (
                "/v1/agents",
                "/v1/unknown",
                "/v1/sessions/x/messages",
                "/nothing",
                "/v1/rpc",
                "/openapi.json",
            ):
                for method in ("GET", "POST", "DELETE", "OPTIONS"):
                    query = f"?token={SECRET}&access_token={SECRET}"
                    response = await client.http.request(method, path + query)
                    replies.extend([response.text, str(response.headers)])
            await client.prompt(session, [["exit", 3]])
        for line in (f"Authorization: Basic {SECRET}", f"Authorization: Bearer {SECRET}x", f"Cookie: {SECRET}"):
            reply = ask(server, f"/v1/agents?token={SECRET}", line)
            assert reply.status == 401
            replies.extend([reply.head, reply.body.decode()])
        broken = exchange(server, b"GET /v1/agents?token=%b HTTP/9\r\n\r\n" % SECRET.encode())
        replies.extend([broken.head, broken.body.decode()])

    with Server(*flags, token=None, directory=tmp_path / "server") as server:
        server.token = SECRET
        run(main(server))
        # Twice: while it runs, and what it wrote when it ended.
        written = kept(tmp_path / "server")
    written |= kept(tmp_path / "server")

    assert len(replies) > 50
    assert not [reply for reply in replies if SECRET in reply]
    assert any("stderr" in name for name in written)
    assert [name for name, content in written.items() if SECRET.encode() in content] == []


def kept(directory: Path) -> dict[str, bytes]:
    """All files below a directory with their content."""
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.requirement("10.token-in-no-child")
@pytest.mark.parametrize("isolation", ["agent", "session"])
def test_no_child_sees_the_token_in_its_environment_or_command_line(isolation: str) -> None:
    curious = scripted(isolation=isolation) + "\nvariables = ['*']\ncredentials = ['SANDBOX_AGENT_TOKEN']"
    environment = {"SANDBOX_AGENT_TOKEN": SECRET, "COPY_OF_IT": SECRET, "HARMLESS": "seen"}
    extra = {"GIVEN": SECRET, "OTHER": "given"}

    async def main(server: Server) -> None:
        async with Client(server, "curious") as client:
            meta = {"env": extra} if isolation == "session" else {}
            session = await client.new_session(**meta)
            asked = [["environ"], ["env", "SANDBOX_AGENT_TOKEN"], ["env", "COPY_OF_IT"], ["env", "GIVEN"]]
            names, *values = await said(client, session, *asked)
            assert "HARMLESS" in json.loads(names)
            assert "SANDBOX_AGENT_TOKEN" not in json.loads(names)
            assert values == ["null", "null", "null"]
            if isolation == "session":
                assert await said(client, session, ["env", "OTHER"]) == ['"given"']
            agent, child = await said(client, session, ["pid"], ["daemon", {}])
            for file in (f"/proc/{pid}/{name}" for pid in (agent, child) for name in ("environ", "cmdline")):
                content = read(file)
                assert content
                assert SECRET.encode() not in content

    with Server("--no-persist", agents={"curious": curious}, token=None, environment=environment) as server:
        server.token = SECRET
        run(main(server))


def read(path: str) -> bytes:
    return Path(path).read_bytes()


@pytest.mark.requirement("10.token-in-no-child")
def test_a_child_has_no_descriptor_of_the_server(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            session = await client.new_session()
            (agent,) = await said(client, session, ["pid"])
            names = descriptors(agent)
            # 0, 1 and 2, and the pipe that the scripted agent makes for itself.
            assert not [name for number, name in names.items() if name.startswith(("socket:", "/")) and int(number) > 2]
            assert len(names) == 5

    run(main())


def descriptors(pid: str) -> dict[str, str]:
    """What a process has open, by number."""
    return {entry.name: str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()}
