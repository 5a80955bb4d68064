"""What commands print: tables, JSON, complaints. Drawn on a terminal, plain in a pipe and with NO_COLOR."""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

NONE = "-"
WIDEST = 120
"""Columns of what is read as text, on a terminal that has more."""


EXIT_FAILED, EXIT_MISTAKE = 1, 2
MOST_LINES = 20
"""Of what a failing program wrote."""


def complain(message: str) -> None:
    """One line about what is wrong, or worth a word."""
    print(f"sandbox-agent: {message}", file=sys.stderr)


def describe(sentence: str, stderr: object = None) -> None:
    """A failure: a sentence on one line, and the end of what a program wrote to stderr, if it did."""
    complain(harmless(" ".join(sentence.split())))
    lines = harmless(stderr).strip().splitlines() if isinstance(stderr, str) else []
    if len(lines) > MOST_LINES:
        lines = ["…", *lines[-MOST_LINES:]]
    for line in lines:
        print(f"  | {line}", file=sys.stderr)


def is_drawn(stream: TextIO) -> bool:
    """Whether it is a terminal that takes lines and colours, and you want them."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def harmless(text: str) -> str:
    """A text from elsewhere without what would make a terminal do things."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "?" for letter in text)


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
        line = _escaped(line)
    # As bytes: JSON is UTF-8, whatever this terminal takes text to be.
    sys.stdout.buffer.write(line + b"\n")


def _escaped(document: bytes) -> bytes:
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
        print(f"{name:<{width}}{filled(value, ' ' * width)}")


def filled(text: str, indent: str) -> str:
    """Lines that stand below each other; on a terminal that is narrower, they go on there. Words stay whole."""
    lines = text.split("\n")
    if sys.stdout.isatty():
        room = min(shutil.get_terminal_size().columns, WIDEST) - len(indent) - 1
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
