"""Bytes of a terminal become keys, however they are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_agent.cli.talk.keys import LONGEST_PASTE, Key, Keys, Typed


def keys(*pieces: bytes) -> list[Key]:
    terminal = Keys()
    return [key for piece in pieces for key in terminal.feed(piece)]


def typed(found: list[Key]) -> str:
    return "".join(key.text for key in found if isinstance(key, Typed))


def test_letters_are_typed_and_control_keys_have_names() -> None:
    assert keys("héllo\r".encode()) == [Typed("héllo"), "enter"]
    assert keys(b"\n\x7f\x04\x01\x05") == ["enter", "backspace", "end-of-input", "home", "end"]


@pytest.mark.parametrize(
    ("sequence", "name"),
    [
        (b"\x1b[A", "up"),
        (b"\x1bOB", "down"),
        (b"\x1b[1;5C", "word-right"),
        (b"\x1bb", "word-left"),
        (b"\x1b[3~", "delete"),
        (b"\x1b[H", "home"),
        (b"\x1b\r", "newline"),
    ],
)
def test_a_sequence_is_one_key_also_when_it_comes_in_pieces(sequence: bytes, name: str) -> None:
    assert keys(sequence) == [name]
    assert keys(*(bytes([byte]) for byte in sequence)) == [name]


def test_keys_that_mean_nothing_here_are_dropped_whole() -> None:
    assert keys(b"a\x1b[15~b\x1b[1;2Pc\x00d") == [Typed("a"), Typed("b"), Typed("c"), Typed("d")]


def test_what_is_pasted_keeps_its_lines_and_loses_what_is_no_text() -> None:
    assert keys(b"\x1b[200~one\r\ntwo\x1b[31m\x07\rthree\x1b[201~x") == [
        Typed("one\ntwo[31m\nthree", pasted=True),
        Typed("x"),
    ]


def test_a_paste_is_bounded() -> None:
    found = keys(b"\x1b[200~", b"x" * LONGEST_PASTE, b"y" * 100, b"\x1b[201~", b"z")

    assert len(typed(found)) == LONGEST_PASTE + 1
    assert typed(found).endswith("xz")


def test_half_a_letter_waits_for_the_other_half() -> None:
    first, second = "日".encode()[:2], "日".encode()[2:]

    assert keys(first, second) == [Typed("日")]


@given(st.lists(st.sampled_from(["a", "é", "日", "\x1b[A", "\r", "\x1b[200~p\nq\x1b[201~", "\x1bf"])), st.data())
def test_the_cuts_make_no_difference(parts: list[str], data: st.DataObject) -> None:
    whole = "".join(parts).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)))))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]

    def names(found: list[Key]) -> list[str]:
        return [key for key in found if isinstance(key, str)]

    assert names(keys(*pieces)) == names(keys(whole))
    assert typed(keys(*pieces)) == typed(keys(whole))
