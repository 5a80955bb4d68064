"""A program that opens a stream of events and reads nothing of it."""

import json
import socket
from base64 import b64encode
from collections.abc import Generator
from contextlib import suppress
from urllib.parse import urlsplit

import pytest

from tests.opencode.host import MOCK, Host, ours
from tests.support.running import BOUND, Server

BUFFER = 4 << 20
TURNS, UPDATES, SIZE = 12, 100, 16 * 1024
"""A turn fits into a reader's buffer; all of them are more than that and what the kernel keeps for a connection."""


@pytest.fixture
def host() -> Generator[Host]:
    with Server("--default-agent", MOCK.provider, "--stream-buffer", str(BUFFER)) as server:
        yield ours(server)


def test_it_is_cut_off_and_others_hear_everything(host: Host) -> None:
    address = urlsplit(host.url)
    assert address.hostname is not None
    credentials = b64encode(f"opencode:{host.password}".encode()).decode()
    with (
        socket.create_connection((address.hostname, address.port or 0), BOUND) as stalled,
        host.client as client,
        client.stream("GET", "/event") as response,
    ):
        head = f"GET {address.path}/global/event HTTP/1.1\r\nHost: {address.netloc}\r\n"
        stalled.sendall(f"{head}Authorization: Basic {credentials}\r\n\r\n".encode())
        assert stalled.recv(1) == b"H"
        events = (json.loads(line.removeprefix("data: ")) for line in response.iter_lines() if line)
        session = client.post("/session", json={}).json()["id"]
        for _ in range(TURNS):
            said = [{"type": "text", "text": f"big {UPDATES} {SIZE}"}]
            assert client.post(f"/session/{session}/prompt_async", json={"parts": said}).status_code == 204
            told = 0
            for event in events:
                told += len(event["properties"]["delta"]) if event["type"] == "message.part.delta" else 0
                if event["type"] == "session.idle":
                    break
            assert told == UPDATES * SIZE
        assert _read_to_the_end(stalled) < TURNS * UPDATES * SIZE


def _read_to_the_end(stalled: socket.socket) -> int:
    """How many bytes still come."""
    total = 0
    with suppress(ConnectionResetError):
        while data := stalled.recv(1 << 20):
            total += len(data)
    return total
