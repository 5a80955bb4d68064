"""`sandbox-agent ui`: the Inspector with its token, in a browser or as a link."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxagent.cli.commands.ui import READ_TIMEOUT, write_link, write_page
from sandboxagent.cli.main import main
from sandboxagent.core.discovery import ServerAddress
from tests.cli.place import LONGEST, PROGRAM
from tests.support.running import TOKEN, Server

WITHOUT_A_SCREEN = {
    name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
}


def command(server: Server, *arguments: str) -> list[str]:
    return [*PROGRAM, "ui", "--data-dir", str(server.directory / "data"), "--token", TOKEN, *arguments]


def ui(server: Server, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(server, *arguments),
        env={**WITHOUT_A_SCREEN, **environ},
        capture_output=True,
        text=True,
        timeout=LONGEST,
    )


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(directory=tmp_path_factory.mktemp("ui")) as running:
        yield running


@pytest.mark.server_alone("the data directory of a server on this machine has its address and its token")
def test_without_a_browser_the_link_of_the_running_server_is_printed(kept: Server) -> None:
    done = ui(kept)

    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{kept.url}/ui/#token={TOKEN}\n"


def test_the_link_leads_to_a_session_whatever_is_in_its_id() -> None:
    server = ServerAddress("http://127.0.0.1:1", local=True, token="a+b/c&d")

    assert write_link(server, "a/b?c#d") == "http://127.0.0.1:1/ui/sessions/a%2Fb%3Fc%23d#token=a%2Bb%2Fc%26d"
    assert write_link(ServerAddress("http://127.0.0.1:1", local=True, token=None)) == "http://127.0.0.1:1/ui/"


@pytest.mark.server_alone("the data directory of a server on this machine has its address and its token")
def test_browser_opens_a_redirect_page_without_token_in_its_arguments(kept: Server, tmp_path: Path) -> None:
    address, mode, page = tmp_path / "address", tmp_path / "mode", tmp_path / "page"
    browser = tmp_path / "browser"
    read = f'cp "${{1#file://}}" {page}; ls -l "${{1#file://}}" > {mode}'
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {address}; {read}\n')
    browser.chmod(0o755)
    running = subprocess.Popen(
        command(kept), env={**WITHOUT_A_SCREEN, "BROWSER": str(browser)}, stdout=subprocess.PIPE, text=True
    )
    with running:
        assert running.stdout is not None
        assert running.stdout.readline() == f"opened {kept.url}/ui/\n"
        # The command waits for the browser to read the page; you need not.
        running.send_signal(signal.SIGINT)
        running.wait(LONGEST)

    assert TOKEN not in address.read_text()
    assert mode.read_text().startswith("-rw-------")
    assert f"url={kept.url}/ui/#token={TOKEN}" in page.read_text()
    assert not Path(address.read_text().removeprefix("file://")).exists()


@pytest.mark.parametrize("opens", [True, False])
def test_the_page_with_the_token_is_gone_when_the_command_ends(
    kept: Server, monkeypatch: pytest.MonkeyPatch, *, opens: bool
) -> None:
    shown, waited = list[Path](), list[float]()

    def show(page: Path) -> bool:
        shown.append(page)
        return opens

    def wait(seconds: float) -> None:
        assert shown[0].exists(), "the browser may still have to read it"
        waited.append(seconds)

    monkeypatch.setenv("BROWSER", "any")
    monkeypatch.setattr("sandboxagent.cli.commands.ui._show", show)
    monkeypatch.setattr("sandboxagent.cli.commands.ui.sleep", wait)

    assert main(command(kept)[len(PROGRAM) :]) == 0

    assert not shown[0].exists()
    assert waited == ([READ_TIMEOUT] if opens else [])


def test_the_next_call_removes_a_page_that_was_left_and_no_page_that_is_being_read(kept: Server) -> None:
    data = kept.directory / "data"
    left, earlier = write_page(data, "http://127.0.0.1:1/ui/"), data / "open.html"
    earlier.touch()
    for page in (left, earlier):
        os.utime(page, (0, 0))
    fresh = write_page(data, "http://127.0.0.1:1/ui/")

    ui(kept, "--print")

    assert not left.exists()
    assert not earlier.exists(), "as earlier versions left it"
    assert fresh.exists()
    fresh.unlink()


def test_a_link_cannot_leave_the_page_that_leads_to_it(tmp_path: Path) -> None:
    page = write_page(tmp_path, 'http://127.0.0.1:1/ui/"><script>x</script>')

    assert "<script>" not in page.read_text()
    assert write_page(tmp_path, "http://127.0.0.1:1/ui/").read_text().count("http:") == 2


@pytest.mark.server_alone("the data directory of a server on this machine has its address and its token")
def test_only_a_server_with_generated_token_prints_a_link_with_it(tmp_path: Path) -> None:
    with Server(token=None, directory=tmp_path) as made:
        (link,) = re.findall(r"^open:  (.*)$", made.stderr, re.MULTILINE)
        token = (tmp_path / "data" / "token").read_text().strip()
        assert link == f"{made.url}/ui/#token={token}"
    with Server() as given:
        assert TOKEN not in given.stderr
        assert f"open:  {given.url}/ui/  (or: sandbox-agent ui)" in given.stderr
