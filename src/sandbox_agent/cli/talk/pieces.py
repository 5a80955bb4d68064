"""The pieces of what is shown: speech and notes, harmless, as wide as there is room; and changes of a text (pure)."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
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
class Spoken:
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


Piece: TypeAlias = Spoken | Note


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


def wrap_line(line: Line, width: int) -> list[Line]:
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


def visible(text: str) -> str:
    """A text that must not hide anything: what a terminal would obey, or not show, stands there as an escape."""
    plain = text.replace("\r\n", "\n").expandtabs(4)
    return "".join(letter if letter.isprintable() or letter == "\n" else _escape(letter) for letter in plain)


def _escape(letter: str) -> str:
    return letter.encode("unicode_escape").decode()


def join_facts(facts: Iterable[str], by: str = " · ") -> str:
    """Those that say something."""
    return by.join(fact for fact in facts if fact)


LARGE = 800
"""Lines from which on an exact comparison would take too long."""
CONTEXT = 2
"""Unchanged lines that are shown around a change."""


def count_changes(old: str | None, new: str) -> tuple[int, int]:
    """How many lines are new, and how many are gone."""
    changed = _change(old, new)
    if changed.is_large:
        before, after = Counter(changed.old), Counter(changed.new)
        return (after - before).total(), (before - after).total()
    added = removed = 0
    for kind, a, b, c, d in _opcodes(changed.old, changed.new):
        if kind != "equal":
            removed += b - a
            added += d - c
    return added, removed


def diff_lines(old: str | None, new: str) -> list[str]:
    """The change line by line, each with `+`, `-` or a space in front; what is far from a change is left out."""
    changed = _change(old, new)
    if changed.is_large:
        body = [*(f"-{line}" for line in changed.old), *(f"+{line}" for line in changed.new)]
    else:
        body: list[str] = []
        for kind, a, b, c, d in _opcodes(changed.old, changed.new):
            if kind == "equal":
                body += _shorten_unchanged(changed.old[a:b])
            else:
                body += [f"-{line}" for line in changed.old[a:b]] + [f"+{line}" for line in changed.new[c:d]]
    return [*(f" {line}" for line in changed.before), *body, *(f" {line}" for line in changed.after)]


class _Change(NamedTuple):
    """What differs between two texts, and a little of what is the same before and after it."""

    old: list[str]
    new: list[str]
    before: list[str]
    after: list[str]

    @property
    def is_large(self) -> bool:
        return len(self.old) + len(self.new) > LARGE


def _change(old: str | None, new: str) -> _Change:
    a, b = (old or "").splitlines(), new.splitlines()
    most = min(len(a), len(b))
    start = next((i for i in range(most) if a[i] != b[i]), most)
    end = next((i for i in range(most - start) if a[-1 - i] != b[-1 - i]), most - start)
    before, after = a[max(0, start - CONTEXT) : start], a[len(a) - end : len(a) - end + CONTEXT]
    return _Change(a[start : len(a) - end], b[start : len(b) - end], before, after)


def _opcodes(old: Sequence[str], new: Sequence[str]) -> Sequence[tuple[str, int, int, int, int]]:
    if not old or not new:
        return [("replace", 0, len(old), 0, len(new))]
    return SequenceMatcher(None, old, new, autojunk=False).get_opcodes()


def _shorten_unchanged(same: Sequence[str]) -> list[str]:
    if len(same) <= 2 * CONTEXT + 1:
        return [f" {line}" for line in same]
    return [*(f" {line}" for line in same[:CONTEXT]), " …", *(f" {line}" for line in same[-CONTEXT:])]
