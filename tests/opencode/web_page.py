"""OpenCode's web page in a real browser. It comes from OpenCode's own server, and gets the address of ours."""

import json
from base64 import urlsafe_b64encode
from collections.abc import Generator
from contextlib import contextmanager

from tests.browser.driving import Browser, Context, Failed, Page
from tests.opencode.host import Host

INPUT, SEND = "[data-component=prompt-input]", "[data-action=prompt-submit]"
SHOWN = "(text) => document.body.innerText.includes(text)"


class WebPage:
    """The page, opened on a session."""

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


@contextmanager
def browsing(browser: Browser, origin: str, host: Host) -> Generator["Visits"]:
    """Pages that know the server."""
    with browser.context(viewport={"width": 1200, "height": 800}) as context:
        context("addInitScript", _chosen(host))
        yield Visits(origin, host, context)


class Visits:
    """Opens the page."""

    def __init__(self, origin: str, host: Host, context: Context) -> None:
        project = urlsafe_b64encode(host.directory.encode()).decode().rstrip("=")
        self._sessions, self._context = f"{origin}/{project}/session", context

    @contextmanager
    def __call__(self, session: str | None = None) -> Generator[WebPage]:
        """On a session that there is, or on a new one."""
        url = self._sessions if session is None else f"{self._sessions}/{session}"
        with self._context.page(url) as opened:
            yield WebPage(opened)


def _chosen(host: Host) -> str:
    """JavaScript that has the page know the server, as its settings do."""
    server = {"type": "http", "http": {"url": host.url, "username": "opencode", "password": host.password}}
    servers = {"list": [server], "projects": {}, "lastProject": {}, "recentlyClosed": {}}
    stored = {"opencode.settings.dat:defaultServerUrl": host.url, "opencode.global.dat:server": json.dumps(servers)}
    lines = [f"localStorage.setItem({json.dumps(name)}, {json.dumps(value)});" for name, value in stored.items()]
    return "if (location.protocol === 'http:') {" + " ".join(lines) + "}"
