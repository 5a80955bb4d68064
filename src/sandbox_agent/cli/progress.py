"""How far an install or a copy is, on stderr: a bar on a terminal; elsewhere a line for each step of an install."""

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TypeAlias

from msgspec import UnsetType

from sandbox_agent.cli.output import harmless, is_drawn

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    from sandbox_agent.client.agents import Install


class Step(Protocol):
    """How far an install is, as the server or the installer here tells it."""

    @property
    def stage(self) -> str: ...
    @property
    def message(self) -> str: ...
    @property
    def bytes(self) -> int | UnsetType | None: ...
    @property
    def total_bytes(self) -> int | UnsetType | None: ...


Show: TypeAlias = Callable[[Step], None]

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

    def show(self, progress: Step) -> None:
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

    def show(self, progress: Step) -> None:
        total = progress.total_bytes or None
        done = progress.bytes or 0
        if self._task is not None and progress.stage == self._stage:
            self._bars.update(self._task, description=sentence(progress), total=total, completed=done)
            return
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = self._bars.add_task(sentence(progress), total=total, completed=done)
        self._stage = progress.stage


def sentence(progress: Step) -> str:
    """One state in words."""
    size = ""
    if progress.bytes:
        of = f" of {_mebibytes(progress.total_bytes)}" if progress.total_bytes else ""
        size = f" ({_mebibytes(progress.bytes)}{of})"
    return " ".join(harmless(progress.message).split()) + size


def _mebibytes(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"


async def show_install(install: "Install") -> None:
    """Show how far an install on a server is, to its end. Raises ClientError."""
    from sandbox_agent.client.agents import Progress

    with shown(install.agent) as show:
        async for step in install:
            if isinstance(step, Progress):
                show(step)


@contextmanager
def count_bytes(label: str, total: int | None) -> Generator[Callable[[int], None]]:
    """What takes note of bytes while the block lasts, and shows them on a terminal."""
    if not is_drawn(sys.stderr):
        yield lambda size: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn(label, style="bold", markup=False), BarColumn(24), DownloadColumn(binary_units=True))
    with Bars(
        *columns, TransferSpeedColumn(), TimeRemainingColumn(), console=Console(stderr=True), transient=True
    ) as bars:
        task = bars.add_task("", total=total)
        yield lambda size: bars.advance(task, size)
