"""All sessions beside every room: live, found by words, linked to; and what waits is in the title of the page."""

from threading import Event

from sandboxagent import PermissionRequest
from sandboxagent.client.sync import SandboxAgent
from tests.inspector.browsing import Tab
from tests.support.running import BOUND, Server


def test_a_session_that_another_client_makes_appears_and_says_how_it_stands(
    tab: Tab, server: Server, client: SandboxAgent
) -> None:
    tab.open("agents")
    tab.sees("Connected")
    client.sessions.create("mock", cwd=server.work).prompt("a session of another client").text()
    tab.sees("a session of another client")
    session = client.sessions.create("mock", cwd=server.work)
    turn = session.prompt("slow 60")
    tab.until("document.querySelector('[aria-label=Sessions]').innerText.includes('Running')")
    session.cancel()
    turn.result()
    tab.until("!document.querySelector('[aria-label=Sessions]').innerText.includes('Running')")


def test_title_counts_pending_requests_until_they_are_answered_elsewhere(
    tab: Tab, server: Server, client: SandboxAgent
) -> None:
    tab.open()
    tab.sees("Connected")
    seen = Event()

    def decide(request: PermissionRequest) -> object:
        assert seen.wait(BOUND)
        return request.reject()

    client.on_permission(decide)
    turn = client.sessions.create("mock", cwd=server.work).prompt("permission")
    tab.until("document.title.startsWith('(1) ')")
    tab.sees("Waiting for you")
    seen.set()
    tab.until("!document.title.startsWith('(')")
    turn.result()


def test_sessions_are_found_by_their_words(tab: Tab, server: Server, client: SandboxAgent) -> None:
    for words in ("the red house", "the blue boat"):
        client.sessions.create("mock", cwd=server.work).prompt(words).text()
    tab.open("agents")
    tab.sees("the red house")
    tab.sees("the blue boat")
    tab.fill("Search sessions", "BOAT blue")
    tab.until("!document.querySelector('[aria-label=Sessions]').innerText.includes('the red house')")
    tab.sees("the blue boat")
    tab.fill("Search sessions", "nothing like that")
    tab.sees("No session matches")


def test_a_page_has_one_list_of_sessions(tab: Tab, server: Server, client: SandboxAgent) -> None:
    client.sessions.create("mock", cwd=server.work).prompt("listed once").text()
    for place in ("", "agents", "replay"):
        tab.open(place)
        tab.sees("listed once")
        assert str(tab.run("document.body.innerText")).count("listed once\n") == 1


def test_a_link_to_a_session_opens_it_and_one_to_no_session_says_so(
    tab: Tab, server: Server, client: SandboxAgent
) -> None:
    session = client.sessions.create("mock", cwd=server.work)
    session.prompt("linked to").text()
    tab.open(f"sessions/{session.id}")
    tab.until("document.title === 'linked to · Inspector'")
    tab.open("sessions/no-such-session")
    tab.sees("Session not found")
    tab.open("nowhere/at/all")
    tab.sees("Page not found")


def test_on_a_narrow_page_the_sidebar_opens_over_the_room(tab: Tab) -> None:
    tab.size(390)
    tab.open("agents")
    tab.click("Open the sidebar")
    tab.sees("Connected")
    tab.is_accessible(colors=False)
    tab.press("Escape")
    tab.does_not_see("Connected")


def test_what_the_first_load_takes_is_less_than_300_kilobytes(tab: Tab, server: Server, client: SandboxAgent) -> None:
    client.sessions.create("mock", cwd=server.work).prompt("one that is listed").text()
    tab.open()
    tab.sees("one that is listed")
    tab.run("document.fonts.ready.then(() => true)")
    taken = tab.run("""performance.getEntriesByType('resource').concat(performance.getEntriesByType('navigation'))
      .filter(({ name }) => new URL(name).pathname.startsWith('/ui/'))
      .reduce((sum, { encodedBodySize }) => sum + encodedBodySize, 0)""")

    # Compressed, and with the fonts, whether they were cached or not.
    assert 0 < taken < 300_000
