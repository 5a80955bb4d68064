"""A page with the TypeScript SDK, built by each bundler without any settings, in a real browser."""

import gzip
import re
import shutil
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.browser.conftest import SDK, connect
from tests.browser.driving import HERE, ROOT, Context, Page, site
from tests.sdk_typescript.node import LONGEST, build, node
from tests.support.asking import PERMISSION
from tests.support.running import Server
from tests.support.sdk import permission

pytestmark = pytest.mark.xdist_group("browser")

BUNDLERS = ROOT / "tests" / "bundlers"
NAMES = ["esbuild", "webpack", "vite"]
MAX_SIZE = 60_000
"""Bytes of the page, gzipped. It is about half of that."""


def bundle(bundler: str, project: Path, out: Path) -> None:
    """Build the page of a project, which has `index.js` and `node_modules`."""
    command = [node(), BUNDLERS / "bundle.mjs", bundler, project, out]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that has the package as npm would install it."""
    build()
    folder = tmp_path_factory.mktemp("project")
    (folder / "node_modules").mkdir()
    (folder / "node_modules" / "sandboxagent").symlink_to(SDK)
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "index.js").write_text((HERE / "pages" / "index.js").read_text())
    return folder


@pytest.fixture(scope="module")
def built(project: Path) -> Path:
    """A folder for each bundler, with its page."""
    for name in NAMES:
        bundle(name, project, project / "out" / name)
        (project / "out" / name / "index.html").write_text(
            '<!doctype html><script type="module" src="index.js"></script>'
        )
    return project / "out"


@pytest.fixture(scope="module")
def bundled_origin(built: Path) -> Generator[str]:
    with site({"/": built}) as serving:
        yield serving


@pytest.fixture(scope="module")
def server_for_bundles(bundled_origin: str) -> Generator[Server]:
    with Server("--cors-origin", bundled_origin) as running:
        yield running


@pytest.fixture(params=NAMES)
def bundled(
    request: pytest.FixtureRequest, context: Context, bundled_origin: str, server_for_bundles: Server
) -> Generator[Page]:
    with context.page(f"{bundled_origin}/{request.param}/", "window.sdk") as page:
        connect(page, server_for_bundles)
        yield page


@pytest.mark.parametrize("name", NAMES)
def test_a_bundle_is_small_and_has_neither_node_nor_schemas(built: Path, name: str) -> None:
    text = (built / name / "index.js").read_bytes()

    assert len(gzip.compress(text, 9)) <= MAX_SIZE
    assert re.findall(rb"[\"']node:|child_process|_zod\b", text) == []


def test_a_bundled_page_runs_a_turn_and_answers_its_agent(bundled: Page) -> None:
    told = bundled.run(
        """
        client.onPermission((request) => request.allow());
        const session = await client.sessions.create({ cwd });
        const text = await session.prompt(program(...steps)).text();
        const past = await all(session.history());
        const following = session.follow();
        for await (const _ of following) if (following.isLive) break;
        return { text, past: past.length, items: following.view.turns[0].items.map(({ type }) => type) };
        """,
        steps=[["ask", PERMISSION, permission()], ["wait_answer"], ["say", "hello"]],
    )

    assert "hello" in told["text"]
    assert told["past"] > 4
    assert told["items"] == ["user", "tool", "request", "text"]


def test_a_bundled_page_that_starts_a_server_is_told_to_connect(bundled: Page) -> None:
    failure = bundled.run("return await failure(sdk.SandboxAgent.start());")

    assert failure["slug"] == "invalid-call"
    assert failure["message"] == "start() needs Node: in a browser, connect() to a server that runs elsewhere"


@pytest.fixture(scope="module")
def react_page(context: Context, tmp_path_factory: pytest.TempPathFactory) -> Generator[Page]:
    """A page that shows sessions with the hooks for React, and a client of a server."""
    build()
    folder = tmp_path_factory.mktemp("react")
    modules = folder / "node_modules"
    shutil.copytree(SDK / "dist", modules / "sandboxagent" / "dist")
    shutil.copy(SDK / "package.json", modules / "sandboxagent")
    for name in ("react", "react-dom", "scheduler"):
        (modules / name).symlink_to(BUNDLERS / "node_modules" / name)
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "index.js").write_text((HERE / "pages" / "react.js").read_text())
    bundle("esbuild", folder, folder / "out")
    (folder / "out" / "index.html").write_text('<!doctype html><script type="module" src="index.js"></script>')
    with (
        site({"/": folder / "out"}) as origin,
        Server("--cors-origin", origin) as server,
        context.page(origin, "window.sdk") as page,
    ):
        connect(page, server)
        yield page


def test_hooks_follow_a_session_and_list_what_is_open(react_page: Page) -> None:
    react_page.run(
        """
        window.session = await client.sessions.create({ cwd });
        session.prompt(JSON.stringify(steps)).then(undefined, () => undefined);
        show(client, session.id);
        """,
        steps=[["ask", PERMISSION, permission()], ["wait_answer"], ["say", "hello"]],
    )
    react_page.until("shown.status === 'live' && shown.pending.length === 1 && shown.sessions === 1")
    react_page.run("await client.rejectPermission(shown.pending[0]);")

    react_page.until("shown.items.includes('text') && shown.pending.length === 0")


def test_hooks_say_that_a_session_is_unknown_or_was_deleted(react_page: Page) -> None:
    react_page.run("show(client, 'nothing-of-that-name');")
    react_page.until("shown.status === 'failed' && shown.slug === 'session-not-found'")

    react_page.run("""
        window.session = await client.sessions.create({ cwd });
        show(client, session.id);
    """)
    react_page.until("shown.status === 'live'")
    react_page.run("await client.sessions.delete(session.id);")
    react_page.until("shown.status === 'ended'")
