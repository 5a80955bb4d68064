"""Blocks on a terminal and in pipes: what is seen in the end, and what goes where."""

import io

import pytest

from sandboxagent.cli.chat.blocks import Note, Span, StreamedText, note
from sandboxagent.cli.chat.screen import Screen
from tests.support.emulator import Emulator


class Stream(io.StringIO):
    """A stream that may be a terminal."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    @property
    def seen(self) -> list[str]:
        """The lines on the screen, with line ends as a terminal makes them."""
        emulator = Emulator(40)
        emulator.feed(self.getvalue().replace("\n", "\r\n"))
        return emulator.lines


class Typing:
    """Something that is typed below: what is above it goes to the stream."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.refreshed = 0

    def print_above(self, text: str) -> None:
        assert text.endswith("\n"), "whole lines"
        self.stream.write(text)

    def refresh(self) -> None:
        self.refreshed += 1


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.fixture
def terminal() -> Stream:
    return Stream(terminal=True)


@pytest.fixture
def screen(terminal: Stream) -> Screen:
    return Screen(terminal, terminal)


def words(*texts: str) -> list[StreamedText]:
    return [StreamedText("agent", text, new=not index) for index, text in enumerate(texts)]


def line(text: str, key: str | None = None, brief: str | None = None) -> Note:
    return Note([[Span(text)]], key, None if brief is None else [[Span(brief)]] if brief else [])


# --- on a terminal ----------------------------------------------------------------------------------------------------


def test_blocks_are_apart_and_lines_of_one_kind_together(screen: Screen, terminal: Stream) -> None:
    screen.show(
        [*words("Hello, ", "world."), line("one"), line("two"), StreamedText("thought", "hm"), *words("Bye.\n\n")]
    )
    screen.show([line("three")])
    screen.finish()

    assert terminal.seen == ["Hello, world.", "", "one", "two", "", "hm", "", "Bye.", "", "three"]


def test_a_note_takes_the_place_of_the_last_one_with_its_key(screen: Screen, terminal: Stream) -> None:
    screen.show([line("first"), line("○ look", "1"), line("● look", "1"), line("✔ look", "1")])

    assert terminal.seen == ["first", "✔ look"]


def test_a_note_of_several_lines_is_taken_back_whole(screen: Screen, terminal: Stream) -> None:
    screen.show([Note([[Span("a")], [Span("b")]], "plan"), Note([[Span("A")], [Span("B")], [Span("C")]], "plan")])

    assert terminal.seen == ["A", "B", "C"]


def test_a_note_that_is_not_the_last_any_more_is_shortened(screen: Screen, terminal: Stream) -> None:
    screen.show([line("○ look", "1"), *words("meanwhile"), line("● look", "1", ""), line("✔ look", "1", "✔ done")])

    assert terminal.seen == ["○ look", "", "meanwhile", "", "✔ done"]


def test_a_note_with_a_key_fits_into_a_row_and_others_are_whole(screen: Screen, terminal: Stream) -> None:
    screen.show([line("x" * 100, "1"), line("short", "1"), line("y" * 100)])

    assert terminal.seen == ["short", "y" * 40, "y" * 40, "y" * 20]


def test_status_line_disappears_with_the_next_output(screen: Screen, terminal: Stream) -> None:
    screen.status("starting …")
    assert terminal.seen == ["starting …"]

    screen.show(words("Hello"))

    assert terminal.seen == ["Hello"]


# --- Markdown ---------------------------------------------------------------------------------------------------------


def test_a_block_is_seen_as_it_comes_and_drawn_when_it_is_complete(screen: Screen, terminal: Stream) -> None:
    screen.show(words("Some *wo", "rds* in", " a paragraph that takes more than one row\n"))
    assert terminal.seen == ["Some *words* in a paragraph that takes m", "ore than one row"]

    screen.show([StreamedText("agent", "\n```python\nx = 1\n```\n\n- one\n- two")])
    assert terminal.seen[:4] == ["Some words in a paragraph that takes", "more than one row", "", "  x = 1"]
    screen.finish()

    assert terminal.seen[4:] == ["", " • one", " • two"]


def test_nothing_that_an_agent_says_is_left_out(screen: Screen, terminal: Stream) -> None:
    screen.show(words("<b>bold</b> <script>\nnext line\n[text](http://a.b)"))
    screen.finish()

    assert terminal.seen == ["<b>bold</b> <script>", "next line", "text (http://a.b)"]


def test_a_block_that_has_scrolled_away_stays_as_it_is(screen: Screen, terminal: Stream) -> None:
    screen.show(words("*word*\n" * 60, "\n", "the end"))
    screen.finish()

    assert terminal.seen[:2] == ["*word*", "*word*"]
    assert terminal.seen[-2:] == ["", "the end"]


def test_without_colours_words_stay_as_they_are(terminal: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    screen = Screen(terminal, terminal)
    screen.show(words("# *Title*\n\n- one\n"))
    screen.finish()

    assert terminal.getvalue() == "# *Title*\n\n- one\n"


# --- while something is typed -----------------------------------------------------------------------------------------


def test_what_may_still_change_is_live_above_what_is_typed(screen: Screen, terminal: Stream) -> None:
    screen.put_below(Typing(terminal))
    screen.show([line("something happens"), *words("one *two* thr")])

    assert terminal.seen == ["something happens"]
    assert screen.live == "one \x1b[3mtwo\x1b[0m thr"
    screen.show([StreamedText("agent", "ee\n\nnext")])
    assert terminal.seen == ["something happens", "", "one two three"]
    assert screen.live == "next"
    screen.end_lines()
    assert terminal.seen == ["something happens", "", "one two three", "", "next"]
    assert screen.live == ""


def test_a_note_that_changes_is_live_until_something_else_comes(screen: Screen, terminal: Stream) -> None:
    screen.put_below(Typing(terminal))
    screen.show([line("○ look", "1")])
    screen.show([line("● look", "1")])
    assert (terminal.seen, screen.live) == ([], "● look")

    screen.show([line("other")])
    assert (terminal.seen, screen.live) == (["● look", "other"], "")
    screen.show([line("✔ look", "1", "✔ done")])
    screen.take_away()

    assert terminal.seen == ["● look", "other", "✔ done"]


def test_what_is_asked_is_never_live(screen: Screen, terminal: Stream) -> None:
    """Of what is live only the end may be seen."""
    screen.put_below(Typing(terminal))
    screen.show([line("○ look", "1")])
    screen.tell(Note([[Span("? look")], [Span("  1 yes")]], "1"))

    assert (terminal.seen, screen.live) == (["? look", "  1 yes"], "")


def test_typed_line_becomes_part_of_the_transcript(screen: Screen, terminal: Stream) -> None:
    screen.put_below(Typing(terminal))
    screen.show(words("Hello."))
    screen.type_line("> ", "two\nlines")
    screen.show(words("Yes."))
    screen.take_away()

    assert terminal.seen == ["Hello.", "", "> two", "  lines", "", "Yes."]


def test_quiet_is_words_alone(terminal: Stream) -> None:
    screen = Screen(terminal, terminal, quiet=True)
    screen.status("starting …")
    screen.show([line("a note"), StreamedText("thought", "hm"), *words("Hello.")])
    screen.tell(note("asked"))

    assert terminal.seen == ["Hello.", "", "asked"]


def test_words_of_an_agent_do_a_terminal_no_harm(screen: Screen, terminal: Stream) -> None:
    screen.show(words("\x1b]0;x\x07\r\nnext\x1b[2J"))

    assert terminal.getvalue() == "?]0;x?\nnext?[2J"


# --- colours ----------------------------------------------------------------------------------------------------------


def test_thoughts_are_dim_and_words_as_they_are(screen: Screen, terminal: Stream) -> None:
    screen.show([StreamedText("thought", "hm"), *words("plain")])

    assert terminal.getvalue() == "\x1b[2mhm\x1b[0m\n\nplain"


def test_no_colours_for_who_does_not_want_them(terminal: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    Screen(terminal, terminal).show([StreamedText("thought", "hm"), Note([[Span("x", "red")]])])

    assert "\x1b" not in terminal.getvalue()


def test_a_dumb_terminal_gets_no_sequences(terminal: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    screen = Screen(terminal, terminal)
    screen.status("starting …")
    screen.show([line("○ look", "1"), line("✔ look", "1")])
    screen.ask("> ")
    screen.typed()
    screen.show(words("Hello"))

    assert terminal.getvalue() == "○ look\n✔ look\n> \nHello"


# --- in pipes ---------------------------------------------------------------------------------------------------------


def test_only_words_go_to_stdout_when_that_is_a_pipe() -> None:
    stdout, stderr = Stream(terminal=False), Stream(terminal=False)
    screen = Screen(stdout, stderr)
    screen.show([*words("One."), line("✔ look"), StreamedText("thought", "hm"), *words("Two.")])
    screen.finish()

    assert stdout.getvalue() == "One.\n\nTwo.\n"
    assert stderr.getvalue() == "✔ look\nhm\n"


def test_words_in_a_pipe_are_as_the_agent_has_them() -> None:
    stdout, stderr = Stream(terminal=False), Stream(terminal=False)
    screen = Screen(stdout, stderr)
    screen.show(words("\n  indented\r\n", "\x1b[1mlast line\n"))
    screen.show([StreamedText("thought", "\x1b[1m")])
    screen.finish()

    assert stdout.getvalue() == "\n  indented\r\n\x1b[1mlast line\n"
    assert stderr.getvalue() == "?[1m\n"


def test_empty_conversation_prints_nothing() -> None:
    stdout, stderr = Stream(terminal=False), Stream(terminal=False)
    Screen(stdout, stderr).finish()

    assert (stdout.getvalue(), stderr.getvalue()) == ("", "")
