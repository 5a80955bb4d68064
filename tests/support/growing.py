"""What something costs as its input grows: CPU time, or lines of Python that run, which every machine counts alike.

The input grows fourfold, up to a most, or until it costs much. A cost in proportion grows fourfold, and one by the
square sixteenfold. CPU time of this thread is measured, and looked at again when it seems too much: a busy machine does
not make a parser fail.
"""

import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

LEAST = 1 << 10
MUCH, LITTLE = 0.2, 0.004
"""Seconds after which a parser is not given more, and up to which what it costs does not count."""
FASTER = 9.0
"""Between four and sixteen."""
LOOKS = 4


def lines_run(work: Callable[[], object]) -> int:
    """Lines of Python."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Callable[[FrameType, str, Any], Any]:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def grows_faster(work: Callable[[str], object], make: Callable[[int], str], most: int) -> str | None:
    """How the cost of what is done with texts grows faster than they do: twice in a row, or once to much.

    None when it does not. From some size on a parser may do more for each byte, which is one step.
    """

    def cost(text: str) -> float:
        began = time.thread_time()
        work(text)
        return time.thread_time() - began

    size, less, steps = LEAST, make(LEAST), 0
    before = cost(less)
    while size < most and before < MUCH:
        size *= 4
        text = make(size)
        now = cost(text)
        for _ in range(LOOKS):
            if now <= LITTLE or now <= FASTER * before:
                steps = 0
                break
            now, before = min(now, cost(text)), max(before, cost(less))
        else:
            steps += 1
        if steps == 2 or (steps and now > MUCH):
            return f"{len(less)} characters take {before * 1000:.1f} ms, {len(text)} take {now * 1000:.1f} ms"
        before, less = now, text
    return None
