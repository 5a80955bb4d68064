"""The line that says what the program waits for, and for how long."""

import pytest

from sandboxagent.cli.chat.render import Marks, Showing
from sandboxagent.cli.chat.screen import Screen
from sandboxagent.cli.chat.status import StatusLine
from sandboxagent.protocol.acp import ToolCallProgress, ToolCallStart
from tests.cli.chat.test_screen import Stream
from tests.support.emulator import Emulator


class Shown:
    """A status line on a terminal, and the time that it is told."""

    def __init__(self, *, tty: bool = True) -> None:
        self.stream = Stream(terminal=tty)
        self.now = 100.0
        self.showing = Showing(Marks())
        self.screen = Screen(self.stream, self.stream)
        self.line = StatusLine(self.screen, self.showing, lambda: self.now)

    def after(self, seconds: float) -> str:
        """The text on the screen after so many more seconds."""
        self.now += seconds
        self.line.draw()
        return str(self)

    def __str__(self) -> str:
        seen = Emulator(80)
        seen.feed(self.stream.getvalue().replace("\n", "\r\n"))
        return str(seen)


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")


def call(id: str, title: str) -> ToolCallStart:
    return ToolCallStart(tool_call_id=id, title=title, status="in_progress")


def test_the_turn_and_then_its_longest_tool_call_are_shown_with_their_time() -> None:
    shown = Shown()
    shown.line.begin("mock is at work …")

    assert str(shown) == "mock is at work …"
    assert shown.after(2) == "mock is at work … 2 s"
    shown.showing.blocks(call("1", "Edit src/app.py"))
    assert shown.after(1) == "Edit src/app.py"
    assert shown.after(12) == "Edit src/app.py 12 s"
    shown.showing.blocks(call("2", "Run tests"))
    assert shown.after(60) == "Edit src/app.py and 1 more 1 min 12 s"
    shown.showing.blocks(
        ToolCallProgress(tool_call_id="1", status="completed"),
    )
    assert shown.after(5) == "Run tests 5 s"
    shown.line.end()
    assert shown.after(1) == ""


def test_a_long_title_is_cut_and_its_time_is_not() -> None:
    shown = Shown()
    shown.line.begin("mock is at work …")
    shown.showing.blocks(call("1", "x" * 200))
    shown.after(0)

    assert shown.after(7) == "x" * 74 + "… 7 s"


def test_the_line_is_hidden_while_a_question_is_open() -> None:
    shown = Shown()
    shown.line.begin("mock is at work …")
    shown.line.hold()

    assert shown.after(3) == ""
    shown.line.release()
    assert shown.after(3) == "mock is at work … 6 s"


def test_a_lost_connection_is_one_line_until_it_is_there_again() -> None:
    shown = Shown()

    assert shown.line.regain() is None
    assert shown.line.lose()
    assert shown.after(3) == "the connection to the server broke; reconnecting … 3 s"
    assert not shown.line.lose()
    assert shown.after(70) == "the connection to the server broke; reconnecting … 1 min 13 s"
    assert shown.line.regain() == 73
    assert str(shown) == ""


def test_without_a_terminal_there_is_no_such_line() -> None:
    shown = Shown(tty=False)
    shown.line.begin("mock is at work …")
    shown.line.lose()
    shown.after(10)

    assert shown.stream.getvalue() == ""
