"""What agents ask, in the Inspector: answered by mouse, by keys, by others; and what a card shows of a command."""

import json
from collections.abc import Generator

import pytest

from sandboxagent.client.sync import SandboxAgent
from tests.inspector.browsing import Tab
from tests.inspector.talking import Conversation, conversation
from tests.support.running import TOKEN, Server

OPTIONS = [
    {"optionId": "yes", "name": "Allow once", "kind": "allow_once"},
    {"optionId": "ever", "name": "Always allow", "kind": "allow_always"},
    {"optionId": "no", "name": "Reject", "kind": "reject_once"},
]


@pytest.fixture
def talk(tab: Tab, server: Server) -> Generator[Conversation]:
    with conversation(tab, server) as opened:
        yield opened


@pytest.fixture
def scripted_talk(tab: Tab, server: Server) -> Generator[Conversation]:
    with conversation(tab, server, "scripted") as opened:
        yield opened


@pytest.mark.parametrize(
    ("option", "said", "outcome"),
    [("allow_once", "You chose: allow_once", "Allow once"), ("reject_once", "You chose: reject_once", "Reject")],
)
def test_a_permission_with_its_difference_is_allowed_and_rejected(
    talk: Conversation, option: str, said: str, outcome: str
) -> None:
    talk.say("permission")
    talk.sees("Permission was given.", ".request .diff-added")
    talk.sees("new file", ".request .diff-head")
    talk.tab.until("document.title.startsWith('(')")
    talk.click(f"[data-option={option}]")

    talk.is_answered(said)
    talk.hides(".request")
    assert talk.text(".settled-choice") == outcome
    assert talk.text(".settled-who") == "by you"
    talk.tab.reload()
    talk.sees("by you", ".transcript")


def test_a_rejection_says_why(talk: Conversation) -> None:
    talk.say("permission")
    talk.shows(".request")
    talk.tab.click("Reject with a reason…")
    talk.tab.fill_at(".request-reason", "put it elsewhere")
    talk.tab.press("Enter")

    talk.sees("put it elsewhere", ".settled-reason")


def test_keys_answer_a_permission(talk: Conversation) -> None:
    for key, said in (("a", "allow_once"), ("2", "allow_always"), ("r", "reject_once")):
        talk.say("permission")
        talk.shows(".request")
        talk.press_beside(key)
        talk.is_answered(f"You chose: {said}")


def test_what_is_typed_in_the_composer_answers_nothing(talk: Conversation) -> None:
    talk.say("permission")
    talk.shows(".request")
    talk.tab.focus_at(".composer-field")
    talk.tab.type("a1r")

    assert talk.run("document.querySelector('.composer-field').value") == "a1r"
    assert talk.run("Boolean(document.querySelector('.request'))")
    talk.click("[data-option=reject_once]")


def test_a_question_is_answered(talk: Conversation) -> None:
    talk.say("question")
    talk.sees("Which color do you like?", ".request")
    talk.click(".choice:nth-of-type(2)")
    talk.click(".request [type=submit]")
    talk.is_answered('You answered: [["green"]]')
    assert talk.text(".settled-choice") == "Green"
    talk.say("question")
    talk.shows(".request")
    talk.press_beside("3")
    talk.is_answered('You answered: [["blue"]]')


def test_a_form_is_filled_in(talk: Conversation) -> None:
    talk.say("form")
    talk.sees("What would you like?", ".request")
    talk.click(".request [type=submit]")
    talk.sees("This is needed", ".request")
    talk.tab.click("green", role="radio")
    talk.tab.fill_at(".request input[type=number]", "7")
    talk.click(".request [type=submit]")

    talk.is_answered('You filled in: {"amount": 7, "color": "green", "gift": false}')


def test_what_another_client_answers_disappears_and_says_by_whom(talk: Conversation, server: Server) -> None:
    talk.say("permission")
    talk.shows(".request")
    with SandboxAgent.connect(server.url, TOKEN, name="elsewhere", user="ada") as other:
        other.sessions.attach(talk.session.id)
        (request,) = other.pending(talk.session.id)
        other.reply_permission(request.id, "allow_once")

    talk.hides(".request")
    talk.sees("ada", ".news")
    talk.is_answered("You chose: allow_once")
    assert talk.text(".settled-who") == "by ada (elsewhere)"


def test_a_request_is_there_after_a_reload_and_can_be_answered(talk: Conversation) -> None:
    talk.say("permission")
    talk.shows(".request")
    talk.tab.reload()
    talk.click("[data-option=allow_once]")

    talk.is_answered("You chose: allow_once")


def test_stopping_a_turn_takes_its_question_away(talk: Conversation) -> None:
    talk.say("question")
    talk.shows(".request")
    talk.click("[data-action=stop]")

    talk.hides(".request")
    talk.sees("Cancelled", ".transcript")


def test_no_agent_makes_a_card_show_another_command_than_the_one_asked_for(scripted_talk: Conversation) -> None:
    talk = scripted_talk
    honest = "Will run\nls\n"
    attacks = {
        "rm -rf ~": "rm -rf ~",
        "echo \u202e~ fr- mr\u202c # ls": "echo ‹U+202E›~ fr- mr‹U+202C› # ls",
        "ls" + " " * 4_000 + "; rm -rf ~": "ls␣×4000; rm -rf ~",
        "ls" + "\n" * 300 + "rm -rf ~": "ls\n⏎×299\nrm -rf ~",
        "rm -rf ~\u001b[2K\rls": "rm -rf ~␛[2K␍ls",
        "<b onclick=alert()>ls</b>rm x": "<b onclick=alert()>ls</b>rm x",
        "l\u200bs; r\u00adm x": "l‹U+200B›s; r‹U+00AD›m x",
    }
    for index, (command, shown) in enumerate(attacks.items()):
        call = {
            "toolCallId": f"c{index}",
            "title": "ls",
            "kind": "execute",
            "content": [
                {
                    "type": "content",
                    "content": {"type": "text", "text": f"```\nls\n```\n{honest}<pre class='command-text'>ls</pre>"},
                }
            ],
            "rawInput": {"command": command, "description": "Lists files"},
        }
        said = {"sessionUpdate": "tool_call", **call, "rawInput": {"command": "ls"}}
        talk.play(
            ["update", said],
            ["ask", "session/request_permission", {"toolCall": call, "options": OPTIONS}],
            ["echo_answer"],
        )
        texts = "[...document.querySelectorAll('.command-text')].map(({ textContent }) => textContent)"
        talk.tab.until(f"JSON.stringify({texts}) === JSON.stringify([{json.dumps(shown)}])")
        # All of it can be brought into view: nothing is clipped away.
        assert talk.run(
            "(({ scrollWidth, clientWidth }) => scrollWidth <= clientWidth)(document.querySelector('.command-text'))"
        )
        talk.click("[data-option=reject_once]")
        talk.hides(".request")


def test_a_conversation_by_keyboard_alone(talk: Conversation) -> None:
    talk.tab.press("/")
    talk.tab.type("permission")
    talk.tab.press("Enter")
    talk.shows(".request")
    for _ in range(40):
        talk.tab.press("Shift+Tab")
        if talk.run("document.activeElement.matches('[data-option=reject_once]')"):
            break
    assert talk.run("getComputedStyle(document.activeElement).outlineStyle") != "none"
    talk.tab.press("Enter")

    talk.is_answered("You chose: reject_once")
