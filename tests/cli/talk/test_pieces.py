"""Texts for a terminal: harmless, cut or wrapped to the width that there is."""

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from sandbox_agent.cli.talk.pieces import Span, cut, plain, spoken, wrap_line

LINES = st.lists(
    st.builds(Span, st.text(alphabet="a日 -", max_size=12), st.sampled_from(["", "dim", "red"])), max_size=4
)


def test_what_would_move_a_terminal_does_not() -> None:
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
