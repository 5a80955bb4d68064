"""Section 3: who is answered before all of its body was read gets the answer, whatever it goes on to send."""

import socket
import time
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.problems import problem
from tests.support.running import BOUND, Server
from tests.support.wire import Wire

CHUNK = b"10000\r\n" + b"x" * 65536 + b"\r\n"
CHUNKED = "Transfer-Encoding: chunked"
JSON = "Content-Type: application/json"


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    """A server with small limits, and files to run into."""
    root = tmp_path_factory.mktemp("root")
    (root / "there").write_text("x")
    with Server("--no-persist", "--fs-root", str(root), "--max-file", "1MiB", "--max-body", "1MiB") as running:
        running.environment["root"] = str(root)
        yield running


REFUSED = {
    "a file that is too large": ("PUT /v1/fs/file?path=new", 413, "file-too-large", ()),
    "a file outside": ("PUT /v1/fs/file?path=/etc/new", 403, "outside-roots", ()),
    "a file where none can be": ("PUT /v1/fs/file?path=there/new", 409, "file-conflict", ()),
    "a file that is there": ("PUT /v1/fs/file?path=there", 412, "file-changed", ("If-None-Match: *",)),
    "no archive": ("POST /v1/fs/upload-batch?path=new", 400, "bad-archive", ("Content-Type: application/x-tar",)),
    "an archive of another type": ("POST /v1/fs/upload-batch?path=new", 415, "unsupported-media-type", (JSON,)),
    "an envelope that is too large": ("POST /v1/rpc", 413, "body-too-large", (JSON,)),
    "an envelope of another type": ("POST /v1/rpc", 415, "unsupported-media-type", ("Content-Type: text/plain",)),
    "an envelope for nobody": ("POST /v1/rpc", 404, "unknown-connection", (JSON, "X-ACP-Connection-Id: none")),
    "an install of nothing": ("POST /v1/agents/mock/install", 400, "bad-request", (JSON,)),
    "an envelope of /acp that is too large": ("POST /acp", 413, "body-too-large", (JSON,)),
    "an envelope of /acp of another type": ("POST /acp", 415, "unsupported-media-type", ("Content-Type: text/plain",)),
    "an envelope of /acp for nobody": ("POST /acp", 404, "unknown-connection", (JSON, "Acp-Connection-Id: none")),
    "a move without end": ("POST /v1/fs/move", 413, "body-too-large", (JSON,)),
    "a removed route": ("POST /v1/sessions/x/messages", 410, "removed", (JSON,)),
    "no route": ("POST /nothing", 404, "not-found", ()),
}


def refused(*names: str) -> pytest.MarkDecorator:
    rows = {name: row for name, row in REFUSED.items() if not names or name in names}
    return pytest.mark.parametrize(("start", "status", "slug", "headers"), rows.values(), ids=rows.keys())


@pytest.mark.requirement("3.answer-early")
@refused()
def test_a_body_without_end_is_answered_while_it_comes(
    strict: Server, start: str, status: int, slug: str, headers: tuple[str, ...]
) -> None:
    with Wire(strict) as wire:
        wire.send(wire.request(start, CHUNKED, *headers))
        is_answered_while_it_sends(wire, status, slug)


@pytest.mark.requirement("3.answer-early", "10.bearer-everywhere")
@pytest.mark.parametrize("start", ["POST /v1/rpc", "POST /acp", "PUT /v1/fs/file?path=new"])
def test_a_body_without_end_and_without_a_token_is_answered_while_it_comes(strict: Server, start: str) -> None:
    with Wire(strict) as wire:
        wire.send(wire.request(start, CHUNKED, JSON, token=False))
        is_answered_while_it_sends(wire, 401, "unauthorized")


def is_answered_while_it_sends(wire: Wire, status: int, slug: str) -> None:
    """A client sends chunks until there is an answer; then the socket is closed."""
    # The client looks whether there is an answer; the socket takes a part at a time.
    wire.socket.setblocking(False)
    answered = False
    sent = 0
    while not answered:
        assert sent < 1 << 30
        try:
            wire.socket.recv(1, socket.MSG_PEEK)
            answered = True
        except BlockingIOError:
            sent += _send_some(wire.socket)
    wire.socket.settimeout(BOUND)
    response = wire.response()
    problem(response, status, slug)
    assert response.headers["connection"] == "close"
    assert wire.hung_up()


@pytest.mark.requirement("3.answer-early")
@refused("a file that is too large", "an envelope that is too large")
def test_client_that_sends_endlessly_is_stopped_and_finds_the_answer(
    strict: Server, start: str, status: int, slug: str, headers: tuple[str, ...]
) -> None:
    with Wire(strict) as wire:
        wire.send(wire.request(start, CHUNKED, *headers))
        end = time.monotonic() + BOUND
        with suppress(ConnectionResetError, BrokenPipeError):
            while time.monotonic() < end:
                wire.socket.sendall(CHUNK)
        assert time.monotonic() < end, "the server has not stopped it"
        problem(wire.response(), status, slug)


@pytest.mark.requirement("3.answer-early")
def test_a_client_that_sends_all_before_it_looks_is_not_stopped(strict: Server) -> None:
    with Wire(strict) as wire:
        size = 16 << 20
        wire.socket.sendall(wire.request("PUT /v1/fs/file?path=new", f"Content-Length: {size}"))
        for _ in range(16):
            wire.socket.sendall(b"x" * (size // 16))
        problem(wire.response(), 413, "file-too-large")
        assert wire.hung_up()


@pytest.mark.requirement("3.answer-early")
def test_a_socket_goes_on_when_little_of_a_body_was_left(strict: Server) -> None:
    with Wire(strict) as wire:
        wire.send(wire.request("PUT /v1/fs/file?path=/etc/new", "Content-Length: 1000000"))
        response = wire.response()
        problem(response, 403, "outside-roots")
        assert "connection" not in response.headers
        wire.send(b"x" * 1_000_000, wire.health())
        assert wire.response().status_code == 200


@pytest.mark.requirement("3.answer-early")
def test_refusal_of_a_request_that_expects_100_closes_the_socket(strict: Server) -> None:
    """The client may send its body or not: the server takes neither for the next request."""
    with Wire(strict) as wire:
        wire.send(wire.request("PUT /v1/fs/file?path=/etc/new", "Content-Length: 10", "Expect: 100-continue"))
        response = wire.response()
        problem(response, 403, "outside-roots")
        assert response.headers["connection"] == "close"
        # Whatever comes now could be the body, or the next request.
        wire.send(wire.health())
        assert wire.hung_up()


@pytest.mark.requirement("3.answer-early")
def test_what_is_refused_leaves_nothing_and_a_whole_body_keeps_the_socket(strict: Server) -> None:
    root = Path(str(strict.environment["root"]))
    with Wire(strict) as wire:
        wire.send(wire.request("PUT /v1/fs/file?path=new", CHUNKED), *[CHUNK] * 8, b"0\r\n\r\n")
        response = wire.response()
        assert (response.status_code, "connection" in response.headers) == (200, False)
        wire.send(wire.health())
        assert wire.response().status_code == 200
    assert (root / "new").stat().st_size == 8 << 16
    (root / "new").unlink()
    assert sorted(root.iterdir()) == [root / "there"]


@pytest.mark.requirement("3.answer-early")
def test_a_server_stops_although_a_client_still_sends() -> None:
    with Server("--no-persist") as server, Wire(server) as wire:
        wire.send(wire.request("POST /nothing", CHUNKED), CHUNK)
        assert wire.response().status_code == 404
        assert server.stop() == 0


def _send_some(to: socket.socket) -> int:
    try:
        return to.send(CHUNK)
    except BlockingIOError:
        return 0
