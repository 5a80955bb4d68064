"""Who may call (contract, section 10): decided from a request's head alone. The same over HTTP: test_security.py."""

from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxagent.adapters.opencode.paths import ACCESS
from sandboxagent.protocol.errors import BadRequest, ForbiddenOrigin, Misdirected, SandboxAgentError, Unauthorized
from sandboxagent.server.http.asgi import Scope
from sandboxagent.server.http.auth import Auth

TOKEN = "hush"
APP = "https://app.example"
AUTH = Auth(TOKEN, "127.0.0.1", {"box.example"}, (APP,), public_health=False, accesses=(ACCESS,))
BEARER = ("authorization", f"Bearer {TOKEN}")
HOST = ("host", "localhost")


def request(
    *headers: tuple[str, str | bytes],
    method: str = "GET",
    path: str = "/v1/agents",
    server: str = "127.0.0.1",
    query: str = "",
) -> Scope:
    """A request's head, as the app hands it to the guard."""
    pairs = [(name.encode(), value if isinstance(value, bytes) else value.encode()) for name, value in headers]
    return {
        "type": "http",
        "method": method,
        "scheme": "http",
        "path": path,
        "server": (server, 2468),
        "query_string": query.encode(),
        "headers": pairs,
        "headers_by_name": dict(pairs),
    }


def refusal(scope: Scope, auth: Auth = AUTH) -> type[SandboxAgentError] | None:
    try:
        auth.check(scope)
    except SandboxAgentError as error:
        return type(error)
    return None


def test_a_request_with_host_and_token_passes() -> None:
    assert refusal(request(HOST, BEARER)) is None


@pytest.mark.parametrize("path", ["/v1/rpc", "/v1/health", "/v1/", "/v1/never/was"])
def test_everything_under_v1_needs_the_token(path: str) -> None:
    assert refusal(request(HOST, path=path)) is Unauthorized


@pytest.mark.parametrize("path", ["/", "/ui/", "/openapi.json", "/opencodex", "/v1"])
def test_what_is_not_under_v1_does_not(path: str) -> None:
    assert refusal(request(HOST, path=path)) is None


OPENCODE = ["/opencode", "/opencode/session", "/global/health"]
AS_PASSWORD = b64encode(f"opencode:{TOKEN}".encode())


@pytest.mark.parametrize("path", OPENCODE)
def test_opencodes_programs_show_the_token_as_a_password_too(path: str) -> None:
    assert refusal(request(HOST, path=path)) is Unauthorized
    assert refusal(request(HOST, ("authorization", f"Bearer {TOKEN}"), path=path)) is None
    assert refusal(request(HOST, ("authorization", b"Basic " + AS_PASSWORD), path=path)) is None
    assert refusal(request(HOST, path=path, query=f"auth_token={AS_PASSWORD.decode()}")) is None


@pytest.mark.parametrize("path", ["/v1/agents", "/acp"])
def test_other_paths_do_not_take_the_token_as_a_password(path: str) -> None:
    assert refusal(request(HOST, ("authorization", b"Basic " + AS_PASSWORD), path=path)) is Unauthorized
    assert refusal(request(HOST, path=path, query=f"auth_token={AS_PASSWORD.decode()}")) is Unauthorized


@given(given=st.binary(max_size=40))
def test_no_other_bytes_are_the_password(given: bytes) -> None:
    password = b64encode(b"opencode:" + given)
    wanted = None if given == TOKEN.encode() else Unauthorized

    assert refusal(request(HOST, ("authorization", b"Basic " + password), path="/opencode/x")) is wanted
    for scheme in (b"Basic ", b"basic", b"Digest ", b""):
        broken = request(HOST, ("authorization", scheme + given), path="/opencode/x")
        assert refusal(broken) in (Unauthorized, wanted)


@given(given=st.binary(max_size=40))
def test_no_other_bytes_are_the_token(given: bytes) -> None:
    wanted = None if given.strip() == TOKEN.encode() else Unauthorized

    assert refusal(request(HOST, ("authorization", b"Bearer " + given))) is wanted


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE", "OPTIONS"])
def test_the_token_is_asked_for_whatever_the_method(method: str) -> None:
    assert refusal(request(HOST, method=method)) is Unauthorized


def test_without_a_token_of_its_own_a_server_asks_for_none_but_checks_the_rest() -> None:
    open_guard = Auth(None, "127.0.0.1", (), (), public_health=False)

    assert refusal(request(HOST), open_guard) is None
    assert refusal(request(("host", "evil.example")), open_guard) is Misdirected
    assert refusal(request(HOST, ("origin", "https://evil.example")), open_guard) is ForbiddenOrigin


def test_public_health_opens_that_path_alone() -> None:
    public = Auth(TOKEN, "127.0.0.1", (), (), public_health=True)

    assert refusal(request(HOST, path="/v1/health"), public) is None
    assert refusal(request(HOST, path="/v1/health/x"), public) is Unauthorized
    assert refusal(request(HOST, path="/v1/healthy"), public) is Unauthorized
    assert refusal(request(HOST), public) is Unauthorized


@pytest.mark.parametrize("name", ["host", "authorization", "origin", "x-acp-connection-id", "last-event-id"])
def test_a_header_that_is_there_twice_is_refused_although_both_are_right(name: str) -> None:
    values = {"host": "localhost", "authorization": BEARER[1], "origin": "http://localhost"}
    twice = (name, values.get(name, "1"))

    assert refusal(request(HOST, BEARER, twice, twice)) is BadRequest


def test_other_headers_may_be_there_twice() -> None:
    assert refusal(request(HOST, BEARER, ("x-forwarded-for", "a"), ("x-forwarded-for", "b"))) is None


# --- Host -------------------------------------------------------------------------------------------------------------


@given(
    port=st.integers(0, 65535), host=st.sampled_from(["localhost", "127.0.0.1", "127.9.9.9", "[::1]", "box.example"])
)
def test_a_port_makes_no_difference(port: int, host: str) -> None:
    assert refusal(request(("host", f"{host}:{port}"), BEARER)) is None


@given(
    label=st.from_regex(r"[a-z0-9-]{1,20}", fullmatch=True),
    known=st.sampled_from(["localhost", "127.0.0.1", "box.example"]),
)
def test_a_name_that_only_contains_a_known_one_is_another(label: str, known: str) -> None:
    for host in (f"{known}.{label}.example", f"{label}.{known}", f"{label}{known}", f"{known}@{label}.example"):
        assert refusal(request(("host", host), BEARER)) is Misdirected


@given(host=st.text(st.characters(max_codepoint=255), max_size=30))
def test_no_text_makes_the_guard_stumble(host: str) -> None:
    assert refusal(request(("host", host.encode("latin-1")), BEARER)) in (None, Misdirected)


def test_the_host_is_judged_before_origin_and_token() -> None:
    scope = request(("host", "evil.example"), ("origin", "http://evil.example"))

    assert refusal(scope) is Misdirected


def test_a_wildcard_address_answers_to_the_address_that_was_called() -> None:
    everywhere = Auth(TOKEN, "0.0.0.0", (), (), public_health=False)

    assert refusal(request(("host", "192.0.2.7:80"), BEARER, server="192.0.2.7"), everywhere) is None
    assert refusal(request(("host", "192.0.2.8"), BEARER, server="192.0.2.7"), everywhere) is Misdirected
    assert refusal(request(("host", "rebound.example"), BEARER, server="192.0.2.7"), everywhere) is Misdirected


# --- Origin -----------------------------------------------------------------------------------------------------------


def test_the_same_origin_is_scheme_host_and_port() -> None:
    def from_page(origin: str, host: str) -> type[SandboxAgentError] | None:
        return refusal(request(("host", host), ("origin", origin), BEARER))

    assert from_page("http://localhost:2468", "localhost:2468") is None
    assert from_page("http://LOCALHOST:2468", "localhost:2468") is None
    assert from_page("http://localhost", "localhost:2468") is ForbiddenOrigin
    assert from_page("https://localhost:2468", "localhost:2468") is ForbiddenOrigin
    assert from_page("http://127.0.0.1:2468", "localhost:2468") is ForbiddenOrigin
    assert from_page("null", "localhost") is ForbiddenOrigin


def test_an_allowed_origin_is_let_in_and_told_so() -> None:
    scope = request(HOST, ("origin", APP), BEARER)

    assert refusal(scope) is None
    assert dict(AUTH.cors(scope))[b"access-control-allow-origin"] == APP.encode()
    assert not AUTH.is_preflight(scope)


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost"])
def test_no_other_origin_learns_anything(origin: str) -> None:
    assert list(AUTH.cors(request(HOST, ("origin", origin), BEARER))) == []


def test_only_a_preflight_of_an_allowed_origin_needs_no_token() -> None:
    asks = ("access-control-request-method", "POST")

    preflight = request(HOST, ("origin", APP), asks, method="OPTIONS")
    assert refusal(preflight) is None
    assert AUTH.is_preflight(preflight)
    assert refusal(request(HOST, asks, method="OPTIONS")) is Unauthorized
    assert refusal(request(HOST, ("origin", "http://localhost"), asks, method="OPTIONS")) is Unauthorized
    assert refusal(request(HOST, ("origin", "https://evil.example"), asks, method="OPTIONS")) is ForbiddenOrigin
    assert refusal(request(HOST, ("origin", APP), asks, method="POST")) is Unauthorized
    assert refusal(request(HOST, ("origin", APP), method="OPTIONS")) is Unauthorized
