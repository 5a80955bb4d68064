"""What tests of the Inspector share: for each module a server, and a browser with one tab."""

from collections.abc import Generator

import pytest

from sandbox_agent.client.sync import SandboxAgent
from sandbox_agent.http.ui import BUILT
from tests.browser.driving import Unavailable
from tests.inspector.browsing import Tab, chromium, program
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


@pytest.fixture(scope="module")
def server() -> Generator[Server]:
    with Server() as running:
        yield running


@pytest.fixture(scope="module")
def shared_tab(needs_browser: None, server: Server) -> Generator[Tab]:
    with Tab(server.url, TOKEN) as opened:
        yield opened


@pytest.fixture
def tab(shared_tab: Tab) -> Generator[Tab]:
    """The module's tab, wide and light again; it must be well after each test."""
    shared_tab.open()
    shared_tab.size(1440)
    shared_tab.theme("light")
    yield shared_tab
    shared_tab.is_well()


@pytest.fixture
def client(server: Server) -> Generator[SandboxAgent]:
    """Another client of the same server: a program, or a second person."""
    with SandboxAgent.connect(server.url, server.token, reconnect_timeout=BOUND) as connected:
        yield connected
