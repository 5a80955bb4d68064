"""One session in two tabs: both show the same, and what one answers is gone in the other."""

from sandboxagent.client.sync import SandboxAgent
from tests.browser.driving import Browser
from tests.support.running import TOKEN, Server


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
