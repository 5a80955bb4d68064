"""Measure the log's age with a clock that ignores jumps of the wall clock.

While the machine runs, the age advances with its boot clock, also between two runs of the server. Only the time during
which the machine was off comes from the wall clock. It counts after the wall clock has been steady for an hour, because
a machine may start with a wrong time and correct it later.
"""

import time
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

SETTLE_INTERVAL = 3600.0
"""Seconds for which the wall clock must be steady before the time that the machine was off counts."""
MIN_JUMP_INTERVAL = 60.0
"""Seconds by which the wall clock must change, at least, to count as a jump."""


class Age(Struct, frozen=True):
    """A reading of the log's own clock, with the reading of the boot clock at the same moment."""

    seconds: float
    ticks: float
    boot: str
    """Id of the boot of the machine in which `ticks` was read."""
    settled: bool = True
    """Whether all time during which the machine was off has been counted."""


class AgeClock:
    """The log's own clock: starts at the wall clock's time, never goes back, and ignores the wall clock's jumps."""

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
        """Seconds by which the wall clock is ahead of this clock."""
        self._steady_since = ticks

    def now(self) -> Age:
        ticks = self._ticking()
        seconds, settled = self._age.seconds + max(0.0, ticks - self._age.ticks), self._age.settled
        if not settled:
            ahead = self._wall() - seconds
            if abs(ahead - self._ahead) > MIN_JUMP_INTERVAL:
                self._ahead, self._steady_since = ahead, ticks
            elif ticks - self._steady_since >= SETTLE_INTERVAL:
                seconds, settled = seconds + max(0.0, ahead), True
        self._age = Age(seconds, ticks, self._boot, settled)
        return self._age


def boot_ticks() -> float:
    """Return the seconds since the machine started, including those in which it slept."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


def boot_id() -> str:
    """Return the id of the machine's current boot; empty where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
