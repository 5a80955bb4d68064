"""Changes in short and line by line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxagent.cli.chat.blocks import count_changes, diff_lines

TEXT = st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=30).map("\n".join)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (None, "one\ntwo\n", (2, 0)),
        ("one\ntwo\n", "", (0, 2)),
        ("one\ntwo\nthree\n", "one\n2\nthree\n", (1, 1)),
        ("same\n", "same\n", (0, 0)),
        ("a\nb\n", "b\na\n", (1, 1)),
    ],
)
def test_new_and_gone_lines_are_counted(old: str | None, new: str, expected: tuple[int, int]) -> None:
    assert count_changes(old, new) == expected


def test_a_change_is_shown_with_what_is_around_it() -> None:
    old = "\n".join(f"line {number}" for number in range(20))

    assert diff_lines(old, old.replace("line 10", "line ten")) == [
        " line 8",
        " line 9",
        "-line 10",
        "+line ten",
        " line 11",
        " line 12",
    ]


def test_what_is_far_from_both_of_two_changes_is_left_out() -> None:
    old = "\n".join(f"line {number}" for number in range(20))

    shown = diff_lines(old, old.replace("line 3", "three").replace("line 16", "sixteen"))

    assert shown[2:4] == ["-line 3", "+three"]
    assert " …" in shown
    assert len(shown) == 13


def test_what_is_too_much_to_compare_is_shown_as_all_old_and_all_new_lines() -> None:
    """Here every line of the one is somewhere else in the other."""
    lines = [f"{number}\n" for number in range(1000)]
    old, new = "".join(lines), "".join(reversed(lines))

    shown = diff_lines(old, new)

    assert shown == [
        " … too much has changed to compare it line by line",
        *(f"-{number}" for number in range(1000)),
        *(f"+{number}" for number in reversed(range(1000))),
    ]
    assert count_changes(old, new) == (0, 0)


@given(TEXT, TEXT)
def test_the_lines_agree_with_the_count_changes(old: str, new: str) -> None:
    shown = diff_lines(old, new)
    added, removed = count_changes(old, new)

    assert (sum(line[0] == "+" for line in shown), sum(line[0] == "-" for line in shown)) == (added, removed)
    assert len(old.splitlines()) + added - removed == len(new.splitlines())
