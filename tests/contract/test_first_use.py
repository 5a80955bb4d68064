"""Contract, section 9: agents that are installed on first use, and what they see of credentials."""

import asyncio
import json
from collections.abc import Generator
from pathlib import Path

import pytest

from sandboxagent.server.agents.install.registry_entries import current_platform
from sandboxagent.server.agents.manifest import load_manifest
from tests.support.client import META, Client, run
from tests.support.package_index import AGENT, entry, packed
from tests.support.package_server import PackageServer, bare, initialize, install, installed, said, view
from tests.support.problems import problem
from tests.support.running import Server


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Generator[PackageServer]:
    with PackageServer(tmp_path_factory.mktemp("shelf"), "--no-persist") as running:
        yield running


# --- on first use -----------------------------------------------------------------------------------------------------


@pytest.mark.requirement("9.lazy-install", "9.registry-agents")
def test_any_slug_of_the_registry_can_be_named_and_is_installed_on_first_use(shelf: PackageServer) -> None:
    id = shelf.box()

    async def main() -> None:
        async with Client(shelf.server, id) as client:
            assert json.loads(await said(client, "argv"))[1:] == ["--acp"]
            found = await view(client, id)
            assert (found["installed"], found["serverStatus"]["status"]) == (True, "running")
            health = (await client.http.get("/v1/health")).json()["agents"]
            assert {"agent": id, "installed": True, "running": True} in health

    run(main())


@pytest.mark.requirement("9.lazy-install")
def test_the_first_use_waits_for_an_install_longer_than_for_an_agent(shelf: PackageServer, tmp_path: Path) -> None:
    first, second = shelf.box(), shelf.box()
    held = shelf.index.hold(shelf.tarball(first))
    also_held = shelf.index.hold(shelf.tarball(second))

    async def main(server: Server) -> None:
        async with Client(server) as client:
            waiting = asyncio.create_task(client.http.post("/v1/rpc", json=initialize(first)))
            # A session of another agent than the connection's: the same wait on an open connection.
            params = {"cwd": server.work, "mcpServers": [], "_meta": {META: {"agent": second}}}
            assert (await view(client, second))["id"] == second
            opening = asyncio.create_task(client.call("session/new", params))
            await asyncio.to_thread(held.wait)
            await asyncio.to_thread(also_held.wait)
            # An agent that does not answer for as long: this is how long --request-timeout is.
            hanging = await client.post({"jsonrpc": "2.0", "id": "h", "method": "x/hang"})
            problem(hanging, 504, "agent-timeout")
            assert not waiting.done()
            assert not opening.done()
            held.release.set()
            also_held.release.set()
            assert (await waiting).status_code == 200
            assert "sessionId" in (await opening)["result"]

    with shelf.another(tmp_path / "short", "--no-persist", "--request-timeout", "2s") as server:
        run(main(server))


@pytest.mark.requirement("9.lazy-install", "9.install-failure")
def test_a_first_use_that_fails_says_why_and_the_next_tries_again(shelf: PackageServer) -> None:
    id = shelf.box()
    shelf.index.fail(shelf.tarball(id))

    async def main() -> None:
        client = bare(shelf.server)
        async with client.http, Client(shelf.server) as other:
            document = problem(await client.post(initialize(id)), 502, "download-failed")
            assert document["url"].endswith(shelf.tarball(id))
            found = await view(client, id)
            assert found["install"]["verificationError"] == document["detail"]
            assert found["serverStatus"]["status"] == "error"
            assert found["serverStatus"]["lastError"] == document["detail"]
            assert (await other.result("x/echo", {"a": 1}))["params"] == {"a": 1}, "others do not notice"
            shelf.index.repair()
            assert (await client.post(initialize(id))).status_code == 200
            found = await view(client, id)
            assert "verificationError" not in found["install"]

    run(main())


@pytest.mark.requirement("9.only-from-the-index")
def test_what_does_not_come_from_the_index_is_refused(shelf: PackageServer) -> None:
    content = packed({"package/package.json": json.dumps({"name": "evil", "version": "1.0.0"})})
    address = shelf.index.archive("evil.tgz", content)
    id = shelf.put(dependencies={"evil": address})

    async def main() -> None:
        client = bare(shelf.server)
        async with client.http:
            document = problem(await install(client, id), 502, "install-failed")
            assert "comes from git, an address or a directory instead of the index" in document["detail"]
            assert "/archives/evil.tgz" not in shelf.index.asked
            assert shelf.folders(id) == []

    run(main())


@pytest.mark.requirement("9.hashes")
def test_what_has_no_hash_is_unverified_and_can_be_refused(shelf: PackageServer, tmp_path: Path) -> None:
    files = {"bin/tiny": AGENT, "bin/package.json": json.dumps({"name": "tiny", "version": "1.0.0"})}
    target = {"archive": shelf.index.archive("unhashed.tar.gz", packed(files)), "cmd": "bin/tiny"}
    shelf.enlist(entry("unhashed", binary={current_platform(): target}))

    async def main(strict: Server) -> None:
        client = bare(strict)
        async with client.http:
            document = problem(await install(client, "unhashed"), 422, "hash-missing")
            assert (document["agent"], document["names"]) == ("unhashed", ["unhashed.tar.gz"])
            assert "/archives/unhashed.tar.gz" not in shelf.index.asked
        client = bare(shelf.server)
        async with client.http:
            (artifact,) = (await installed(client, "unhashed"))["artifacts"]
            assert artifact["unverified"] is True
            assert (await view(client, "unhashed"))["install"]["artifacts"] == [artifact]

    with shelf.another(tmp_path / "hashes", "--no-persist", "--require-hashes") as strict:
        run(main(strict))


@pytest.mark.requirement("9.require-preinstall")
def test_with_require_preinstall_nothing_is_installed_on_first_use(shelf: PackageServer, tmp_path: Path) -> None:
    id = shelf.box()

    async def main(server: Server) -> None:
        client = bare(server)
        async with client.http:
            for name in (id, "claude"):
                document = problem(await client.post(initialize(name)), 404, "agent-not-installed")
                assert document["title"] == "Agent Not Installed"
                assert f"sandbox-agent agents install {name}" in document["instructions"]
                assert document["instructions"] in document["detail"]
                assert (await view(client, name))["serverStatus"] == {"status": "stopped", "restartCount": 0}
            assert shelf.index.asked.count(shelf.tarball(id)) == 0
            await installed(client, id)
            assert (await client.post(initialize(id))).status_code == 200, "who asks for it gets it"

    with shelf.another(tmp_path / "strict", "--no-persist", "--require-preinstall") as server:
        run(main(server))


# --- credentials ------------------------------------------------------------------------------------------------------

KEYS = {
    name: f"secret-{name}"
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "AMP_API_KEY", "AWS_SECRET_ACCESS_KEY")
}


@pytest.mark.requirement("9.credentials")
def test_an_agent_sees_its_own_credentials_and_no_others(shelf: PackageServer, tmp_path: Path) -> None:
    id, own_id = shelf.box(), shelf.box()
    shelf.box(id="qwen-code")

    async def main(server: Server) -> None:
        client = bare(server)
        async with client.http:
            found = {each["id"]: each for each in (await client.http.get("/v1/agents")).json()["agents"]}
            available = {name for name, each in found.items() if each["credentialsAvailable"]}
            assert {"mock", "claude", "codex", "gemini", "amp", "mine"} <= available
            assert "copilot" not in available
            assert (await view(client, "mine"))["credentialsAvailable"] is True
        for agent, allowed in ((id, set()), ("qwen", {"OPENAI_API_KEY"}), ("mine", {"AMP_API_KEY"})):
            async with Client(server, agent) as client:
                environ = json.loads(await said(client, "environ"))
                assert environ.keys() & KEYS.keys() == allowed
                assert "secret-token" not in environ.values()
                assert not [name for name in environ if name.lower().startswith(("npm_", "uv_"))]
        secrets = [*KEYS.values(), "secret-token"]
        kept = "".join(path.read_text() for path in (server.directory / "data").rglob("*.json")) + server.stderr
        assert not [secret for secret in secrets if secret in kept]

    own = f'registry = "{own_id}"\ncredentials = ["AMP_API_KEY"]'
    flags = ("--no-persist", "--log-level", "debug")
    # Nothing from the environment that the tests run in.
    hidden = {name: None for agent in load_manifest(None).agents for name in agent.credentials}
    environment = {**hidden, **KEYS, "HOME": str(tmp_path)}
    with shelf.another(
        tmp_path / "keys", *flags, environment=environment, agents={"mine": own}, token="secret-token"
    ) as server:
        run(main(server))


@pytest.mark.requirement("9.credentials")
def test_a_session_may_bring_its_own_environment(shelf: PackageServer, tmp_path: Path) -> None:
    id = shelf.box()

    async def main(server: Server) -> None:
        async with Client(server, "alone") as client:
            environ = json.loads(await said(client, "environ", env={"OPENAI_API_KEY": "of-this-session"}))
            assert environ["OPENAI_API_KEY"] == "of-this-session"
            assert "OPENAI_API_KEY" not in json.loads(await said(client, "environ")), "the next has none of it"

    with shelf.another(tmp_path / "alone", "--no-persist", agents={"alone": f'registry = "{id}"'}) as server:
        run(main(server))
