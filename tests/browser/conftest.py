"""What tests of the TypeScript SDK in a browser start with: a page that has it."""

import subprocess
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import pytest

from sandboxagent.server.agents.install.tools import bundled_node
from tests.browser.driving import HERE, ROOT, Browser, Context, Page, site
from tests.sdk_typescript.node import build
from tests.support.running import BOUND, TOKEN, Server

SDK = ROOT / "sdks" / "typescript"
PAGES = {"/": HERE / "pages", "/packages/": SDK / "node_modules", "/packages/sandboxagent/": SDK}
BUNDLED = "/bundled/"
"""A page with the same in one file: one of some hundred files takes a browser four times as long to load."""
CONNECT = "window.cwd = cwd; window.client = await sdk.SandboxAgent.connect(url, { token, logger, ...options });"


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """What the sites serve: the SDK as it was built, and in one file."""
    build()
    bundled = tmp_path_factory.mktemp("bundled")
    command = [bundled_node().program, HERE / "bundle.mjs", bundled / "index.js"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND)
    assert done.returncode == 0, done.stderr
    (bundled / "index.html").write_text('<!doctype html><script type="module" src="index.js"></script>')
    return {**PAGES, BUNDLED: bundled}


@pytest.fixture(scope="module")
def origin(folders: Mapping[str, Path]) -> Generator[str]:
    """Where the pages come from: another origin than the server's."""
    with site(folders) as serving:
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
        with (where or context).page(origin + BUNDLED, "window.sdk") as page:
            connect(page, server, url, **options)
            yield page

    return opened


@pytest.fixture(scope="module")
def loaded_page(context: Context, origin: str) -> Generator[Page]:
    with context.page(origin + BUNDLED, "window.sdk") as opened:
        yield opened


@pytest.fixture
def page(loaded_page: Page, server: Server) -> Generator[Page]:
    """A page with a client: the same page for all tests of a module, and a client for each."""
    connect(loaded_page, server)
    yield loaded_page
    loaded_page.run("reports.length = 0; await client.close();")
    loaded_page.is_well()
