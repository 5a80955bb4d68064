"""Contract, section 9: where an agent comes from, and what goes wrong on the way."""

import asyncio
import json
import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from sandboxagent.server.agents.install.registry_entries import current_platform
from tests.support.client import Client, run
from tests.support.package_index import AGENT, closed_port, entry, packed, uvx
from tests.support.package_server import PackageServer, bare, events, initialize, install, installed, said, until, view
from tests.support.problems import problem
from tests.support.running import Server, alive, eventually

BODY = AGENT.partition("\n")[2]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Generator[PackageServer]:
    missing = {"missing": 'registry = "no-such-agent"'}
    with PackageServer(tmp_path_factory.mktemp("shelf"), "--no-persist", agents=missing) as running:
        yield running


# --- where it comes from ----------------------------------------------------------------------------------------------


@pytest.mark.requirement("9.registry-first", "9.provenance")
def test_the_registry_wins_over_the_manifest_and_without_it_the_answer_says_so(shelf: PackageServer) -> None:
    shelf.index.npm_files("@qwen-code/qwen-code", "8.0.0", {"cli.js": AGENT})

    async def main() -> None:
        client = bare(shelf.server)
        async with client.http:
            fallback = await installed(client, "qwen", {"agentVersion": "8.0.0"})
            assert (fallback["source"], fallback["version"]) == ("fallback", "8.0.0")
            about = (await view(client, "qwen"))["install"]
            assert (about["source"], about["nonRegistry"], about["package"]) == (
                "fallback",
                True,
                "@qwen-code/qwen-code",
            )

            shelf.box(version="9.0.0", id="qwen-code")
            registry = await installed(client, "qwen", {"reinstall": True})
            assert (registry["source"], registry["version"]) == ("registry", "9.0.0")
            about = (await view(client, "qwen"))["install"]
            assert (about["source"], about["nonRegistry"], about["registrySlug"]) == ("registry", False, "qwen-code")
            assert (await view(client, "qwen-code"))["id"] == "qwen", "a slug is another name of it"
            assert (await installed(client, "qwen-code"))["agent"] == "qwen"

    run(main())


@pytest.mark.requirement("9.registry-first")
def test_an_own_agent_may_be_a_slug_of_the_registry(shelf: PackageServer, tmp_path: Path) -> None:
    id = shelf.box()

    async def main(server: Server) -> None:
        async with Client(server, "mine") as client:
            assert json.loads(await said(client, "environ"))["GREETING"] == "hello"
            found = await view(client, "mine")
            assert (found["title"], found["install"]["registrySlug"]) == ("Mine", id)

    own = f'registry = "{id}"\ntitle = "Mine"\nenv = {{ GREETING = "hello" }}'
    with shelf.another(tmp_path / "own", "--no-persist", agents={"mine": own}) as server:
        run(main(server))


@pytest.mark.requirement("9.install")
def test_packages_of_pypi_and_archives_are_installed_too(shelf: PackageServer) -> None:
    shelf.index.pypi("py-agent", "2.1")
    shelf.enlist(uvx("snake", "py-agent==2.1"))
    content = packed({"bin/tiny": AGENT, "bin/package.json": '{"name": "x", "version": "3.0.0"}'})
    target = {"archive": shelf.index.archive("crate.tar.gz", content), "cmd": "bin/tiny"}
    shelf.enlist(entry("crate", "3.0.0", binary={current_platform(): target}))

    async def main() -> None:
        client = bare(shelf.server)
        async with client.http:
            assert (await installed(client, "snake"))["version"] == "2.1"
            assert (await view(client, "snake"))["install"]["package"] == "py-agent"
            assert (await installed(client, "crate"))["version"] == "3.0.0"
        async with Client(shelf.server, "snake") as client:
            assert await said(client, "hello") == "hello"

    run(main())


@pytest.mark.requirement("9.registry-first")
def test_agent_known_to_the_registry_alone_needs_the_registry(shelf: PackageServer, tmp_path: Path) -> None:
    async def main(server: Server) -> None:
        client = bare(server)
        async with client.http:
            problem(await install(client, "mine"), 502, "registry-unavailable")
            assert "registry" in problem(await install(client, "nobody"), 404, "unknown-agent")
            assert "mock" in [
                each["id"] for each in (await client.http.get("/v1/agents?registry=true")).json()["agents"]
            ]

    with closed_port() as url:
        elsewhere = {"SANDBOX_AGENT_ACP_REGISTRY_URL": f"{url}/registry.json"}
        own = {"mine": 'registry = "some-agent"'}
        with shelf.another(tmp_path / "alone", "--no-persist", environment=elsewhere, agents=own) as server:
            run(main(server))


# --- what goes wrong --------------------------------------------------------------------------------------------------


def other_system(shelf: PackageServer) -> str:
    target = {"archive": shelf.index.archive("x.zip", b"x"), "cmd": "x"}
    other = "darwin-aarch64" if current_platform() != "darwin-aarch64" else "linux-x86_64"
    shelf.enlist(entry("elsewhere", binary={other: target}))
    return "elsewhere"


def unsafe_archive(shelf: PackageServer) -> str:
    url = shelf.index.archive("evil.tar.gz", packed({"../../../evil": "x", "it": AGENT}))
    shelf.enlist(entry("evil", binary={current_platform(): {"archive": url, "cmd": "it"}}))
    return "evil"


def pinned(shelf: PackageServer) -> str:
    shelf.index.npm("pi-acp", "0.0.34")
    shelf.index.npm("@earendil-works/pi-coding-agent", "0.87.1")
    return "pi"


def cut(shelf: PackageServer) -> str:
    id = shelf.box()
    shelf.index.cut(shelf.tarball(id))
    return id


@pytest.mark.requirement("9.install-failure", "9.verified")
@pytest.mark.parametrize(
    ("prepare", "status", "slug"),
    [
        pytest.param(lambda shelf: shelf.box("#!/bin/sh\nexit 1"), 502, "install-failed", id="it exits"),
        pytest.param(lambda shelf: shelf.put(None), 502, "install-failed", id="no program"),
        pytest.param(cut, 502, "download-failed", id="cut"),
        pytest.param(pinned, 502, "checksum-mismatch", id="not what was pinned"),
        pytest.param(unsafe_archive, 502, "unsafe-archive", id="an archive that reaches outside"),
        pytest.param(other_system, 422, "unsupported-platform", id="for other machines"),
        pytest.param(lambda shelf: shelf.put(os=["sunos"]), 422, "unsupported-platform", id="for other systems"),
        pytest.param(lambda shelf: "missing", 422, "unsupported-agent", id="nobody has it"),
    ],
)
def test_an_install_that_fails_says_why_and_leaves_nothing(
    shelf: PackageServer, prepare: Any, status: int, slug: str
) -> None:
    id = prepare(shelf)

    async def main() -> None:
        client = bare(shelf.server)
        async with client.http:
            document = problem(await install(client, id), status, slug)
            assert not (shelf.agents_dir / id).exists()
            found = await view(client, id)
            assert (found["installed"], found["install"]["verified"]) == (False, False)
            assert found["install"]["verificationError"] == document["detail"]
            assert "progress" not in found["install"]
            assert not list(shelf.agents_dir.parent.rglob("evil"))

    try:
        run(main())
    finally:
        shelf.index.repair()


@pytest.mark.requirement("9.install-failure")
@pytest.mark.parametrize("by", ["install", "initialize"])
def test_a_directory_that_cannot_be_used_is_said_and_is_no_bug_of_ours(
    shelf: PackageServer, tmp_path: Path, by: str
) -> None:
    id = shelf.put()
    # Whoever runs the tests may be allowed to write anywhere; nobody can make a directory in a file.
    (tmp_path / "file").write_text("x")

    async def main(server: Server) -> None:
        client = bare(server)
        async with client.http:
            asking = install(client, id) if by == "install" else client.post(initialize(id))
            document = problem(await asking, 502, "install-failed")
            assert document["directory"] == f"{tmp_path}/file/agents"
            assert f"{tmp_path}/file/agents: Not a directory" in document["detail"]

    with shelf.another(tmp_path / "server", "--agents-dir", f"{tmp_path}/file/agents") as server:
        run(main(server))


@pytest.mark.requirement("9.install-failure", "9.running-install")
def test_what_is_installed_and_runs_survives_a_successor_that_does_not_work(shelf: PackageServer) -> None:
    id = shelf.box()

    async def main() -> None:
        async with Client(shelf.server, id) as client:
            pid = (await view(client, id))["serverStatus"]["pid"]
            shelf.box("#!/bin/sh\nexit 1", "2.0.0", id)
            problem(await install(client, id, {"agentVersion": "2.0.0"}), 502, "install-failed")
            assert await said(client, "version") == "1.0.0"
            found = await view(client, id)
            assert (found["version"], found["serverStatus"]["pid"]) == ("1.0.0", pid)
            assert "2.0.0" not in found["path"]
            assert (await installed(client, id))["alreadyInstalled"] is True

    run(main())


@pytest.mark.requirement("9.running-install")
def test_running_agent_keeps_its_version_and_the_next_start_takes_the_new(shelf: PackageServer) -> None:
    id = shelf.box()

    async def main() -> None:
        async with Client(shelf.server, id) as client:
            pid = (await view(client, id))["serverStatus"]["pid"]
            shelf.box(version="2.0.0", id=id)
            assert (await installed(client, id, {"agentVersion": "2.0.0"}))["version"] == "2.0.0"
            assert await said(client, "version") == "1.0.0"
            assert len(shelf.folders(id)) == 2, "what runs is not taken away"
            kill(pid)
            await until(client, id, lambda found: found["serverStatus"]["status"] == "error")
            assert await said(client, "version") == "2.0.0"
            assert (await installed(client, id))["alreadyInstalled"] is True
            assert len(shelf.folders(id)) == 1

    run(main())


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not alive(pid), "the end of the agent")


@pytest.mark.requirement("9.no-scripts")
def test_nothing_that_a_package_brings_to_be_run_is_run(shelf: PackageServer, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    id = shelf.put(scripts=dict.fromkeys(("preinstall", "install", "postinstall"), f"touch {mark}"))

    async def main() -> None:
        client = bare(shelf.server)
        async with client.http:
            await installed(client, id)
            assert not mark.exists()

    run(main())


@pytest.mark.requirement("9.leftovers")
def test_an_install_that_was_killed_leaves_nothing_after_the_next_start(shelf: PackageServer, tmp_path: Path) -> None:
    id = shelf.put()
    held = shelf.index.hold(shelf.tarball(id))
    server = shelf.another(tmp_path / "killed").start()
    agents = tmp_path / "killed" / "data" / "agents"

    async def half_way() -> None:
        client = bare(server)
        async with client.http:
            asking = asyncio.create_task(install(client, id))
            await asyncio.to_thread(held.wait)
            server.kill()
            await asyncio.gather(asking, return_exceptions=True)

    async def afterwards() -> None:
        client = bare(server)
        async with client.http:
            assert (await view(client, id))["installed"] is False
            assert not (agents / id).exists()
            assert (await installed(client, id))["alreadyInstalled"] is False

    run(half_way())
    held.release.set()
    assert len(list((agents / id).iterdir())) == 1
    shelf.index.repair()
    with server:
        run(afterwards())


@pytest.mark.requirement("9.install-stops")
@pytest.mark.parametrize("how", ["json", "events", "initialize", "acp"])
def test_a_server_that_stops_ends_its_installs_and_says_so(shelf: PackageServer, tmp_path: Path, how: str) -> None:
    id = shelf.put() if how == "json" else shelf.box()
    held = shelf.index.hold(shelf.tarball(id))

    async def main(server: Server) -> None:
        async with Client(server) as client:
            assert (await view(client, id))["id"] == id
            if how == "events":
                asking: asyncio.Task[Any] = asyncio.create_task(events(client, id))
            elif how == "acp":
                body = {"jsonrpc": "2.0", "id": 7, "method": "_sandboxagent/agent/install", "params": {"agent": id}}
                asking = asyncio.create_task(client.post(body))
            elif how == "json":
                asking = asyncio.create_task(install(client, id))
            else:
                asking = asyncio.create_task(client.http.post("/v1/rpc", json=initialize(id)))
            await asyncio.to_thread(held.wait)
            assert await asyncio.to_thread(server.stop) == 0
            answer = await asking
            if how == "events":
                assert answer[-1][0] == "problem"
                assert answer[-1][1]["type"] == "urn:sandbox-agent:error:shutting-down"
            else:
                problem(answer, 503, "shutting-down")

    with shelf.another(tmp_path / "stopped", "--no-persist") as server:
        run(main(server))
    assert not (tmp_path / "stopped" / "data" / "agents" / id).exists()
    held.release.set()


@pytest.mark.requirement("9.shared-directory")
def test_a_directory_that_cannot_be_written_is_named_and_the_server_goes_on(
    shelf: PackageServer, tmp_path: Path
) -> None:
    id = shelf.put()
    (tmp_path / "file").write_text("x")

    async def main(server: Server) -> None:
        async with Client(server) as client:
            document = problem(await install(client, id), 502, "install-failed")
            assert document["directory"] == str(tmp_path / "file")
            assert (await client.http.get("/v1/agents")).status_code == 200

    with shelf.another(tmp_path / "server", "--no-persist", "--agents-dir", str(tmp_path / "file")) as server:
        run(main(server))
