"""What is shown, before it is written: the agent's words, its thoughts, and notes of whole lines.

Notes are harmless already; speech is as it was said. Knows nothing of streams, colours or terminals.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from rich.cells import cell_len

from sandbox_agent.cli.output import harmless

ELLIPSIS = "…"
_JOINERS = "\u200c\u200d"


class Span(NamedTuple):
    """A text in one style, by its name in `output.py`."""

    text: str
    style: str = ""


Line: TypeAlias = Sequence[Span]


@dataclass(frozen=True, slots=True)
class Speech:
    """A piece of what the agent or a person says, or what the agent thinks, as it comes."""

    who: Literal["agent", "thought", "person"]
    text: str
    new: bool = False
    """Another message begins here."""


@dataclass(frozen=True, slots=True)
class Note:
    """Whole lines about something other than words.

    With a `key`, it takes the place of the note with the same key while that is the last thing on the screen. When
    something else has come after that, `brief` is written instead.
    """

    lines: Sequence[Line]
    key: str | None = None
    brief: Sequence[Line] | None = None


Piece: TypeAlias = Speech | Note


def note(text: str, style: str = "", mark: Span | None = None) -> Note:
    """A text of any number of lines, with a mark in front of the first."""
    first, *more = text.splitlines() or [""]
    before = [] if mark is None else [mark, Span(" ")]
    return Note([[*before, Span(first, style)], *([Span(line, style)] for line in more)])


def plain(line: Line) -> str:
    """Its text alone."""
    return "".join(span.text for span in line)


def cut(line: Line, width: int) -> Line:
    """As much of a line as fits into so many columns; an ellipsis stands for the rest."""
    if cell_len(plain(line)) <= width:
        return line
    room = width - 1
    kept: list[Span] = []
    for text, style in line:
        part = _beginning(text, room)
        room -= cell_len(part)
        if part:
            kept.append(Span(part, style))
        if part != text:
            break
    return [*kept, Span(ELLIPSIS, kept[-1].style if kept else "")] if width > 0 else []


def wrapped(line: Line, width: int) -> list[Line]:
    """All of a line, in as many lines as it needs; those after the first begin where it begins."""
    text = plain(line)
    indent = " " * min(len(text) - len(text.lstrip(" ")) + 2, width // 2)
    rows: list[list[Span]] = [[]]
    room = width
    for whole, style in line:
        rest = whole
        while rest:
            part = _beginning(rest, room)
            if part:
                rows[-1].append(Span(part, style))
            room -= cell_len(part)
            rest = rest[len(part) :]
            if rest:
                rows.append([Span(indent)])
                room = max(2, width - len(indent))
    return [*rows]


def _beginning(text: str, width: int) -> str:
    if cell_len(text) <= width:
        return text
    for index, letter in enumerate(text):
        width -= cell_len(letter)
        if width < 0:
            return text[:index]
    return text


def spoken(text: str) -> str:
    """A text of an agent that is written as it comes: harmless, with lines that end in a plain newline."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text
    if lines.isprintable():
        return lines
    # Some scripts and most emoji are made with joiners, which do a terminal no harm.
    return "".join(letter if letter in _JOINERS else harmless(letter) for letter in lines)


def joined(facts: Iterable[str], by: str = " · ") -> str:
    """Those that say something."""
    return by.join(fact for fact in facts if fact)
