"""Every screen: nothing keeps people out (axe), in either theme; and all of it by keyboard."""

from collections.abc import Generator

import pytest

from tests.inspector.browsing import CONTRAST, Tab
from tests.inspector.screens import SCREENS, Workshop, workshop
from tests.support.running import TOKEN, Server


@pytest.fixture(scope="module")
def made(needs_browser: None) -> Generator[Workshop]:
    with workshop() as filled:
        yield filled


@pytest.fixture(scope="module")
def server(made: Workshop) -> Server:
    return made.server


CONTAINED = (
    *("question", "new", "files", "large", "large-changes", "empty-session", "no-changes", "no-page", "loading"),
    *("reconnecting", "no-server"),
)
"""Screens of which all is on another one, or which other tests look at."""
ALIKE = (
    *("envelopes", "session-files", "command", "form", "right-to-left", "file", "replay", "no-session"),
    *("wrong-token", "empty"),
)
"""Screens that are arranged in their own way, with colours that are all on others."""
NARROW = ("mission", "changes", "envelopes")
"""Screens that are arranged in another way on a phone than on a desk, with the same colours."""


@pytest.mark.parametrize("name", [name for name in SCREENS if name not in CONTAINED])
def test_axe_finds_nothing_wrong_with_a_screen_and_it_is_no_wider_than_a_phone(
    tab: Tab, made: Workshop, name: str
) -> None:
    SCREENS[name](tab, made)
    if name in ALIKE:
        tab.has_accessible_room(colors=False)
    else:
        tab.has_accessible_room_in_both_themes()
    tab.size(390)
    tab.until("innerWidth === 390 && document.documentElement.scrollWidth <= 390")
    if name in NARROW:
        tab.has_accessible_room(colors=False)


def test_axe_finds_nothing_wrong_with_the_whole_page(tab: Tab, made: Workshop) -> None:
    SCREENS["question"](tab, made)
    tab.is_accessible()
    tab.theme("dark")
    tab.is_accessible(tags=CONTRAST)


def test_diff_of_ten_thousand_lines_scrolls_to_its_end_drawing_only_the_view(tab: Tab, made: Workshop) -> None:
    drawn, body = "document.querySelectorAll('.diff-row').length", "document.querySelector('.diff-body')"
    SCREENS["large"](tab, made)
    tab.until(f"{drawn} > 0 && {drawn} < 200")
    SCREENS["large-changes"](tab, made)
    tab.sees("+2500 −2500")
    tab.run(f"{body}.scrollTop = {body}.scrollHeight")
    tab.sees("field_9999")
    assert 0 < tab.run(drawn) < 200
    tab.press("u")
    tab.until("document.querySelector('.diff-split') !== null")
    tab.run(f"{body}.scrollTop = {body}.scrollHeight")
    tab.sees("field_9999")
    assert 0 < tab.run(drawn) < 200
    tab.press("u")


def test_a_session_is_made_by_keyboard_alone(tab: Tab, server: Server) -> None:
    tab.open("new?agent=mock", token=TOKEN)
    tab.sees("First message")
    tab.run("document.querySelector('input[value=mock]').focus()")
    for _ in range(40):
        if tab.run("document.activeElement.innerText") == "Start":
            break
        tab.press("Tab")
        assert tab.run("document.activeElement.matches(':focus-visible')")
    tab.press("Enter")
    tab.until("location.pathname.startsWith('/ui/sessions/')")
