"""Contract, section 9: agents as clients see them. Installing them is in test_installing.py."""

from pathlib import Path

import pytest

from sandboxagent import __version__
from tests.support.client import META, Client, Json, run
from tests.support.problems import problem
from tests.support.running import Server, alive, eventually, scripted
from tests.support.saying import said

REQUIRED = {
    "id": str,
    "title": str,
    "description": str,
    "supported": bool,
    "installed": bool,
    "credentialsAvailable": bool,
    "credentials": list,
    "install": dict,
    "capabilities": dict,
    "serverStatus": dict,
    "instructions": str,
    "offers": str,
    "isolation": str,
}
OPTIONAL = {
    "unsupportedReason": str,
    "version": str,
    "nativeVersion": str,
    "path": str,
    "agentInfo": dict,
    "features": dict,
    "models": dict,
    "modes": dict,
    "configOptions": list,
    "offersError": str,
}
INSTALL = {"source": str, "nonRegistry": bool, "expected": bool, "verified": bool, "artifacts": list}
INSTALL_OPTIONAL = {
    "registrySlug": str,
    "package": str,
    "folder": str,
    "platform": str,
    "verifiedAt": str,
    "verificationError": str,
    "installedAt": str,
    "note": str,
    "node": str,
    "progress": dict,
}
FEATURES = {"permissions": str, "questions": str, "attachments": str, "uris": str, "images": bool, "mixes": bool}
STATUS = {"status": str, "restartCount": int}
STATUS_OPTIONAL = {"pid": int, "uptimeMs": int, "lastError": str}
ARTIFACT = {"kind", "name", "version", "path", "source"}
KNOWN = ["mock", "claude", "codex", "opencode", "gemini", "qwen", "copilot", "pi", "goose", "amp"]


def has_shape(value: Json, required: dict[str, type], optional: dict[str, type]) -> None:
    """All that is required, nothing that is unknown, each of its type."""
    assert required.keys() <= value.keys() <= required.keys() | optional.keys(), value
    for name, item in value.items():
        assert type(item) is (required | optional)[name], (name, item)


def initialize(agent: str) -> Json:
    params = {"protocolVersion": 1, "_meta": {META: {"agent": agent}}}
    return {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}


async def agents(client: Client) -> dict[str, Json]:
    response = await client.http.get("/v1/agents")
    assert response.status_code == 200
    assert list(response.json()) == ["agents"]
    return {agent["id"]: agent for agent in response.json()["agents"]}


async def agent(client: Client, id: str) -> Json:
    response = await client.http.get(f"/v1/agents/{id}")
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.requirement("9.agent-shape")
@pytest.mark.requirement("9.provenance")
@pytest.mark.requirement("9.known-agents")
def test_every_agent_has_the_documented_shape(server: Server) -> None:
    async def main() -> None:
        async with Client(server, "mock") as client:
            await client.new_session()
            found = await agents(client)
            assert list(found)[: len(KNOWN)] == KNOWN
            assert {"scripted", "other"} <= found.keys()
            for each in found.values():
                has_shape(each, REQUIRED, OPTIONAL)
                has_shape(each["install"], INSTALL, INSTALL_OPTIONAL)
                has_shape(each["serverStatus"], STATUS, STATUS_OPTIONAL)
                assert each["install"]["source"] in ("registry", "fallback", "bundled", "path")
                assert each["serverStatus"]["status"] in ("stopped", "installing", "starting", "running", "error")
                for artifact in each["install"]["artifacts"]:
                    assert (
                        ARTIFACT
                        <= artifact.keys()
                        <= ARTIFACT | {"sha256", "integrity", "packageVersion", "versionInferred"}
                    )
                    assert artifact["kind"] in ("agent_process", "native", "binary")
                assert each["title"]
                assert each["instructions"]
                assert each["installed"] is ("path" in each) is bool(each["install"]["artifacts"])
                assert each["supported"] is ("unsupportedReason" not in each)
                if "features" in each:
                    has_shape(each["features"], FEATURES, {})
                assert ("features" in each) is (each["id"] in KNOWN)

    run(main())


@pytest.mark.requirement("9.provenance")
def test_where_an_agent_comes_from_is_said(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            found = await agents(client)
            sources = {id: found[id]["install"]["source"] for id in ("mock", "scripted", "claude")}
            assert sources in (
                {"mock": "bundled", "scripted": "path", "claude": "registry"},
                {"mock": "bundled", "scripted": "path", "claude": "fallback"},
            ), "by whether another test has had the registry read"
            assert (found["mock"]["installed"], found["mock"]["version"]) == (True, __version__)
            assert found["scripted"]["installed"] is True
            assert [found[id]["install"]["expected"] for id in ("mock", "scripted", "claude")] == [False, False, True]
            claude = found["claude"]
            assert claude["installed"] is False
            assert claude["install"]["package"] in claude["instructions"]
            assert "sandbox-agent agents install claude" in claude["instructions"]
            assert claude["install"]["registrySlug"] == "claude-acp"
            assert not {"version", "path"} & claude.keys(), "it is not there"

    run(main())


@pytest.mark.requirement("9.provenance")
def test_the_same_agent_named_in_agents_toml_comes_from_a_path() -> None:
    async def main(server: Server) -> None:
        async with Client(server, "claude") as client:
            view = await agent(client, "claude")
            assert (view["installed"], view["install"]["source"]) == (True, "path")
            assert "package" not in view["install"]

    with Server("--no-persist", agents={"claude": scripted()}) as server:
        run(main(server))


@pytest.mark.requirement("9.server-status")
def test_the_status_follows_the_process() -> None:
    async def main(server: Server) -> None:
        bare = Client(server, "mock")
        async with bare.http:
            assert (await agent(bare, "scripted"))["serverStatus"] == {"status": "stopped", "restartCount": 0}
        async with Client(server) as client:
            session = await client.new_session()
            (pid,) = await said(client, session, ["pid"])
            running = await agent(client, "scripted")
            assert running["serverStatus"]["status"] == "running"
            assert running["serverStatus"]["pid"] == int(pid)
            assert 0 <= running["serverStatus"]["uptimeMs"] < 60_000
            assert running["capabilities"]["loadSession"] is True
            assert running["install"]["verified"] is True
            await client.prompt(session, [["stderr", "ouch"], ["exit", 7]])
            crashed = (await agent(client, "scripted"))["serverStatus"]
            assert crashed["status"] in ("error", "stopped")
            assert "7" in crashed["lastError"]
            assert not {"pid", "uptimeMs"} & crashed.keys()
            (second,) = await said(client, await client.new_session(), ["pid"])
            again = (await agent(client, "scripted"))["serverStatus"]
            assert (again["status"], again["pid"], again["restartCount"]) == ("running", int(second), 1)

    with Server("--no-persist") as server:
        run(main(server))


@pytest.mark.requirement("9.server-status")
def test_an_agent_that_cannot_start_says_why() -> None:
    async def main(server: Server) -> None:
        broken = Client(server, "broken")
        async with broken.http:
            document = problem(await broken.post(initialize("broken")), 502, "agent-boot-failed")
            assert document["exitCode"] == 4
            assert "exiting at once" in document["stderr"]
            status = (await agent(broken, "broken"))["serverStatus"]
            assert status["status"] == "error"
            assert "broken" in status["lastError"]

    with Server("--no-persist", agents={"broken": scripted("--exit-at-once", "4")}) as server:
        run(main(server))


@pytest.mark.requirement("9.models-and-modes")
@pytest.mark.parametrize("kind", ["block", "option"])
def test_models_and_modes_appear_once_the_agent_has_told_them(kind: str) -> None:
    table = scripted("--models") if kind == "block" else scripted()

    async def main(server: Server) -> None:
        async with Client(server, "told") as client:
            assert not {"models", "modes"} & (await agent(client, "told")).keys()
            await client.new_session()
            view = await agent(client, "told")
            assert [mode["id"] for mode in view["modes"]["availableModes"]] == ["default", "plan"]
            assert [model["modelId"] for model in view["models"]["availableModels"]] == ["small", "large"]

    with Server("--no-persist", agents={"told": table}) as server:
        run(main(server))


@pytest.mark.requirement("9.already-installed")
@pytest.mark.parametrize(("id", "source"), [("mock", "bundled"), ("scripted", "path")])
def test_installing_what_is_installed_says_so_and_where_it_is(server: Server, id: str, source: str) -> None:
    async def main() -> None:
        async with Client(server) as client:
            response = await client.http.post(f"/v1/agents/{id}/install")
            assert response.status_code == 200
            done = response.json()
            assert set(done) == {"agent", "alreadyInstalled", "version", "source", "verified", "artifacts"}
            assert (done["agent"], done["alreadyInstalled"], done["source"]) == (id, True, source)
            assert [exists(artifact["path"]) for artifact in done["artifacts"]] == [True]
            found = (await agent(client, id))["install"]
            assert done["artifacts"] == found["artifacts"]
            assert found["verified"] or id == "scripted", "which may not have been started yet"
            again = await client.http.post(f"/v1/agents/{id}/install", json={"reinstall": True})
            assert again.json() == done, "there is nothing to fetch"

    run(main())


def exists(path: str) -> bool:
    return Path(path).exists()


@pytest.mark.requirement("9.server-status")
def test_an_own_agent_whose_program_is_not_there_is_not_installed_and_says_which_one() -> None:
    async def main(server: Server) -> None:
        client = Client(server, "missing")
        async with client.http:
            view = await agent(client, "missing")
            assert (view["installed"], view["install"]["artifacts"]) == (False, [])
            refused = problem(await client.http.post("/v1/agents/missing/install"), 404, "agent-not-installed")
            assert "no-such-program-anywhere" in refused["instructions"]
            document = problem(await client.post(initialize("missing")), 502, "agent-boot-failed")
            assert document["command"] == ["no-such-program-anywhere", "--acp"]
            assert (await agent(client, "missing"))["serverStatus"]["status"] == "error"

    with Server("--no-persist", agents={"missing": "command = ['no-such-program-anywhere', '--acp']"}) as server:
        run(main(server))


@pytest.mark.requirement("9.dead-when-exited")
def test_an_agent_whose_stdout_is_held_open_by_a_child_is_dead_when_it_has_exited(server: Server) -> None:
    async def main() -> None:
        async with Client(server, "isolated") as client:
            session = await client.new_session()
            agent_pid, child = map(int, await said(client, session, ["pid"], ["daemon", {"setsid": True}]))
            response = await client.prompt(session, [["exit", 5]])
            assert response["error"]["data"]["exitCode"] == 5
            eventually(lambda: not alive(agent_pid) and not alive(child), "the end of both")
            assert (await client.http.get(f"/v1/sessions/{session}")).json()["ended"] is True

    run(main())


@pytest.mark.requirement("9.same-views-over-acp")
def test_agents_are_the_same_over_acp_and_over_http(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            over_acp = await client.result("_sandboxagent/agent/list")
            over_http = (await client.http.get("/v1/agents")).json()
            for each in (*over_acp["agents"], *over_http["agents"]):
                each["serverStatus"].pop("uptimeMs", None)
            # Other tests share the server: only what they cannot have changed meanwhile is compared.
            for one, other in zip(over_acp["agents"], over_http["agents"], strict=True):
                assert one.keys() - {"models", "modes"} == other.keys() - {"models", "modes"}
                assert (one["id"], one["install"], one["title"]) == (other["id"], other["install"], other["title"])

    run(main())
