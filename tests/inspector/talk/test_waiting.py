"""What agents ask, in the Inspector: answered by mouse, by keys, by others; and what a card shows of a command."""

import json

import pytest

from sandbox_agent.client.sync import SandboxAgent
from tests.inspector.talk.conftest import Conversation, Open, stepped_away

OPTIONS = [
    {"optionId": "yes", "name": "Allow once", "kind": "allow_once"},
    {"optionId": "ever", "name": "Always allow", "kind": "allow_always"},
    {"optionId": "no", "name": "Reject", "kind": "reject_once"},
]


def press(talk: Conversation, key: str) -> None:
    """Press a key once the card takes keys: it does not at once."""
    with stepped_away(talk.tab):
        talk.tab.run("new Promise((resolve) => setTimeout(resolve, 400))")
        talk.tab("press", key)


@pytest.mark.parametrize(
    ("option", "said", "outcome"),
    [("allow_once", "You chose: allow_once", "Allow once"), ("reject_once", "You chose: reject_once", "Reject")],
)
def test_a_permission_with_its_difference_is_allowed_and_rejected(
    converse: Open, option: str, said: str, outcome: str
) -> None:
    talk = converse()
    talk.say("permission")
    talk.tab.sees("Permission was given.", ".request .diff-added")
    talk.tab.sees("new file", ".request .diff-head")
    talk.tab.until("document.title.startsWith('(')")
    talk.tab.click(f"[data-option={option}]")

    talk.answered(said)
    talk.tab.hides(".request")
    assert talk.tab.text(".settled-choice") == outcome
    assert talk.tab.text(".settled-who") == "by you"
    talk.tab("reload")
    talk.tab.sees("by you", ".transcript")


def test_a_rejection_says_why(converse: Open) -> None:
    talk = converse()
    talk.say("permission")
    talk.tab.shows(".request")
    talk.tab("find", "text", "Reject and say why…", "click")
    talk.tab.fill(".request-reason", "put it elsewhere")
    talk.tab("press", "Enter")

    talk.tab.sees("put it elsewhere", ".settled-reason")


def test_keys_answer_a_permission(converse: Open) -> None:
    talk = converse()
    for key, said in (("a", "allow_once"), ("2", "allow_always"), ("r", "reject_once")):
        talk.say("permission")
        talk.tab.shows(".request")
        press(talk, key)
        talk.answered(f"You chose: {said}")


def test_what_is_typed_in_the_composer_answers_nothing(converse: Open) -> None:
    talk = converse()
    talk.say("permission")
    talk.tab.shows(".request")
    talk.tab("focus", ".composer-field")
    talk.tab("keyboard", "type", "a1r")

    assert talk.tab.run("document.querySelector('.composer-field').value") == "a1r"
    assert talk.tab.run("Boolean(document.querySelector('.request'))")
    talk.tab.click("[data-option=reject_once]")


def test_a_question_is_answered(converse: Open) -> None:
    talk = converse()
    talk.say("question")
    talk.tab.sees("Which color do you like?", ".request")
    talk.tab("find", "text", "Green", "click")
    talk.tab.click(".request [type=submit]")
    talk.answered('You answered: [["green"]]')
    assert talk.tab.text(".settled-choice") == "Green"
    talk.say("question")
    talk.tab.shows(".request")
    press(talk, "3")
    talk.answered('You answered: [["blue"]]')


def test_a_form_is_filled_in(converse: Open) -> None:
    talk = converse()
    talk.say("form")
    talk.tab.sees("What would you like?", ".request")
    talk.tab.click(".request [type=submit]")
    talk.tab.sees("This is needed", ".request")
    talk.tab("select", ".request select", "green")
    talk.tab("fill", ".request input[type=number]", "7")
    talk.tab.click(".request [type=submit]")

    talk.answered('You filled in: {"amount": 7, "color": "green", "gift": false}')


def test_what_another_client_answers_disappears_and_says_by_whom(converse: Open, client: SandboxAgent) -> None:
    talk = converse()
    talk.say("permission")
    talk.tab.shows(".request")
    (request,) = talk.session.pending()
    client.reply_permission(str(request["id"]), "allow_once")

    talk.tab.hides(".request")
    talk.tab.sees("ada", ".news")
    talk.answered("You chose: allow_once")
    assert talk.tab.text(".settled-who") == "by ada (elsewhere, " + talk.tab.text(".settled-who").rsplit(" ", 1)[1]


def test_a_request_is_there_after_a_reload_and_can_be_answered(converse: Open) -> None:
    talk = converse()
    talk.say("permission")
    talk.tab.shows(".request")
    talk.tab("reload")
    talk.tab.click("[data-option=allow_once]")

    talk.answered("You chose: allow_once")


def test_stopping_a_turn_takes_its_question_away(converse: Open) -> None:
    talk = converse()
    talk.say("question")
    talk.tab.shows(".request")
    talk.tab.click("[data-action=stop]")

    talk.tab.hides(".request")
    talk.tab.sees("Cancelled", ".transcript")


def test_no_agent_makes_a_card_show_another_command_than_the_one_asked_for(converse: Open) -> None:
    talk = converse("scripted")
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
        assert talk.tab.run(
            "(({ scrollWidth, clientWidth }) => scrollWidth <= clientWidth)(document.querySelector('.command-text'))"
        )
        talk.tab.click("[data-option=reject_once]")
        talk.tab.hides(".request")


def test_a_conversation_by_keyboard_alone(converse: Open) -> None:
    talk = converse()
    talk.tab.until("document.querySelector('[data-choice=mode]')")
    talk.tab.run("document.body.focus()")
    for _ in range(40):
        talk.tab("press", "Tab")
        if talk.tab.run("document.activeElement.matches('.composer-field')"):
            break
    talk.tab("keyboard", "type", "permission")
    talk.tab("press", "Enter")
    talk.tab.shows(".request")
    for _ in range(40):
        talk.tab("press", "Shift+Tab")
        if talk.tab.run("document.activeElement.matches('[data-option=reject_once]')"):
            break
    assert talk.tab.run("getComputedStyle(document.activeElement).outlineStyle") != "none"
    talk.tab("press", "Enter")

    talk.answered("You chose: reject_once")


@pytest.mark.parametrize("word", ["permission", "question", "form"])
def test_axe_finds_nothing_wrong_with_what_waits(converse: Open, word: str) -> None:
    talk = converse()
    talk.say(word)
    talk.tab.shows(".request")

    for scheme in ("light", "dark"):
        talk.tab("set", "media", scheme)
        assert talk.tab.violations() == []
    talk.tab("set", "media", "light")
    talk.session.cancel()
