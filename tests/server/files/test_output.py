"""The newest of what a command wrote: contract, section 5."""

from hypothesis import given
from hypothesis import strategies as st

from sandboxagent.server.sessions.budgets import Budgets, Share
from sandboxagent.server.sessions.terminals import Output


def read(limit: int, *pieces: bytes, ended: bool = True) -> tuple[str, bool]:
    output = Output(limit)
    for piece in pieces:
        output.feed(piece)
    return output.read(ended=ended)


def test_what_fits_is_kept_whole() -> None:
    assert read(5, b"ab", b"cde") == ("abcde", False)
    assert read(0) == ("", False)


def test_the_newest_is_kept_and_it_is_said_that_there_was_more() -> None:
    assert read(5, b"abc", b"defg") == ("cdefg", True)
    assert read(5, b"x" * 1000, b"end") == ("xxend", True)
    assert read(0, b"a") == ("", True)


def test_it_is_cut_between_characters() -> None:
    assert read(5, "äöü".encode()) == ("öü", True)
    assert read(6, "𝄞𝄞".encode()) == ("𝄞", True)


def test_a_character_that_has_come_in_part_waits_for_its_rest() -> None:
    first, second = "ä".encode()[:1], "ä".encode()[1:]
    output = Output(10)
    output.feed(b"a" + first)
    assert output.read(ended=False) == ("a", False)
    output.feed(second)
    assert output.read(ended=False) == ("aä", False)
    output.feed(first)
    assert output.read(ended=True) == ("aä�", False)


def test_bytes_that_are_no_text_are_replaced_and_the_limit_holds_all_the_same() -> None:
    assert read(100, b"a\xff\xfeb") == ("a��b", False)
    text, truncated = read(100, b"\xff" * 100)
    assert (text, truncated) == ("�" * 33, True)


@given(
    pieces=st.lists(st.binary(max_size=40) | st.text(max_size=20).map(lambda text: text.encode()), max_size=20),
    limit=st.integers(0, 100),
    reads=st.booleans(),
)
def test_it_is_an_end_of_the_text_within_the_limit_however_it_came(
    pieces: list[bytes], limit: int, reads: bool
) -> None:
    output = Output(limit)
    for piece in pieces:
        output.feed(piece)
        if reads:
            output.read(ended=False)
    text, truncated = output.read(ended=True)
    whole = b"".join(pieces)
    assert len(text.encode()) <= limit
    if not truncated:
        assert text == whole.decode(errors="replace")
    elif b"\xff" not in whole and whole.decode(errors="replace").encode() == whole:
        assert whole.decode().endswith(text)
        assert limit - len(text.encode()) < 4


def test_a_full_budget_costs_the_oldest_output_and_what_is_closed_costs_nothing() -> None:
    budgets = Budgets(10)
    one, two = Output(100, Share(budgets, "p")), Output(100, Share(budgets, "p"))
    one.feed(b"123456")
    two.feed(b"abcd")
    assert (one.read(ended=True), two.read(ended=True)) == (("123456", False), ("abcd", False))
    two.feed(b"ef")
    assert (two.read(ended=True), budgets.used("p")) == (("cdef", True), 10)
    one.close()
    one.feed(b"more")
    assert (one.read(ended=True), budgets.used("p")) == (("123456", False), 4)
    two.feed(b"ghijkl")
    assert two.read(ended=True) == ("cdefghijkl", True)
