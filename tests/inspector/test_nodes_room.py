"""What only a gateway has: the room of nodes, and a choice of the node whose agents and files are meant."""

from collections.abc import Generator
from pathlib import Path

import pytest

from sandboxagent.client.sync import SandboxAgent
from tests.inspector.browsing import Tab
from tests.support.nats import PROGRAM, nats_server
from tests.support.running import Server, eventually, scripted

OWN = "only-here"
"""An agent that one of two nodes has."""


@pytest.fixture(scope="module")
def server(needs_browser: None, tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    if not PROGRAM.exists():
        pytest.skip(f"{PROGRAM} is not installed")
    with nats_server(tmp_path_factory.mktemp("nats") / "one") as nats:
        joining = ("--join", nats.url, "--no-persist", "--node")
        first = Server(*joining, "box-1", "--label", "zone=eu")
        second = Server(*joining, "box-2")
        second.agents |= {OWN: scripted()}
        with Server("--join", nats.url, command="gateway") as gateway, first, second:
            with SandboxAgent.connect(gateway.url, gateway.token) as client:
                eventually(lambda: len(client.nodes()) == 2, "two nodes")
            yield gateway


def test_a_gateway_shows_its_nodes(tab: Tab) -> None:
    tab.open()
    tab.follow("Nodes")
    for words in ("box-1", "zone=eu", "scripted", "box-2"):
        tab.sees(words)
    tab.has_accessible_room(colors=False)


def test_agents_are_those_of_the_chosen_node(tab: Tab) -> None:
    tab.open("agents")
    tab.sees("Where it comes from")
    tab.choose("Node", "box-2")
    tab.sees(OWN)
    tab.until("location.search === '?node=box-2'")
    tab.has_accessible_room(colors=False)
    tab.follow(OWN)
    tab.until(f"location.pathname + location.search === '/ui/agents/{OWN}?node=box-2'")
    tab.choose("Node", "box-1")
    tab.sees("Agent not found")


def test_a_session_is_made_on_the_chosen_node_and_has_its_files(tab: Tab, server: Server, tmp_path: Path) -> None:
    (tmp_path / "made.txt").write_text("by an agent")
    tab.open("new")
    tab.choose("Node", "box-2")
    tab.click_at(f"input[value='{OWN}']")
    tab.fill("Directory", str(tmp_path))
    tab.click("Start")
    tab.until("location.pathname.startsWith('/ui/sessions/')")
    session = tab.path.split("/")[3]
    with SandboxAgent.connect(server.url, server.token) as client:
        assert client.sessions.get(session).node == "box-2"
    tab.open(f"sessions/{session}?tab=files")
    tab.sees("made.txt")
    tab.sees(f"{OWN} on box-2")


def test_files_are_those_of_the_chosen_node_and_one_that_is_away_says_so(tab: Tab, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "hello.txt").write_text("hello")
    tab.open(f"files?path={tmp_path}&node=box-2")
    tab.click("Directory there", exact=False)
    tab.sees("hello.txt")
    tab.until("new URLSearchParams(location.search).get('node') === 'box-2'")
    tab.open("files?node=box-9")
    tab.sees("This node is offline")
    tab.choose("Node", "box-1")
    tab.does_not_see("This node is offline")
