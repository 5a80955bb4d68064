"""The official SDKs of ACP as clients, over every transport of ours: each works as with a server of its own kind."""

import json
import subprocess
import sys
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest

from tests.conformance.release_candidate import release_candidate
from tests.sdk_typescript.node import SDK, node
from tests.support.running import TOKEN, Server

HERE = Path(__file__).parent
LONGEST = 600.0
TRANSPORTS = ("http", "websocket", "websocket of /v1/rpc")


@pytest.fixture(scope="module")
def server() -> Generator[Server]:
    with Server("--default-agent", "scripted", "--client-fs") as running:
        yield running


def failures(command: Sequence[str], server: Server) -> dict[str, str]:
    """Play all scenarios over all transports; those that failed, and why."""
    settings = {"url": server.url, "token": TOKEN, "cwd": server.work, "transports": TRANSPORTS}
    done = subprocess.run(
        [*command, json.dumps(settings)], capture_output=True, text=True, timeout=LONGEST, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    played = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(played) >= 18 * len(TRANSPORTS), done.stdout + done.stderr
    return {each["scenario"]: each["failure"] for each in played if each["failure"] is not None}


@pytest.mark.requirement("14.official-clients")
def test_the_typescript_sdk_works(server: Server) -> None:
    upstream = SDK / "node_modules" / "@agentclientprotocol" / "sdk"
    command = [node(), str(HERE / "scenarios.mjs"), str(upstream)]
    assert failures(command, server) == {}


@pytest.mark.requirement("14.official-clients")
def test_the_python_sdk_works(server: Server) -> None:
    command = [sys.executable, str(HERE / "python_client.py")]
    assert failures(command, server) == {}


@pytest.mark.requirement("14.official-clients")
def test_the_release_candidate_of_the_python_sdk_works(server: Server) -> None:
    program = release_candidate()
    assert failures([str(program), str(HERE / "python_client.py")], server) == {}
