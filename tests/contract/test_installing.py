"""Contract, section 9: installing agents over HTTP and ACP, from an index and a registry on this machine."""

import asyncio
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from sandboxagent.server.agents.install.registry_entries import current_platform
from sandboxagent.server.agents.install.tools import bundled_node
from tests.support.client import Client, Json, run
from tests.support.package_index import AGENT, entry, packed
from tests.support.package_server import (
    PackageServer,
    bare,
    events,
    initialize,
    install,
    installed,
    progress,
    said,
    until,
    view,
)
from tests.support.problems import problem
from tests.support.running import BOUND, Server
from tests.support.wire import Wire

BODY = AGENT.partition("\n")[2]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Generator[PackageServer]:
    with PackageServer(tmp_path_factory.mktemp("shelf"), "--no-persist") as running:
        yield running


# --- POST /v1/agents/{agent}/install ----------------------------------------------------------------------------------


@pytest.mark.requirement("9.install", "9.verified", "9.provenance")
def test_an_agent_is_installed_verified_and_then_ready(shelf: PackageServer) -> None:
    id = shelf.put()

    async def main() -> None:
        client = bare(shelf.server)
        async with client.http:
            before = (await client.http.get("/v1/agents?registry=true")).json()["agents"]
            (listed,) = [each for each in before if each["id"] == id]
            assert (listed["installed"], listed["install"]["verified"]) == (False, False)
            result = await installed(client, id)
            assert (result["agent"], result["alreadyInstalled"], result["version"]) == (id, False, "1.0.0")
            assert (result["source"], result["verified"]) == ("registry", True)
            (artifact,) = result["artifacts"]
            assert (artifact["kind"], artifact["name"], artifact["version"]) == (
                "agent_process",
                f"{id}-package",
                "1.0.0",
            )
            assert artifact["integrity"].startswith("sha512-")
            assert len(artifact["sha256"]) == 64
            assert is_file(artifact["path"])

            found = await view(client, id)
            assert (found["installed"], found["version"], found["path"]) == (True, "1.0.0", artifact["path"])
            about = found["install"]
            assert (about["source"], about["nonRegistry"], about["registrySlug"]) == ("registry", False, id)
            assert (listed["install"]["expected"], about["expected"]) == (True, False)
            assert (about["package"], about["verified"], about["artifacts"]) == (f"{id}-package", True, [artifact])
            assert about["installedAt"] <= about["verifiedAt"]
            assert about["node"] == bundled_node().version
            assert found["capabilities"] == {"loadSession": False, "tiny": True}
            assert found["serverStatus"] == {"status": "stopped", "restartCount": 0}, "it was ended again"
            await until(client, id, lambda view: view["offers"] != "asking")
            assert await view(client, id) == await in_list(client, id)
        async with Client(shelf.server, id) as talking:
            assert await said(talking, "hello") == "hello"

    run(main())


@pytest.mark.requirement("9.offers-in-the-background")
def test_an_installed_agent_has_told_its_models_before_its_first_session(shelf: PackageServer) -> None:
    id = shelf.put()

    async def main() -> None:
        client = bare(shelf.server)
        async with client.http:
            await installed(client, id)
            # A list asks no agent: the install did.
            async with asyncio.timeout(BOUND):
                while True:
                    found = await in_list(client, id)
                    if found["offers"] == "known":
                        break
                    await asyncio.sleep(0.02)
            assert found["models"] == {"availableModels": [], "currentModelId": None}
            sessions = (await client.http.get("/v1/sessions")).json()["sessions"]
            assert [each for each in sessions if each["agent"] == id] == []

    run(main())


async def in_list(client: Client, id: str) -> Json:
    """An agent as the list has it."""
    (found,) = [each for each in (await client.http.get("/v1/agents")).json()["agents"] if each["id"] == id]
    return found


def is_file(path: str) -> bool:
    return Path(path).is_file()


@pytest.mark.requirement("9.already-installed", "9.install-versions")
def test_installed_agent_is_kept_unless_another_version_is_asked_for(shelf: PackageServer) -> None:
    id = shelf.put()
    shelf.index.npm(f"{id}-package", "2.0.0")

    async def main() -> None:
        client = bare(shelf.server)
        async with client.http:
            first = await installed(client, id)
            assert await installed(client, id, {}) == {**first, "alreadyInstalled": True}
            assert (await installed(client, id, {"agentVersion": "1.0.0"}))["alreadyInstalled"] is True
            newer = await installed(client, id, {"agentVersion": "2.0.0"})
            assert (newer["alreadyInstalled"], newer["version"]) == (False, "2.0.0")
            assert (await installed(client, id, {"agentProcessVersion": "2.0.0"}))["alreadyInstalled"] is True
            assert (await installed(client, id))["version"] == "2.0.0"
            assert len(shelf.folders(id)) == 1, "its predecessor is gone"

    run(main())


@pytest.mark.requirement("9.already-installed")
def test_installed_agent_is_installed_again_on_request(shelf: PackageServer) -> None:
    id = shelf.box()

    async def main() -> None:
        client = bare(shelf.server)
        async with client.http:
            first = await installed(client, id)
            # While the agent is asked what it offers, its folder is in use.
            await until(client, id, lambda view: view["offers"] != "asking")
            again = await installed(client, id, {"reinstall": True})
            assert (again["alreadyInstalled"], again["version"]) == (False, "1.0.0")
            assert again["artifacts"] != first["artifacts"]
            assert len(shelf.folders(id)) == 1, "its predecessor is gone"

    run(main())


@pytest.mark.requirement("9.install-versions")
@pytest.mark.parametrize("key", ["agentVersion", "agentProcessVersion"])
def test_a_version_that_does_not_exist_is_refused(shelf: PackageServer, key: str) -> None:
    # The index does not have it, or the registry has the archive in one version only.
    id = shelf.put() if key == "agentVersion" else shelf.box()

    async def main() -> None:
        client = bare(shelf.server)
        async with client.http:
            problem(await install(client, id, {key: "9.9.9"}), 422, "unknown-version")
            assert shelf.folders(id) == []
            assert (await view(client, id))["installed"] is False

    run(main())


@pytest.mark.requirement("9.install-versions")
@pytest.mark.parametrize(
    "version", ["file:../x", "npm:evil", "../x", "", "-g", "1.0.0 || 2", "https://example.com/x.tgz"]
)
def test_a_version_that_is_none_is_refused(shelf: PackageServer, version: str) -> None:
    id = shelf.put()

    async def main() -> None:
        client = bare(shelf.server)
        async with client.http:
            for key in ("agentVersion", "agentProcessVersion"):
                problem(await install(client, id, {key: version}), 422, "unknown-version")
            assert shelf.folders(id) == []
            assert (await view(client, id))["installed"] is False

    run(main())


@pytest.mark.requirement("9.install-body")
@pytest.mark.parametrize(
    ("body", "named"),
    [
        ('{"reinstall": "yes"}', "reinstall"),
        ('{"agentVersion": 3}', "agentVersion"),
        ('{"agentProcessVersion": ["1"]}', "agentProcessVersion"),
        ("{", "JSON object"),
        ("[]", "JSON object"),
        ("3", "JSON object"),
        ('"1.0.0"', "JSON object"),
        ("null", "JSON object"),
        ("\ud800".encode("utf-8", "surrogatepass"), "JSON object"),
        ('{"pad": "' + "x" * (64 << 10) + '"}', "small JSON object"),
        ("[" * 5000, "JSON object"),
    ],
    ids=range(11),
)
def test_a_body_that_is_wrong_is_a_400_that_names_what(shelf: PackageServer, body: str | bytes, named: str) -> None:
    id = shelf.put()

    async def main() -> None:
        client = bare(shelf.server)
        async with client.http:
            for accept in ("application/json", "text/event-stream"):
                headers = {"accept": accept, "content-type": "application/json"}
                response = await client.http.post(f"/v1/agents/{id}/install", content=body, headers=headers)
                assert named in problem(response, 400, "bad-request")["detail"]
            assert shelf.folders(id) == []

    run(main())


@pytest.mark.requirement("9.install-body")
@pytest.mark.parametrize("body", ["", " \n", "{}", '{"unknown": 1}', '{"agentVersion": null}'])
def test_a_body_may_be_left_out(shelf: PackageServer, body: str) -> None:
    async def main() -> None:
        client = bare(shelf.server)
        async with client.http:
            response = await client.http.post("/v1/agents/mock/install", content=body)
            assert response.json()["alreadyInstalled"] is True

    run(main())


@pytest.mark.requirement("9.install-body")
def test_a_body_that_stops_half_way_installs_nothing(shelf: PackageServer) -> None:
    id = shelf.put()

    async def main() -> None:
        client = bare(shelf.server)
        async with client.http:
            await client.http.get(f"/v1/agents/{id}")
            with Wire(shelf.server) as wire:
                wire.send(wire.request(f"POST /v1/agents/{id}/install", "Content-Length: 100", body=b'{"rein'))
            # Handled after what came before it.
            assert (await view(client, id))["serverStatus"]["status"] == "stopped"
            assert shelf.folders(id) == []

    run(main())


@pytest.mark.requirement("9.unknown-agent")
@pytest.mark.parametrize("id", ["nobody", "..%2f..%2fx", ".node", "%00", "A", "x" * 200])
def test_an_unknown_agent_cannot_be_installed(shelf: PackageServer, id: str) -> None:
    async def main() -> None:
        client = bare(shelf.server)
        async with client.http:
            response = await client.http.post(f"/v1/agents/{id}/install")
            assert response.status_code in (404, 410), response.text
            if response.status_code == 404:
                assert "mock" in problem(response, 404, "unknown-agent")["known"]
            assert (await client.http.get(f"/v1/agents/{id}")).status_code in (404, 410)

    run(main())


@pytest.mark.requirement("9.unknown-agent")
@pytest.mark.parametrize(
    "id", ["../x", "..", ".", "", ".node", "/etc/passwd", "a\0b", "a/b", "A", "x" * 5000, "\ud83d"]
)
def test_a_name_that_is_a_path_opens_no_connection(shelf: PackageServer, id: str) -> None:
    async def main() -> None:
        client = bare(shelf.server)
        async with client.http:
            problem(await client.post(initialize(id)), 404, "unknown-agent")

    run(main())


# --- progress ---------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("9.install-events")
def test_progress_comes_as_events_and_the_result_as_the_last(shelf: PackageServer) -> None:
    id = shelf.box()
    held = shelf.index.hold(shelf.tarball(id))

    async def main() -> None:
        client = bare(shelf.server)
        async with client.http:
            # One that reads late misses states: it goes on when the client has seen this one.
            seen = await events(client, id, held.release.set)
            stages = [data["stage"] for name, data in seen if name == "progress"]
            assert "fetching" in stages
            assert set(stages) <= {"waiting", "resolving", "fetching", "unpacking", "verifying", "done"}
            assert all(data["message"] for name, data in seen if name == "progress")
            name, result = seen[-1]
            assert (name, result["agent"], result["alreadyInstalled"]) == ("result", id, False)
            assert (await events(client, id))[-1] == ("result", {**result, "alreadyInstalled": True})

    run(main())


@pytest.mark.requirement("9.install-events")
def test_a_failure_comes_as_an_event_that_holds_the_problem(shelf: PackageServer) -> None:
    id = shelf.box("#!/usr/bin/env node\nconsole.error('no key'); process.exit(3)")

    async def main() -> None:
        client = bare(shelf.server)
        async with client.http:
            name, document = (await events(client, id))[-1]
            assert (name, document["type"]) == ("problem", "urn:sandbox-agent:error:install-failed")
            assert (document["status"], document["stderr"], document["exitCode"]) == (502, "no key", 3)
            problem(await install(client, "nobody", accept="text/event-stream"), 404, "unknown-agent")
            assert (await events(client, "mock"))[0][0] == "result"

    run(main())


@pytest.mark.requirement("9.install-events")
def test_bytes_of_an_archive_are_counted(shelf: PackageServer) -> None:
    content = packed({"bin/tiny": AGENT, "bin/package.json": '{"name": "x", "version": "1.0.0"}', "pad": "x" * 300_000})
    target = {"archive": shelf.index.archive("boxed.tar.gz", content), "cmd": "bin/tiny"}
    shelf.enlist(entry("boxed", binary={current_platform(): target}))
    held = shelf.index.hold("/archives/boxed.tar.gz")

    async def main() -> None:
        client = bare(shelf.server)
        async with client.http:
            watching = asyncio.create_task(events(client, "boxed"))
            await asyncio.to_thread(held.wait)
            now = (await view(client, "boxed"))["install"]["progress"]
            assert (now["stage"], now["message"], now["bytes"]) == (
                "fetching",
                "fetching boxed.tar.gz",
                0,
            )
            held.release.set()
            assert (await watching)[-1][0] == "result"

    run(main())


@pytest.mark.requirement("9.progress")
def test_all_clients_see_that_an_agent_is_being_installed_and_how_far_it_is(shelf: PackageServer) -> None:
    id = shelf.box()
    held = shelf.index.hold(shelf.tarball(id))

    async def main() -> None:
        client = bare(shelf.server)
        async with client.http, Client(shelf.server) as other:
            waiting = asyncio.create_task(installed(client, id))
            await asyncio.to_thread(held.wait)
            found = await view(other, id)
            assert found["serverStatus"]["status"] == "installing"
            assert found["install"]["progress"]["stage"] == "fetching"
            assert f"{id}.tar.gz" in progress(found)
            assert found["installed"] is False
            assert (await other.http.get("/v1/health")).status_code == 200
            held.release.set()
            await waiting
            found = await view(other, id)
            assert "progress" not in found["install"]
            assert (found["installed"], found["serverStatus"]["status"]) == (True, "stopped")

    run(main())


# --- who asks at the same time ----------------------------------------------------------------------------------------


@pytest.mark.requirement("9.install-shared")
def test_all_who_install_an_agent_at_the_same_time_share_one_install_and_its_result(shelf: PackageServer) -> None:
    id = shelf.box()
    held = shelf.index.hold(shelf.tarball(id))

    async def main() -> None:
        client = bare(shelf.server)
        async with client.http, Client(shelf.server) as over_acp:
            asking = [asyncio.create_task(installed(client, id)) for _ in range(3)]
            watching = asyncio.create_task(events(client, id))
            calling = asyncio.create_task(over_acp.result("_sandboxagent/agent/install", {"agent": id}))
            opening = [asyncio.create_task(client.post(initialize(id))) for _ in range(2)]
            await asyncio.to_thread(held.wait)
            held.release.set()
            results = await asyncio.gather(*asking)
            assert all(result == results[0] for result in results)
            assert (await watching)[-1] == ("result", results[0])
            assert await calling == results[0]
            assert [response.status_code for response in await asyncio.gather(*opening)] == [200, 200]
            assert shelf.index.asked.count(shelf.tarball(id)) == 1

    run(main())


@pytest.mark.requirement("9.install-goes-on")
@pytest.mark.parametrize("how", ["json", "events", "initialize"])
def test_a_client_that_goes_away_does_not_stop_an_install(shelf: PackageServer, how: str) -> None:
    id = shelf.box()
    held = shelf.index.hold(shelf.tarball(id))

    async def main() -> None:
        async with Client(shelf.server) as other:
            client = bare(shelf.server)
            if how == "initialize":
                asking: asyncio.Task[Any] = asyncio.create_task(client.post(initialize(id)))
            else:
                headers = {} if how == "json" else {"accept": "text/event-stream"}
                asking = asyncio.create_task(install(client, id, **headers))
            await asyncio.to_thread(held.wait)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await client.http.aclose()
            assert (await view(other, id))["serverStatus"]["status"] == "installing"
            held.release.set()
            assert (await installed(other, id))["version"] == "1.0.0"
            assert shelf.index.asked.count(shelf.tarball(id)) == 1

    run(main())


@pytest.mark.requirement("9.shared-directory")
def test_two_servers_may_share_a_directory_of_agents(shelf: PackageServer, tmp_path: Path) -> None:
    id = shelf.box()
    held = shelf.index.hold(shelf.tarball(id))

    async def main(other: Server) -> None:
        first, second = bare(shelf.server), bare(other)
        async with first.http, second.http:
            installing = asyncio.create_task(installed(first, id))
            await asyncio.to_thread(held.wait)
            waiting = asyncio.create_task(installed(second, id))
            await until(second, id, lambda found: "another process" in progress(found))
            held.release.set()
            assert (await installing)["alreadyInstalled"] is False
            assert await waiting == {**(await installing), "alreadyInstalled": True}
            assert shelf.index.asked.count(shelf.tarball(id)) == 1
        for server in (shelf.server, other):
            async with Client(server, id) as client:
                assert await said(client, "hello") == "hello"
        assert len(shelf.folders(id)) == 1

    with shelf.another(tmp_path / "other", "--no-persist", "--agents-dir", str(shelf.agents_dir)) as other:
        run(main(other))


# --- over ACP ---------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("9.install-over-acp")
def test_installing_over_acp_is_the_same(shelf: PackageServer) -> None:
    id = shelf.box()

    async def main() -> None:
        async with Client(shelf.server) as client:
            result = await client.result("_sandboxagent/agent/install", {"agent": id})
            assert result == {**(await installed(client, id)), "alreadyInstalled": False}
            again = await client.result("_sandboxagent/agent/install", {"agent": id, "reinstall": True})
            assert (again["version"], again["alreadyInstalled"]) == ("1.0.0", False)
            own = await client.result("_sandboxagent/agent/install")
            assert (own["agent"], own["alreadyInstalled"]) == ("scripted", True), "the connection's own agent"

            for params, code in (
                ({"agent": "nobody"}, -32602),
                ({"agent": id, "reinstall": 1}, -32602),
                ({"agent": 3}, -32602),
                ({"agent": id, "agentVersion": "9.9.9"}, -32602),
            ):
                assert (await client.error("_sandboxagent/agent/install", params))["code"] == code, params
            broken = shelf.box("#!/usr/bin/env node\nprocess.exit(1)")
            error = await client.error("_sandboxagent/agent/install", {"agent": broken})
            assert (error["code"], error["data"]["type"]) == (-32603, "install-failed")

    run(main())


@pytest.mark.requirement("9.install-over-acp")
def test_installing_over_acp_may_be_answered_on_the_stream(shelf: PackageServer) -> None:
    id = shelf.box()

    async def main() -> None:
        async with Client(shelf.server) as client, client.stream() as stream:
            body = {"jsonrpc": "2.0", "id": "i", "method": "_sandboxagent/agent/install", "params": {"agent": id}}
            assert (await client.post(body, Prefer="respond-async")).status_code == 202
            event = (await stream.until(lambda event: event.data.get("id") == "i", 4 * BOUND))[-1]
            assert event.data["result"]["agent"] == id

    run(main())


@pytest.mark.requirement("9.registry-agents")
def test_what_the_registry_has_is_listed_on_request(shelf: PackageServer) -> None:
    id = shelf.put()

    async def main() -> None:
        async with Client(shelf.server) as client:
            without = {each["id"] for each in (await client.http.get("/v1/agents")).json()["agents"]}
            response = await client.http.get("/v1/agents?registry=true")
            with_ = {each["id"]: each for each in response.json()["agents"]}
            assert id not in without
            assert without <= with_.keys()
            assert (with_[id]["install"]["source"], with_[id]["title"]) == ("registry", id.title())
            assert (with_[id]["installed"], with_[id]["supported"]) == (False, True)
            assert f"sandbox-agent agents install {id}" in with_[id]["instructions"]
            over_acp = await client.result("_sandboxagent/agent/list", {"registry": True})
            assert {each["id"] for each in over_acp["agents"]} == with_.keys()
            assert (await view(client, id))["id"] == id

    run(main())
