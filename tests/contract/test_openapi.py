"""Contract, section 1: /openapi.json describes every live route, and the live server answers as it says."""

import json
import re
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import httpx
import jsonschema_rs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandboxagent.server.http.routes import REMOVED
from tests.support.bytewise import ask
from tests.support.client import Client, Json, run
from tests.support.running import BOUND, TOKEN, Server

if TYPE_CHECKING:
    from schemathesis import Case
    from schemathesis.schemas import BaseSchema

OPERATIONS = [
    "POST /v1/rpc",
    "GET /v1/rpc",
    "DELETE /v1/rpc",
    "POST /acp",
    "GET /acp",
    "DELETE /acp",
    "GET /v1/health",
    "GET /v1/agents",
    "GET /v1/agents/{agent}",
    "GET /v1/agents/{agent}/stderr",
    "POST /v1/agents/{agent}/install",
    "GET /v1/sessions",
    "GET /v1/sessions/{id}",
    "GET /v1/fs/file",
    "PUT /v1/fs/file",
    "GET /v1/fs/entries",
    "GET /v1/fs/stat",
    "POST /v1/fs/mkdir",
    "POST /v1/fs/move",
    "DELETE /v1/fs/entry",
    "POST /v1/fs/upload-batch",
    "GET /v1/fs/archive",
    "GET /v1/fs/search",
    "GET /v1/fs/watch",
]
"""The contract's table."""
NOT_FUZZED = ("GET /v1/fs/watch", "POST /v1/fs/upload-batch")
"""An answer that does not end by itself, and a body that is an archive."""
ANSWERED = [label for label in OPERATIONS if label not in NOT_FUZZED]
EXAMPLES = 5
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}
fuzzing = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)


@pytest.fixture(scope="module")
def fuzzed() -> Generator[Server]:
    """A server for any request there can be. It must end cleanly, and without a traceback in its log."""
    # Whatever it asks for, files of this machine are not its to have.
    with (
        TemporaryDirectory() as root,
        Server("--no-persist", "--request-timeout", "2s", "--fs-root", root) as running,
    ):
        running.environment["root"] = root
        yield running


@pytest.fixture(scope="module")
def schema(fuzzed: Server) -> "BaseSchema":
    # A worker that runs none of these tests does not import it.
    import schemathesis

    return schemathesis.openapi.from_url(f"{fuzzed.url}/openapi.json")


@pytest.fixture(scope="module")
def document(fuzzed: Server) -> Json:
    reply = ask(fuzzed, "/openapi.json")
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    return json.loads(reply.body)


def operations(document: Json) -> dict[str, Json]:
    return {
        f"{method.upper()} {path}": operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }


# --- the document -----------------------------------------------------------------------------------------------------


@pytest.mark.requirement("1.openapi")
def test_every_route_of_the_contract_is_in_the_document_and_no_other(document: Json) -> None:
    assert document["openapi"].startswith("3.1.")
    live = [label for label, operation in operations(document).items() if not operation.get("deprecated")]
    assert sorted(live) == sorted(OPERATIONS)


@pytest.mark.requirement("1.openapi-removed")
def test_every_removed_route_is_in_the_document_with_what_took_its_place(document: Json) -> None:
    gone = {label: operation for label, operation in operations(document).items() if operation.get("deprecated")}

    assert sorted(gone) == sorted(f"{each.method} {each.path}" for each in REMOVED)
    for operation in gone.values():
        assert operation["responses"]["410"]["x-problems"] == ["removed"]
        assert not [status for status in operation["responses"] if int(status) < 400]
    assert gone["POST /v1/sessions/{id}/messages"]["summary"] == "Gone. Use POST /v1/rpc session/prompt."


@pytest.mark.requirement("1.openapi")
def test_every_documented_type_is_used_and_every_used_one_is_documented(document: Json) -> None:
    used = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(document)))

    assert used == set(document["components"]["schemas"])


@pytest.mark.requirement("1.openapi")
def test_every_operation_has_a_summary_and_a_name_that_a_program_can_have(document: Json) -> None:
    names = [operation["operationId"] for operation in operations(document).values()]

    assert [name for name in names if not name.isidentifier()] == []
    assert len(set(names)) == len(names)
    assert all(operation["summary"] for operation in operations(document).values())


@pytest.mark.requirement("1.openapi")
def test_every_operation_needs_the_token_and_says_what_a_stranger_gets(document: Json) -> None:
    (scheme,) = document["security"]
    assert [document["components"]["securitySchemes"][name]["scheme"] for name in scheme] == ["bearer"]
    for label, operation in operations(document).items():
        missing = {"401", "403", "421"} - operation["responses"].keys()
        assert missing == set(), label
        for status, response in operation["responses"].items():
            if int(status) >= 400:
                assert list(response["content"]) == ["application/problem+json"], (label, status)


@pytest.mark.requirement("1.openapi")
def test_the_headers_of_the_contract_are_in_the_document(document: Json) -> None:
    found = operations(document)

    def parameters(label: str) -> dict[str, bool]:
        return {one["name"].lower(): one.get("required", False) for one in found[label]["parameters"]}

    assert parameters("POST /v1/rpc").keys() >= {"x-acp-connection-id", "prefer", "idempotency-key"}
    assert parameters("POST /v1/rpc")["x-acp-connection-id"] is False
    assert parameters("GET /v1/rpc") == {"x-acp-connection-id": True, "last-event-id": False}
    assert parameters("DELETE /v1/rpc") == {"x-acp-connection-id": True}
    answer = {name.lower() for name in found["POST /v1/rpc"]["responses"]["200"].get("headers", {})}
    assert answer == {"x-acp-connection-id", "x-acp-last-event-id"}


@pytest.mark.requirement("1.openapi")
def test_the_document_and_the_server_refuse_the_same_envelopes(document: Json, fuzzed: Server) -> None:
    body = operations(document)["POST /v1/rpc"]["requestBody"]["content"]["application/json"]["schema"]
    schema = jsonschema_rs.validator_for({**body, "components": document["components"]})
    request = {"jsonrpc": "2.0", "id": 1, "method": "x/echo", "params": {}}
    accepted = [
        request,
        request | {"id": "one"},
        request | {"id": 1.5},
        request | {"_meta": {"unknown": "fields are welcome"}},
        {"jsonrpc": "2.0", "method": "x/noted"},
    ]
    refused: list[object] = [
        [request],
        request | {"jsonrpc": "1.0"},
        {"id": 1, "method": "x/echo"},
        {"jsonrpc": "2.0", "id": 1},
        {"jsonrpc": "2.0", "id": 1, "method": 7},
        {"jsonrpc": "2.0", "id": {}, "result": {}},
        {"jsonrpc": "2.0"},
        "text",
    ]

    async def main() -> list[int]:
        async with Client(fuzzed) as client:
            return [(await client.post(json.dumps(envelope))).status_code for envelope in (*accepted, *refused)]

    assert [schema.is_valid(envelope) for envelope in (*accepted, *refused)] == [True] * 5 + [False] * 8
    assert run(main()) == [200, 200, 200, 200, 202] + [400] * 8


# --- the live server --------------------------------------------------------------------------------------------------


@pytest.mark.requirement("1.openapi-is-true")
@pytest.mark.parametrize("label", ANSWERED)
def test_the_live_server_answers_nonsense_as_the_document_says(schema: "BaseSchema", label: str) -> None:
    from schemathesis import GenerationMode

    statuses: Counter[int] = Counter()

    @fuzzing
    @given(case=operation(schema, label).as_strategy(generation_mode=GenerationMode.NEGATIVE))
    def answers(case: "Case") -> None:
        response = called(case)
        statuses[response.status_code] += 1

    answers()
    assert sum(statuses.values()) >= 1
    assert not [status for status in statuses if status >= 500]


@pytest.mark.requirement("1.openapi-is-true")
@pytest.mark.parametrize("label", ANSWERED)
def test_live_server_answers_real_and_made_up_ids_as_the_document_says(
    fuzzed: Server, schema: "BaseSchema", label: str
) -> None:
    """As above, with a real connection, and agents and sessions of which most are real: more than a 404 is reached."""
    connection, session = run(something(fuzzed))
    statuses: Counter[int] = Counter()
    agents = st.sampled_from(["mock", "scripted", "nobody"])
    sessions = st.sampled_from([session, "unknown"])
    root = Path(str(fuzzed.environment["root"]))

    @fuzzing
    @given(case=operation(schema, label).as_strategy(), agent=agents, id=sessions)
    def answers(case: "Case", agent: str, id: str) -> None:
        if "agent" in (case.path_parameters or {}):
            case.path_parameters["agent"] = agent
        if "id" in (case.path_parameters or {}):
            case.path_parameters["id"] = id
        if "/v1/fs/" in label:
            use_a_file(case, label, root)
        if label in ("POST /v1/rpc", "POST /acp"):
            case.headers["X-ACP-Connection-Id"] = connection
            for other in ("Acp-Connection-Id", "Acp-Session-Id"):
                case.headers.pop(other, None)
            if isinstance(case.body, dict):
                case.body["jsonrpc"] = "2.0"
        response = called(case)
        statuses[response.status_code] += 1

    answers()
    assert not [status for status in statuses if status >= 500]
    if label not in ("GET /v1/rpc", "DELETE /v1/rpc", "GET /acp"):
        assert any(status < 300 for status in statuses), statuses


@pytest.mark.requirement("1.openapi-is-true")
def test_what_a_working_client_sees_is_as_the_document_says(fuzzed: Server, schema: "BaseSchema") -> None:
    """Whole payloads: agents that run and have crashed, sessions with metadata and an end, an answer to a prompt."""

    async def main() -> list[tuple[str, httpx.Response]]:
        async with Client(fuzzed) as client:
            session = await client.new_session(title="A title", requestedSessionId="an-alias", extra={"a": [1, None]})
            params = client.prompt_params(session, "hello")
            prompt = {"jsonrpc": "2.0", "id": "é\u2028", "method": "session/prompt", "params": params}
            seen = [("POST /v1/rpc", await client.post(prompt)), *await views(client, session)]
            await client.prompt(session, [["exit", 9]])
            return [*seen, *await views(client, session)]

    async def views(client: Client, session: str) -> list[tuple[str, httpx.Response]]:
        return [
            ("GET /v1/health", await client.http.get("/v1/health")),
            ("GET /v1/agents", await client.http.get("/v1/agents")),
            ("GET /v1/agents/{agent}", await client.http.get("/v1/agents/scripted")),
            ("GET /v1/agents/{agent}/stderr", await client.http.get("/v1/agents/scripted/stderr")),
            ("POST /v1/agents/{agent}/install", await client.http.post("/v1/agents/scripted/install")),
            ("GET /v1/sessions", await client.http.get("/v1/sessions")),
            ("GET /v1/sessions/{id}", await client.http.get(f"/v1/sessions/{session}")),
        ]

    for label, response in run(main()):
        assert response.status_code == 200, response.text
        operation(schema, label).validate_response(response)


def called(case: "Case") -> Any:
    """The response to a request, which must be as the document says."""
    from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

    # Rules between a header, a method and a connection, and that a cursor is one of ours, no schema can say; and a
    # query that a route does not know is ignored, as everywhere.
    not_in_a_schema = [positive_data_acceptance, negative_data_rejection]
    return case.call_and_validate(headers=AUTHORIZED, excluded_checks=not_in_a_schema, timeout=BOUND)


def use_a_file(case: "Case", label: str, root: Path) -> None:
    """Let a request be about a file or a directory that is there."""
    (root / "folder").mkdir(exist_ok=True)
    (root / "file").write_text("text")
    case.query = {
        name: value
        for name, value in (case.query or {}).items()
        if name not in ("sessionId", "cursor", "limit", "recursive")
    }
    case.query["path"] = "file" if label.endswith(("/file", "/stat", "/entry")) else "folder"
    if label.endswith("/search"):
        case.query = {"path": "folder", "name": "file"} | {
            name: value for name, value in case.query.items() if name == "text" and value
        }
    if label.endswith("/archive"):
        case.query.pop("format", None)
    if label.endswith("/move"):
        case.body = {"from": "file", "to": "folder/file", "overwrite": True}


async def something(server: Server) -> tuple[str, str]:
    """The ids of a connection and a session."""
    async with Client(server) as client:
        assert client.id is not None
        return client.id, await client.new_session()


def operation(schema: "BaseSchema", label: str) -> Any:
    method, _, path = label.partition(" ")
    return schema[path][method]
