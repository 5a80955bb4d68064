"""OpenCode's web page on the bridge, in a real browser: the page comes from OpenCode's own server, another origin."""

from collections.abc import Generator

import pytest

from tests.browser.driving import Browser
from tests.opencode.host import MOCK, Host, opencode_itself, ours
from tests.opencode.web_page import WebPage, browsing
from tests.support.running import Server


@pytest.fixture(scope="module")
def host(origin: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[Host]:
    """A server that lets the page call."""
    if request.config.getoption("--opencode-itself"):
        with opencode_itself(tmp_path_factory.mktemp("itself"), "--cors", origin) as host:
            yield host
        return
    with Server("--cors-origin", origin, "--default-agent", MOCK.provider) as server:
        yield ours(server)


@pytest.fixture(scope="module")
def page(browser: Browser, origin: str, host: Host) -> Generator[WebPage]:
    with browsing(browser, origin, host) as visit, visit() as page:
        page.shows(host.can.model[0])
        yield page


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


def test_every_model_of_an_agent_is_offered(page: WebPage, host: Host) -> None:
    page.page("click", f"button:has-text({host.can.model[0]!r})")

    page.shows(host.can.model[1])
    page.page("press", "body", "Escape")


def test_a_page_that_is_loaded_anew_shows_all_of_it(page: WebPage, host: Host) -> None:
    page.page("reload")

    page.shows(host.can.hello.shows)
    page.shows(host.can.question.says)
