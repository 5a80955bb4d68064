"""Noticing that a server has had nothing to do for a while. Knows nothing of what it does."""

import asyncio
import time
from collections.abc import Callable

TICK = 0.5
MAX_STEP = 2 * TICK
"""Most seconds that count per tick: while the machine sleeps or the server is blocked, it is not idle."""


class Idling:
    """How long the server has been idle. `is_busy` says whether it has something to do right now."""

    def __init__(self, is_busy: Callable[[], bool], patience: float) -> None:
        self._is_busy = is_busy
        self._patience = patience
        self._idle = 0.0
        self._looked_at: float | None = None

    def tick(self, now: float) -> bool:
        """Look once; True when it has been idle for long enough."""
        step = 0.0 if self._looked_at is None else min(now - self._looked_at, MAX_STEP)
        self._looked_at = now
        self._idle = 0.0 if self._is_busy() else self._idle + step
        return self._idle >= self._patience

    async def wait(self) -> None:
        """Return once it has been idle for long enough."""
        while not self.tick(time.monotonic()):  # noqa: ASYNC110 - it is a clock
            await asyncio.sleep(min(TICK, self._patience))
