"""Render speech, notes, diffs and tool calls as text of a given width that is safe for a terminal.

A tool call has its status, and its work: a command, changes of files, output. Pure.
"""

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from rich.cells import cell_len

from sandboxagent.cli.output import harmless, one_line
from sandboxagent.cli.output import visible as escaped
from sandboxagent.client.updates import ContentBlock
from sandboxagent.core.texts import DiffBudget, find_changes, unfenced
from sandboxagent.protocol.acp import (
    AudioContentBlock,
    ContentToolCallContent,
    EmbeddedResourceContentBlock,
    FileEditToolCallContent,
    ImageContentBlock,
    ResourceContentBlock,
    TextContentBlock,
    ToolCallProgress,
    ToolCallStart,
    ToolCallUpdate,
)
from sandboxagent.protocol.envelope import list_at, object_at, text_at

ELLIPSIS = "…"
_JOINERS = "\u200c\u200d"


class Span(NamedTuple):
    """A text in one style, which is a name of a style in `output.py`."""

    text: str
    style: str = ""


Line: TypeAlias = Sequence[Span]


@dataclass(frozen=True, slots=True)
class StreamedText:
    """A piece of text as it streams in: of the agent, of its thoughts, or of a person."""

    who: Literal["agent", "thought", "person"]
    text: str
    new: bool = False
    """Whether this piece begins another message."""


@dataclass(frozen=True, slots=True)
class Note:
    """Whole lines that are not part of a message.

    A note with a `key` replaces the note with the same key while that is the last text on the screen. After other text,
    `brief` is written instead of `lines`.
    """

    lines: Sequence[Line]
    key: str | None = None
    brief: Sequence[Line] | None = None


Block: TypeAlias = StreamedText | Note


def note(text: str, style: str = "", mark: Span | None = None) -> Note:
    """Make a note of a text, with one style and a mark before its first line."""
    first, *more = text.splitlines() or [""]
    before = [] if mark is None else [mark, Span(" ")]
    return Note([[*before, Span(first, style)], *([Span(line, style)] for line in more)])


def plain(line: Line) -> str:
    """Return the text of a line without its styles."""
    return "".join(span.text for span in line)


def cut(line: Line, width: int) -> Line:
    """Cut a line to that many columns, with an ellipsis in place of the rest."""
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
    """Wrap a line to that many columns. Further rows are indented two columns more than the first."""
    text = plain(line)
    indent = " " * min(len(text) - len(text.lstrip(" ")) + 2, width // 2)
    rows: list[list[Span]] = [[]]
    room = width
    for whole, style in line:
        at = 0
        while at < len(whole):
            part = _beginning(whole, room, at)
            if part:
                rows[-1].append(Span(part, style))
            room -= cell_len(part)
            at += len(part)
            if at < len(whole):
                rows.append([Span(indent)])
                room = max(2, width - len(indent))
    return [*rows]


def _beginning(text: str, width: int, start: int = 0) -> str:
    """Return the part of a text from `start` that fits into the columns. It never looks at the text after that part."""
    for index in range(start, len(text)):
        width -= cell_len(text[index])
        if width < 0:
            return text[start:index]
    return text[start:]


def spoken(text: str) -> str:
    """Return streamed text that is safe for a terminal, with line ends as plain newlines."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text
    if lines.isprintable():
        return lines
    # Keep joiners: some scripts and most emoji need them, and terminals do not act on them.
    return "".join(letter if letter in _JOINERS else harmless(letter) for letter in lines)


def visible(text: str) -> str:
    """Return a text as plain lines, with escapes for unprintable characters, where nothing must stay hidden."""
    return escaped(text.replace("\r\n", "\n").expandtabs(4))


def join_facts(facts: Iterable[str], by: str = " · ") -> str:
    """Join the texts that are not empty."""
    return by.join(fact for fact in facts if fact)


CONTEXT = 2
"""Number of unchanged lines around a change in a diff."""


def count_changes(old: str | None, new: str) -> tuple[int, int]:
    """Return the numbers of added and removed lines."""
    before, after = (old or "").splitlines(), new.splitlines()
    spans, exact = find_changes(before, after, DiffBudget())
    if not exact:
        ours, theirs = Counter(before), Counter(after)
        return (theirs - ours).total(), (ours - theirs).total()
    return sum(each.new_end - each.new for each in spans), sum(each.old_end - each.old for each in spans)


def diff_lines(old: str | None, new: str) -> list[str]:
    """Return a diff by lines, each with `+`, `-` or a space in front, without lines far from any change."""
    before, after = (old or "").splitlines(), new.splitlines()
    spans, exact = find_changes(before, after, DiffBudget())
    lines = [] if exact else [" … too much has changed to compare it line by line"]
    at = 0
    for number, span in enumerate(spans):
        same = before[at : span.old]
        lines += _shorten_unchanged(same) if number else [f" {line}" for line in same[-CONTEXT:]]
        lines += [f"-{line}" for line in before[span.old : span.old_end]]
        lines += [f"+{line}" for line in after[span.new : span.new_end]]
        at = span.old_end
    return [*lines, *(f" {line}" for line in before[at : at + CONTEXT])] if spans else lines


def _shorten_unchanged(same: Sequence[str]) -> list[str]:
    if len(same) <= 2 * CONTEXT + 1:
        return [f" {line}" for line in same]
    return [*(f" {line}" for line in same[:CONTEXT]), " …", *(f" {line}" for line in same[-CONTEXT:])]


MAX_COMMAND, MAX_CHANGES = 6, 20
"""Lines of a command and of a change that are shown before the user asks for all."""
MAX_OUTPUT, ENOUGH = (2, 6), {"read": (3, 0), "fetch": (3, 0), "search": (6, 0)}
"""Lines at the start and at the end of an output that are shown; fewer for kinds of tools that only read."""
MAX_LINE = 500
"""Characters of a line that are shown."""
DIFF_STYLES = {"+": "green", "-": "red", " ": "dim"}
_COLOURS = re.compile(r"\x1b\[[0-9;:]*[mK]")
_OUTPUTS = ("formatted_output", "aggregated_output", "output", "stdout", "stderr", "text", "error", "message")

Path = Callable[[str], str]
"""A function that shortens a path for people."""


@dataclass(slots=True)
class ShownCall:
    """The state of a tool call by its updates so far."""

    title: str = ""
    kind: str | None = None
    status: str = "pending"
    edits: list[FileEditToolCallContent] = field(default_factory=list[FileEditToolCallContent])
    texts: list[str] = field(default_factory=list[str])
    raw_input: object = None
    raw_output: object = None

    @property
    def is_over(self) -> bool:
        return self.status in ("completed", "failed")

    @property
    def output(self) -> str:
        """The tool's output: the text for people, else the raw output."""
        return "\n".join(self.texts) or _find_output(self.raw_output)

    def update(self, change: ToolCallStart | ToolCallProgress | ToolCallUpdate) -> None:
        """Apply an update."""
        self.title = change.title or self.title
        self.kind = change.kind or self.kind
        self.status = change.status or self.status
        self.raw_input = self.raw_input if change.raw_input is None else change.raw_input
        self.raw_output = self.raw_output if change.raw_output is None else change.raw_output
        if change.content is not None:
            self.edits = [each for each in change.content if isinstance(each, FileEditToolCallContent)]
            self.texts = [content(each.content) for each in change.content if isinstance(each, ContentToolCallContent)]


@dataclass(frozen=True, slots=True)
class WorkDone:
    """The lines about a call's work: all of them, and those shown before the user asks for all."""

    all: Sequence[Line]
    few: Sequence[Line]

    @property
    def is_folded(self) -> bool:
        return self.all != self.few


def work_of(call: ShownCall, path: Path, hint: str, *, seen: bool = False) -> WorkDone:
    """Return the lines about a call's work. `hint` says how to see the folded ones.

    `seen`: a permission request has already shown the command and the changes.
    """
    command = [] if seen or _is_title(call) else command_lines(call.raw_input)
    changes = [] if seen else change_lines(call.edits, path, named=len(call.edits) > 1)
    # The diff says more than the agent's text about it.
    output = [] if call.edits and call.status != "failed" else output_lines(call.output)
    parts = [
        (command, (MAX_COMMAND, 0)),
        (changes, (MAX_CHANGES, 0)),
        (output, ENOUGH.get(call.kind or "", MAX_OUTPUT)),
    ]
    few = [line for lines, (head, tail) in parts for line in fold(lines, head, tail, hint)]
    return WorkDone([line for lines, _ in parts for line in lines], few)


def fold(lines: Sequence[Line], head: int, tail: int, hint: str) -> list[Line]:
    """Return the start and the end of long lists of lines, with the number of hidden lines between, and the hint."""
    more = len(lines) - head - tail
    if more <= 1:  # The line about hidden lines would take as much space.
        return [_short(line) for line in lines]
    between: Line = [Span(f"  {ELLIPSIS} {more} more lines{f' · {hint}' if hint else ''}", "dim")]
    end = lines[len(lines) - tail :]
    return [*map(_short, lines[:head]), between, *map(_short, end)]


def _short(line: Line) -> Line:
    return (
        line
        if all(len(text) <= MAX_LINE for text, _ in line)
        else [Span(text if len(text) <= MAX_LINE else text[:MAX_LINE] + ELLIPSIS, style) for text, style in line]
    )


def command_lines(raw: object) -> list[Line]:
    """Return the command of a tool call's raw input with everything in it visible; no lines if it has none."""
    told = object_at(raw)
    for name in ("command", "cmd"):
        words = list_at(told, name)
        text = shlex.join(str(word) for word in words) if words else text_at(told, name)
        if text:
            lines = visible(text).split("\n")
            return [[Span(f"{'    ' if index else '  $ '}{line}")] for index, line in enumerate(lines)]
    return []


def change_lines(edits: Sequence[FileEditToolCallContent], path: Path, *, named: bool = True) -> list[Line]:
    """Return the diffs of files. With `named`, each has the name of its file above it."""
    lines: list[Line] = []
    for edit in edits:
        if named:
            new = " (new file)" if edit.old_text is None else ""
            lines.append([Span(f"  {path(edit.path)}{new}", "bold")])
        lines += [
            [Span(f"  {visible(line)}", DIFF_STYLES[line[:1]])] for line in diff_lines(edit.old_text, edit.new_text)
        ]
    return lines


def output_lines(text: str) -> list[Line]:
    """Return a program's output as a terminal would show it at the end, without colours and cursor movements."""
    text = _COLOURS.sub("", unfenced(text)).replace("\r\n", "\n")
    rows = [row.rstrip("\r").rpartition("\r")[2].expandtabs(4) for row in text.strip("\n").split("\n")]
    return [[Span(f"  {spoken(row).rstrip()}", "dim")] for row in rows] if text.strip() else []


def content(block: ContentBlock) -> str:
    """Return a block of content as text."""
    match block:
        case TextContentBlock():
            return block.text
        case ResourceContentBlock():
            return one_line(f"[{block.title or block.name}]({block.uri})")
        case EmbeddedResourceContentBlock():
            uri = block.resource.uri
            return one_line(f"[{uri.rstrip('/').rpartition('/')[2] or uri}]({uri})")
        case ImageContentBlock() | AudioContentBlock():
            kind = "image" if isinstance(block, ImageContentBlock) else "audio"
            return one_line(f"[{kind}: {block.mime_type}, {len(block.data) * 3 // 4:,} bytes]")


def _find_output(raw: object) -> str:
    """Find the output in an agent's raw output, whose members differ from agent to agent."""
    if isinstance(raw, str):
        return raw
    told = object_at(raw)
    return next((text for name in _OUTPUTS if (text := text_at(told, name))), "")


def _is_title(call: ShownCall) -> bool:
    """Whether the title of a call is its command."""
    command = text_at(object_at(call.raw_input), "command") or text_at(object_at(call.raw_input), "cmd")
    return command is not None and command.strip() == call.title.strip().strip("`")
