"""What the bridge refuses: in OpenCode's own words, as JSON, and with the same guard as everything else."""

from base64 import b64encode
from collections.abc import Generator
from typing import Any

import httpx
import pytest

from tests.opencode.host import MOCK, Host
from tests.support.running import BOUND, TOKEN

Json = dict[str, Any]

UNKNOWN = "ses_e1cd74449ffepBpfauh1VBt4Kc"
MODEL = {"providerID": MOCK.provider, "modelID": MOCK.model_ids[0]}


@pytest.fixture(scope="module")
def client(host: Host) -> Generator[httpx.Client]:
    if host.is_opencode_itself:
        pytest.skip("what is refused here is our own")
    with host.client as opened:
        yield opened


@pytest.fixture
def session(client: httpx.Client, host: Host) -> str:
    return client.post("/session", params={"directory": host.directory}, json={}).json()["id"]


def prompted(client: httpx.Client, session: str, *parts: Json, **body: object) -> httpx.Response:
    return client.post(f"/session/{session}/message", json={"model": MODEL, "parts": parts, **body})


def said(text: str) -> Json:
    return {"type": "text", "text": text}


def test_a_part_of_an_unknown_type_is_refused_by_its_name(client: httpx.Client, session: str) -> None:
    refused = prompted(client, session, said("hello"), {"type": "hologram", "text": "x"})

    assert refused.status_code == 400
    assert "hologram" in refused.json()["data"]["message"]
    assert client.get(f"/session/{session}/message").json() == []


def test_a_model_of_another_agent_is_refused_after_the_first_prompt(client: httpx.Client, session: str) -> None:
    assert prompted(client, session, said("hello")).status_code == 200

    refused = prompted(client, session, said("hello"), model={"providerID": "scripted", "modelID": "default"})

    assert refused.status_code == 400
    assert "does not support changing the model" in refused.json()["errors"][0]["message"]


@pytest.mark.parametrize("model", [{"providerID": "mock", "modelID": "gpt"}, {"providerID": "nobody", "modelID": "x"}])
def test_a_model_that_is_not_there_is_refused(client: httpx.Client, session: str, model: Json) -> None:
    refused = prompted(client, session, said("hello"), model=model)

    assert refused.status_code in (400, 404)
    assert model["providerID" if model["modelID"] == "x" else "modelID"] in refused.json()["data"]["message"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"parts": 1}', b'{"parts": [1]}', b"\xff", b"null"])
def test_a_body_that_is_no_prompt_is_refused(client: httpx.Client, session: str, content: bytes) -> None:
    refused = client.post(f"/session/{session}/message", content=content, headers={"Content-Type": "application/json"})

    assert refused.status_code == 400
    assert refused.json()["data"]["message"]


def test_a_prompt_without_parts_is_refused(client: httpx.Client, session: str) -> None:
    assert prompted(client, session).status_code == 400


def test_a_file_in_a_prompt_may_be_large_and_one_too_large_is_refused(client: httpx.Client, session: str) -> None:
    def attached(size: int) -> Json:
        url = f"data:text/plain;base64,{b64encode(b'x' * size).decode()}"
        return {"type": "file", "mime": "text/plain", "filename": "large.txt", "url": url}

    answer = prompted(client, session, said("hello"), attached(4 * 1024 * 1024))
    assert answer.status_code == 200
    assert "large.txt" in "".join(part.get("text", "") for part in answer.json()["parts"])

    refused = prompted(client, session, said("hello"), attached(64 * 1024 * 1024))
    assert refused.status_code == 413
    assert refused.headers["Content-Type"] == "application/json"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("GET", "/index.html"),
        ("GET", "/api/health"),
        ("GET", "/api/session"),
        ("GET", "/pty"),
        ("POST", "/sync/start"),
        ("PUT", "/session"),
        ("GET", f"/session/{UNKNOWN}/nothing"),
        ("GET", "/%2e%2e/v1/health"),
    ],
)
def test_unknown_path_is_a_404_in_json(client: httpx.Client, method: str, path: str) -> None:
    refused = client.request(method, path)

    assert refused.status_code == 404
    assert refused.headers["Content-Type"] == "application/json"
    assert refused.json()["name"] == "NotFoundError"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("PATCH", ""),
        ("DELETE", ""),
        ("GET", "/message"),
        ("GET", "/todo"),
        ("GET", "/diff"),
        ("GET", "/children"),
        ("POST", "/abort"),
        ("POST", "/fork"),
        ("POST", "/share"),
        ("POST", "/unrevert"),
    ],
)
def test_an_unknown_session_is_not_found(client: httpx.Client, method: str, path: str) -> None:
    body = {} if method in ("POST", "PATCH") else None
    refused = client.request(method, f"/session/{UNKNOWN}{path}", json=body)

    assert refused.status_code == 404
    assert refused.json() == {"name": "NotFoundError", "data": {"message": f"Session not found: {UNKNOWN}"}}


def test_an_unknown_message_is_not_found(client: httpx.Client, session: str) -> None:
    refused = client.get(f"/session/{session}/message/msg_1ddcab85a001abcdefghijklmn")

    assert refused.status_code == 404
    assert refused.json()["name"] == "NotFoundError"


def test_a_directory_that_is_not_utf_8_is_refused_and_lists_go_on(client: httpx.Client) -> None:
    refused = client.post("/session", json={}, headers={"X-Opencode-Directory": "/%FF"})

    assert (refused.status_code, refused.json()["name"]) == (400, "BadRequest")
    assert client.get("/session").status_code == 200


def test_a_file_outside_is_not_read(client: httpx.Client, host: Host) -> None:
    refused = client.get("/file/content", params={"directory": host.directory, "path": "../config/agents.toml"})

    assert refused.status_code in (400, 403, 404)
    assert "scripted" not in refused.text


class TestGuard:
    """The same as for everything else that the server serves."""

    @pytest.mark.parametrize("path", ["/session", "/event", "/global/event", "/nothing", "/global/health"])
    def test_without_the_token_nothing_is_answered(self, host: Host, path: str) -> None:
        assert httpx.get(host.url + path, trust_env=False, verify=False, timeout=BOUND).status_code == 401

    def test_the_token_is_a_bearer_or_a_password_or_in_the_address(self, host: Host) -> None:
        def status(**options: Any) -> int:
            return httpx.get(f"{host.url}/session", trust_env=False, verify=False, **options, timeout=BOUND).status_code

        assert status(headers={"Authorization": f"Bearer {TOKEN}"}) == 200
        assert status(auth=("opencode", TOKEN)) == 200
        assert status(auth=("anybody", TOKEN)) == 200
        assert status(params={"auth_token": b64encode(f"opencode:{TOKEN}".encode()).decode()}) == 200
        assert status(auth=("opencode", "wrong")) == 401
        assert status(auth=(TOKEN, "")) == 401
        assert status(params={"auth_token": TOKEN}) == 401
        assert status(params={"auth_token": b64encode(b"opencode:wrong").decode()}) == 401

    @pytest.mark.parametrize("header", [{"Host": "evil.example"}, {"Origin": "http://evil.example"}])
    def test_other_hosts_and_origins_are_refused(
        self, host: Host, client: httpx.Client, header: dict[str, str]
    ) -> None:
        refused = client.post("/session", json={}, headers=header)

        assert refused.status_code in (403, 421)

    def test_health_is_at_the_root_of_the_server_too(self, host: Host, client: httpx.Client) -> None:
        root = host.url.removesuffix("/opencode")
        below = client.get("/global/health").json()

        assert (
            httpx.get(
                f"{root}/global/health", auth=("opencode", TOKEN), trust_env=False, verify=False, timeout=BOUND
            ).json()
            == below
        )
        assert below["healthy"] is True
