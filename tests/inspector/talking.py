"""A conversation in the Inspector, as a person has it: by what is on the page, wherever that is."""

import json
from collections.abc import Generator
from contextlib import contextmanager

from sandboxagent.client.sync import SandboxAgent, Session
from tests.inspector.browsing import Tab
from tests.support.running import BOUND, Server


class Conversation:
    """A session that the page shows."""

    def __init__(self, tab: Tab, client: SandboxAgent, cwd: str, agent: str = "mock") -> None:
        self.tab, self.client = tab, client
        self.session: Session = client.sessions.create(agent, cwd=cwd)
        tab.open(f"sessions/{self.session.id}")
        self.shows(".composer-field")

    # Saying

    def say(self, text: str) -> None:
        """Write a prompt and send it."""
        self.tab.fill_at(".composer-field", text)
        self.tab.press("Enter")

    def play(self, *steps: object) -> None:
        """Have the scripted agent play a program."""
        self.say(json.dumps(steps))

    def play_from_elsewhere(self, *steps: object) -> None:
        """Have it play a program that another client sends, which may be long; ends with the turn."""
        self.session.prompt(json.dumps(steps)).result()

    # Seeing

    def sees(self, text: str, within: str = ".transcript") -> None:
        """Wait until a text is visible there."""
        self.tab.until(f"document.querySelector({json.dumps(within)})?.innerText.includes({json.dumps(text)})")

    def shows(self, selector: str) -> None:
        """Wait until there is such an element."""
        self.tab.until(f"document.querySelector({json.dumps(selector)}) !== null")

    def hides(self, selector: str) -> None:
        """Wait until there is none."""
        self.tab.until(f"document.querySelector({json.dumps(selector)}) === null")

    def is_answered(self, text: str) -> None:
        """Wait until the agent has said this, and no turn runs."""
        self.sees(text)
        self.hides("[data-action=stop]")

    def text(self, selector: str) -> str:
        self.shows(selector)
        return str(self.run(f"document.querySelector({json.dumps(selector)}).textContent"))

    def run(self, expression: str) -> object:
        return self.tab.run(expression)

    # Doing

    def click(self, selector: str) -> None:
        self.tab.click_at(selector)

    def press_beside(self, key: str) -> None:
        """Press a key where nothing is being written, once a card has been there for long enough to take it."""
        self.run("document.activeElement?.blur(), new Promise((resolve) => setTimeout(resolve, 400))")
        self.tab.press(key)


@contextmanager
def conversation(tab: Tab, server: Server, agent: str = "mock") -> Generator[Conversation]:
    """A new session, which another client has made, and its page."""
    with SandboxAgent.connect(server.url, server.token, reconnect_timeout=BOUND) as client:
        yield Conversation(tab, client, str(server.work), agent)
