"""The room of agents: what each is, and installing one from a registry on this machine, with its progress."""

from collections.abc import Generator
from pathlib import Path

import pytest

from sandboxagent import RequestError
from sandboxagent.client.sync import SandboxAgent
from tests.inspector.browsing import Tab
from tests.support.package_server import PackageServer
from tests.support.running import Server


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Generator[PackageServer]:
    with PackageServer(tmp_path_factory.mktemp("shelf"), "--no-persist") as running:
        yield running


@pytest.fixture(scope="module")
def server(shelf: PackageServer) -> Server:
    return shelf.server


def test_an_agent_says_what_it_can_do_where_it_comes_from_and_how_its_process_is(tab: Tab) -> None:
    tab.open("agents/mock")
    for words in ("promptCapabilities.image", "Comes with the server", "running", "Process id"):
        tab.sees(words)
    tab.open("agents/nobody")
    tab.sees("Agent not found")


def test_an_agent_is_installed_with_its_progress_and_then_used(tab: Tab, shelf: PackageServer, tmp_path: Path) -> None:
    agent = shelf.box()
    held = shelf.index.hold(shelf.tarball(agent))
    tab.open("new")
    tab.click("Registry")
    tab.click_at(f"input[value='{agent}']")
    tab.sees("Not installed")
    tab.sees("Install the agent first.")
    tab.click("Install ", exact=False)
    held.wait()
    tab.sees(f"fetching {agent}.tar.gz")
    held.release.set()
    tab.does_not_see("Install the agent first.")
    tab.fill("Directory", str(tmp_path))
    tab.click("Start")
    tab.until("location.pathname.startsWith('/ui/sessions/')")


def test_an_install_that_fails_says_why_where_it_was_begun(tab: Tab, shelf: PackageServer) -> None:
    agent = shelf.box("#!/usr/bin/env node\nconsole.error('no key'); process.exit(3)")
    tab.open(f"agents/{agent}")
    tab.click("Registry")
    tab.click("Install ", exact=False)
    tab.sees("could not be installed")
    tab.has_accessible_room()


def test_what_an_agent_wrote_to_stderr_is_there_after_its_death(tab: Tab, client: SandboxAgent, server: Server) -> None:
    session = client.sessions.create("scripted", cwd=server.work)
    with pytest.raises(RequestError):
        session.prompt('[["stderr", "\\u001b[31mthe last words\\u001b[0m"], ["exit", 3]]').result()
    tab.open("agents/scripted")
    tab.sees("the last words")
    tab.sees("exited")
    tab.has_accessible_room(colors=False)
