"""What tests of the TypeScript SDK in a browser start with: a page that has it."""

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import pytest

from tests.browser.driving import HERE, ROOT, Browser, Context, Page, site
from tests.support.running import TOKEN, Server

SDK = ROOT / "sdks" / "typescript"
PAGES = {"/": HERE / "pages", "/packages/": SDK / "node_modules", "/packages/sandboxagent/": SDK}
CONNECT = "window.cwd = cwd; window.client = await sdk.SandboxAgent.connect(url, { token, logger, ...options });"


@pytest.fixture(scope="module")
def origin() -> Generator[str]:
    """Where the pages come from: another origin than the server's."""
    assert (SDK / "dist" / "index.js").exists(), "the TypeScript SDK is not built; ./dev check does that"
    with site(PAGES) as serving:
        yield serving


@pytest.fixture(scope="module")
def server(origin: str) -> Generator[Server]:
    """A server that lets those pages call."""
    with Server("--cors-origin", origin) as running:
        yield running


@pytest.fixture(scope="module")
def context(browser: Browser) -> Generator[Context]:
    with browser.context() as opened:
        yield opened


class OpenPage(Protocol):
    """Opens a page that has a `client` of the server, and `cwd`; `url` is for what stands before the server."""

    def __call__(
        self, *, url: str = "", where: Context | None = None, **options: object
    ) -> AbstractContextManager[Page]: ...


def connect(page: Page, server: Server, url: str = "", **options: object) -> None:
    """Have the page connect; also after it was loaded anew."""
    page.run(CONNECT, url=url or server.url, token=TOKEN, cwd=server.work, options={"agent": "scripted", **options})


@pytest.fixture
def open_page(context: Context, origin: str, server: Server) -> OpenPage:
    @contextmanager
    def opened(*, url: str = "", where: Context | None = None, **options: object) -> Generator[Page]:
        with (where or context).page(origin, "window.sdk") as page:
            connect(page, server, url, **options)
            yield page

    return opened


@pytest.fixture(scope="module")
def loaded_page(context: Context, origin: str) -> Generator[Page]:
    with context.page(origin, "window.sdk") as opened:
        yield opened


@pytest.fixture
def page(loaded_page: Page, server: Server) -> Generator[Page]:
    """A page with a client: the same page for all tests of a module, and a client for each."""
    connect(loaded_page, server)
    yield loaded_page
    loaded_page.run("reports.length = 0; await client.close();")
    loaded_page.is_well()
