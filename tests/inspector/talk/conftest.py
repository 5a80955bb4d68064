"""A page of the Inspector with a conversation, and another client of the same server."""

import json
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager

import pytest

from sandbox_agent.client.sync import SandboxAgent, Session
from tests.inspector.talk.browsing import Tab, Unavailable
from tests.support.running import TOKEN, Server


@pytest.fixture(scope="module")
def server() -> Generator[Server]:
    with Server() as running:
        yield running


@pytest.fixture(scope="module")
def tab() -> Generator[Tab]:
    """One browser for the tests of a module."""
    try:
        opened = Tab(f"talk-{os.getpid()}")
    except Unavailable as reason:
        pytest.skip(f"there is no browser: {reason}")
    with opened:
        yield opened


@pytest.fixture(scope="module")
def client(server: Server) -> Generator[SandboxAgent]:
    """Another client, of a person called Ada."""
    with SandboxAgent.connect(server.url, TOKEN, name="elsewhere", user="ada") as connected:
        yield connected


class Conversation:
    """A session that the page shows."""

    def __init__(self, tab: Tab, server: Server, session: Session) -> None:
        self.tab, self.server, self.session = tab, server, session
        self.url = f"{server.url}/ui/sessions/{session.id}"

    def say(self, text: str) -> None:
        """Write a prompt and send it, as a person does."""
        self.tab.fill(".composer-field", text)
        self.tab("press", "Enter")

    def play(self, *steps: object) -> None:
        """Have the scripted agent play a program."""
        self.say(json.dumps(steps))

    def happens(self, *steps: object) -> None:
        """Have it play a program that another client sends; it may be long."""
        self.session.prompt(json.dumps(steps)).result()

    def answered(self, text: str) -> None:
        """Wait until the agent has said this, and the turn is over."""
        self.tab.sees(text, ".transcript")
        self.tab.hides("[data-action=stop]")


Open = Callable[..., Conversation]


@pytest.fixture
def converse(tab: Tab, server: Server, client: SandboxAgent) -> Open:
    """Open a page with a new session; the token is in the address, as a link of the server's has it."""

    def opened(agent: str = "mock", **options: object) -> Conversation:
        session = client.sessions.create(agent, cwd=str(server.work), **options)  # pyright: ignore[reportArgumentType]
        conversation = Conversation(tab, server, session)
        tab("open", f"{conversation.url}#token={TOKEN}")
        tab.shows(".composer-field")
        return conversation

    return opened


@contextmanager
def stepped_away(tab: Tab) -> Generator[None]:
    """Within it nothing has the focus, as when a person has clicked beside the composer."""
    tab.run("document.activeElement?.blur()")
    yield
