"""The Inspector's files: what is served of them, and to whose frames."""

import gzip
from pathlib import Path

import anyio
import pytest
from starlette.requests import Request
from starlette.responses import Response

from sandboxagent.core.threads import Pool
from sandboxagent.protocol.errors import NotFound
from sandboxagent.server.http.ui import Ui

SCRIPT = "assets/index-abc123.js"


@pytest.fixture
def built(tmp_path: Path) -> Path:
    folder = tmp_path / "inspector"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text("<!doctype html>the page")
    (folder / "icon.svg").write_text("<svg/>")
    (folder / SCRIPT).write_text("let a;")
    (folder / f"{SCRIPT}.gz").write_bytes(gzip.compress(b"let a;"))
    (tmp_path / "secret.js").write_text("no")
    return folder


def get(ui: Ui, path: str, **headers: str) -> Response:
    scope = {
        "type": "http",
        "method": "GET",
        "path_params": {"rest": path},
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
    }
    return anyio.run(ui.get, Request(scope))


@pytest.mark.parametrize(
    "path", ["", "sessions/s-1", "sessions/main.js/x", "agents", "embed/s-1", "a.txt", "x/icon.svg"]
)
def test_every_path_that_is_no_file_is_the_page(built: Path, path: str) -> None:
    response = get(Ui((), Pool("files", 1), built), path)

    assert bytes(response.body) == b"<!doctype html>the page"
    assert response.headers["cache-control"] == "no-store"
    policy = set(response.headers["content-security-policy"].split("; "))
    wanted = {"default-src 'self'", "img-src 'self' data: blob:", "connect-src 'self'", "frame-ancestors 'none'"}
    assert wanted <= policy


def test_only_files_with_a_hash_in_their_name_are_cached_for_ever(built: Path) -> None:
    ui = Ui((), Pool("files", 1), built)

    assert get(ui, SCRIPT).headers["cache-control"] == "public, max-age=31536000, immutable"
    assert get(ui, "icon.svg").headers["cache-control"] == "no-cache"


def test_a_file_comes_packed_to_those_who_can_unpack_it(built: Path) -> None:
    ui = Ui((), Pool("files", 1), built)

    assert gzip.decompress(bytes(get(ui, SCRIPT, accept_encoding="br, gzip;q=0.8").body)) == b"let a;"
    assert bytes(get(ui, SCRIPT).body) == b"let a;"
    assert get(ui, SCRIPT).headers["vary"] == "Accept-Encoding"


@pytest.mark.parametrize("path", ["assets/../../secret.js", "../secret.js", "assets/..", "%2e%2e/secret.js"])
def test_nothing_outside_of_the_build_is_served(built: Path, path: str) -> None:
    assert bytes(get(Ui((), Pool("files", 1), built), path).body) == b"<!doctype html>the page"


@pytest.mark.parametrize("path", ["assets/index-000000.js", "assets/index-abc123.map", "other.svg"])
def test_a_file_that_is_not_there_is_not_found(built: Path, path: str) -> None:
    with pytest.raises(NotFound):
        get(Ui((), Pool("files", 1), built), path)


def test_pages_of_a_frame_origin_may_show_an_embedded_session_and_nothing_else(built: Path) -> None:
    ui = Ui(("https://app.example", "https://b.example"), Pool("files", 1), built)

    allowed = get(ui, "embed/s-1").headers["content-security-policy"]
    assert allowed.endswith("frame-ancestors https://app.example https://b.example")
    for path in ("", "sessions/s-1", "agents", "embed"):
        assert get(ui, path).headers["content-security-policy"].endswith("frame-ancestors 'none'")


def test_without_a_build_the_page_says_what_to_run(tmp_path: Path) -> None:
    response = get(Ui(("https://app.example",), Pool("files", 1), tmp_path / "missing"), "embed/s-1")

    assert response.status_code == 200
    assert b"./dev inspector" in bytes(response.body)
    assert response.headers["content-security-policy"].endswith("frame-ancestors 'none'")
