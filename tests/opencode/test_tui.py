"""OpenCode's terminal interface on the bridge: one screen; each test goes on where the one before has stopped."""

from tests.opencode.host import Host
from tests.opencode.terminal import DOWN, ENTER, ESCAPE, RIGHT, Tui

INTERRUPT, AGAIN, INTERRUPTED = "esc interrupt", "esc again to interrupt", "· interrupted"
PERMISSION = "Permission required"


def test_a_prompt_is_answered(tui: Tui, host: Host) -> None:
    tui.say(host.can.hello.prompt)

    tui.expect(host.can.hello.shows)
    tui.gone(INTERRUPT)


def test_a_second_prompt_is_answered(tui: Tui, host: Host) -> None:
    tui.say(host.can.again.prompt)

    tui.expect(host.can.again.shows)
    tui.gone(INTERRUPT)


def test_a_permission_is_asked_for_and_given_once(tui: Tui, host: Host) -> None:
    tui.say(host.can.permission.prompt)
    tui.expect(PERMISSION)
    tui.expect(host.can.permission.shows)
    tui.type(ENTER)

    tui.expect(host.can.permission.says)
    tui.gone(PERMISSION)
    tui.gone(INTERRUPT)


def test_a_permission_is_rejected(tui: Tui, host: Host) -> None:
    tui.say(host.can.permission.prompt)
    tui.expect(PERMISSION)
    tui.type(RIGHT + RIGHT + ENTER)

    tui.gone(PERMISSION)
    tui.expect(host.can.rejected)
    tui.gone(INTERRUPT)


def test_a_question_is_answered(tui: Tui, host: Host) -> None:
    tui.say(host.can.question.prompt)
    tui.expect(host.can.question.shows)
    tui.expect("Green")
    tui.type(DOWN + ENTER)

    tui.expect(host.can.question.says)
    tui.gone(INTERRUPT)


def test_a_turn_is_interrupted(tui: Tui, host: Host) -> None:
    tui.say(host.can.endless.prompt)
    tui.expect(host.can.endless.shows)
    tui.expect(INTERRUPT)
    is_interrupted = False
    while not is_interrupted:
        tui.type(ESCAPE)
        tui.expect(AGAIN)
        tui.type(ESCAPE)
        # The second Escape counts for five seconds, which a busy machine may take.
        is_interrupted = tui.becomes_soon(lambda screen: INTERRUPTED in screen, 15)

    tui.gone(INTERRUPT)


def test_a_thought_and_what_follows_it_are_shown(tui: Tui, host: Host) -> None:
    tui.say(host.can.thought.prompt)

    tui.expect(host.can.thought.says)
    tui.gone(INTERRUPT)


def test_a_command_of_the_shell_is_run(tui: Tui) -> None:
    tui.type("!")
    tui.expect("Shell")
    tui.say("echo $((6 * 7)) is the answer")

    tui.expect("42 is the answer")
    tui.gone(INTERRUPT)


def test_another_model_is_chosen_and_stays_chosen(tui: Tui, host: Host) -> None:
    first, second = host.can.model
    tui.expect(f"· {first}")
    tui.say("/models")
    tui.expect("Select model")
    tui.type(second)
    tui.becomes(lambda screen: screen.count(second) > 1, "the model that was looked for")
    tui.type(ENTER)
    tui.gone("Select model")
    tui.say(host.can.hello.prompt)

    tui.expect(f"· {second} ·")
    tui.gone(INTERRUPT)


def test_sessions_are_listed_and_one_is_opened(tui: Tui, host: Host) -> None:
    tui.say("/new")
    tui.gone(host.can.hello.shows)
    tui.say(host.can.again.prompt)
    tui.expect(host.can.again.shows)
    tui.gone(INTERRUPT)
    tui.say("/sessions")
    tui.expect("Today")
    tui.type(DOWN + ENTER)
    tui.gone("Today")

    tui.expect(host.can.hello.shows)
