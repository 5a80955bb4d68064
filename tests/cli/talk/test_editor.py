"""A line that is being typed: what keys do to it, and where it stands on a terminal."""

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from sandbox_agent.cli.talk.editor import Editor, layout
from sandbox_agent.cli.talk.keys import Key, Typed


def after(*keys: Key, history: tuple[str, ...] = ()) -> Editor:
    editor = Editor(history)
    for key in keys:
        editor.press(Typed(key) if isinstance(key, str) and key.startswith("=") else key)
    return editor


def line(editor: Editor) -> str:
    """The text, with a bar where the cursor is."""
    return f"{editor.text[: editor.cursor]}|{editor.text[editor.cursor :]}".replace("=", "")


def test_letters_go_where_the_cursor_is() -> None:
    assert line(after("=ac", "left", "=b")) == "ab|c"
    assert line(after("=ab", "home", "=x", "end", "=y")) == "xaby|"


def test_letters_are_deleted_to_both_sides() -> None:
    assert line(after(Typed("abc"), "left", "backspace")) == "a|c"
    assert line(after(Typed("abc"), "home", "delete")) == "|bc"
    assert line(after(Typed("abc"), "home", "end-of-input")) == "|bc"
    assert line(after("backspace", "delete", "left", "right")) == "|"


def test_a_letter_goes_with_what_is_put_above_it() -> None:
    assert line(after(Typed("ae\u0301"), "backspace")) == "a|"
    assert line(after(Typed("e\u0301b"), "left", "left")) == "|e\u0301b"
    assert line(after(Typed("e\u0301b"), "home", "right")) == "e\u0301|b"


def test_words_are_jumped_over_and_killed_and_come_back() -> None:
    assert line(after(Typed("one two three"), "word-left", "word-left")) == "one |two three"
    assert line(after(Typed("one two"), "home", "word-right")) == "one| two"
    assert line(after(Typed("one two"), "kill-word")) == "one |"
    assert line(after(Typed("one two"), "kill-word", "home", "yank")) == "two|one "
    assert line(after(Typed("one two"), "home", "word-right", "kill-end")) == "one|"
    assert line(after(Typed("one two"), "word-left", "kill-start")) == "|two"


def test_what_was_typed_before_comes_back_and_what_was_being_typed_stays() -> None:
    history = ("first", "second")

    assert line(after("up", history=history)) == "second|"
    assert line(after("up", "up", "up", history=history)) == "first|"
    assert line(after(Typed("draft"), "up", "up", "down", "down", "down", history=history)) == "draft|"


def test_enter_ends_the_line_and_the_end_of_input_only_an_empty_one() -> None:
    editor = Editor()

    assert editor.press("end-of-input") == "end-of-input"
    assert editor.press(Typed("x")) is None
    assert editor.press("end-of-input") is None
    assert editor.press("enter") == "enter"


def test_a_line_may_have_several_lines() -> None:
    assert after(Typed("a\tb"), "newline", Typed("c")).text == "a    b\nc"


def test_rows_are_as_wide_as_the_terminal_and_begin_below_each_other() -> None:
    laid = layout("> ", "abcdefgh", 8, 8)

    assert laid.rows == ["> abcde", "  fgh"]
    assert (laid.row, laid.column) == (1, 5)


def test_the_cursor_is_where_the_next_letter_goes() -> None:
    assert layout("> ", "", 0, 80)[1:] == (0, 2)
    assert layout("> ", "ab", 1, 80)[1:] == (0, 3)
    assert layout("> ", "a\nb", 1, 80)[1:] == (0, 3)
    assert layout("> ", "a\nb", 2, 80)[1:] == (1, 2)
    assert layout("> ", "日本", 1, 80)[1:] == (0, 4)


@given(st.text(alphabet="ab日e\u0301\n👍", max_size=60), st.integers(4, 30), st.data())
def test_no_row_is_too_wide_and_nothing_is_lost(text: str, width: int, data: st.DataObject) -> None:
    cursor = data.draw(st.integers(0, len(text)))

    laid = layout("> ", text, cursor, width)

    assert all(cell_len(row) <= max(width - 1, 4) for row in laid.rows)
    assert "".join(row[2:] for row in laid.rows) == text.replace("\n", "")
    assert 0 <= laid.row < len(laid.rows)
    assert laid.column <= cell_len(laid.rows[laid.row])
