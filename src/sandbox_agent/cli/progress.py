"""How far an install is, on stderr: a bar on a terminal, a line for each step elsewhere."""

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec import UNSET

from sandbox_agent.cli.output import harmless, is_drawn
from sandbox_agent.wire.agents import Progress

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

Show = Callable[[Progress], None]

SIGN_OF_LIFE = 10.0
"""Seconds after which a step that goes on gets another line."""


@contextmanager
def shown(agent: str) -> Generator[Show]:
    """What shows one agent's progress while the block lasts."""
    if not is_drawn(sys.stderr):
        yield Lines(agent, time.monotonic).show
        return
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn
    from rich.progress import Progress as Bars
    from rich.table import Column

    columns = (
        SpinnerColumn(),
        TextColumn(agent, style="bold", markup=False),
        BarColumn(24),
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
    )
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        yield _Bar(bars).show


class Lines:
    """A line for each step, and now and then one for a step that takes long."""

    def __init__(self, agent: str, clock: Callable[[], float]) -> None:
        self._agent = agent
        self._clock = clock
        self._step: str | None = None
        self._next = 0.0

    def show(self, progress: Progress) -> None:
        # Of what is fetched there may be hundreds of messages.
        step = progress.stage if progress.stage == "fetching" else progress.message
        if progress.stage == "done" or (step == self._step and self._clock() < self._next):
            return
        self._step, self._next = step, self._clock() + SIGN_OF_LIFE
        print(f"{self._agent}: {sentence(progress)}", file=sys.stderr, flush=True)


class _Bar:
    """One bar, which begins anew with each stage: it cannot forget how much there was of the last one."""

    def __init__(self, bars: "Bars") -> None:
        self._bars = bars
        self._stage = ""
        self._task: TaskID | None = None

    def show(self, progress: Progress) -> None:
        total = None if progress.total_bytes is UNSET else progress.total_bytes
        done = 0 if progress.bytes is UNSET else progress.bytes
        if self._task is not None and progress.stage == self._stage:
            self._bars.update(self._task, description=sentence(progress), total=total, completed=done)
            return
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = self._bars.add_task(sentence(progress), total=total, completed=done)
        self._stage = progress.stage


def sentence(progress: Progress) -> str:
    """One state in words."""
    size = ""
    if progress.bytes is not UNSET and progress.bytes:
        of = "" if progress.total_bytes is UNSET else f" of {_mebibytes(progress.total_bytes)}"
        size = f" ({_mebibytes(progress.bytes)}{of})"
    return " ".join(harmless(progress.message).split()) + size


def _mebibytes(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"
