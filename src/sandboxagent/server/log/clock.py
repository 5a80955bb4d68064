"""Measure how old the log is by its own clock, whatever the wall clock says.

While the machine runs, time is what its boot clock counts, also between two servers. Only the time that the machine was
off comes from the wall clock, and only after that clock has been steady for an hour: a machine may start with a wrong
one and correct it later.
"""

import time
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

SETTLE = 3600.0
"""Seconds for which the wall clock must be steady before the time that the machine was off counts."""
STEP = 60.0
"""A change of the wall clock by more seconds than this is a jump."""


class Age(Struct, frozen=True):
    """The log's own time at some moment, and the boot clock at that moment."""

    seconds: float
    ticks: float
    boot: str
    """Which start of the machine the ticks belong to."""
    settled: bool = True
    """No time is left to count for which the machine was off."""


class AgeClock:
    """The log's own time: begins with the wall clock's, never goes back, never jumps."""

    def __init__(self, saved: Age | None, wall: Callable[[], float], ticking: Callable[[], float], boot: str) -> None:
        self._wall, self._ticking, self._boot = wall, ticking, boot
        ticks = ticking()
        if saved is None:
            self._age = Age(wall(), ticks, boot)
        elif saved.boot == boot != "" and saved.ticks <= ticks:
            self._age = Age(saved.seconds + ticks - saved.ticks, ticks, boot, saved.settled)
        else:
            self._age = Age(saved.seconds, ticks, boot, settled=False)
        self._ahead = wall() - self._age.seconds
        """How far the wall clock is ahead of this one."""
        self._steady_since = ticks

    def now(self) -> Age:
        ticks = self._ticking()
        seconds, settled = self._age.seconds + max(0.0, ticks - self._age.ticks), self._age.settled
        if not settled:
            ahead = self._wall() - seconds
            if abs(ahead - self._ahead) > STEP:
                self._ahead, self._steady_since = ahead, ticks
            elif ticks - self._steady_since >= SETTLE:
                seconds, settled = seconds + max(0.0, ahead), True
        self._age = Age(seconds, ticks, self._boot, settled)
        return self._age


def boot_ticks() -> float:
    """Seconds since the machine started, those in which it slept included."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


def boot_id() -> str:
    """What tells one start of the machine from another; empty where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
