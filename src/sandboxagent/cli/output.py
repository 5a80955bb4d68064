"""Print tables, JSON, complaints and progress, for people and for pipes."""

import os
import shutil
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO, TypeAlias

if TYPE_CHECKING:
    from msgspec import UnsetType
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    from sandboxagent.client.agents import Install

NONE = "-"
MAX_WIDTH = 120
"""Columns of what is read as text, on a terminal that has more."""


EXIT_FAILED, EXIT_MISTAKE = 1, 2
MAX_LINES = 20
"""Of what a failing program wrote."""


def complain(message: str) -> None:
    """One line about what is wrong, or worth a word."""
    print(f"sandbox-agent: {harmless(message)}", file=sys.stderr)


def describe(sentence: str, stderr: object = None) -> None:
    """A failure: a sentence on one line, and the end of what a program wrote to stderr, if it did."""
    complain(" ".join(sentence.split()))
    lines = harmless(stderr).strip().splitlines() if isinstance(stderr, str) else []
    if len(lines) > MAX_LINES:
        lines = ["…", *lines[-MAX_LINES:]]
    for line in lines:
        print(f"  | {line}", file=sys.stderr)


def is_drawn(stream: TextIO) -> bool:
    """Whether it is a terminal that takes lines and colours, and you want them."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def harmless(text: str) -> str:
    """A text from elsewhere without what would make a terminal do things."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "?" for letter in text)


def visible(text: str) -> str:
    """A text that must not hide anything: what a terminal would obey, or not show, stands there as an escape."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else _escape(letter) for letter in text)


def _escape(letter: str) -> str:
    return letter.encode("unicode_escape").decode()


def one_line(text: str) -> str:
    """The same, and on one line."""
    return harmless(text).replace("\n", " ").replace("\t", " ")


def paint(text: str, style: str) -> str:
    """A text for stdout, in a colour where that is wanted."""
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if text and is_drawn(sys.stdout) else text


def print_json(document: bytes) -> None:
    """One JSON document: as it is for programs, on lines for people."""
    import msgspec

    sys.stdout.flush()
    write_json(msgspec.json.format(document, indent=2) if sys.stdout.isatty() else document)


def write_json(line: bytes) -> None:
    """JSON and the end of a line: as it is for programs; on a terminal without what would make it do things.

    It is not flushed, and overtakes what was printed and not flushed.
    """
    if sys.stdout.isatty():
        line = _escape_unprintable(line)
    # As bytes: JSON is UTF-8, whatever this terminal takes text to be.
    sys.stdout.buffer.write(line + b"\n")


def _escape_unprintable(document: bytes) -> bytes:
    """The same JSON, with escapes for letters that are not printed; they can only stand in a text."""
    import json

    text = document.decode("utf-8", "replace")
    safe = "".join(letter if letter.isprintable() or letter in "\n\t" else json.dumps(letter)[1:-1] for letter in text)
    return safe.encode()


def print_table(
    titles: Sequence[str], rows: Sequence[Sequence[str]], *, styles: Mapping[str, Mapping[str, str]] | None = None
) -> None:
    """Rows under titles. In a pipe the columns are apart by two spaces or more.

    `styles` has the colours of cells by column and text; without it, those of yes and no. The first column is not
    broken into lines.
    """
    rows = [[harmless(cell) or NONE for cell in row] for row in rows]
    if is_drawn(sys.stdout):
        _draw(titles, rows, styles)
        return
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    for row in (titles, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Names and what they stand for; further lines stand below the first. What is empty is left out."""
    facts = [(name, harmless(value)) for name, value in facts if value]
    width = max(len(name) for name, _ in facts) + 2
    for name, value in facts:
        print(f"{name:<{width}}{fill_lines(value, ' ' * width)}")


def fill_lines(text: str, indent: str) -> str:
    """Lines that stand below each other; on a terminal that is narrower, they go on there. Words stay whole."""
    lines = text.split("\n")
    if sys.stdout.isatty():
        room = min(shutil.get_terminal_size().columns, MAX_WIDTH) - len(indent) - 1
        lines = [part for line in lines for part in _parts(line, room)]
    return f"\n{indent}".join(lines)


def _parts(line: str, width: int) -> list[str]:
    import textwrap

    lead = line[: len(line) - len(line.lstrip())]
    if len(line) <= width or width < len(lead) + 20:
        return [line]
    return textwrap.wrap(line, width, subsequent_indent=lead, break_long_words=False, break_on_hyphens=False)


def _draw(titles: Sequence[str], rows: Sequence[Sequence[str]], styles: Mapping[str, Mapping[str, str]] | None) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*titles, box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, show_edge=False)
    table.columns[0].no_wrap = True
    by_column = [_STYLES if styles is None else styles.get(title, {}) for title in titles]
    for row in rows:
        cells = zip(row, by_column, strict=True)
        table.add_row(*(Text(cell, style=known.get(cell, "")) for cell, known in cells))
    Console(width=shutil.get_terminal_size().columns).print(table)


_STYLES = {"yes": "green", "no": "yellow", NONE: "dim"}
_CODES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "1;34",
    "magenta": "35",
    "cyan": "36",
}


class Step(Protocol):
    """How far an install is, as the server or the installer here reports it."""

    @property
    def stage(self) -> str: ...
    @property
    def message(self) -> str: ...
    @property
    def bytes(self) -> "int | UnsetType | None": ...
    @property
    def total_bytes(self) -> "int | UnsetType | None": ...


Show: TypeAlias = Callable[[Step], None]

REPORT_INTERVAL = 10.0
"""Seconds after which a step that continues gets another line."""


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
        self._step, self._next = step, self._clock() + REPORT_INTERVAL
        print(f"{self._agent}: {sentence(progress)}", file=sys.stderr, flush=True)


class _Bar:
    """One bar, which starts over with each stage: it cannot forget how much there was of the last one."""

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
    from sandboxagent.client.agents import Progress

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
