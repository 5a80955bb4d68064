"""Which node is meant, where there are several: both SDKs and the command line can say it."""

import asyncio
import json
from pathlib import Path

import pytest

from sandboxagent import ServerProblem
from sandboxagent.client.sync import SandboxAgent as SyncSandboxAgent
from tests.cli.cli_call import CliCall
from tests.cli.place import Place
from tests.fleet.gateway.conftest import Fleet
from tests.sdk_typescript.node import SDK, build, node
from tests.support.client import run
from tests.support.repeating import run_program
from tests.support.sdk import connected, new_session

pytestmark = pytest.mark.usefixtures("joined")

NAMES = ("n1", "n2")


@pytest.fixture(scope="module", autouse=True)
def marked(fleet: Fleet) -> None:
    """A file on each node that says which one it is."""
    for name, root in zip(NAMES, fleet.roots, strict=True):
        (root / "which").write_text(name)


def test_the_python_sdk_names_the_node_of_files_agents_and_sessions(fleet: Fleet) -> None:
    async def main() -> None:
        async with connected(fleet.gateways[0]) as client:
            with pytest.raises(ServerProblem) as caught:
                await client.files.read("which")
            assert caught.value.slug == "missing-node"
            for place, name in enumerate(NAMES):
                files, agents = client.files.of_node(name), client.agents.of_node(name)
                assert await files.read_text("which") == name
                await files.write("moving", name)
                assert await files.move("moving", "moved") == str(fleet.roots[place] / "moved")
                assert "which" in [entry.name async for entry in files.list()]
                assert [match.text async for match in files.search(text=name, name="which")] == [name]
                assert "scripted" in [agent.id for agent in await agents.list()]
                assert (await agents.get("scripted")).installed
                assert (await agents.stderr("scripted")).text == ""
                assert (await agents.install("mock")).already_installed
                session = await new_session(client, fleet.nodes[place], node=name)
                assert (await session.info()).node == name
                assert await session.files.read_text("which") == name
                # What its agent offers is known where the session is.
                again = await client.sessions.attach(session.id)
                assert [mode.id for mode in (await again.modes()).available_modes] == ["default", "plan"]

    run(main())


def test_blocking_sdk_names_the_node_too(fleet: Fleet) -> None:
    gateway = fleet.gateways[1]
    with SyncSandboxAgent.connect(gateway.url, gateway.token) as client:
        for name in NAMES:
            assert client.files.of_node(name).read_text("which") == name
            assert client.agents.of_node(name).get("scripted").id == "scripted"


PROGRAM = """
import { SandboxAgent } from %s;
const client = await SandboxAgent.connect(process.env.URL, { token: process.env.TOKEN });
const refused = await client.files.readText("which").catch((error) => error.slug);
if (refused !== "missing-node") throw new Error(refused);
for (const name of ["n1", "n2"]) {
  const files = client.files.ofNode(name);
  const agents = client.agents.ofNode(name);
  await files.write("moving", name);
  await files.move("moving", "taken");
  const session = await client.sessions.create("scripted", { cwd: JSON.parse(process.env.ROOTS)[name], node: name });
  const { availableModes } = await (await client.sessions.attach(session.id)).modes();
  const seen = [
    await files.readText("which"),
    await files.readText("taken"),
    await session.files.readText("which"),
    (await session.info()).node,
    (await agents.get("scripted")).id,
    (await agents.list()).some((agent) => agent.id === "scripted"),
    (await agents.stderr("scripted")).text,
    (await agents.install("mock")).alreadyInstalled,
    availableModes.length,
  ];
  const wanted = [name, name, name, name, "scripted", true, "", true, 2];
  if (JSON.stringify(seen) !== JSON.stringify(wanted)) throw new Error(JSON.stringify(seen));
}
await client.close();
"""


def test_typescript_sdk_names_the_node(fleet: Fleet) -> None:
    build()
    gateway = fleet.gateways[0]
    program = PROGRAM % json.dumps(str(SDK / "dist" / "index.js"))
    roots = dict(zip(NAMES, map(str, fleet.roots), strict=True))
    facts = {"URL": gateway.url, "TOKEN": gateway.token or "", "ROOTS": json.dumps(roots)}
    asyncio.run(run_program(node(), "--input-type=module", "--eval", program, **facts))


def test_command_line_names_the_node(fleet: Fleet, tmp_path: Path) -> None:
    call = CliCall(Place(tmp_path), fleet.gateways[0])
    for place, name in enumerate(NAMES):
        assert call.well("fs", "cat", "which", "--node", name).out == name
        assert "which" in call.well("fs", "ls", "--node", name).lines
        listed = call.well("api", "v1", "agents", "list", "--node", name).json["agents"]
        assert "scripted" in [agent["id"] for agent in listed]
        assert call.well("api", "v1", "agents", "get", "scripted", "--node", name).json["id"] == "scripted"
        assert call.well("api", "v1", "agents", "install", "mock", "--node", name).json["alreadyInstalled"]
        ran = call.well("run", "mock", "hello", "--json", "--node", name, "--cwd", str(fleet.roots[place]))
        session = ran.objects[-1]["result"]["sessionId"]
        assert call.well("api", "GET", f"/v1/sessions/{session}").json["node"] == name


def test_a_run_leaves_the_choice_to_the_gateway(fleet: Fleet, tmp_path: Path) -> None:
    call = CliCall(Place(tmp_path), fleet.gateways[1])
    assert call.well("run", "mock", "hello", "--cwd", "/").out
