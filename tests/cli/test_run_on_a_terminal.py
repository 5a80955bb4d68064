"""`sandbox-agent run` on a terminal: what is on the screen, questions that are answered by keys, conversations."""

import asyncio
import json
import re
import signal
from collections.abc import Generator
from pathlib import Path

import pytest

from sandboxagent.cli.chat.conversation import TURNS_SHOWN
from tests.cli.place import PROGRAM, Place
from tests.cli.talking import PERMISSION, Talking, asks, form, program, questions
from tests.support.client import Client
from tests.support.on_terminal import OnTerminal
from tests.support.running import Server, eventually, scripted

COLOURS = [
    {"id": "red", "label": "Red", "description": "Like a tomato"},
    {"id": "green", "label": "Green"},
    {"id": "blue", "label": "Blue"},
]


COMMANDS = [
    {"name": "review", "description": "Look at a change"},
    {"name": "help", "description": "Of the agent"},
    {"name": "long", "description": "words " * 100},
]
UP, DOWN = "\x1b[A", "\x1b[B"
EARLY = [["update", {"sessionUpdate": "available_commands_update", "availableCommands": COMMANDS}]]


@pytest.fixture(scope="module")
def server() -> Generator[Server]:
    with Server(agents={"commanding": scripted("--before-new", json.dumps(EARLY))}) as running:
        yield running


@pytest.fixture
def run(place: Place, server: Server) -> Talking:
    return Talking(place, server)


def answer(terminal: OnTerminal) -> object:
    """What the scripted agent was answered, as it says at the end."""
    assert terminal.expect_end() == 0, str(terminal.screen)
    text = str(terminal.screen).replace("\n", "")
    start = text.index('{"jsonrpc"')
    return json.JSONDecoder().raw_decode(text[start:])[0]["result"]


# --- what is on the screen --------------------------------------------------------------------------------------------


def test_a_turn_is_shown_with_what_its_tool_calls_change(run: Talking) -> None:
    with run.on_terminal("run", "mock", "tool") as terminal:
        assert terminal.expect_end() == 0
        lines = terminal.screen.lines

    assert lines[:-1] == [
        "✔ Edit greeting.txt  edit  +1 -1 greeting.txt",
        "  -Hello.",
        "  +Hello, world!",
        "",
        "The tool call is done. No file was touched.",
        "",
    ]
    assert lines[-1].startswith("session mock-")


def test_a_plan_is_worked_off_in_place(run: Talking) -> None:
    with run.on_terminal("run", "mock", "plan") as terminal:
        assert terminal.expect_end() == 0

        assert terminal.screen.lines[:5] == [
            "  ✔ Understand the question",
            "  ✔ Do the work",
            "  ✔ Check the result",
            "",
            "All went to plan.",
        ]


def test_a_line_says_what_the_agent_does_and_for_how_long_and_leaves_nothing_behind(run: Talking) -> None:
    call = {"sessionUpdate": "tool_call", "toolCallId": "1", "title": "Edit src/app.py", "status": "in_progress"}
    done = {"sessionUpdate": "tool_call_update", "toolCallId": "1", "status": "completed"}
    steps = program(["update", call], ["wait_cancel"], ["update", done], ["say", "never mind"])

    for talks in (False, True):
        with run.on_terminal("run", "scripted", *(() if talks else (steps,)), columns=400) as terminal:
            if talks:
                terminal.expect("❯")
                terminal.type(f"{steps}\r")
            terminal.becomes(
                lambda screen: re.search(r"^Edit src/app\.py [1-9]\d* s$", screen, re.M) is not None, "a time"
            )
            terminal.type("\x03")
            terminal.expect("never mind")
            terminal.expect("cancelled")
            if talks:
                terminal.type("\x04")
            assert terminal.expect_end() == (0 if talks else 130)

            assert not re.search(r"^Edit src/app\.py", str(terminal.screen), re.M)


def test_colours_are_left_out_with_no_color_or_a_dumb_terminal(run: Talking) -> None:
    with run.on_terminal("run", "mock", "think") as terminal:
        assert terminal.expect_end() == 0
        assert b"\x1b[2mLet me see. \x1b[0m" in terminal.raw
    with run.on_terminal("run", "mock", "think", NO_COLOR="1") as terminal:
        assert terminal.expect_end() == 0
        assert b"m\x1b" not in terminal.raw
        assert b"\x1b[2m" not in terminal.raw
    with run.on_terminal("run", "mock", "tool", TERM="dumb") as terminal:
        assert terminal.expect_end() == 0
        assert b"\x1b" not in terminal.raw


def test_what_an_agent_says_does_a_terminal_no_harm(run: Talking) -> None:
    title = {"sessionUpdate": "tool_call", "toolCallId": "1", "title": "\x1b[2J\nx" + "日" * 60, "status": "completed"}

    with run.on_terminal(
        "run", "scripted", program(["update", title], ["say", "\x1b]0;evil\x07"]), columns=40
    ) as terminal:
        assert terminal.expect_end() == 0

        assert terminal.screen.lines[:3] == ["✔ ?[2J x" + "日" * 15 + "…", "", "?]0;evil?"]


def test_a_run_that_starts_a_server_says_so(run: Talking) -> None:
    run.environ = {"MOCK_AGENT_STATE_DIR": str(run.place.directory / "mock")}

    try:
        with run.on_terminal("run", "mock", "hello") as terminal:
            assert terminal.expect_end() == 0

            assert terminal.screen.lines[0].startswith("started a server in the background; it stops after 30m")
    finally:
        assert run.place.run("daemon", "stop").returncode == 0


def test_a_pipe_for_stdout_gets_words_and_the_terminal_the_rest(run: Talking, tmp_path: Path) -> None:
    script = f'"$@" > {tmp_path}/out.txt'
    environ = {**run.place.environment, **run.environ}

    with OnTerminal(
        ["sh", "-c", script, "sh", *PROGRAM, "run", "mock", "permission"], environ, cwd=run.work
    ) as terminal:
        terminal.expect("a/A/r?")
        terminal.type("r\r")
        assert terminal.expect_end() == 0

        assert "You chose" not in str(terminal.screen)
    assert (tmp_path / "out.txt").read_text() == "You chose: reject_once\n"


def test_an_error_that_the_agent_tells_itself_is_not_told_twice(run: Talking) -> None:
    steps = program(
        ["say", "API Error: 401 no key"], ["respond_error", -32603, "Internal error: API Error: 401 no key"]
    )
    with run.on_terminal("run", "scripted", steps) as terminal:
        assert terminal.expect_end() == 1

        shown = str(terminal.screen)
        assert shown.count("API Error: 401 no key") == 1
        assert "sandbox-agent: the turn failed with the error that the agent reports above" in shown


# --- permissions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "option"),
    [
        *[("A\r", "always"), ("r\r", "no"), ("1\r", "yes"), ("\x04", "no"), ("y\r", "yes"), ("no\r", "no")],
        *[("a", "yes"), ("A", "always"), ("r", "no"), ("y", "yes"), ("n", "no"), ("2", "always")],
        *[(f"{DOWN}\r", "yes"), (f"{DOWN}{DOWN}{DOWN}{DOWN}{DOWN}\r", "always"), (f"{UP}\r", "no")],
    ],
)
def test_a_permission_is_given_by_a_key(run: Talking, keys: str, option: str) -> None:
    with run.on_terminal("run", "scripted", asks("session/request_permission", PERMISSION)) as terminal:
        terminal.expect("a/A/r?")
        assert terminal.screen.lines[:6] == [
            "? Run tests  execute",
            "  $ make test",
            "  1 Yes (a)",
            "  2 Yes, always (A)",
            "  3 No (r, or r and a reason)",
            "a/A/r?",
        ]
        terminal.type(keys)

        assert answer(terminal) == {"outcome": {"outcome": "selected", "optionId": option}}
        assert terminal.is_as_it_was


def test_a_rejection_tells_the_agent_the_reason_that_is_typed_with_it(run: Talking) -> None:
    steps = asks("session/request_permission", PERMISSION)
    with run.on_terminal("run", "scripted", steps, columns=400) as terminal:
        terminal.expect("a/A/r?")
        terminal.type("r use unittest instead\r")
        terminal.expect("a/A/r? r  No: use unittest instead")

        told = answer(terminal)
        assert told == {
            "outcome": {"outcome": "selected", "optionId": "no"},
            "_meta": {"sandboxagent.dev": {"reason": "use unittest instead"}},
        }


def test_an_allowed_request_takes_no_reason(run: Talking) -> None:
    with run.on_terminal("run", "scripted", asks("session/request_permission", PERMISSION)) as terminal:
        terminal.expect("a/A/r?")
        terminal.type("a because\r")
        terminal.expect("choose one of a, A, r, 1, 2, 3, or it is rejected")
        terminal.type("a")

        assert answer(terminal) == {"outcome": {"outcome": "selected", "optionId": "yes"}}


def test_the_chosen_option_is_marked(run: Talking) -> None:
    with run.on_terminal("run", "scripted", asks("session/request_permission", PERMISSION)) as terminal:
        terminal.expect("a/A/r?")
        terminal.type(f"{DOWN}{DOWN}")
        terminal.expect("  1 Yes (a)\n❯ 2 Yes, always (A)\n  3 No (r, or r and a reason)\na/A/r?")
        terminal.type("\r")

        assert answer(terminal) == {"outcome": {"outcome": "selected", "optionId": "always"}}


def test_more_options_than_the_terminal_has_room_for_are_printed_as_text(run: Talking) -> None:
    options = [{"id": f"color-{number}", "label": f"Color {number}"} for number in range(1, 31)]
    question = {"question": "Which one?", "options": options, "multiSelect": False}

    with run.on_terminal("run", "scripted", questions(question)) as terminal:
        terminal.expect("answer:")
        assert "  1 Color 1\n" in str(terminal.screen)
        assert "  30 Color 30\n" in str(terminal.screen)
        terminal.type("30\r")

        assert answer(terminal) == {"status": "answered", "answers": [["color-30"]]}


def test_one_key_answers_and_leaves_the_line_that_you_were_typing(run: Talking) -> None:
    with run.on_terminal("run", "scripted") as terminal:
        terminal.expect("❯")
        terminal.type("for later")
        terminal.expect("❯ for later")
        session = run.sessions()[0]["sessionId"]
        steps = asks("session/request_permission", PERMISSION)
        with run.on_terminal("run", "scripted", steps, "--session", session) as other:
            terminal.expect("a/A/r?")
            terminal.type("A")
            assert other.expect_end() == 0
        terminal.expect("❯ for later")
        # An Enter directly after the key would belong to the answer.
        for _ in range(60):
            terminal.type("\r")
            if terminal.becomes_soon(lambda screen: "\nfor later\n" in screen, 1):
                break
        terminal.expect("\nfor later\n")
        terminal.type("\x04")

        assert terminal.expect_end() == 0


def test_who_does_not_choose_is_asked_again_and_has_then_rejected(run: Talking) -> None:
    with run.on_terminal("run", "scripted", asks("session/request_permission", PERMISSION)) as terminal:
        terminal.expect("a/A/r?")
        terminal.type("yes please\r")
        terminal.expect("a/A/r?", 2)
        assert "choose one of a, A, r, 1, 2, 3, or it is rejected" in str(terminal.screen)
        terminal.type("\r")

        assert answer(terminal) == {"outcome": {"outcome": "selected", "optionId": "no"}}


def test_nothing_of_a_command_is_hidden(run: Talking) -> None:
    command = "echo " + "x" * 100 + "; rm -rf everything\n" + "\n".join(f"line {number}" for number in range(40))
    call = {**PERMISSION["toolCall"], "rawInput": {"command": command}}

    with run.on_terminal(
        "run", "scripted", asks("session/request_permission", {**PERMISSION, "toolCall": call})
    ) as terminal:
        terminal.expect("a/A/r?")
        assert "rm -rf everything" in str(terminal.screen).replace("\n    ", "")
        assert "more lines; v shows all" in str(terminal.screen)
        assert "line 39" not in str(terminal.screen)
        terminal.type("v\r")
        terminal.expect("line 39")
        terminal.expect("a/A/r?", 2)
        terminal.type("r\r")

        assert terminal.expect_end() == 0


def test_a_change_is_shown_before_it_is_allowed(run: Talking) -> None:
    diff = {"type": "diff", "path": f"{run.work}/a.txt", "oldText": "one\ntwo\nthree\n", "newText": "one\n2\nthree\n"}
    call = {"toolCallId": "1", "title": "Edit a.txt", "kind": "edit", "content": [diff]}

    with run.on_terminal(
        "run", "scripted", asks("session/request_permission", {**PERMISSION, "toolCall": call})
    ) as terminal:
        terminal.expect("a/A/r?")

        assert terminal.screen.lines[:6] == [
            "? Edit a.txt  edit  +1 -1 a.txt",
            "  a.txt",
            "   one",
            "  -two",
            "  +2",
            "   three",
        ]
        terminal.type("\x03")
        assert terminal.expect_end() == 130


# --- questions and forms ----------------------------------------------------------------------------------------------


def test_a_question_is_answered_by_a_number_or_by_words(run: Talking) -> None:
    one = {"header": "Color", "question": "Which one?", "options": COLOURS, "multiSelect": False}
    several = {"question": "Which ones?", "options": COLOURS, "multiSelect": True}
    free = {"question": "Why?", "options": [], "multiSelect": False}

    with run.on_terminal("run", "scripted", questions(one, several, free, one, one, several)) as terminal:
        terminal.expect("answer:")
        assert terminal.screen.lines[:2] == ["? Color: Which one?", "  1 Red  Like a tomato"]
        terminal.type("9\r")
        terminal.expect("there are 3 answers to choose from")
        terminal.type("2\r")
        terminal.expect("Which ones?")
        terminal.type("1, 3\r")
        terminal.expect("Why?")
        terminal.type("because of 1, and 2\r")
        terminal.expect("Which one?", 2)
        terminal.type("mauve\r")
        terminal.expect("Which one?", 3)
        terminal.type(f"{UP}\r")
        terminal.expect("Which ones?", 2)
        terminal.type(f"{DOWN} {DOWN} {DOWN} {UP} \r")

        expected = [["green"], ["red", "blue"], ["because of 1, and 2"], ["mauve"], ["blue"], ["red", "blue"]]
        assert answer(terminal) == {"status": "answered", "answers": expected}


def test_a_question_is_rejected_by_ctrl_d(run: Talking) -> None:
    with run.on_terminal("run", "scripted", questions({"question": "Which?", "options": COLOURS})) as terminal:
        terminal.expect("answer:")
        terminal.type("\x04")

        assert answer(terminal) == {"status": "rejected"}


def test_a_form_is_filled_in_field_by_field(run: Talking) -> None:
    fields = {
        "name": {"type": "string", "title": "Your name", "default": "Ada"},
        "size": {"type": "integer", "title": "Size", "minimum": 1, "maximum": 9},
        "gift": {"type": "boolean", "title": "A gift"},
        "color": {"type": "string", "title": "Color", "enum": ["red", "blue"]},
        "note": {"type": "string", "title": "Note", "description": "Anything you like"},
    }

    with run.on_terminal("run", "scripted", form(fields, "size")) as terminal:
        terminal.expect("Your name [Ada]:")
        terminal.type("\r")
        terminal.expect("Size (required, a whole number from 1 to 9):")
        terminal.type("\r")
        terminal.expect("this one is required")
        terminal.type("12\r")
        terminal.expect("from 1 to 9", 4)
        terminal.type("7\r")
        terminal.expect("A gift (y or n):")
        terminal.type("y")
        terminal.expect("Color (a number):")
        terminal.type("2")
        terminal.expect("Note:")
        terminal.type("\r")

        content = {"name": "Ada", "size": 7, "gift": True, "color": "blue"}
        assert answer(terminal) == {"action": "accept", "content": content}


def test_an_address_is_shown_and_can_be_declined(run: Talking) -> None:
    facts = {"mode": "url", "message": "Please log in", "url": "https://example.com/login", "elicitationId": "e-1"}

    with run.on_terminal("run", "scripted", asks("elicitation/create", facts)) as terminal:
        terminal.expect("done? y/n:")
        assert "https://example.com/login" in str(terminal.screen)
        terminal.type("n")

        assert answer(terminal) == {"action": "decline"}


# --- interrupted ------------------------------------------------------------------------------------------------------


def test_ctrl_c_at_a_question_cancels_the_turn(run: Talking) -> None:
    with run.on_terminal("run", "scripted", asks("session/request_permission", PERMISSION)) as terminal:
        terminal.expect("a/A/r?")
        terminal.type("\x03")

        assert terminal.expect_end() == 130
        assert terminal.is_as_it_was
        assert "cancelled" in terminal.screen.lines


def test_ctrl_c_twice_leaves_the_terminal_as_it_was(run: Talking) -> None:
    steps = program(["ask", "session/request_permission", PERMISSION], ["wait_cancel"], ["sleep", 600])
    with run.on_terminal("run", "scripted", steps) as terminal:
        terminal.expect("a/A/r?")
        terminal.type("\x03")
        terminal.expect("cancelling")
        terminal.type("\x03")

        assert terminal.expect_end() == 130
        assert terminal.is_as_it_was


# --- conversations ----------------------------------------------------------------------------------------------------


def test_a_conversation_goes_on_until_you_leave(run: Talking) -> None:
    with run.on_terminal("run", "mock") as terminal:
        terminal.expect("❯")
        terminal.type("hello\r")
        terminal.expect("what else I can do.\n\n❯")
        terminal.type("\x1b[A again\r")
        terminal.expect("You said: hello again")
        terminal.expect("what else I can do.\n\n❯", 2)
        terminal.type("\x04")

        assert terminal.expect_end() == 0
        assert terminal.is_as_it_was
        assert "❯ hello\n\nYou said: hello\n\nSay help" in str(terminal.screen)
        assert "continue with: sandbox-agent run mock --session mock-" in str(terminal.screen)


def test_small_commands_are_understood(run: Talking) -> None:
    with run.on_terminal("run", "mock", "--model", "mock-large") as terminal:
        terminal.expect("❯")
        terminal.type("/help\r")
        terminal.expect("/cancel  cancel the running turn")
        terminal.type("/model\r")
        terminal.expect("* mock-large  Mock large")
        terminal.type("/model mock-small\r")
        terminal.expect("model: mock-small")
        terminal.type("/model nope\r")
        terminal.expect("agent mock has no model 'nope'")
        terminal.type("/mode plan\r")
        terminal.expect("mode: plan")
        terminal.type("/mode\r")
        terminal.expect("* plan")
        terminal.type("/cancel\r")
        terminal.expect("no turn is running")
        terminal.type("//help\r")
        terminal.expect("I am the mock agent")
        terminal.type("/quit\r")

        assert terminal.expect_end() == 0


def test_ctrl_c_clears_the_line_then_cancels_the_turn_then_leaves(run: Talking) -> None:
    with run.on_terminal("run", "mock") as terminal:
        terminal.expect("❯")
        terminal.type("slow 600\r")
        terminal.expect("word 2")
        terminal.type("never mind")
        terminal.expect("❯ never mind")
        terminal.type("\x03")
        eventually(lambda: terminal.looks(lambda screen: "never mind" not in screen), "an empty line")
        terminal.type("\x03")
        terminal.expect("cancelled")
        terminal.expect("cancelled\n❯")
        terminal.type("\x03")

        assert terminal.expect_end() == 130
        assert terminal.is_as_it_was


def test_what_is_typed_while_the_agent_speaks_waits_for_its_turn(run: Talking) -> None:
    with run.on_terminal("run", "scripted") as terminal:
        terminal.expect("❯")
        terminal.type(program(["say", "one\ntwo"], ["wait_cancel"]) + "\r")
        terminal.expect("one\ntwo")
        terminal.type("next")
        terminal.expect("❯ next")
        terminal.type("\r")
        terminal.expect("queued until the running turn ends")
        terminal.type("/cancel\r")
        # The two may overtake each other on their way.
        eventually(lambda: terminal.looks(lambda screen: "cancelled, too" in screen or "\nnext\n" in screen))
        terminal.type("hello\r")
        terminal.expect("\nhello\n")
        terminal.type("\x04")

        assert terminal.expect_end() == 0


def test_a_question_that_another_client_answers_leaves_what_you_were_typing(run: Talking) -> None:
    with run.on_terminal("run", "scripted") as terminal:
        terminal.expect("❯")
        terminal.type("for later")
        terminal.expect("❯ for later")
        session = run.sessions()[0]["sessionId"]
        with run.on_terminal(
            "run", "scripted", asks("session/request_permission", PERMISSION), "--session", session
        ) as other:
            other.expect("a/A/r?")
            terminal.expect("a/A/r?")
            other.type("A\r")
            assert other.expect_end() == 0
        terminal.expect("an answer is no longer needed")
        terminal.expect("allowed by ")
        terminal.expect("❯ for later")
        terminal.type("\r")
        terminal.expect("\nfor later\n")
        terminal.type("\x04")

        assert terminal.expect_end() == 0


def test_folded_work_is_shown_whole_on_demand(run: Talking) -> None:
    output = "\n".join(f"\x1b[31mline\x1b[0m {number}" for number in range(30))
    call = {"sessionUpdate": "tool_call", "toolCallId": "1", "title": "Run", "status": "completed", "rawOutput": output}
    step = program(["update", call], ["say", "done"])

    with run.on_terminal("run", "scripted", columns=300) as terminal:
        terminal.expect("❯")
        terminal.type(step + "\r")
        terminal.expect("✔ Run\n  line 0\n  line 1\n  … 22 more lines · /show 1 shows all\n  line 24\n")
        terminal.expect("\ndone\n")
        terminal.type("/show 7\r")
        terminal.expect("no folded text has the number 7")
        terminal.type("/show\r")
        terminal.expect("  line 1\n  line 2\n")
        terminal.expect("  line 29\n❯")
        terminal.type("\x04")

        assert terminal.expect_end() == 0


def test_commands_of_the_agent_are_in_help_and_offered_while_you_type(run: Talking) -> None:
    with run.on_terminal("run", "commanding") as terminal:
        terminal.expect("❯")
        terminal.type("/re")
        terminal.expect("❯ /re\n  /review  Look at a change")
        terminal.type("\t")
        terminal.expect("❯ /review\n")
        terminal.type(" this\r")
        terminal.expect("\n/review this\n")
        terminal.type("/help\r")
        terminal.expect(
            "commands of commanding:\n  /review  Look at a change\n  //help   Of the agent\n  /long    words "
        )
        [long] = [line for line in terminal.screen.lines if line.startswith("  /long")]
        assert long.endswith("…"), "a command has one line"
        terminal.type("\x04")

        assert terminal.expect_end() == 0


def test_continued_session_shows_last_turns_and_input_history(run: Talking) -> None:
    with run.on_terminal("run", "scripted") as terminal:
        terminal.expect("❯")
        terminal.type("hello\r")
        terminal.expect("❯ hello\n\nhello\n\n❯")
        terminal.type("\x04")
        assert terminal.expect_end() == 0
    history = run.place.data / "input-history"
    assert history.stat().st_mode & 0o777 == 0o600

    with run.on_terminal("run", "-c") as terminal:
        terminal.expect("❯ hello\n\nhello\n\n❯")
        assert "left out" not in str(terminal.screen)
        terminal.type("\x1b[A again\r")
        terminal.expect("❯ hello again\n\nhello again\n\n❯")
        terminal.type("\x04")

        assert terminal.expect_end() == 0


def test_a_word_that_names_an_agent_continues_its_session_and_says_how_to_send_it(run: Talking, tmp_path: Path) -> None:
    run.well("run", "mock", "hello", cwd=tmp_path)
    run.work = tmp_path

    with run.on_terminal("run", "-c", "mock", columns=200) as terminal:
        terminal.expect(
            "mock is the name of an agent; to send it as a prompt: sandbox-agent run mock mock --session mock-"
        )
        terminal.expect("❯ hello\n")
        terminal.type("\x04")

        assert terminal.expect_end() == 0


def test_going_on_with_a_long_session_says_that_earlier_turns_are_left_out(run: Talking) -> None:
    async def talk() -> str:
        async with Client(run.server) as client:
            session: str = (await client.result("session/new", {"cwd": str(run.work), "mcpServers": []}))["sessionId"]
            for number in range(TURNS_SHOWN + 1):
                await client.prompt(session, f"prompt {number}.")
            return session

    session = asyncio.run(talk())
    with run.on_terminal("run", "scripted", "--session", session) as terminal:
        terminal.expect(f"❯ prompt {TURNS_SHOWN}.\n\nprompt {TURNS_SHOWN}.\n\n❯")
        screen = str(terminal.screen)
        assert f"earlier turns are left out; sandbox-agent attach {session} --all shows them" in screen.replace(
            "\n", ""
        )
        assert "prompt 1." in screen
        assert "prompt 0." not in screen
        terminal.type("\x04")

        assert terminal.expect_end() == 0


def test_an_agent_that_dies_can_be_talked_to_again(run: Talking) -> None:
    with run.on_terminal("run", "mock") as terminal:
        terminal.expect("❯")
        terminal.type("crash\r")
        terminal.expect("  | mock agent: crashing, as the prompt asked for")
        terminal.expect("the next prompt resumes the session")
        terminal.type("hello\r")
        terminal.expect("You said: hello")
        terminal.type("\x04")

        assert terminal.expect_end() == 0


def test_a_terminal_that_knows_nothing_will_do(run: Talking) -> None:
    with run.on_terminal("run", "mock", TERM="dumb") as terminal:
        terminal.expect("❯")
        terminal.type("permission\n")
        terminal.expect("a/A/r?")
        terminal.type("a\n")
        terminal.expect("You chose: allow_once")
        terminal.type("\x04")

        assert terminal.expect_end() == 0
        assert b"\x1b" not in terminal.raw


def test_a_terminal_that_goes_away_ends_it(run: Talking) -> None:
    with run.on_terminal("run", "mock") as terminal:
        terminal.expect("❯")
        terminal.signal(signal.SIGHUP)

        assert terminal.expect_end() == 129
        assert terminal.is_as_it_was
