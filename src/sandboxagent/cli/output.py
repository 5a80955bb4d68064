"""Print tables, JSON, errors and progress, for people and for pipes."""

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
"""Maximum number of columns of text for reading, however wide the terminal is."""


EXIT_FAILED, EXIT_MISTAKE = 1, 2
MAX_LINES = 20
"""Maximum number of lines to show from the stderr of a failed program."""


def complain(message: str) -> None:
    """Print one line to stderr: an error, a warning or a notice."""
    print(f"sandbox-agent: {harmless(message)}", file=sys.stderr)


def confirm(warning: str, kept: str) -> bool:
    """Print a warning and ask whether to go on. Without a terminal, go on. `kept` is printed after a no."""
    complain(warning)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    print("go on? y/n: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    complain(kept)
    return False


def describe(sentence: str, stderr: object = None) -> None:
    """Print a failure to stderr: a sentence on one line, and the end of a program's stderr if there is any."""
    complain(" ".join(sentence.split()))
    lines = harmless(stderr).strip().splitlines() if isinstance(stderr, str) else []
    if len(lines) > MAX_LINES:
        lines = ["…", *lines[-MAX_LINES:]]
    for line in lines:
        print(f"  | {line}", file=sys.stderr)


def describe_duration(seconds: float) -> str:
    """Format a time in its two largest units."""
    parts: list[str] = []
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, seconds = divmod(seconds, length)
        if count or parts:
            parts.append(f"{count:.0f} {unit}")
    return " ".join(parts[:2]) or "0 s"


def is_drawn(stream: TextIO) -> bool:
    """Whether the stream is a terminal that takes lines and colours, and the user has not switched colours off."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def harmless(text: str) -> str:
    """Return a text with `?` for each unprintable character but newline and tab, so that a terminal obeys none."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "?" for letter in text)


def visible(text: str) -> str:
    """Return a text with escapes for unprintable characters but newline and tab, where nothing must stay hidden."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else _escape(letter) for letter in text)


def _escape(letter: str) -> str:
    return letter.encode("unicode_escape").decode()


def one_line(text: str) -> str:
    """Return a text on one line, with `?` for each unprintable character."""
    return harmless(text).replace("\n", " ").replace("\t", " ")


def paint(text: str, style: str) -> str:
    """Return a text for stdout, in a colour if stdout is a terminal with colours."""
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if text and is_drawn(sys.stdout) else text


def print_json(document: bytes) -> None:
    """Print one JSON document: indented on a terminal, unchanged in a pipe."""
    import msgspec

    sys.stdout.flush()
    write_json(msgspec.json.format(document, indent=2) if sys.stdout.isatty() else document)


def write_json(line: bytes) -> None:
    """Write a line of JSON to stdout: unchanged in a pipe; on a terminal with escapes for unprintable characters.

    It does not flush. It writes past the text buffer, so flush printed text first to keep the order.
    """
    if sys.stdout.isatty():
        line = _escape_unprintable(line)
    # As bytes: JSON is UTF-8, whatever the encoding of stdout is.
    sys.stdout.buffer.write(line + b"\n")


def _escape_unprintable(document: bytes) -> bytes:
    """Return the same JSON with escapes for unprintable characters, which can only occur inside of strings."""
    import json

    text = document.decode("utf-8", "replace")
    safe = "".join(letter if letter.isprintable() or letter in "\n\t" else json.dumps(letter)[1:-1] for letter in text)
    return safe.encode()


def print_table(
    titles: Sequence[str], rows: Sequence[Sequence[str]], *, styles: Mapping[str, Mapping[str, str]] | None = None
) -> None:
    """Print rows under titles. In a pipe, two or more spaces separate the columns.

    `styles` maps a column's title and a cell's text to a colour. Without it, only `yes`, `no` and empty cells have a
    colour. The first column is never wrapped.
    """
    rows = [[harmless(cell) or NONE for cell in row] for row in rows]
    if is_drawn(sys.stdout):
        _draw(titles, rows, styles)
        return
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    for row in (titles, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Print names with their values. Further lines of a value go below the first. Empty values are left out."""
    facts = [(name, harmless(value)) for name, value in facts if value]
    width = max(len(name) for name, _ in facts) + 2
    for name, value in facts:
        print(f"{name:<{width}}{fill_lines(value, ' ' * width)}")


def fill_lines(text: str, indent: str) -> str:
    """Indent all lines of a text but the first. On a terminal, wrap them at its width, but never inside a word."""
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
    """The progress of an install, as a server or the local installer reports it."""

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
"""Seconds after which a step that continues is printed again."""


@contextmanager
def shown(agent: str) -> Generator[Show]:
    """Yield a function that shows the progress of one agent's install, until the block ends."""
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
    """Progress as lines: one for each step, and one every `REPORT_INTERVAL` while a step lasts."""

    def __init__(self, agent: str, clock: Callable[[], float]) -> None:
        self._agent = agent
        self._clock = clock
        self._step: str | None = None
        self._next = 0.0

    def show(self, progress: Step) -> None:
        # A download can report hundreds of messages.
        step = progress.stage if progress.stage == "fetching" else progress.message
        if progress.stage == "done" or (step == self._step and self._clock() < self._next):
            return
        self._step, self._next = step, self._clock() + REPORT_INTERVAL
        print(f"{self._agent}: {sentence(progress)}", file=sys.stderr, flush=True)


class _Bar:
    """Progress as one bar, replaced at each stage, because rich's bar cannot reset its total."""

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
    """Return the text of one step, with the bytes done so far."""
    size = ""
    if progress.bytes:
        of = f" of {_mebibytes(progress.total_bytes)}" if progress.total_bytes else ""
        size = f" ({_mebibytes(progress.bytes)}{of})"
    return " ".join(harmless(progress.message).split()) + size


def _mebibytes(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"


async def show_install(install: "Install") -> None:
    """Show the progress of an install on a server until it is done. Raises ClientError."""
    from sandboxagent.client.agents import Progress

    with shown(install.agent) as show:
        async for step in install:
            if isinstance(step, Progress):
                show(step)


@contextmanager
def count_bytes(label: str, total: int | None) -> Generator[Callable[[int], None]]:
    """Yield a function that counts transferred bytes; on a terminal, they show as a bar until the block ends."""
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
