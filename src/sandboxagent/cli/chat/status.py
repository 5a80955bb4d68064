"""Show on one line what the program waits for, and for how long, as long as that takes."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from rich.cells import cell_len

from sandboxagent.cli.chat.blocks import Span, cut, plain
from sandboxagent.cli.chat.render import Showing
from sandboxagent.cli.chat.screen import Screen
from sandboxagent.cli.output import describe_duration
from sandboxagent.core.tasks import Tasks

TICK_INTERVAL = 1.0
"""Seconds between two drawings of the line."""


class StatusLine:
    """The line below all text. Only a terminal with cursor movements has one."""

    def __init__(self, screen: Screen, showing: Showing, clock: Callable[[], float] = time.monotonic) -> None:
        self._screen = screen
        self._showing = showing
        self._clock = clock
        self._work = ""
        """What the program waits for; empty if for nothing."""
        self._began: dict[str, float] = {}
        """When the work, and each running tool call, was first seen."""
        self._lost_at: float | None = None
        """When the connection to the server broke."""
        self._held = 0
        """Number of questions that are open: the user is the one who is waited for."""

    def begin(self, work: str) -> None:
        """Show that the program waits for this, until `end`."""
        self._work, self._began = work, {"": self._clock()}
        self.draw()

    def end(self) -> None:
        """Note that the program waits for nothing."""
        self._work, self._began = "", {}
        self._screen.clear_status()

    def hold(self) -> None:
        """Hide the line while a question is open."""
        self._held += 1
        self._screen.clear_status()

    def release(self) -> None:
        """Show the line again after a question."""
        self._held -= 1

    def lose(self) -> bool:
        """Note that the connection to the server broke. Return whether it was there before."""
        if self._lost_at is not None:
            return False
        self._lost_at = self._clock()
        if self._screen.moves:
            self._screen.end_lines()
        self.draw()
        return True

    def regain(self) -> float | None:
        """Note that the connection is there. Return the seconds that it was away; None if it was not."""
        lost_at, self._lost_at = self._lost_at, None
        if lost_at is None:
            return None
        self._screen.clear_status()
        return self._clock() - lost_at

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Draw the line every second, for the time of the block."""
        ticking = Tasks()
        ticking.run(self._tick(), "status line")
        try:
            yield
        finally:
            await ticking.close()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_INTERVAL)
            self.draw()

    def draw(self) -> None:
        """Draw the line, if there is anything to wait for."""
        text, began = self._current()
        if not text:
            return
        seconds = int(self._clock() - began)
        elapsed = f" {describe_duration(seconds)}" if seconds else ""
        room = self._screen.width - 1 - cell_len(elapsed)
        self._screen.status(plain(cut([Span(text)], room)) + elapsed)

    def _current(self) -> tuple[str, float]:
        now = self._clock()
        if self._lost_at is not None:
            return "the connection to the server broke; reconnecting …", self._lost_at
        if not self._work or self._held:
            return "", now
        calls = self._showing.running_calls()
        for id in calls:
            self._began.setdefault(id, now)
        if not calls:
            return self._work, self._began[""]
        # The one that has run longest is the one that is waited for.
        id, title = min(calls.items(), key=lambda call: self._began[call[0]])
        more = f" and {len(calls) - 1} more" if len(calls) > 1 else ""
        return title + more, self._began[id]
