"""The FastAPI application that relays sessions to browsers."""

import json
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.examples.browsing import Relay
from tests.examples.staging import ALLOW_OR_REJECT, Stage
from tests.support.running import TOKEN, Server

pytestmark = pytest.mark.xdist_group("relay")


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Generator[Relay]:
    """One with a server of its own; each test has sessions of its own."""
    with Relay(Stage(tmp_path_factory.mktemp("relay"))) as running:
        yield running
    assert "Traceback" not in running.stderr, running.stderr


def test_it_serves_a_page(relay: Relay) -> None:
    page = relay.http.get("/")

    assert page.headers["content-type"].startswith("text/html")
    assert "EventSource" in page.text


def test_a_browser_sees_what_it_says_and_what_the_agent_says(relay: Relay) -> None:
    session = relay.new_session()
    with relay.browser(session) as browser:
        relay.post(f"{session}/prompts", {"text": "Good morning"}, 202)
        browser.until(lambda told: told.turns == 1)

    assert browser.events[0] == {"kind": "prompt", "content": [{"type": "text", "text": "Good morning"}]}
    assert browser.text.startswith("You said: Good morning")
    assert browser.ids == sorted(set(browser.ids))


def test_who_comes_later_sees_everything(relay: Relay) -> None:
    session = relay.new_session()
    relay.post(f"{session}/prompts", {"text": "Good morning"}, 202)
    with relay.browser(session) as first:
        first.until(lambda told: told.turns == 1)
    with relay.browser(session) as second:
        second.until(lambda told: told.turns == 1)

    assert second.events == first.events
    assert second.ids == first.ids


def test_who_was_cut_off_goes_on_where_it_was(relay: Relay) -> None:
    session = relay.new_session()
    with relay.browser(session) as all_the_time:
        with relay.browser(session) as before:
            relay.post(f"{session}/prompts", {"text": "slow 2"}, 202)
            before.until(lambda told: told.text.count("word") == 3)
        # Meanwhile it goes on.
        all_the_time.until(lambda told: told.text.count("word") == 6)
        with relay.browser(session, after=before.ids[-1]) as after:
            after.until(lambda told: told.turns == 1)
        all_the_time.until(lambda told: told.turns == 1)

    assert before.turns == 0
    assert before.ids + after.ids == all_the_time.ids
    assert before.events + after.events == all_the_time.events


def test_a_permission_is_shown_to_all_and_answered_by_one(relay: Relay) -> None:
    session = relay.new_session()
    with relay.browser(session) as one, relay.browser(session) as other:
        relay.post(f"{session}/prompts", {"text": "permission"}, 202)
        for browser in (one, other):
            browser.until(lambda told: bool(told.asked))
        assert one.asked == other.asked
        [request] = one.asked or []
        assert (request["kind"], request["title"]) == ("permission", "Write notes.txt")
        assert "allow_once" in [option["id"] for option in request["options"]]

        answer = f"{session}/permissions/{request['id']}"
        relay.post(answer, {"option": "allow_once"}, 204)
        for browser in (one, other):
            browser.until(lambda told: told.turns == 1 and told.asked == [])
            assert browser.text == "You chose: allow_once"
            assert {"kind": "decision", "outcome": "answered", "option": "allow_once"} in browser.events
        relay.post(answer, {"option": "allow_once"}, 404)


def test_a_permission_without_an_option_is_rejected(relay: Relay) -> None:
    session = relay.new_session()
    with relay.browser(session) as browser:
        relay.post(f"{session}/prompts", {"text": "permission"}, 202)
        browser.until(lambda told: bool(told.asked))
        relay.post(f"{session}/permissions/{(browser.asked or [])[0]['id']}", {}, 204)
        browser.until(lambda told: told.turns == 1)

    assert browser.text == "You chose: reject_once"


def test_who_comes_while_something_is_asked_is_asked(relay: Relay) -> None:
    session = relay.new_session()
    relay.post(f"{session}/prompts", {"text": "question"}, 202)
    with relay.browser(session) as browser:
        browser.until(lambda told: bool(told.asked))
    with relay.browser(session, after=browser.ids[-1] if browser.ids else 0) as again:
        again.until(lambda told: told.asked is not None)

    assert again.asked == browser.asked
    relay.post(f"{session}/questions/{(again.asked or [])[0]['id']}", {}, 204)


def test_a_question_is_answered_and_what_does_not_fit_is_refused(relay: Relay) -> None:
    session = relay.new_session()
    with relay.browser(session) as browser:
        relay.post(f"{session}/prompts", {"text": "question"}, 202)
        browser.until(lambda told: bool(told.asked))
        [request] = browser.asked or []
        assert [option["id"] for option in request["questions"][0]["options"]] == ["red", "green", "blue"]

        answer = f"{session}/questions/{request['id']}"
        relay.post(answer, {"answers": [["red"], ["one too many"]]}, 422)
        relay.post(answer, {"answers": [["blue"]]}, 204)
        browser.until(lambda told: told.turns == 1 and told.asked == [])

    assert browser.text == 'You answered: [["blue"]]'


def test_a_session_is_no_way_to_answer_for_another(relay: Relay) -> None:
    session, other = relay.new_session(), relay.new_session()
    with relay.browser(session) as browser:
        relay.post(f"{session}/prompts", {"text": "question"}, 202)
        browser.until(lambda told: bool(told.asked))
        id = (browser.asked or [])[0]["id"]
        relay.post(f"{other}/questions/{id}", {"answers": [["red"]]}, 404)
        relay.post(f"{session}/questions/{id}", {"answers": None}, 204)
        browser.until(lambda told: told.turns == 1)

    assert browser.text == "The question was rejected."


def test_when_an_agent_dies_all_clients_learn_of_it_and_the_relay_goes_on(relay: Relay) -> None:
    session = relay.new_session()
    with relay.browser(session) as browser:
        # Whether the death comes while the prompt is still waited for is a matter of milliseconds.
        assert relay.http.post(f"{session}/prompts", json={"text": "crash"}).status_code in (202, 502)
        browser.until(lambda told: told.events[-1:] == [{"kind": "ended", "reason": "error"}])
        relay.post(f"{session}/prompts", {"text": "Are you back?"}, 202)
        browser.until(lambda told: "You said: Are you back?" in told.text)


def test_what_is_not_there_is_reported(relay: Relay) -> None:
    assert relay.http.get("/sessions/nobody/events").status_code == 404
    relay.post("/sessions/nobody/prompts", {"text": "hi"}, 404)
    relay.post(f"{relay.new_session()}/permissions/7", {"option": "yes"}, 404)


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"Host": "attacker.example"}, 400), ({"Content-Type": "text/plain"}, 422)],
    ids=["a name that leads here", "a form of theirs"],
)
def test_pages_of_others_cannot_use_it(relay: Relay, headers: dict[str, str], status: int) -> None:
    response = relay.http.post("/sessions", content="{}", headers={"Content-Type": "application/json"} | headers)

    assert response.status_code == status


def test_sessions_on_a_remote_server_outlive_the_relay_which_hides_the_token(tmp_path: Path) -> None:
    asked = {"toolCall": {"toolCallId": "call-1", "title": "Do it"}, "options": ALLOW_OR_REJECT}
    prompt = json.dumps([["say", "May I?"], ["ask", "session/request_permission", asked], ["echo_answer"]])
    with Server() as server:
        stage = Stage(tmp_path)
        where = {"SANDBOX_AGENT_URL": server.url, "SANDBOX_AGENT_TOKEN": TOKEN}
        with Relay(stage, "scripted", **where) as relay:
            session = relay.new_session()
            relay.post(f"{session}/prompts", {"text": prompt}, 202)
            with relay.browser(session) as before:
                before.until(lambda told: bool(told.asked) and bool(told.ids))
        with Relay(stage, "scripted", **where) as relay:
            with relay.browser(session, after=before.ids[-1]) as after:
                after.until(lambda told: bool(told.asked))
                relay.post(f"{session}/permissions/{(after.asked or [])[0]['id']}", {"option": "yes"}, 204)
                after.until(lambda told: told.turns == 1)
            with relay.browser(session) as all_of_it:
                all_of_it.until(lambda told: told.turns == 1)

        assert before.ids + after.ids == all_of_it.ids
        assert all_of_it.text.startswith("May I?")
        for told in (before, after, all_of_it):
            assert TOKEN not in told.heard
            assert server.url not in told.heard
