"""One session in a frame of an app: only where the operator allows it, and with no way out of the session."""

from collections.abc import Generator

import pytest

from sandboxagent.client.sync import SandboxAgent
from tests.browser.driving import Browser, Page, Remote, site
from tests.support.running import TOKEN, Server

PAGE = """<!doctype html><title>An app</title><h1>An app</h1>
<iframe name="session" title="the session" width="900" height="600"></iframe>
<script>
document.querySelector("iframe").src = new URLSearchParams(location.search).get("shows") + location.hash;
</script>
"""


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    folder = tmp_path_factory.mktemp("app")
    (folder / "index.html").write_text(PAGE)
    with site({"/": folder}) as origin:
        yield origin


@pytest.fixture(scope="module")
def server(app: str) -> Generator[Server]:
    with Server("--frame-origin", app) as running:
        yield running


@pytest.fixture(scope="module")
def page(browser: Browser, app: str) -> Generator[Page]:
    """Driven by Playwright, which sees into frames of other sites."""
    with browser.context() as context, context.page(app) as opened:
        yield opened


def show(page: Page, app: str, address: str) -> Remote:
    """Have the app show an address in its frame; gives the frame."""
    page("goto", "about:blank")
    page("goto", f"{app}/?shows={address}#token={TOKEN}")
    return page("frameLocator", "iframe")


def test_an_allowed_page_shows_a_session_and_nothing_around_it(
    page: Page, server: Server, client: SandboxAgent, app: str
) -> None:
    session = client.sessions.create("mock", cwd=server.work)
    session.prompt("seen in a frame").text()
    frame = show(page, app, f"{server.url}/ui/embed/{session.id}")
    frame("getByText", "You said: seen in a frame")("waitFor")

    assert frame("getByRole", "link", {"name": "Changes"})("count") == 1
    assert frame("getByText", "Mission control")("count") == 0


@pytest.mark.parametrize("path", ["", "sessions/s-1", "agents"])
def test_other_paths_cannot_be_framed(page: Page, server: Server, app: str, path: str) -> None:
    frame = show(page, app, f"{server.url}/ui/{path}")

    assert frame("locator", "#root")("count") == 0
