"""Changes of a text, in short and line by line. Pure, and quick also where texts are large."""

from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

LARGE = 800
"""Lines from which on an exact comparison would take too long."""
CONTEXT = 2
"""Unchanged lines that are shown around a change."""


def counts(old: str | None, new: str) -> tuple[int, int]:
    """How many lines are new, and how many are gone."""
    changed = _change(old, new)
    if changed.is_large:
        before, after = Counter(changed.old), Counter(changed.new)
        return (after - before).total(), (before - after).total()
    added = removed = 0
    for kind, a, b, c, d in _opcodes(changed.old, changed.new):
        if kind != "equal":
            removed += b - a
            added += d - c
    return added, removed


def lines(old: str | None, new: str) -> list[str]:
    """The change line by line, each with `+`, `-` or a space in front; what is far from a change is left out."""
    changed = _change(old, new)
    if changed.is_large:
        body = [*(f"-{line}" for line in changed.old), *(f"+{line}" for line in changed.new)]
    else:
        body: list[str] = []
        for kind, a, b, c, d in _opcodes(changed.old, changed.new):
            if kind == "equal":
                body += _unchanged(changed.old[a:b])
            else:
                body += [f"-{line}" for line in changed.old[a:b]] + [f"+{line}" for line in changed.new[c:d]]
    return [*(f" {line}" for line in changed.before), *body, *(f" {line}" for line in changed.after)]


class _Change(NamedTuple):
    """What differs between two texts, and a little of what is the same before and after it."""

    old: list[str]
    new: list[str]
    before: list[str]
    after: list[str]

    @property
    def is_large(self) -> bool:
        return len(self.old) + len(self.new) > LARGE


def _change(old: str | None, new: str) -> _Change:
    a, b = (old or "").splitlines(), new.splitlines()
    most = min(len(a), len(b))
    start = next((i for i in range(most) if a[i] != b[i]), most)
    end = next((i for i in range(most - start) if a[-1 - i] != b[-1 - i]), most - start)
    before, after = a[max(0, start - CONTEXT) : start], a[len(a) - end : len(a) - end + CONTEXT]
    return _Change(a[start : len(a) - end], b[start : len(b) - end], before, after)


def _opcodes(old: Sequence[str], new: Sequence[str]) -> Sequence[tuple[str, int, int, int, int]]:
    if not old or not new:
        return [("replace", 0, len(old), 0, len(new))]
    return SequenceMatcher(None, old, new, autojunk=False).get_opcodes()


def _unchanged(same: Sequence[str]) -> list[str]:
    if len(same) <= 2 * CONTEXT + 1:
        return [f" {line}" for line in same]
    return [*(f" {line}" for line in same[:CONTEXT]), " …", *(f" {line}" for line in same[-CONTEXT:])]
