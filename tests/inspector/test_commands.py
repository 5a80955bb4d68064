"""What a person can do from anywhere: the palette, the list of keys, and the actions of a session."""

import json
from collections.abc import Callable

import pytest

from sandboxagent import LogEvent
from sandboxagent.client.sync import SandboxAgent, Session
from tests.inspector.browsing import Tab
from tests.support.running import Server


@pytest.fixture
def session(server: Server, client: SandboxAgent) -> Session:
    made = client.sessions.create("mock", cwd=server.work, title="Rate limits")
    made.prompt("hello").text()
    return made


def at_session(tab: Tab, session: Session, query: str = "") -> None:
    tab.open(f"sessions/{session.id}{query}")
    tab.sees("You said: hello")


def from_palette(tab: Tab, words: str) -> None:
    tab.press("Control+k")
    tab.until("document.activeElement?.role === 'combobox'")
    tab.type(words)
    tab.until("document.querySelector('dialog [aria-selected=true]') !== null")
    tab.press("Enter")
    tab.until("document.querySelector('dialog [role=combobox]') === null")


def from_menu(tab: Tab, label: str) -> None:
    tab.click("Actions of the session")
    tab.click(label, role="menuitem")


def test_palette_leads_to_sessions_and_pages_and_does_what_is_chosen(tab: Tab, session: Session) -> None:
    tab.open("agents")
    tab.sees("Where it comes from")
    from_palette(tab, f"{session.id} mock")
    tab.until(f"location.pathname === '/ui/sessions/{session.id}'")
    tab.sees("You said: hello")
    # While something is being written, too.
    tab.fill_at(".composer-field", "half a thought")
    from_palette(tab, "show time")
    tab.until("document.querySelector('[role=slider]') !== null")
    from_palette(tab, "hide time")
    tab.until("document.querySelector('[role=slider]') === null")
    from_palette(tab, "mission")
    tab.until("location.pathname === '/ui/'")


def test_palette_is_left_with_escape_and_opened_with_a_click(tab: Tab, session: Session) -> None:
    at_session(tab, session)
    tab.click("Go to…")
    tab.sees("Rename session…")
    tab.is_accessible(colors=False)
    tab.press("ArrowDown", "ArrowUp", "ArrowUp")
    tab.until("document.querySelector('dialog [role=option]:last-child').ariaSelected === 'true'")
    tab.press("Escape")
    tab.until("document.querySelector('dialog[open]') === null")
    assert tab.path == f"/ui/sessions/{session.id}"


def test_question_mark_lists_the_keys_unless_it_is_written(tab: Tab, session: Session) -> None:
    at_session(tab, session)
    tab.fill_at(".composer-field", "really")
    tab.press("?")
    tab.until("document.querySelector('.composer-field').value === 'really?'")
    tab.press("Escape", "?")
    tab.sees("Keyboard shortcuts")
    tab.sees("Earlier messages")
    # Keys of the page below do nothing meanwhile.
    tab.press("/")
    tab.press("Escape")
    tab.until("document.querySelector('dialog[open]') === null")
    assert not tab.run("document.activeElement.matches('.composer-field')")


@pytest.mark.parametrize("choose", [from_menu, from_palette])
def test_a_session_is_renamed(tab: Tab, session: Session, choose: Callable[[Tab, str], None]) -> None:
    at_session(tab, session)
    choose(tab, "Rename session…")
    # Its field has the focus, with the old title selected.
    tab.until("document.activeElement.matches('dialog input') && document.activeElement.value !== ''")
    tab.until("document.activeElement.selectionEnd === document.activeElement.value.length")
    assert tab.run("document.activeElement.selectionStart") == 0
    tab.type("Windows per key")
    tab.press("Enter")
    tab.until("document.querySelector('h1').innerText === 'Windows per key'")
    tab.until("document.querySelector('[aria-label=Sessions]').innerText.includes('Windows per key')")
    tab.until("document.querySelector('dialog[open]') === null")
    assert session.info().title == "Windows per key"


def test_a_link_to_a_session_has_its_tab_and_no_token(tab: Tab, session: Session) -> None:
    at_session(tab, session)
    tab.follow("Changes")
    tab.sees("No changes")
    tab.run("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    from_menu(tab, "Copy link to session")
    tab.sees("Link copied")
    assert tab.run("window.copied") == f"{tab.url}/ui/sessions/{session.id}?tab=changes"


def test_a_session_is_exported_from_any_tab(tab: Tab, session: Session) -> None:
    at_session(tab, session)
    tab.run("""(() => {
      const made = URL.createObjectURL;
      URL.createObjectURL = (blob) => { window.exported = blob; return made.call(URL, blob); };
    })()""")
    from_menu(tab, "Export session")
    tab.until("window.exported !== undefined")
    lines = str(tab.run("window.exported.text()")).splitlines()
    events = [event.id for event in session.log(before=1 << 53) if isinstance(event, LogEvent)]
    assert [json.loads(line)["id"] for line in lines] == events


def test_time_line_is_behind_a_button_and_stays_as_it_was_left(tab: Tab, session: Session) -> None:
    at_session(tab, session)
    assert tab.run("document.querySelector('[role=slider]') === null")
    tab.click("Timeline")
    tab.until("document.querySelector('[role=slider]') !== null")
    tab.reload()
    tab.until("document.querySelector('[role=slider]') !== null")
    # A phone has no room for it.
    tab.size(390)
    tab.until("document.querySelector('[role=slider]') === null")
    assert tab.run("document.querySelector('[aria-label=\"Timeline\"]') === null")
    tab.size(1440)
    tab.click("Timeline")
    tab.until("document.querySelector('[role=slider]') === null")


def test_on_a_phone_a_moment_of_the_past_has_a_way_back_in_every_tab(tab: Tab, session: Session) -> None:
    tab.size(390)
    for query in ("?at=2", "?at=2&tab=changes", "?at=2&tab=envelopes"):
        tab.open(f"sessions/{session.id}{query}")
        tab.click("Back to live")
        tab.until("!location.search.includes('at=')")
