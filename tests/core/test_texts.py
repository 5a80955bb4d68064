"""What stands in a fence, and what differs between two texts: what comes out, and what it costs."""

import random
from collections.abc import Callable
from functools import partial
from itertools import chain, repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxagent.core.texts import LEAST_STEPS, STEPS, STEPS_PER_LINE, DiffBudget, find_changes, split_lines, unfenced
from tests.support.growing import grows_faster, lines_run

LINES = st.lists(st.sampled_from(["a\n", "b\n", "c\n", ""]), max_size=12)

FENCED = {
    "```\na\n```": "a",
    "```sh\na\nb\n```": "a\nb",
    "  \n```sh title\n\na\n\n```  \n\n": "\na\n",
    "~~~~\n```\na\n```\n~~~~": "```\na\n```",
    "```\na\n~~~\n```": "a\n~~~",
    "```console\na```": "a",
    "```\n```": "",
    "`````\na\n`````": "a",
    "```\na\n`````": "a",
}
PLAIN = [
    *("", "a", "`", "```", "```a```", "``\na\n``", "```\na", "a\n```\nb\n```", "```\na\n```\nb", "~~~\na\n```", "\n"),
    *("`````\na\n```", "-----\na\n-----"),
]


def test_what_stands_in_a_fence_is_found() -> None:
    assert {text: unfenced(text) for text in FENCED} == FENCED


def test_a_text_that_is_not_all_in_one_fence_stays_as_it_is() -> None:
    assert {text: unfenced(text) for text in PLAIN} == dict(zip(PLAIN, PLAIN, strict=True))


def runs(signs: str) -> Callable[[int], str]:
    """Runs of every length, about as long together as is asked for."""
    return lambda size: "\n".join(sign * length for length in range(1, int(size**0.5) + 1) for sign in signs)


HARD_FENCES: dict[str, Callable[[int], str]] = {
    "one run": lambda size: "`" * size,
    "one run and an end": lambda size: "`" * size + "\nx",
    "a run on each side": lambda size: "`" * size + "\n" + "`" * (size - 1) + "x",
    "runs": runs("`"),
    "tildes": runs("~"),
    "both in turn": runs("`~"),
    "fences in fences": lambda size: "".join(f"{'`' * 3}\n" for _ in range(size // 4)) + "x",
    "blanks and a fence": lambda size: " \n" * (size // 2) + "```",
    "newlines in a fence": lambda size: "```" + "\n" * size + "x",
    "blanks behind": lambda size: "```\n" + " " * size + "x",
}


@pytest.mark.measures
def test_looking_for_a_fence_costs_no_more_than_in_proportion() -> None:
    assert {name: why for name, make in HARD_FENCES.items() if (why := grows_faster(unfenced, make, 32 << 10))} == {}


def test_lines_end_at_newlines_alone() -> None:
    text = "a\r\nb\x0bc\u2028d\r\n\ne"

    assert split_lines(text) == ["a\r\n", "b\x0bc\u2028d\r\n", "\n", "e"]
    assert "".join(split_lines(text)) == text


def applied(old: list[str], new: list[str], effort: DiffBudget) -> tuple[list[str], bool]:
    """The old text with all changes in it."""
    spans, exact = find_changes(old, new, effort)
    made: list[str] = []
    at = 0
    for span in spans:
        made += old[at : span.old]
        assert len(made) == span.new
        assert (span.old, span.new) != (span.old_end, span.new_end)
        made += new[span.new : span.new_end]
        at = span.old_end
    return made + old[at:], exact


@given(LINES, LINES)
def test_the_changes_make_the_new_text_of_the_old_one(old: list[str], new: list[str]) -> None:
    assert applied(old, new, DiffBudget()) == (new, True)


@given(LINES, LINES, st.integers(0, 60))
def test_changes_make_the_new_text_even_with_too_little_effort(old: list[str], new: list[str], steps: int) -> None:
    assert applied(old, new, DiffBudget(steps))[0] == new


def test_lines_that_both_texts_have_stay() -> None:
    old = [f"{number}" for number in range(100)]
    new = [line for line in old if line not in ("5", "50")] + ["more"]

    spans, exact = find_changes(old, new, DiffBudget())

    assert exact
    assert [tuple(span) for span in spans] == [(5, 6, 5, 5), (50, 51, 49, 49), (100, 100, 98, 99)]


def shuffled(count: int) -> tuple[list[str], list[str]]:
    lines = [f"{number}" for number in range(count)]
    return lines, random.Random(1).sample(lines, count)


HARD_CHANGES: dict[str, Callable[[int], tuple[list[str], list[str]]]] = {
    "one line again and again": lambda count: (["a"] * count, ["a"] * (count // 2)),
    "in turn": lambda count: (["a", "b"] * (count // 2), ["b", "a"] * (count // 2)),
    "in turn, of three": lambda count: (["a", "b", "c"] * (count // 3), ["c", "b", "a"] * (count // 3)),
    "nearly the same": lambda count: (["a"] * count, [*chain.from_iterable(repeat(["a"] * 9 + ["b"], count // 10))]),
    "nothing in common": lambda count: ([f"a{n}" for n in range(count)], [f"b{n}" for n in range(count)]),
    "backwards": lambda count: ([f"{n}" for n in range(count)], [f"{n}" for n in reversed(range(count))]),
    "shuffled": shuffled,
    "every second": lambda count: ([f"{n}" for n in range(count)], [f"{n}" if n % 2 else "x" for n in range(count)]),
    "one in many": lambda count: (["x"], ["a"] * (count // 2) + ["x"] + ["b"] * (count // 2)),
}
COUNTS = (50, 100, 200, 400, 800, 1600, 3200)
STEP, LINE = 10, 40
"""Lines of Python that run for a step, and for a line of the two texts, at most."""


def test_comparing_costs_no_more_than_in_proportion_and_has_a_bound() -> None:
    found = {
        (name, count): lines_run(partial(find_changes, *make(count), DiffBudget()))
        for name, make in HARD_CHANGES.items()
        for count in COUNTS
    }

    def most(count: int) -> int:
        return STEP * min(STEPS, LEAST_STEPS + STEPS_PER_LINE * 2 * count) + LINE * 2 * count

    assert {(name, count): cost for (name, count), cost in found.items() if cost > most(count)} == {}


def test_comparisons_that_share_an_effort_have_one_bound_together() -> None:
    effort = DiffBudget()
    exact = [find_changes(*shuffled(200), effort)[1] for _ in range(60)]

    assert effort.left >= 0
    assert not any(exact)
    spent = lines_run(lambda: find_changes(*shuffled(200), effort))
    assert spent < lines_run(lambda: find_changes(*shuffled(200), DiffBudget())) / 4
