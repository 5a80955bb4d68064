"""The room of nodes, which only a gateway has."""

from collections.abc import Generator

import pytest

from sandbox_agent.client.sync import SandboxAgent
from tests.inspector.browsing import Tab
from tests.support.nats import PROGRAM, nats_server
from tests.support.running import Server, eventually


@pytest.fixture(scope="module")
def server(needs_browser: None, tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    if not PROGRAM.exists():
        pytest.skip(f"{PROGRAM} is not installed")
    with nats_server(tmp_path_factory.mktemp("nats") / "one") as nats:
        joining = ("--join", nats.url, "--node", "box-1", "--label", "zone=eu", "--no-persist")
        with Server("--join", nats.url, command="gateway") as gateway, Server(*joining):
            with SandboxAgent.connect(gateway.url, gateway.token) as client:
                eventually(client.nodes, "a node")
            yield gateway


def test_a_gateway_shows_its_nodes(tab: Tab) -> None:
    tab.open()
    tab.follow("Nodes")
    for words in ("box-1", "zone=eu", "scripted"):
        tab.sees(words)
    tab.is_accessible()
    tab.theme("dark")
    tab.is_accessible()
