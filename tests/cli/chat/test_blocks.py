"""Texts for a terminal: harmless, cut or wrapped to the width; a tool call and its work, folded when long."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from sandboxagent.cli.chat.blocks import (
    MAX_CHANGES,
    MAX_LINE,
    ShownCall,
    Span,
    WorkDone,
    command_lines,
    cut,
    diff_lines,
    output_lines,
    plain,
    spoken,
    work_of,
    wrap_line,
)
from sandboxagent.protocol.acp import ToolCallUpdate
from sandboxagent.protocol.decode import read
from tests.support.growing import grows_faster

LINES = st.lists(
    st.builds(Span, st.text(alphabet="a日 -", max_size=12), st.sampled_from(["", "dim", "red"])), max_size=4
)


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert spoken("\x1b[2Jhi\x07\u202eevil") == "?[2Jhi??evil"


def test_lines_end_in_one_way_and_emoji_stay_whole() -> None:
    assert spoken("a\r\nb\rc\td") == "a\nb\nc\td"
    assert spoken("👨\u200d👩\u200d👧") == "👨\u200d👩\u200d👧"


def test_a_line_is_cut_between_letters_and_keeps_its_styles() -> None:
    line = [Span("ab", "red"), Span("cdef", "dim")]

    assert cut(line, 6) == line
    assert cut(line, 4) == [Span("ab", "red"), Span("c", "dim"), Span("…", "dim")]
    assert plain(cut([Span("日本語")], 4)) == "日…"


@given(LINES, st.integers(0, 20))
def test_a_line_that_is_cut_fits(line: list[Span], width: int) -> None:
    assert cell_len(plain(cut(line, width))) <= width


@given(LINES, st.integers(4, 20))
def test_a_line_that_is_wrapped_fits_and_loses_nothing(line: list[Span], width: int) -> None:
    rows = wrap_line(line, width)

    first, *more = [plain(row) for row in rows]
    text = plain(line)
    indent = min(len(text) - len(text.lstrip(" ")) + 2, width // 2)
    assert all(cell_len(plain(row)) <= width for row in rows)
    assert first + "".join(row[indent:] for row in more) == text


def work(*, seen: bool = False, **members: Any) -> WorkDone:
    call = ShownCall()
    call.update(read({"toolCallId": "1", "status": "completed", **members}, ToolCallUpdate))
    return work_of(call, lambda path: path.removeprefix("/srv/app/"), "/show 1 shows all", seen=seen)


def few(**members: Any) -> list[str]:
    return [plain(line) for line in work(**members).few]


def text(text: str) -> list[dict[str, Any]]:
    return [{"type": "content", "content": {"type": "text", "text": text}}]


def numbered(count: int) -> str:
    return "\n".join(f"line {number}" for number in range(1, count + 1))


def test_short_output_is_shown_whole() -> None:
    assert few(kind="execute", content=text("one\ntwo\n")) == ["  one", "  two"]
    assert not work(kind="execute", content=text("one")).is_folded


def test_long_output_shows_its_beginning_and_its_end_and_how_to_see_the_rest() -> None:
    shown = work(kind="execute", content=text(numbered(40)))

    assert [plain(line) for line in shown.few] == [
        "  line 1",
        "  line 2",
        "  … 32 more lines · /show 1 shows all",
        *(f"  line {number}" for number in range(35, 41)),
    ]
    assert [plain(line) for line in shown.all] == [f"  line {number}" for number in range(1, 41)]


def test_output_of_reading_tools_is_shown_in_fewer_lines() -> None:
    assert few(kind="read", content=text(numbered(40)))[-1] == "  … 37 more lines · /show 1 shows all"


def test_a_change_is_shown_line_by_line() -> None:
    one = {"type": "diff", "path": "/srv/app/a.txt", "oldText": "Hello.\n", "newText": "Hello, world!\n"}
    other = {"type": "diff", "path": "/srv/app/b.txt", "newText": "new\n"}

    assert few(content=[one]) == ["  -Hello.", "  +Hello, world!"]
    assert few(content=[one, other]) == ["  a.txt", "  -Hello.", "  +Hello, world!", "  b.txt (new file)", "  +new"]


def test_a_long_change_is_folded() -> None:
    shown = few(content=[{"type": "diff", "path": "/a", "newText": numbered(100)}])

    assert shown[MAX_CHANGES:] == ["  … 80 more lines · /show 1 shows all"]


def test_what_was_shown_with_a_question_is_not_shown_again() -> None:
    change = {"type": "diff", "path": "/a", "newText": "x"}

    assert work(seen=True, content=[change], rawInput={"command": "make"}).few == []


def test_words_about_a_change_are_shown_when_it_failed() -> None:
    content = [{"type": "diff", "path": "/a", "newText": "x"}, *text("The file has changed.")]

    assert few(content=content) == ["  +x"]
    assert few(content=content, status="failed") == ["  +x", "  The file has changed."]


def test_a_command_is_shown_unless_the_title_is_the_command() -> None:
    assert few(title="Run tests", rawInput={"command": "make test"}) == ["  $ make test"]
    assert few(title="`make test`", rawInput={"command": "make test"}) == []


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("done", ["  done"]),
        ({"output": "done"}, ["  done"]),
        ({"stdout": "", "stderr": "no"}, ["  no"]),
        ({"x": 1}, []),
    ],
)
def test_output_is_found_where_agents_put_it(raw: object, expected: list[str]) -> None:
    assert few(rawOutput=raw) == expected


def test_output_is_shown_as_a_terminal_would_leave_it() -> None:
    shown = [plain(line) for line in output_lines("```console\n\x1b[1;32mok\x1b[0m\r\n10%\r50%\r100%\n\ta\n```\n")]

    assert shown == ["  ok", "  100%", "      a"]


def test_output_and_changes_do_a_terminal_no_harm() -> None:
    hostile = "a\x1b[2J\x1b]0;evil\x07\u202eb\x9b1m\u2066"
    change = {"type": "diff", "path": "/a", "newText": hostile}

    for shown in (few(rawOutput=hostile), few(content=[change]), few(rawInput={"command": hostile})):
        assert all(line.isprintable() for line in shown), shown


def test_command_is_shown_whole_with_hidden_characters_escaped() -> None:
    lines = [plain(line) for line in command_lines({"command": "ls \u202ecod.txt\x1b[8m\rrm -rf /\u200b\n\tx"})]

    assert lines == ["  $ ls \\u202ecod.txt\\x1b[8m\\rrm -rf /\\u200b", "        x"]


def test_words_of_a_command_stay_apart() -> None:
    assert [plain(line) for line in command_lines({"command": ["rm", "-rf", "a b", "*"]})] == ["  $ rm -rf 'a b' '*'"]


def test_a_line_without_end_is_cut_and_counts_as_folded() -> None:
    shown = work(rawOutput="x" * 100_000)

    assert len(plain(shown.few[0])) == MAX_LINE + 1
    assert len(plain(shown.all[0])) == 100_002
    assert shown.is_folded


HARD: dict[str, Callable[[int], str]] = {
    "one line": lambda size: "a" * size,
    "wide letters": lambda size: "日" * size,
    "letters of no width": lambda size: "\u0301" * size,
    "fences": lambda size: "`" * size + "\n" + "`" * (size - 1) + "x",
    "tildes": lambda size: "~~~\n" * (size // 4) + "x",
    "colours without an end": lambda size: "\x1b[0;" * (size // 4),
    "returns": lambda size: "\r" * size,
    "tabs": lambda size: "\t" * size,
    "empty lines": lambda size: "\n" * size,
}
SHOWING: dict[str, Callable[[str], object]] = {
    "output_lines": output_lines,
    "spoken": spoken,
    "command_lines": lambda text: command_lines({"command": text}),
    "wrap_line": lambda text: wrap_line([Span(text)], 80),
    "cut": lambda text: cut([Span(text)], 80),
    "diff_lines": lambda text: diff_lines(text, text[1:] + "x"),
}


@pytest.mark.measures
def test_showing_a_text_costs_no_more_than_in_proportion_to_it() -> None:
    slow = {
        f"{shows}, {name}": why
        for shows, work in SHOWING.items()
        for name, make in HARD.items()
        if (why := grows_faster(work, make, 16 << 10))
    }

    assert slow == {}
