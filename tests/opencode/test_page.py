"""OpenCode's web page on the bridge, in a real browser: the page comes from OpenCode's own server, another origin."""

import json
from base64 import urlsafe_b64encode
from collections.abc import Generator

import pytest

from tests.browser.driving import Browser, Failed, Page, Unavailable
from tests.opencode.host import MOCK, Host, opencode_itself, opencode_serving, ours
from tests.opencode.program import NOWHERE
from tests.support.running import Server

INPUT, SEND = "[data-component=prompt-input]", "[data-action=prompt-submit]"
SHOWN = "(text) => document.body.innerText.includes(text)"


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """Where the page comes from."""
    with opencode_serving(tmp_path_factory.mktemp("pages"), NOWHERE, password=None) as serving:
        yield serving


@pytest.fixture(scope="module")
def host(origin: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[Host]:
    """A server that lets the page call."""
    if request.config.getoption("--opencode-itself"):
        with opencode_itself(tmp_path_factory.mktemp("itself"), "--cors", origin) as host:
            yield host
        return
    with Server("--cors-origin", origin, "--default-agent", MOCK.provider) as server:
        yield ours(server)


class WebPage:
    """The page, opened on a new session."""

    def __init__(self, page: Page) -> None:
        self.page = page

    def shows(self, text: str) -> None:
        """Wait until it does."""
        # Asked for every frame, on a busy machine the page would get to nothing else.
        try:
            self.page("waitForFunction", {"function": SHOWN}, text, {"timeout": 60_000, "polling": 250})
        except Failed:
            raise AssertionError(f"{text!r} is not shown:\n{self.text}") from None

    @property
    def text(self) -> str:
        return self.page.run("return document.body.innerText")

    def say(self, text: str) -> None:
        self.page("click", INPUT)
        self.page("type", INPUT, text)
        self.page("click", SEND)

    def press(self, label: str) -> None:
        self.page("click", f"text={label}")


@pytest.fixture(scope="module")
def page(origin: str, host: Host) -> Generator[WebPage]:
    try:
        browser = Browser()
    except Unavailable as reason:
        pytest.skip(f"there is no browser: {reason}")
    with browser, browser.context(viewport={"width": 1200, "height": 800}) as context:
        context("addInitScript", _chosen(host))
        project = urlsafe_b64encode(host.directory.encode()).decode().rstrip("=")
        with context.page(f"{origin}/{project}/session") as opened:
            page = WebPage(opened)
            page.shows(host.can.model[0])
            yield page


def _chosen(host: Host) -> str:
    """JavaScript that has the page know the server, as its settings do."""
    server = {"type": "http", "http": {"url": host.url, "username": "opencode", "password": host.password}}
    servers = {"list": [server], "projects": {}, "lastProject": {}, "recentlyClosed": {}}
    stored = {"opencode.settings.dat:defaultServerUrl": host.url, "opencode.global.dat:server": json.dumps(servers)}
    lines = [f"localStorage.setItem({json.dumps(name)}, {json.dumps(value)});" for name, value in stored.items()]
    return "if (location.protocol === 'http:') {" + " ".join(lines) + "}"


def test_a_prompt_is_answered(page: WebPage, host: Host) -> None:
    page.say(host.can.hello.prompt)

    page.shows(host.can.hello.shows)


def test_a_permission_is_asked_for_and_given(page: WebPage, host: Host) -> None:
    page.say(host.can.permission.prompt)
    page.shows("Permission required")
    page.press("Allow once")

    page.shows(host.can.permission.says)


def test_a_question_is_answered(page: WebPage, host: Host) -> None:
    page.say(host.can.question.prompt)
    page.shows(host.can.question.shows)
    page.press("Green")
    page.press("Submit")

    page.shows(host.can.question.says)


def test_a_page_that_is_loaded_anew_shows_all_of_it(page: WebPage, host: Host) -> None:
    page.page("reload")

    page.shows(host.can.hello.shows)
    page.shows(host.can.question.says)
