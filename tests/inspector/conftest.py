"""What tests of the Inspector share: a browser for each worker; for each module a server, and a tab at it."""

from collections.abc import Generator

import pytest

from sandboxagent.client.sync import SandboxAgent
from sandboxagent.server.http.ui import BUILT
from tests.browser.driving import Unavailable
from tests.inspector.agent_browser import AgentBrowser, chromium, program
from tests.inspector.browsing import Tab
from tests.support.running import BOUND, TOKEN, Server


@pytest.fixture(scope="session")
def needs_browser() -> None:
    """Without a browser these tests are skipped, and say why."""
    assert (BUILT / "index.html").exists(), "the Inspector is not built; ./dev inspector does that"
    try:
        program()
        chromium()
    except Unavailable as reason:
        pytest.skip(f"there is no browser: {reason}")


@pytest.fixture(scope="session")
def agent_browser(needs_browser: None) -> Generator[AgentBrowser]:
    with AgentBrowser() as started:
        yield started


@pytest.fixture(scope="module")
def server() -> Generator[Server]:
    with Server() as running:
        yield running


@pytest.fixture(scope="module")
def shared_tab(agent_browser: AgentBrowser, server: Server) -> Generator[Tab]:
    with Tab(agent_browser, server.url, TOKEN) as opened:
        yield opened


@pytest.fixture
def tab(shared_tab: Tab) -> Generator[Tab]:
    """The module's tab, wide and light again, at no page yet; it must be well after each test."""
    shared_tab.look_afresh()
    yield shared_tab
    shared_tab.is_well()


@pytest.fixture
def client(server: Server) -> Generator[SandboxAgent]:
    """Another client of the same server: a program, or a second person."""
    with SandboxAgent.connect(server.url, server.token, reconnect_timeout=BOUND) as connected:
        yield connected
