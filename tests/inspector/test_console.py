"""The browser's console: no room of the Inspector writes an error into it."""

from sandboxagent.client.sync import SandboxAgent
from tests.browser.driving import Browser, Context
from tests.support.running import TOKEN, Server

ROOMS = {
    "": "said something",
    "new": "First message",
    "agents/mock": "Where it comes from",
    "files": "",
    "replay": "Replay a session",
    "nowhere": "Page not found",
}
TABS = {
    "": "You said: said something",
    "?tab=changes": "No changes",
    "?tab=envelopes": "session/prompt",
    "?tab=files": "",
}


def shows(context: Context, server: Server, path: str, text: str) -> list[str]:
    """Errors in the console of a page that shows this."""
    with context.page(f"{server.url}/ui/{path}#token={TOKEN}") as page:
        page("locator", "main", {"hasText": text})("waitFor")
        page("locator", "body", {"hasText": "Connected"})("waitFor")
        page.is_well()
        complaints: list[str] = page("complaints")
        return complaints


def test_no_room_writes_an_error_into_the_console(browser: Browser, server: Server, client: SandboxAgent) -> None:
    session = client.sessions.create("mock", cwd=server.work)
    session.prompt("said something").text()
    places = ROOMS | {f"sessions/{session.id}{tab}": text for tab, text in TABS.items()}
    with browser.context() as context:
        said = {path: wrong for path, text in places.items() if (wrong := shows(context, server, path, text))}

    assert said == {}


def test_an_error_in_the_console_is_seen(browser: Browser, server: Server) -> None:
    with browser.context() as context, context.page(f"{server.url}/ui/#token={TOKEN}") as page:
        page.run("console.error('of its code');")
        page.is_well()
        assert any("of its code" in each for each in page("complaints"))
