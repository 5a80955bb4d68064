"""A server, an index of packages and an ACP registry, all on this machine: whatever a test puts there can be installed
over HTTP."""

import asyncio
import json
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import httpx

from sandboxagent.server.agents.install.registry_entries import current_platform
from tests.support.client import META, Client, Json
from tests.support.package_index import AGENT, PackageIndex, entry, npx, packed, registry
from tests.support.running import BOUND, Server
from tests.support.sse import Frame, parse

_numbers = count(1)


class PackageServer:
    """What can be installed by one server. Each test puts agents of its own there."""

    def __init__(self, directory: Path, *flags: str, **more: Any) -> None:
        self.directory = directory
        self.index = PackageIndex()
        self._entries: list[dict[str, Any]] = []
        self._flags = flags
        self._more = more
        self.server: Server

    def __enter__(self) -> "PackageServer":
        self.index.__enter__()
        self.directory.mkdir(exist_ok=True)
        self._write()
        self.server = self.another(self.directory, *self._flags, **self._more).start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.server.__exit__()
        finally:
            self.index.__exit__()

    def another(
        self, directory: Path, *flags: str, environment: Mapping[str, str | None] | None = None, **more: Any
    ) -> Server:
        """One more server, which shares nothing but the index and the registry."""
        directory.mkdir(exist_ok=True)
        quick: dict[str, str | None] = {"npm_config_fetch_retries": "0", "UV_HTTP_RETRIES": "0"}
        # Plain HTTP: reading the system's certificates would take longer than what is fetched.
        quick |= {"SSL_CERT_FILE": None, "SSL_CERT_DIR": str(directory)}
        own = {**self.index.environment, **quick, "SANDBOX_AGENT_ACP_REGISTRY_URL": str(self._file)}
        return Server(*flags, directory=directory, environment={**own, **(environment or {})}, **more)

    @property
    def _file(self) -> Path:
        return self.directory / "acp-registry.json"

    def _write(self) -> None:
        registry(self._file, *self._entries)

    @property
    def agents_dir(self) -> Path:
        return self.server.directory / "data" / "agents"

    def put(self, program: str | None = AGENT, version: str = "1.0.0", id: str | None = None, **facts: Any) -> str:
        """A new agent on npm and in the registry; gives its id. Its package is called `<id>-package`."""
        id = id or f"agent-{next(_numbers)}"
        self.index.npm(f"{id}-package", version, program, **facts)
        self.enlist(npx(id, f"{id}-package@{version}", args=["--acp"]))
        return id

    def box(self, program: str = AGENT, version: str = "1.0.0", id: str | None = None) -> str:
        """An agent as an archive in the registry, for tests that are not about npm: it takes a tenth of the time.

        With the id of one that is there, it takes its place.
        """
        id = id or f"boxed-{next(_numbers)}"
        files = {"bin/tiny": program, "bin/package.json": json.dumps({"name": id, "version": version})}
        target = {"archive": self.index.archive(f"{id}.tar.gz", packed(files)), "cmd": "bin/tiny", "args": ["--acp"]}
        self.enlist(entry(id, version, binary={current_platform(): target}))
        return id

    def enlist(self, listed: dict[str, Any]) -> None:
        """Have the registry list it, in place of what it has under the same id."""
        self._entries = [*(each for each in self._entries if each["id"] != listed["id"]), listed]
        self._write()

    def tarball(self, id: str, version: str = "1.0.0") -> str:
        """The path of an agent's tarball, which is asked for once in an install."""
        return f"/archives/{id}.tar.gz" if id.startswith("boxed-") else f"/npm/-/{id}-package-{version}.tgz"

    def folders(self, id: str) -> list[Path]:
        """What there is of an agent on disk: installations, whole or half."""
        directory = self.agents_dir / id
        return sorted(path for path in directory.iterdir() if path.is_dir()) if directory.is_dir() else []


def initialize(agent: str) -> Json:
    """The envelope that opens a connection to an agent."""
    params = {"protocolVersion": 1, "_meta": {META: {"agent": agent}}}
    return {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}


async def view(client: Client, id: str) -> Json:
    response = await client.http.get(f"/v1/agents/{id}")
    assert response.status_code == 200, response.text
    return response.json()


async def install(client: Client, id: str, body: Json | None = None, **headers: str) -> httpx.Response:
    """The response to POST /v1/agents/{agent}/install."""
    return await client.http.post(f"/v1/agents/{id}/install", json=body, headers=headers)


async def installed(client: Client, id: str, body: Json | None = None) -> Json:
    """The result of an install that must succeed."""
    response = await install(client, id, body)
    assert response.status_code == 200, response.text
    return response.json()


async def events(client: Client, id: str, fetching: Callable[[], None] = lambda: None) -> list[tuple[str, Json]]:
    """The events of an install that is watched to its end; calls `fetching` when they say that it fetches."""
    seen = b""
    headers = {"accept": "text/event-stream"}
    async with client.http.stream("POST", f"/v1/agents/{id}/install", headers=headers) as response:
        assert response.status_code == 200, (await response.aread()).decode()
        assert response.headers["content-type"].startswith("text/event-stream")
        async for piece in response.aiter_bytes():
            seen += piece
            if b'"fetching"' in seen:
                fetching()
    frames, _ = parse(seen)
    return [(frame.event, json.loads(frame.data)) for frame in _checked(frames)]


def _checked(frames: list[Frame]) -> list[Frame]:
    assert frames
    assert [frame.event for frame in frames[:-1]] == ["progress"] * (len(frames) - 1)
    assert frames[-1].event in ("result", "problem")
    return frames


def bare(server: Server, agent: str = "scripted") -> Client:
    """A client that has no connection."""
    return Client(server, agent)


async def said(client: Client, text: str, **meta: Any) -> str:
    """What a tiny agent answers to a prompt in a new session."""
    session = await client.new_session(**meta)
    assert (await client.prompt(session, text))["result"]["stopReason"] == "end_turn"
    page = await client.result("_sandboxagent/session/events", {"sessionId": session})
    updates = [event["envelope"].get("params", {}).get("update", {}) for event in page["events"]]
    return "".join(each["content"]["text"] for each in updates if each.get("sessionUpdate") == "agent_message_chunk")


async def until(client: Client, id: str, wanted: Callable[[Json], bool]) -> Json:
    """The view of an agent, once it is as wanted."""
    async with asyncio.timeout(4 * BOUND):
        while True:
            found = await view(client, id)
            if wanted(found):
                return found
            await asyncio.sleep(0.02)


def progress(found: Json) -> str:
    """What a view says of an install under way."""
    return found["install"].get("progress", {}).get("message", "")
