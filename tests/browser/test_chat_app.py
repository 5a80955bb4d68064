"""docs/guides/chat-app.md, as a reader follows it: its two files, in a real browser."""

import socket
import subprocess
from collections.abc import Generator
from pathlib import Path

import httpx
import pytest

from sandboxagent.server.agents.install.tools import bundled_node
from tests.browser.driving import ROOT, Context
from tests.docs.pages import DOCS
from tests.docs.snippets import blocks_of
from tests.sdk_typescript.node import build
from tests.support.fork_server import fork_server
from tests.support.running import BOUND

PAGE = DOCS / "guides" / "chat-app.md"
pytestmark = pytest.mark.xdist_group("browser")


@pytest.fixture
def app(tmp_path: Path) -> Generator[str]:
    """The address of the app."""
    build()
    (program,), (page,) = blocks_of(PAGE, "typescript"), blocks_of(PAGE, "html")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "app.mjs").write_text(program.code.replace("8000", str(port)))
    (tmp_path / "index.html").write_text(page.code)
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "sandboxagent").symlink_to(ROOT / "sdks" / "typescript")
    environment = {"PATH": f"{fork_server().programs}:/usr/bin:/bin", "HOME": str(tmp_path)}
    command = [str(bundled_node().program), "app.mjs"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def test_a_page_chats_asks_and_keeps_its_past(app: str, context: Context, tmp_path: Path) -> None:
    with context.page(app) as page:
        page("fill", "input", "write notes.txt")
        page("click", "text=Send")
        page("click", "text=Allow once")
        page("waitForSelector", "text=(completed)")
        assert (tmp_path / "notes.txt").exists()
        page("reload")
        page("waitForSelector", "text=> write notes.txt")
        page("waitForSelector", "text=(completed)")
        assert page("textContent", "fieldset") == "May I? Write notes.txtallow_once"


def test_pages_of_other_sites_cannot_prompt(app: str) -> None:
    assert httpx.post(f"{app}prompts", content=b"{}", timeout=BOUND).status_code == 403
    assert httpx.get(app, headers={"Host": "evil.example"}, timeout=BOUND).status_code == 403
