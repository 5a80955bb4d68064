"""What a server imports before it answers: what only some requests need comes with the first of them."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.client import NO_CERTIFICATES
from tests.support.running import TOKEN, Server

LATER = {
    "anyio": "Starlette's",
    "click": "nothing's",
    "dataclasses": "nothing's: structs are made with a tenth of the work, and do not import it",
    "email.utils": "downloads'",
    "h11": "the SDK's, and calls of gateways",
    "httpx": "the SDK's, and installs",
    "importlib.metadata": "installs",
    "importlib.resources": "rules' about programs",
    "multiprocessing": "nothing's",
    "nats": "a fleet's",
    "prompt_toolkit": "a terminal's",
    "rich": "a terminal's",
    "sandboxagent.adapters.mock": "an agent of its own process",
    "sandboxagent.fleet.bus": "a fleet's",
    "sandboxagent.client": "the SDK",
    "sandboxagent.cli.chat": "other commands",
    "sandboxagent.fleet.gateway": "a gateway's",
    "sandboxagent.server.agents.install.download": "installs",
    "sandboxagent.server.agents.install.registry_entries": "installs, once there is a registry's copy",
    "sandboxagent.server.files.search": "the file API's",
    "sandboxagent.server.files.upload": "the file API's",
    "sandboxagent.server.http.routes": "routes beside /v1/rpc, /acp and health",
    "sandboxagent.server.http.openapi": "routes beside /v1/rpc, /acp and health",
    "sandboxagent.server.http.views": "routes beside /v1/rpc, /acp and health",
    "sandboxagent.server.http.websocket": "a WebSocket's",
    "sandboxagent.fleet.node": "a fleet's",
    "sandboxagent.adapters.opencode.app": "OpenCode's programs'",
    "starlette": "routes beside /v1/rpc, /acp and health",
    "tarfile": "archives'",
    "unittest": "nothing's",
    "urllib.request": "installs",
    "uvicorn": "nothing's",
    "watchfiles": "watching files",
    "websockets": "a WebSocket's",
    "xml": "nothing's",
    "zipfile": "archives'",
}
"""Packages and modules, and what they are for."""
MOST = 420
"""Modules in all. If you need more at the start, say here why it is worth a slower one."""


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[set[str]]:
    """By a fresh server that has answered one health request."""
    directory: Path = tmp_path_factory.mktemp("start")
    profile = {"PYTHONPROFILEIMPORTTIME": "1"}
    with Server(anew=True, gateway=False, directory=directory, environment=profile) as server:
        answer = httpx.get(
            f"{server.url}/v1/health", headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60, verify=NO_CERTIFICATES
        )
        assert answer.status_code == 200
        lines = server.stderr.splitlines()
        yield {line.rsplit("|", 1)[1].strip() for line in lines if line.startswith("import time:")}


@pytest.mark.parametrize("name", LATER)
def test_a_start_does_not_import_what_only_some_requests_need(name: str, imported: set[str]) -> None:
    assert not [each for each in imported if each == name or each.startswith(f"{name}.")], f"this is {LATER[name]}"


def test_a_start_imports_no_more_modules_than_it_did(imported: set[str]) -> None:
    assert "sandboxagent.server.sessions.hub" in imported
    assert len(imported) <= MOST
