"""One session, in OpenCode's terminal interface and in a client that knows nothing of it; and a restart."""

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.opencode.host import MOCK, Host, free_port, ours
from tests.opencode.neighbour import Neighbour, neighbour
from tests.opencode.terminal import ENTER, READY, Tui
from tests.support.running import BOUND, Server

PERMISSION = "Permission required"
TITLE = MOCK.hello.prompt


@pytest.fixture(scope="module")
def server() -> Generator[Server]:
    """A server that is at the same address after a restart."""
    with Server("--port", str(free_port())) as running:
        yield running


@pytest.fixture(scope="module")
def host(server: Server) -> Host:
    return ours(server)


@pytest.fixture(scope="module")
def other(server: Server) -> Generator[Neighbour]:
    with neighbour(server) as connected:
        connected.hears(MOCK.hello.prompt)
        yield connected


@pytest.fixture(scope="module")
def session(host: Host, other: Neighbour) -> str:
    """The id that OpenCode's clients know the other client's session by."""
    with host.client as client:
        (listed,) = client.get("/session", params={"directory": host.directory}).json()
    assert listed["title"] == TITLE
    return listed["id"]


@pytest.fixture(scope="module")
def tui(host: Host, home: Path, session: str) -> Generator[Tui]:
    with Tui(host, home, "--session", session) as opened:
        opened.expect(READY)
        yield opened


def test_a_session_of_another_client_is_shown_with_its_history(tui: Tui) -> None:
    tui.expect(MOCK.hello.shows)


def test_what_another_client_says_is_shown_live(tui: Tui, other: Neighbour) -> None:
    other.hears(MOCK.again.prompt)

    tui.expect(MOCK.again.shows)


def test_what_the_terminal_says_is_heard_by_the_other_client(tui: Tui, other: Neighbour, host: Host) -> None:
    tui.say(host.can.permission.prompt)
    tui.expect(PERMISSION)
    other.allows(other.is_asked())

    tui.gone(PERMISSION)
    tui.expect(host.can.permission.says)


def test_a_permission_of_the_other_clients_prompt_is_given_in_the_terminal(tui: Tui, other: Neighbour) -> None:
    prompt = other.prompts(MOCK.permission.prompt)
    tui.expect(PERMISSION)
    other.is_asked()
    tui.type(ENTER)

    assert MOCK.permission.says in prompt.result(BOUND)
    other.is_asked_nothing()
    tui.gone(PERMISSION)


def test_agent_crash_fails_the_turn_and_the_next_prompt_is_answered(tui: Tui, host: Host) -> None:
    tui.say("please crash")
    tui.expect("exited with code 3")
    tui.say("are you back")

    tui.expect("You said: are you back")
    tui.gone("esc interrupt")


def test_the_terminal_goes_on_after_the_server_was_restarted(
    tui: Tui, host: Host, server: Server, session: str
) -> None:
    before = _messages(host, session)
    server.stop()
    server.start()

    assert _messages(host, session) == before
    tui.say("after the restart")
    tui.expect("You said: after the restart")
    assert [message["info"]["id"] for message in _messages(host, session)][: len(before)] == [
        message["info"]["id"] for message in before
    ]


def _messages(host: Host, session: str) -> list[dict[str, dict[str, object]]]:
    with host.client as client:
        return client.get(f"/session/{session}/message").json()
