"""Find fences in texts that agents send, and what differs between two by lines, at a bounded cost.

What either costs grows with the text and no faster, whatever is in it. Pure.
"""

from collections.abc import Sequence
from io import StringIO
from typing import NamedTuple

STEPS = 20_000
"""Steps of all comparisons that share one effort: some milliseconds."""
LEAST_STEPS, STEPS_PER_LINE = 500, 16
"""What comparing two texts may take: so many steps, and more for each line. Many small ones are no way to take more."""
_FENCES, _MIN_FENCE = ("`", "~"), 3


def unfenced(text: str) -> str:
    """What stands in a fence of back-quotes or tildes when that is the whole text; else the text."""
    whole = text.strip()
    sign = whole[:1]
    opening = len(whole) - len(whole.lstrip(sign)) if sign in _FENCES else 0
    _, begun, rest = whole.partition("\n")
    inside = rest.rstrip(sign)
    if opening < _MIN_FENCE or not begun or len(rest) - len(inside) < opening:
        return text
    return inside.removesuffix("\n")


def split_lines(text: str) -> list[str]:
    """The lines of a text, each with its newline; the last may have none."""
    return StringIO(text, newline="\n").readlines()


class Effort:
    """The steps that are left for comparing. One may be shared by several comparisons."""

    __slots__ = ("left",)

    def __init__(self, steps: int = STEPS) -> None:
        self.left = steps


class Span(NamedTuple):
    """Lines of the old text, and the other ones that the new text has in their place; each from one up to another."""

    old: int
    old_end: int
    new: int
    new_end: int


def find_changes(old: Sequence[str], new: Sequence[str], effort: Effort) -> tuple[list[Span], bool]:
    """What differs, in order; and whether that is exact.

    Where comparing takes too many steps, all that lies between the first and the last difference is one span.
    """
    most = min(len(old), len(new))
    start = next((at for at in range(most) if old[at] != new[at]), most)
    same = next((at for at in range(most - start) if old[-1 - at] != new[-1 - at]), most - start)
    old_end, new_end = len(old) - same, len(new) - same
    whole = Span(start, old_end, start, new_end)
    if start == old_end and start == new_end:
        return [], True
    if start in (old_end, new_end):
        return [whole], True
    kept = _find_kept(old[start:old_end], new[start:new_end], effort)
    if kept is None:
        return [whole], False
    spans: list[Span] = []
    at, beside = start, start
    for here, there in [*((start + here, start + there) for here, there in kept), (old_end, new_end)]:
        if here > at or there > beside:
            spans.append(Span(at, here, beside, there))
        at, beside = here + 1, there + 1
    return spans, True


def _find_kept(old: Sequence[str], new: Sequence[str], effort: Effort) -> list[tuple[int, int]] | None:
    """The lines that both have, in order: where each is in the old and in the new; None when it takes too long."""
    # Numbers in place of lines, so that comparing two of them is one step, however long they are.
    numbers = {line: number for number, line in enumerate(old)}
    after = [(at, numbers[line]) for at, line in enumerate(new) if line in numbers]
    common = {number for _, number in after}
    before = [(at, number) for at, line in enumerate(old) if (number := numbers[line]) in common]
    runs = _find_runs([number for _, number in before], [number for _, number in after], effort)
    if runs is None:
        return None
    pairs = [(here + number, there + number) for here, there, length in runs for number in range(length)]
    return [(before[here][0], after[there][0]) for here, there in pairs]


def _find_runs(old: list[int], new: list[int], effort: Effort) -> list[tuple[int, int, int]] | None:
    """Runs of what both have, so that as little as can be is left out (Myers' algorithm); None when it takes too long.

    A path goes from the start of both to their ends; a step leaves out a line of the old, or takes in one of the new.
    On diagonal `k`, `k` more lines of the old are behind it than of the new.
    """
    most = min(effort.left, LEAST_STEPS + STEPS_PER_LINE * (len(old) + len(new)))
    left, reached, past = most, {1: 0}, list[dict[int, int]]()
    while True:
        number = len(past)
        past.append(reached.copy())
        for k in range(-number, number + 1, 2):
            takes_in = k == -number or (k != number and reached[k - 1] < reached[k + 1])
            begin = at = reached[k + 1] if takes_in else reached[k - 1] + 1
            while at < len(old) and at - k < len(new) and old[at] == new[at - k]:
                at += 1
            reached[k] = at
            left -= 1 + at - begin
            if left < 0:
                effort.left -= most
                return None
            if at >= len(old) and at - k >= len(new):
                effort.left -= most - left
                return _walk_back(past, at, at - k)


def _walk_back(past: list[dict[int, int]], at: int, beside: int) -> list[tuple[int, int, int]]:
    """The runs on the path that has come here."""
    runs: list[tuple[int, int, int]] = []
    for number in reversed(range(len(past))):
        reached, k = past[number], at - beside
        takes_in = k == -number or (k != number and reached[k - 1] < reached[k + 1])
        begin = reached[k + 1] if takes_in else reached[k - 1] + 1
        if at > begin:
            runs.append((begin, begin - k, at - begin))
        at, beside = (begin, begin - k - 1) if takes_in else (begin - 1, begin - k)
    return runs[::-1]
