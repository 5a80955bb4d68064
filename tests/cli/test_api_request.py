"""`sandbox-agent api [METHOD] PATH`: any request to a server, with its token found by itself."""

import json
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.cli.cli_call import CliCall
from tests.cli.place import Place
from tests.support.running import Server


@pytest.fixture(scope="module")
def server(gateway: bool | None) -> Generator[Server]:
    with Server(gateway=gateway) as running:
        yield running


@pytest.fixture
def api(place: Place, server: Server) -> CliCall:
    return CliCall(place, server)


def test_the_body_is_printed_as_it_came(api: CliCall) -> None:
    short, whole = api.well("api", "/v1/agents/mock"), api.well("api", "request", "GET", "/v1/agents/mock")

    assert short.raw == whole.raw == api.well("api", "get", "/v1/agents/mock").raw
    assert short.json["id"] == "mock"
    assert short.err == ""


def test_a_terminal_gets_the_end_of_a_line(api: CliCall, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no newline")

    code, text = api.on_a_terminal("api", "GET", f"/v1/fs/file?path={tmp_path}/file")

    assert (code, text) == (0, "no newline\r\n")


def test_fields_are_a_body_or_the_query_of_a_get(api: CliCall, tmp_path: Path) -> None:
    made = api.well("api", "POST", f"/v1/fs/mkdir?path={tmp_path}/new")
    query = api.well("api", "GET", "/v1/fs/entries", "-f", f"path={tmp_path}")
    both = api.well("api", "GET", f"/v1/fs/entries?path={tmp_path}", "-f", "limit:=1")
    installed = api.well("api", "/v1/agents/mock/install", "-f", "reinstall:=false")

    assert made.err == ""
    assert (tmp_path / "new").is_dir()
    assert "new" in query.out
    assert len(both.json["entries"]) == 1
    assert installed.out != ""


def test_a_file_or_stdin_is_the_body(api: CliCall, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"\x00\xff")
    kind = ("-H", "Content-Type: application/octet-stream")

    api.well("api", "PUT", f"/v1/fs/file?path={tmp_path}/a", "--input", str(tmp_path / "source"), *kind)
    api.well("api", "PUT", f"/v1/fs/file?path={tmp_path}/b", "--input", "-", *kind, input=b"from stdin")

    assert (tmp_path / "a").read_bytes() == b"\x00\xff"
    assert (tmp_path / "b").read_bytes() == b"from stdin"
    assert api.well("api", f"/v1/fs/file?path={tmp_path}/a").raw == b"\x00\xff"
    missing = api.refused("api", "PUT", "/v1/fs/file?path=/x", "--input", str(tmp_path / "nothing"))
    assert "nothing" in missing


def test_a_body_makes_it_a_post(api: CliCall) -> None:
    ran = api("api", "/v1/health", "-f", "a=b")

    assert ran.code == 1
    assert "HTTP 405" in ran.err


def test_a_refusal_is_printed_and_is_the_exit_code(api: CliCall) -> None:
    ran = api("api", "/v1/agents/nobody")

    assert ran.code == 1
    assert ran.json["status"] == 404
    assert ran.err.startswith("sandbox-agent: Unknown Agent: ")
    assert ran.err.endswith("(HTTP 404)\n")


def test_headers_are_included_when_asked_for(api: CliCall) -> None:
    ran = api.well("api", "-i", "GET", "/v1/health")

    head, _, body = ran.out.partition("\n\n")
    assert head.splitlines()[0] == "HTTP/1.1 200 OK"
    assert "content-type: application/json" in head
    assert json.loads(body)["status"] == "ok"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("GET", "http://elsewhere.example/v1/health"), "expected a path such as /v1/health"),
        (("GET", "//elsewhere.example/v1/health"), "expected a path such as /v1/health"),
        (("GET", "/v1/x", "-f", "novalue"), "expected KEY=TEXT or KEY:=JSON"),
        (("GET", "/v1/x", "-X", "POST"), "expected one method and one path"),
        (("request", "FETCH", "/v1/x"), "'FETCH' is not a method"),
        (("POST", "/v1/x", "-f", "a=b", "--input", "-"), "--field and --input exclude each other"),
        (("GET", "/v1/x", "-H", "hush"), "--header: expected NAME:VALUE"),
        (("session", "list"), "unknown command session"),
    ],
)
def test_mistakes_are_printed_in_one_line_and_nothing_is_sent(
    api: CliCall, words: tuple[str, ...], complaint: str
) -> None:
    assert api.refused("api", *words, code=2).startswith(complaint)


@pytest.mark.server_alone("the data directory of a server on this machine has its address and its token")
def test_the_token_of_the_data_directory_is_found_by_itself(place: Place) -> None:
    with Server(token=None) as server:
        ran = place.run("api", "/v1/agents/mock", "--data-dir", str(server.directory / "data"))

    assert ran.returncode == 0, ran.stderr
