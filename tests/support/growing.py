"""What something costs as its input grows: CPU time, or lines of Python that run, which every machine counts alike."""

import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

TIMES = 8
"""How much larger the larger input is."""
ROOM = 4
"""What is more than linear costs TIMES times more than linear at least; a cold cache costs less."""
CLOCK = 0.002
"""Seconds of CPU time that are too short to say anything."""


def cpu_time(work: Callable[[], object]) -> float:
    """Seconds, of the quickest of some runs."""

    def once() -> float:
        start = time.thread_time()
        work()
        return time.thread_time() - start

    return min(once() for _ in range(5))


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


def grows_too_fast(work: Callable[[str], object], make: Callable[[int], str], size: int) -> str | None:
    """Why what is done with texts costs more than in proportion to their length; None when it does not."""
    small, large = make(size), make(size * TIMES)
    growth = len(large) / len(small)
    before, after = cpu_time(lambda: work(small)), cpu_time(lambda: work(large))
    if after <= ROOM * growth * max(before, CLOCK / growth):
        return None
    return f"{len(small)} → {len(large)} characters: {before * 1e3:.3f} → {after * 1e3:.3f} ms"
