"""Find fences and line differences in agents' texts, at a bounded cost.

The cost grows at most linearly with a text, whatever its content. The functions are pure.
"""

from collections.abc import Sequence
from io import StringIO
from typing import NamedTuple

STEPS = 20_000
"""Steps of all comparisons that share one effort: they take some milliseconds."""
LEAST_STEPS, STEPS_PER_LINE = 500, 16
"""Steps that comparing two texts may take: a fixed number, and more for each line. So many small comparisons do not
cost more than one large one."""
_FENCES, _MIN_FENCE = ("`", "~"), 3


def unfenced(text: str) -> str:
    """Return the content of a fence of back-quotes or tildes if the fence is the whole text, else the text."""
    whole = text.strip()
    sign = whole[:1]
    opening = len(whole) - len(whole.lstrip(sign)) if sign in _FENCES else 0
    _, begun, rest = whole.partition("\n")
    inside = rest.rstrip(sign)
    if opening < _MIN_FENCE or not begun or len(rest) - len(inside) < opening:
        return text
    return inside.removesuffix("\n")


def split_lines(text: str) -> list[str]:
    """Return the lines of a text, each with its newline; the last one may have none."""
    return StringIO(text, newline="\n").readlines()


class DiffBudget:
    """The steps that are left for comparisons. Several comparisons may share one."""

    __slots__ = ("left",)

    def __init__(self, steps: int = STEPS) -> None:
        self.left = steps


class Span(NamedTuple):
    """A range of old lines, and the range of new lines that replaces it. Both ends are exclusive."""

    old: int
    old_end: int
    new: int
    new_end: int


def find_changes(old: Sequence[str], new: Sequence[str], effort: DiffBudget) -> tuple[list[Span], bool]:
    """Return the differences between two texts, in order, and whether they are exact.

    If a comparison takes too many steps, everything from the first to the last difference is one span.
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


def _find_kept(old: Sequence[str], new: Sequence[str], effort: DiffBudget) -> list[tuple[int, int]] | None:
    """Return the indexes of the common lines in the old and the new text, in order; None if that takes too long."""
    # Numbers in place of lines make the comparison of two lines one step, however long they are.
    numbers = {line: number for number, line in enumerate(old)}
    after = [(at, numbers[line]) for at, line in enumerate(new) if line in numbers]
    common = {number for _, number in after}
    before = [(at, number) for at, line in enumerate(old) if (number := numbers[line]) in common]
    runs = _find_runs([number for _, number in before], [number for _, number in after], effort)
    if runs is None:
        return None
    pairs = [(here + number, there + number) for here, there, length in runs for number in range(length)]
    return [(before[here][0], after[there][0]) for here, there in pairs]


def _find_runs(old: list[int], new: list[int], effort: DiffBudget) -> list[tuple[int, int, int]] | None:
    """Return the runs of a longest common subsequence (Myers' algorithm); None if that takes too long.

    A path leads from the start of both lists to their ends. A step skips an old line or inserts a new one. On diagonal
    `k`, the path has passed `k` more old lines than new ones.
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
    """Return the runs on the path that ends here."""
    runs: list[tuple[int, int, int]] = []
    for number in reversed(range(len(past))):
        reached, k = past[number], at - beside
        takes_in = k == -number or (k != number and reached[k - 1] < reached[k + 1])
        begin = reached[k + 1] if takes_in else reached[k - 1] + 1
        if at > begin:
            runs.append((begin, begin - k, at - begin))
        at, beside = (begin, begin - k - 1) if takes_in else (begin - 1, begin - k)
    return runs[::-1]
