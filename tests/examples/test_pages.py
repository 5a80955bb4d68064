"""The examples that are pages, in a real browser."""

from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest

from tests.browser.driving import Browser, Page, site
from tests.examples.browsing import Relay
from tests.examples.staging import EXAMPLES, TYPESCRIPT, Stage
from tests.support.running import TOKEN, Server

pytestmark = pytest.mark.xdist_group("examples in a browser")

LOG = "document.querySelector('#log').innerText"


def says(page: Page, text: str) -> None:
    """Type a prompt, and send it."""
    page("fill", "#say input", text)
    page("press", "#say input", "Enter")


def shows(page: Page, text: str) -> None:
    """Wait until the log has this."""
    page("waitForFunction", {"function": f"(text) => {LOG}.includes(text)"}, text, {"timeout": 60_000})


def test_two_browsers_share_a_session_of_the_relay(stage: Stage, browser: Browser) -> None:
    with (
        Relay(stage) as relay,
        browser.context() as context,
        context.page(relay.url, "location.hash") as one,
        browser.context() as elsewhere,
        elsewhere.page(one("url")) as other,
    ):
        says(one, "I am <b>here</b>")
        shows(other, "You said: I am <b>here</b>")

        says(other, "permission")
        one("click", "fieldset button:text('Allow once')")
        for page in (one, other):
            shows(page, "Write notes.txt (completed)")
            shows(page, "You chose: allow_once")
            page.until("!document.querySelector('fieldset')")

        says(one, "question")
        other("selectOption", "fieldset select", "blue")
        other("click", "fieldset button:text('Answer')")
        shows(one, 'You answered: [["blue"]]')

        says(one, "question")
        one("fill", "fieldset input", "Violet")
        one("click", "fieldset button:text('Answer')")
        shows(other, 'You answered: [["Violet"]]')

        assert one.run(f"return {LOG}") == other.run(f"return {LOG}")


def test_a_page_goes_on_where_it_was_when_the_relay_comes_back(stage: Stage, browser: Browser) -> None:
    with Server() as server, browser.context() as context, ExitStack() as pages:
        where = {"SANDBOX_AGENT_URL": server.url, "SANDBOX_AGENT_TOKEN": TOKEN}
        with Relay(stage, **where) as relay:
            page = pages.enter_context(context.page(relay.url, "location.hash"))
            says(page, "before")
            shows(page, "You said: before")
        with Relay(stage, port=urlsplit(relay.url).port or 0, **where):
            says(page, "after")
            shows(page, "You said: after")
            said = page.run(f"return {LOG}")

        assert said.count("You said: before") == 1
        assert said.count("You said: after") == 1
        assert "Traceback" not in relay.stderr, relay.stderr


def test_a_page_talks_to_the_server_itself(browser: Browser) -> None:
    packages = TYPESCRIPT / "node_modules"
    folders = {
        "/": EXAMPLES / "typescript",
        "/node_modules/": packages,
        "/node_modules/sandboxagent/": TYPESCRIPT,
    }
    with (
        site(folders) as origin,
        Server("--cors-origin", origin) as server,
        browser.context() as context,
        context.page(f"{origin}/browser.html") as page,
    ):
        for name, value in {"url": server.url, "token": "wrong", "cwd": server.work}.items():
            page("fill", f"#connect [name={name}]", value)
        page("click", "#connect button")
        shows(page, "token")
        page("fill", "#connect [name=token]", TOKEN)
        page("click", "#connect button")

        page("waitForSelector", "#say input")
        says(page, "Good <i>morning</i>")
        shows(page, "You said: Good <i>morning</i>")
        says(page, "permission")
        page("click", "fieldset button:text('Reject')")
        shows(page, "You chose: reject_once")
        says(page, "crash")
        shows(page, "exited with code 3")
