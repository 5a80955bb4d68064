"""Making a session: the agent, its directory, its model and mode, rules; and where a failure is shown."""

from collections.abc import Generator
from pathlib import Path

import pytest

from sandboxagent.client.sync import SandboxAgent
from tests.inspector.browsing import Tab
from tests.support.running import Server
from tests.support.shapes import SHAPES


@pytest.fixture(scope="module")
def server() -> Generator[Server]:
    """With an agent that has options beside its mode and its model."""
    with Server(agents={"choosy": SHAPES["claude"].agent()}) as running:
        yield running


def test_a_session_is_made_in_the_chosen_directory_and_its_first_message_is_answered(
    tab: Tab, server: Server, client: SandboxAgent
) -> None:
    tab.open("new?agent=mock")
    tab.fill("Directory", server.work)
    tab.fill("First message", "hello there")
    tab.click("Start")
    tab.until("location.pathname.startsWith('/ui/sessions/')")

    tab.sees("You said: hello there")
    (made,) = [each for each in client.sessions.list() if each.title == "hello there"]
    assert made.cwd == server.work
    assert tab.path == f"/ui/sessions/{made.session_id}"
    # The next message can be written at once; Escape leaves the field.
    tab.type("and again")
    tab.press("Enter")
    tab.sees("You said: and again")
    tab.until("document.activeElement.matches('.composer-field')")
    tab.press("Escape")
    tab.until("document.activeElement === document.body")


def test_model_mode_and_rules_are_set_before_the_start(tab: Tab, server: Server, client: SandboxAgent) -> None:
    tab.open("new?agent=mock")
    tab.fill("Directory", server.work)
    tab.choose("Model", "Mock large")
    tab.choose("Mode", "Plan")
    tab.click("Add a rule")
    tab.choose("Rule 1: action", "reject")
    tab.choose("Rule 1: about", "path")
    tab.fill("Rule 1: value", "**/.env")
    tab.fill("Title", "with settings")
    tab.click("Start")
    tab.until("location.pathname.startsWith('/ui/sessions/')")

    (made,) = [each for each in client.sessions.list() if each.metadata.get("title") == "with settings"]
    assert (made.model, made.mode) == ("mock-large", "plan")
    assert made.metadata["permissions"] == [{"path": "**/.env", "action": "reject"}]


def test_every_option_of_the_agent_can_be_set_before_the_start(tab: Tab, server: Server, client: SandboxAgent) -> None:
    tab.open("new?agent=choosy")
    tab.fill("Directory", server.work)
    tab.choose("Model", "Haiku")
    tab.choose("Effort", "High")
    tab.choose("Fast", "On")
    tab.fill("Title", "with options")
    tab.has_accessible_room(colors=False)
    tab.click("Start")
    tab.until("location.pathname.startsWith('/ui/sessions/')")

    # An agent's options are as in its newest session.
    chosen = {each["id"]: each["currentValue"] for each in client.agents.get("choosy").config_options or []}
    assert (chosen["model"], chosen["effort"], chosen["fast"]) == ("haiku", "high", "on")


def test_agents_that_are_not_installed_do_not_stand_in_the_way(tab: Tab) -> None:
    tab.open("new")
    tab.sees("more that can be installed")
    tab.does_not_see("Gemini CLI")
    tab.run("[...document.querySelectorAll('button')].find((each) => each.ariaExpanded === 'false').click()")
    tab.sees("Gemini CLI")


def test_a_directory_is_found_by_looking_for_it(tab: Tab, server: Server) -> None:
    (Path(server.work) / "inner" / "deep").mkdir(parents=True, exist_ok=True)
    tab.open("new?agent=mock")
    tab.fill("Directory", server.work)
    tab.click("Browse")
    tab.click("inner")
    tab.click("deep")
    tab.sees("No directories in here.")
    tab.is_accessible(colors=False)
    tab.click("Use this directory")
    tab.until(f"[...document.querySelectorAll('input')].some(({{ value }}) => value === '{server.work}/inner/deep')")


@pytest.mark.parametrize(
    ("directory", "said"),
    [("/does/not/exist", "/does/not/exist"), ("relative", "A directory begins with a slash.")],
    ids=["missing", "relative"],
)
def test_what_is_wrong_is_shown_in_the_form_and_nothing_is_made(
    tab: Tab, client: SandboxAgent, directory: str, said: str
) -> None:
    before = len(list(client.sessions.list()))
    tab.open("new?agent=mock")
    tab.fill("Directory", directory)
    if directory.startswith("/"):
        tab.click("Start")
        tab.sees("Could not start the session")
    else:
        tab.has_accessible_room(colors=False)
    tab.sees(said)

    assert tab.path == "/ui/new?agent=mock"
    assert len(list(client.sessions.list())) == before
