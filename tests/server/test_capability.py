"""The seam for what stands beside the hub: what a capability brings, hears and refuses, and a server without one."""

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

import sandboxagent
from sandboxagent.protocol import methods
from sandboxagent.server.capability import Capability, CapabilitySet
from sandboxagent.server.http import openapi
from sandboxagent.server.http.auth import Access
from sandboxagent.server.http.routes import make_control_app
from sandboxagent.server.http.views import BOOLEAN, Endpoint
from tests.support.client import META, Client, run
from tests.support.running import BOUND, Server, eventually, scripted
from tests.support.world import world

SOURCE = Path(sandboxagent.__file__).parent
BRIDGE = "sandboxagent.adapters.opencode.capability:OpenCodeApi"
FILES = "sandboxagent.server.file_api.capability:FileApi"
EXAMPLE = "tests.server.example_capability:TurnLimit"
BROKEN = "tests.server.broken_capabilities"
MODULE = "tests.support.capable"


def server_with(*capabilities: str, directory: Path | None = None) -> Server:
    """Its agent `forbidden` is one that the example refuses to start."""
    return Server(
        directory=directory,
        anew=True,
        module=MODULE,
        agents={"forbidden": scripted()},
        environment={"TEST_CAPABILITIES": ",".join(capabilities)},
        gateway=False,
    )


def get(server: Server, path: str, token: str | None = None) -> httpx.Response:
    return httpx.get(
        server.url + path,
        headers={"authorization": f"Bearer {server.token if token is None else token}"},
        trust_env=False,
        timeout=BOUND,
    )


def sources(*folders: str) -> dict[str, str]:
    paths = [path for folder in folders for path in (SOURCE / folder).rglob("*.py")]
    return {path.relative_to(SOURCE).as_posix(): path.read_text() for path in paths}


def count(server: Server, *names: str) -> tuple[int, ...]:
    """What the example has counted."""
    counted = get(server, "/v1/turns").json()
    return tuple(counted[name] for name in names)


async def extensions(server: Server) -> set[str]:
    """The methods and notifications that `initialize` tells."""
    greeting = await Client(server).initialize()
    return set(greeting["result"]["agentCapabilities"]["_meta"][META]["extensions"]["methods"])


async def take_a_turn(client: Client) -> None:
    session = await client.new_session()
    result = await client.result("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": "hi"}]})
    assert result["stopReason"] == "end_turn"


def test_a_server_without_the_bridge_imports_nothing_of_it_and_misses_nothing() -> None:
    async def main() -> None:
        with server_with(FILES, EXAMPLE) as server:
            assert methods.SHELL not in await extensions(server)
            async with Client(server) as client:
                await take_a_turn(client)
                assert (await client.result("_sandboxagent/fs/stat", {"path": server.work}))["entryType"] == "directory"
            assert get(server, "/v1/agents").status_code == 200
            assert get(server, "/v1/fs/entries?path=/").status_code == 200
            assert get(server, "/opencode/session").status_code == 404
            loaded = get(server, "/turns").json()["modules"]
            assert "sandboxagent.server.file_api.routes" in loaded
            assert not [name for name in loaded if name.startswith("sandboxagent.adapters.opencode")]

    run(main())


def test_only_the_list_in_build_knows_the_capabilities_of_a_server() -> None:
    known = re.compile(r"\bfrom sandboxagent\.(?:adapters\.opencode|server\.file_api)\b")
    importers = {name for name, text in sources("server", "fleet").items() if known.search(text)}

    assert {name for name in importers if not name.startswith("server/file_api/")} == {"server/build.py"}


def test_hub_http_and_gateways_name_no_capability() -> None:
    """Neither a capability's word, nor its methods by name or by constant."""
    own = {name: value for name, value in vars(methods).items() if name.isupper() and "/fs/" in str(value)}
    own["SHELL"] = methods.SHELL
    assert len(own) > 5, "found no methods"
    constants = "|".join(rf"methods\.{name}\b" for name in own if not own[name].startswith("fs/"))
    texts = "|".join(re.escape(value) for value in own.values() if value.startswith("_"))
    named = re.compile(rf"opencode|file_api|{constants}|{texts}", re.IGNORECASE)

    found = sources("server/sessions", "server/http", "fleet/gateway")
    assert [name for name, text in found.items() if named.search(text)] == []


def test_a_server_without_the_file_api_has_neither_its_routes_nor_its_methods() -> None:
    async def main() -> None:
        with server_with(BRIDGE) as server:
            async with Client(server) as client:
                await take_a_turn(client)
                assert (await client.error("_sandboxagent/fs/stat", {"path": "/"}))["code"] == -32601
            told = await extensions(server)
            assert "_sandboxagent/fs/stat" not in told
            assert methods.SHELL in told
            assert get(server, "/v1/fs/entries?path=/").status_code == 410
            assert not [path for path in get(server, "/openapi.json").json()["paths"] if path.startswith("/v1/fs/")]

    run(main())


def test_a_capability_brings_paths_routes_methods_and_notifications() -> None:
    async def main() -> None:
        with server_with(FILES, BRIDGE, EXAMPLE) as server:
            assert {"_sandboxagent/turns/count", "_sandboxagent/turns/limit"} <= await extensions(server)
            async with Client(server) as client:
                assert await client.result("_sandboxagent/turns/count") == {"ended": 0}
            assert get(server, "/turns").status_code == 200
            assert get(server, "/turns", token="wrong").status_code == 401
            document = get(server, "/openapi.json").json()
            assert document["paths"]["/v1/turns"]["get"]["summary"] == "How many turns are over."

    run(main())


def test_a_capability_hears_turns_and_reads_the_log_from_its_own_cursor() -> None:
    async def main() -> None:
        with server_with(EXAMPLE) as server:
            async with Client(server) as client:
                await take_a_turn(client)
                await take_a_turn(client)
                assert await client.result("_sandboxagent/turns/count") == {"ended": 2}
            eventually(lambda: count(server, "ended", "logged") == (2, 2))

    run(main())


def test_a_capability_hears_the_ends_of_turns_that_a_killed_server_left(tmp_path: Path) -> None:
    async def main() -> None:
        server = server_with(EXAMPLE, directory=tmp_path)
        server.start()
        client = Client(server)
        await client.initialize()
        session = await client.new_session()
        async with client.stream() as stream:
            prompt = client.prompt_params(session, [["say", "hi"], ["wait_cancel"]])
            asyncio.get_running_loop().create_task(client.call("session/prompt", prompt)).add_done_callback(
                lambda done: done.exception()
            )
            await stream.until(lambda event: "hi" in event.text)
            # Its answer comes when it is on disk, with all that was before.
            await client.new_session()
            server.kill()
        with server:
            assert count(server, "ended") == (1,)
            eventually(lambda: count(server, "logged") == (1,))

    run(main())


def test_a_capability_hears_every_process_of_an_agent() -> None:
    async def main() -> None:
        with server_with(EXAMPLE) as server:
            # A process that only tells what the agent offers.
            assert get(server, "/v1/agents/scripted?models=true").status_code == 200
            eventually(lambda: count(server, "processes", "exits") == (1, 1))
            async with Client(server) as client:
                await take_a_turn(client)
            assert count(server, "processes", "exits") == (2, 1)

    run(main())


def test_the_trouble_of_a_capability_is_part_of_the_servers_health() -> None:
    async def main() -> None:
        with server_with(EXAMPLE) as server:
            assert get(server, "/v1/health").json()["status"] == "ok"
            async with Client(server) as client:
                for _ in range(3):
                    await take_a_turn(client)
            health = get(server, "/v1/health").json()
            assert (health["status"], health["detail"]) == ("degraded", "turn limit: too many turns")

    run(main())


def test_a_capability_that_cannot_check_itself_is_in_trouble(tmp_path: Path) -> None:
    server = server_with(f"{BROKEN}:FailsToCheckItself", directory=tmp_path)
    server.start()
    try:
        assert get(server, "/v1/health").json()["detail"] == "fails to check itself: it could not check itself"
    finally:
        server.stop()
    assert "RuntimeError: no check today" in server.stderr


def test_a_capability_refuses_a_session_a_prompt_and_a_process() -> None:
    async def main() -> None:
        with server_with(EXAMPLE) as server:
            async with Client(server) as client:
                refused = await client.call("session/new", {"cwd": "/", "mcpServers": []})
                assert "no session in /" in refused["error"]["message"]

                session = await client.new_session()
                prompt = {"sessionId": session, "prompt": [{"type": "text", "text": "too dear"}]}
                refused = await client.call("session/prompt", prompt)
                assert "too dear" in refused["error"]["message"]
                await take_a_turn(client)

            params = {"protocolVersion": 1, "clientCapabilities": {}, "_meta": {META: {"agent": "forbidden"}}}
            introduction = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
            response = await Client(server, "forbidden").post(introduction)
            assert response.status_code == 400
            assert "not allowed here" in response.text
            # Nor may it start to tell what it offers.
            assert "not allowed here" in get(server, "/v1/agents/forbidden?models=true").text

    run(main())


def test_capabilities_that_fail_or_hang_at_the_end_stop_nothing_else(tmp_path: Path) -> None:
    broken = ("FailsToStop", "FailsToClose", "NeverCloses")
    server = server_with(*(f"{BROKEN}:{name}" for name in broken), EXAMPLE, directory=tmp_path)
    server.start()

    assert server.stop() == 0, server.stderr
    # Of log.close(), the last step.
    assert not (tmp_path / "data" / "log.db-wal").exists()
    failures = re.findall(r"capability failed to (\w+) capability='(.+)'", server.stderr)
    assert sorted(failures) == [("close", "fails to close"), ("close", "never closes"), ("stop", "fails to stop")]


def test_work_of_a_capability_that_fails_is_logged_with_its_name(tmp_path: Path) -> None:
    server = server_with(f"{BROKEN}:FailsToWork", directory=tmp_path)
    server.start()
    try:
        eventually(lambda: "task failed task='capability fails to work'" in server.stderr)
        assert get(server, "/v1/health").status_code == 200
    finally:
        server.stop()
    assert "RuntimeError: no work today" in server.stderr


class _AtPath(Capability):
    name = "first"
    access = Access("/turns")


@pytest.mark.parametrize("access", [Access("/turns"), Access("/turns/all"), Access("/", "/turns")])
def test_two_capabilities_with_one_path_are_refused_at_the_start(access: Access) -> None:
    second = type("Second", (Capability,), {"name": "second", "access": access})
    no_core: Any = None

    with pytest.raises(ValueError, match="'first' and 'second' both answer /"):
        CapabilitySet([_AtPath, second], no_core)


@pytest.mark.parametrize("path", ["/v1/turns", "/acp", "/ui/turns", "/openapi.json"])
def test_a_capability_with_a_path_of_the_server_is_refused_at_the_start(path: str) -> None:
    no_core: Any = None

    with pytest.raises(ValueError, match="belongs to the server"):
        CapabilitySet([type("Taker", (Capability,), {"name": "taker", "access": Access(path)})], no_core)


@pytest.mark.parametrize("name", ["session/new", "session/prompt", "session/cancel", "_sandboxagent/session/turn"])
def test_a_capability_with_a_method_that_exists_is_refused_at_the_start(name: str) -> None:
    async def method(*_: object) -> Any: ...

    async def main() -> None:
        async with world() as own:
            with pytest.raises(ValueError, match=f"has these methods already: {name}"):
                own.requests.add_methods({name: method})
            with pytest.raises(ValueError, match=f"has these methods already: {name}"):
                own.requests.add_methods({}, [name])

    run(main())


def test_two_endpoints_with_one_method_and_path_are_refused() -> None:
    async def handle(*_: object) -> Any: ...

    no_ui: Any = None
    one, other = (
        Endpoint("GET", f"/v1/turns/{{{name}}}", handle, "", path_parameters={name: "Its id."})
        for name in ("turn", "id")
    )
    with pytest.raises(ValueError, match=r"two endpoints answer GET /v1/turns/\{id\}"):
        make_control_app([one, other], no_ui)


def test_the_document_has_the_parameters_that_an_endpoint_declares() -> None:
    async def handle(*_: object) -> Any: ...

    endpoint = Endpoint(
        *("GET", "/v1/ports/{port}", handle, "A port.", None, {"open": "Only if it is open.", "like": "A part."}),
        path_parameters={"port": "Its number."},
        schemas={"open": BOOLEAN},
    )
    paths: Any = openapi.document([endpoint])["paths"]
    found = {each["name"]: each for each in paths["/v1/ports/{port}"]["get"]["parameters"]}

    text = {"type": "string"}
    assert found == {
        "port": {"name": "port", "in": "path", "description": "Its number.", "schema": text, "required": True},
        "open": {"name": "open", "in": "query", "description": "Only if it is open.", "schema": {"type": "boolean"}},
        "like": {"name": "like", "in": "query", "description": "A part.", "schema": text},
    }


def test_an_endpoint_that_does_not_describe_its_path_is_refused() -> None:
    async def handle(*_: object) -> Any: ...

    no_ui: Any = None
    with pytest.raises(ValueError, match=r"GET /v1/turns/\{turn\} needs a description"):
        make_control_app([Endpoint("GET", "/v1/turns/{turn}", handle, "")], no_ui)


def test_the_example_of_the_architecture_is_the_one_that_is_tested() -> None:
    """Each line of it stands in the example."""
    page = (SOURCE.parent.parent / "docs" / "architecture.md").read_text()
    shown = page[page.index("class TurnLimit(Capability):") :]
    example = {line.strip() for line in (Path(__file__).parent / "example_capability.py").read_text().splitlines()}

    assert [line for line in shown[: shown.index("```")].splitlines() if line.strip() not in example] == []
