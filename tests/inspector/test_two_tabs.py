"""Several tabs of one browser: all show the same, what one answers is gone in the others, and sign-in is for all."""

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from sandboxagent.client.sync import SandboxAgent
from tests.browser.driving import Browser, Context, Page, site
from tests.support.running import TOKEN, Server

SIGN_IN = "Sign in with the server's token"
LISTENER = """<!doctype html><title>Another site</title><script>
window.heard = [];
const channel = new BroadcastChannel("inspector.token");
channel.onmessage = ({ data }) => window.heard.push(data);
channel.postMessage({ says: "ask" });
</script>
<iframe name="framed"></iframe>
"""

ACCEPTED = """for (let look = 0; look < 3_000; look += 1) {
  if (sessionStorage.getItem("inspector.accepted") === token) return true;
  await new Promise((done) => setTimeout(done, 20));
}
return false;"""
"""Whether the page gets a token accepted. (`until` would need `eval` on the page, which its policy refuses.)"""


def sees(page: Page, text: str) -> None:
    page("locator", "body", {"hasText": text})("waitFor")


@contextmanager
def signed_in(context: Context, server: Server) -> Generator[Page]:
    with context.page(f"{server.url}/ui/agents#token={TOKEN}") as page:
        sees(page, "Connected")
        yield page


def test_a_second_tab_sees_the_same_and_what_it_answers_is_gone_in_the_first(
    browser: Browser, server: Server, client: SandboxAgent
) -> None:
    session = client.sessions.create("mock", cwd=server.work)
    address = f"{server.url}/ui/sessions/{session.id}#token={TOKEN}"
    with browser.context() as context, context.page(address) as one, context.page(address) as other:
        one("fill", ".composer-field", "permission")
        one("press", ".composer-field", "Enter")
        for page in (one, other):
            page("locator", ".request .diff-added")("waitFor")
        other("click", "[data-option=allow_once]")
        for page, who in ((one, "by inspector"), (other, "by you")):
            page("locator", ".request")("waitFor", {"state": "detached"})
            page("locator", ".transcript", {"hasText": "You chose: allow_once"})("waitFor")
            page("locator", ".settled-who", {"hasText": who})("waitFor")


def test_a_new_tab_is_signed_in_as_long_as_another_one_is_open(browser: Browser, server: Server) -> None:
    address = f"{server.url}/ui/agents"
    with browser.context() as context:
        with signed_in(context, server), context.page(address) as other:
            sees(other, "Connected")
            # Nothing that outlives the tabs has it.
            kept = other.run("return JSON.stringify({ ...localStorage }) + document.cookie;")
            assert TOKEN not in kept
            with context.page(address) as third:
                sees(third, "Connected")
                assert third("complaints") == []
        with context.page(address) as late:
            sees(late, SIGN_IN)


def test_to_sign_in_or_out_in_one_tab_is_to_do_so_in_all(browser: Browser, server: Server) -> None:
    address = f"{server.url}/ui/agents"
    with browser.context() as context, context.page(address) as one, context.page(address) as other:
        sees(one, SIGN_IN)
        sees(other, SIGN_IN)
        one("fill", "input[type=password]", TOKEN)
        one("press", "input[type=password]", "Enter")
        sees(one, "Connected")
        sees(other, "Connected")
        other("click", "[aria-label=Settings]")
        other("getByRole", "menuitem", {"name": "Sign out"})("click")
        sees(other, SIGN_IN)
        sees(one, SIGN_IN)
        one("reload")
        sees(one, SIGN_IN)


def test_tabs_of_a_server_that_has_another_token_now_need_one_sign_in(browser: Browser, tmp_path: Path) -> None:
    server = Server(directory=tmp_path)
    with server, browser.context() as context, signed_in(context, server) as one, signed_in(context, server) as other:
        server.flags = ["--port", server.url.rpartition(":")[2]]
        server.stop()
        server.token = "another-token"
        server.start()
        with context.page(f"{server.url}/ui/agents#token=another-token") as new:
            for page in (new, one, other):
                assert page.run(ACCEPTED, token="another-token")
                sees(page, "Connected")


def test_another_browser_asks_for_the_token(browser: Browser, server: Server) -> None:
    address = f"{server.url}/ui/agents"
    with browser.context() as mine, signed_in(mine, server), browser.context() as other, other.page(address) as page:
        sees(page, SIGN_IN)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Generator[str]:
    (tmp_path / "index.html").write_text(LISTENER)
    with site({"/": tmp_path}) as origin:
        yield origin


def test_no_page_of_another_site_gets_the_token_and_no_frame_in_one(browser: Browser, elsewhere: str) -> None:
    with ExitStack() as closing:
        server = closing.enter_context(Server("--frame-origin", elsewhere))
        context = closing.enter_context(browser.context())
        page = closing.enter_context(signed_in(context, server))
        listener = closing.enter_context(context.page(elsewhere))
        listener.run("document.querySelector('iframe').src = address;", address=f"{server.url}/ui/embed/s-1")
        listener("frameLocator", "iframe")("getByText", SIGN_IN)("waitFor")
        # A new tab of the first page's own origin gets it meanwhile.
        sees(closing.enter_context(context.page(f"{server.url}/ui/agents")), "Connected")
        assert listener.run("return window.heard;") == []
        sees(page, "Connected")
