"""`sandbox-agent ui`: the Inspector with its token, in a browser or as a link."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from sandbox_agent.cli.commands.ui import write_link, write_page
from sandbox_agent.cli.flags import ServerAddress
from tests.cli.place import LONGEST, PROGRAM
from tests.support.running import TOKEN, Server

WITHOUT_A_SCREEN = {
    name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
}


def ui(server: Server, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    data = ["--data-dir", str(server.directory / "data"), "--token", TOKEN]
    return subprocess.run(
        [*PROGRAM, "ui", *data, *arguments],
        env={**WITHOUT_A_SCREEN, **environ},
        capture_output=True,
        text=True,
        timeout=LONGEST,
    )


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Server:
    with Server(directory=tmp_path_factory.mktemp("ui")) as running:
        yield running


def test_without_a_browser_the_link_of_the_running_server_is_printed(kept: Server) -> None:
    done = ui(kept)

    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{kept.url}/ui/#token={TOKEN}\n"


def test_the_link_leads_to_a_session_whatever_is_in_its_id() -> None:
    server = ServerAddress("http://127.0.0.1:1", local=True, token="a+b/c&d")

    assert write_link(server, "a/b?c#d") == "http://127.0.0.1:1/ui/sessions/a%2Fb%3Fc%23d#token=a%2Bb%2Fc%26d"
    assert write_link(ServerAddress("http://127.0.0.1:1", local=True, token=None)) == "http://127.0.0.1:1/ui/"


def test_the_browser_gets_a_page_that_leads_to_the_link_and_no_token_in_its_arguments(
    kept: Server, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {notes}\n')
    browser.chmod(0o755)
    done = ui(kept, "--data-dir", str(kept.directory / "data"), BROWSER=str(browser))

    assert done.returncode == 0, done.stderr
    assert done.stdout == f"opened {kept.url}/ui/\n"
    address = notes.read_text()
    assert TOKEN not in address
    page = Path(address.removeprefix("file://"))
    assert page.stat().st_mode & 0o077 == 0
    assert f"url={kept.url}/ui/#token={TOKEN}" in page.read_text()


def test_a_link_cannot_leave_the_page_that_leads_to_it(tmp_path: Path) -> None:
    page = write_page(tmp_path, 'http://127.0.0.1:1/ui/"><script>x</script>')

    assert "<script>" not in page.read_text()
    assert write_page(tmp_path, "http://127.0.0.1:1/ui/").read_text().count("http:") == 2


def test_a_server_that_makes_its_token_prints_a_link_with_it_and_no_other_server_does(tmp_path: Path) -> None:
    with Server(token=None, directory=tmp_path) as made:
        (link,) = re.findall(r"^open:  (.*)$", made.stderr, re.MULTILINE)
        token = (tmp_path / "data" / "token").read_text().strip()
        assert link == f"{made.url}/ui/#token={token}"
    with Server() as given:
        assert TOKEN not in given.stderr
        assert f"open:  {given.url}/ui/  (or: sandbox-agent ui)" in given.stderr
