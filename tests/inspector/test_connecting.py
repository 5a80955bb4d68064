"""The token, and what the Inspector says when it is not let in, or no server answers."""

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.inspector.agent_browser import AgentBrowser
from tests.inspector.browsing import Tab
from tests.support.running import TOKEN, Server


def test_the_token_of_the_fragment_is_taken_and_leaves_the_address_bar(tab: Tab) -> None:
    tab.open("agents", token=TOKEN)
    tab.sees("Where it comes from")

    assert tab.path == "/ui/agents"
    tab.reload()
    tab.sees("Where it comes from")
    assert tab.run("Object.values(localStorage).join(' ')").find(TOKEN) == -1


def test_without_a_token_it_is_asked_for_and_a_wrong_one_is_told_from_none(tab: Tab) -> None:
    tab.open()
    tab.forget()
    tab.open(token=None)
    tab.sees("Sign in with the server's token")

    tab.fill("Token", "not this one")
    tab.press("Enter")
    tab.sees("This is not the server's token")

    tab.fill("Token", TOKEN)
    tab.click("Sign in")
    tab.sees("Connected")


def test_the_token_is_forgotten_when_asked(tab: Tab) -> None:
    tab.open()
    tab.click("Settings")
    tab.click("Sign out", role="menuitem")
    tab.sees("Sign in with the server's token")
    tab.reload()
    tab.sees("Sign in with the server's token")


@pytest.fixture
def restarting(tmp_path: Path, agent_browser: AgentBrowser) -> Generator[tuple[Server, Tab]]:
    """A server that comes back on the same port, and a tab of its own."""
    server = Server(directory=tmp_path)
    with server, Tab(agent_browser, server.url, TOKEN) as tab:
        server.flags = ["--port", server.url.rpartition(":")[2]]
        yield server, tab


def test_a_page_that_lost_its_server_says_so_and_goes_on_when_it_is_back(restarting: tuple[Server, Tab]) -> None:
    server, tab = restarting
    tab.open()
    tab.sees("Connected")

    server.stop()
    tab.sees("Reconnecting")
    for width in (1440, 390):
        tab.size(width)
        tab.sees("The connection to the server is lost.")
        tab.sees("What you see may be old.")
    tab.is_accessible(colors=False)
    server.start()
    tab.does_not_see("Reconnecting")
    tab.size(1440)
    tab.sees("Connected")


def test_a_token_that_is_no_longer_valid_is_told_from_a_wrong_one(restarting: tuple[Server, Tab]) -> None:
    server, tab = restarting
    tab.open()
    tab.sees("Connected")

    server.stop()
    server.token = "another-token"
    server.start()
    tab.sees("The server has a new token")
    tab.reload()
    tab.sees("The server has a new token")

    tab.fill("Token", "another-token")
    tab.click("Sign in")
    tab.sees("Connected")


def test_a_page_that_finds_no_server_says_so_and_connects_when_there_is_one(restarting: tuple[Server, Tab]) -> None:
    server, tab = restarting
    tab.open(token=None)
    tab.sees("Sign in with the server's token")

    # The page is there already, and its server is not.
    server.stop()
    tab.fill("Token", TOKEN)
    tab.press("Enter")
    tab.sees("The server does not answer")
    tab.has_accessible_room(colors=False)
    server.start()
    tab.sees("Connected")
