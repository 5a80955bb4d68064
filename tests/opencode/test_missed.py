"""A program that opens a stream of events hears again what it may have missed."""

import json
from base64 import b64encode
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.opencode.document import document
from tests.opencode.host import Host

Json = dict[str, Any]


@pytest.fixture(scope="module")
def client(host: Host) -> Generator[httpx.Client]:
    if host.is_opencode_itself:
        pytest.skip("OpenCode's own server tells nothing again")
    with host.client as opened:
        yield opened


@contextmanager
def stream(client: httpx.Client, path: str) -> Generator[Iterator[Json]]:
    with client.stream("GET", path) as response:
        assert response.status_code == 200
        yield (json.loads(line.removeprefix("data: ")) for line in response.iter_lines() if line)


def told_again(client: httpx.Client, session: str) -> list[Json]:
    """What a new stream tells of a session, up to the end of its turn."""
    with stream(client, "/global/event") as events:
        mine: list[Json] = []
        for event in events:
            assert document().faults_of_global_event(event) == []
            if session in json.dumps(event):
                mine.append(event["payload"])
                if mine[-1]["properties"].get("part", {}).get("type") == "step-finish":
                    return mine
    raise AssertionError("the stream has ended")


def opened(client: httpx.Client, host: Host) -> str:
    return client.post("/session", params={"directory": host.directory}, json={}).json()["id"]


def said(client: httpx.Client, session: str, text: str, *files: Json) -> None:
    answer = client.post(f"/session/{session}/message", json={"parts": [{"type": "text", "text": text}, *files]})
    assert answer.status_code == 200, answer.text


def test_a_turn_that_is_over_is_sent_again_as_it_is_now(client: httpx.Client, host: Host) -> None:
    session = opened(client, host)
    said(client, session, "good morning")

    mine = told_again(client, session)

    assert [event["type"] for event in mine][:3] == ["session.updated", "session.status", "message.updated"]
    assert mine[1]["properties"]["status"] == {"type": "idle"}
    parts = [event["properties"]["part"] for event in mine if event["type"] == "message.part.updated"]
    kept = client.get(f"/session/{session}/message").json()
    assert parts == [part for message in kept for part in message["parts"]]


def test_what_is_large_is_left_out_and_the_rest_is_sent(client: httpx.Client, host: Host) -> None:
    session = opened(client, host)
    url = f"data:text/plain;base64,{b64encode(b'x' * (1 << 20)).decode()}"
    said(client, session, "look at this", {"type": "file", "mime": "text/plain", "filename": "x.txt", "url": url})

    mine = told_again(client, session)

    parts = [event["properties"]["part"] for event in mine if event["type"] == "message.part.updated"]
    assert [part["type"] for part in parts] == ["text", "step-start", "text", "step-finish"]


def test_a_stream_of_one_directory_begins_with_what_happens_next(client: httpx.Client, host: Host) -> None:
    session = opened(client, host)
    said(client, session, "good morning")

    next_one = opened(client, host)
    with stream(client, "/event") as events:
        assert next(events)["type"] == "server.connected"
        said(client, next_one, "good night")
        for event in events:
            assert session not in json.dumps(event)
            if event["type"] == "session.idle":
                break
