"""Which parts of Markdown that comes in pieces are complete."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxagent.cli.chat.screen import render, split_blocks


@pytest.mark.parametrize(
    ("text", "blocks", "rest"),
    [
        ("one", [], "one"),
        ("one\n\n", [], "one\n\n"),
        ("one\n\ntwo", ["one"], "two"),
        ("one\n\n\n\ntwo\n\nthree\n", ["one", "two"], "three\n"),
        ("- item\n\n  more of it\n\nnext", ["- item\n\n  more of it"], "next"),
        ("```\na\n\nb\n```\n\nc", ["```\na\n\nb\n```"], "c"),
        ("~~~\n```\n\nx", [], "~~~\n```\n\nx"),
    ],
)
def test_a_block_is_complete_when_another_one_begins(text: str, blocks: list[str], rest: str) -> None:
    assert split_blocks(text) == (blocks, rest)


@given(st.text("ab `~\n-", max_size=60))
def test_no_word_is_lost(text: str) -> None:
    blocks, rest = split_blocks(text)

    assert "".join("".join([*blocks, rest]).split()) == "".join(text.split())


def test_rows_are_no_wider_than_the_terminal() -> None:
    rows = render("word " * 40 + "\n\n# Title", 30).split("\n")

    assert rows[-1] == "\x1b[1;4mTitle\x1b[0m" or "Title" in rows[-1]
    assert all(len(row) <= 30 for row in rows[:-1])
