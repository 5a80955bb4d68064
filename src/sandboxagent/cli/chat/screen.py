"""Write rendered blocks to streams, and rewrite text that still changes.

rich renders Markdown.
"""

import os
import re
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from io import StringIO
from typing import TYPE_CHECKING, ClassVar, Protocol, TextIO

from rich.cells import cell_len

from sandboxagent.cli.chat.blocks import Block, Line, Note, Span, StreamedText, cut, spoken
from sandboxagent.cli.output import is_drawn

if TYPE_CHECKING:
    from rich.console import Console
    from rich.markdown import Markdown

_FENCE = re.compile(r" {0,3}(```|~~~)")


def split_blocks(text: str) -> tuple[list[str], str]:
    """Split Markdown into complete blocks, such as paragraphs and code blocks, and the incomplete rest.

    A block ends with an empty line before a line without indentation, because indented lines belong to the block.
    """
    blocks: list[str] = []
    begun: list[str] = []
    fence = ""
    *lines, last = text.split("\n")
    for line in lines:
        if begun and not begun[-1].strip() and not fence and line.strip() and not line.startswith((" ", "\t")):
            blocks.append("\n".join(begun).strip("\n"))
            begun = []
        found = _FENCE.match(line)
        if found is not None and fence in ("", found[1]):
            fence = "" if fence else found[1]
        begun.append(line)
    if begun and not begun[-1].strip() and not fence and last and not last.startswith((" ", "\t")):
        blocks.append("\n".join(begun).strip("\n"))
        begun = []
    return [block for block in blocks if block], "\n".join([*begun, last])


@lru_cache(maxsize=2)
def render(text: str, width: int) -> str:
    """Render Markdown with colours on rows of that many columns. An incomplete block is rendered again and again."""
    from rich.color import ColorSystem

    console = _console()
    options = console.options.update(width=max(width, 20))
    rows: list[str] = []
    for segments in console.render_lines(_parse(text), options, pad=False):
        parts = [segment for segment in segments if not segment.is_control]
        while parts and not parts[-1].text.strip():
            parts.pop()
        styled = [
            each.style.render(each.text, color_system=ColorSystem.STANDARD) if each.style else each.text
            for each in parts
        ]
        rows.append("".join(styled).rstrip())
    return "\n".join(rows).strip("\n")


def _parse(text: str) -> "Markdown":
    from markdown_it import MarkdownIt

    markdown = _markdown_type()(text, hyperlinks=False, code_theme="ansi_dark")
    # No HTML: tags in an agent's text are shown as text.
    parser = MarkdownIt("commonmark", {"html": False}).enable("strikethrough").enable("table")
    markdown.parsed = parser.parse(text)
    for token in markdown.parsed:
        for child in token.children or ():
            if child.type == "softbreak":
                child.type = "hardbreak"  # Agents mean line breaks as such.
    return markdown


@cache
def _console() -> "Console":
    from rich.console import Console
    from rich.theme import Theme

    styles = {"markdown.code": "cyan", "markdown.code_block": "cyan", "markdown.item.bullet": "bold"}
    return Console(file=StringIO(), force_terminal=True, color_system="standard", theme=Theme(styles))


@cache
def _markdown_type() -> "type[Markdown]":
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.markdown import CodeBlock, Heading, Markdown
    from rich.syntax import Syntax

    class LeftHeading(Heading):
        """A heading at the left, without a box."""

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            self.text.justify = "left"
            yield self.text

    class PlainCode(CodeBlock):
        """A code block without a box or a background, so that it can be copied."""

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            code = str(self.text).rstrip()
            theme = self.theme
            yield Syntax(code, self.lexer_name, theme=theme, word_wrap=True, padding=(0, 2), background_color="default")

    class StreamedMarkdown(Markdown):
        elements: ClassVar = {
            **Markdown.elements,
            "heading_open": LeftHeading,
            "fence": PlainCode,
            "code_block": PlainCode,
        }

    return StreamedMarkdown


_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_SPEECH = {"agent": "", "thought": "dim", "person": "bold"}
_CLEAR_LINE, _CLEAR_BELOW = "\r\x1b[K", "\r\x1b[J"
DEFAULT_WIDTH, DEFAULT_HEIGHT = 80, 24
ROOM_BELOW = 8
"""Rows of the terminal that text above the input line leaves to the input."""


def moves(stream: TextIO) -> bool:
    """Whether the stream is a terminal with cursor movements."""
    return stream.isatty() and os.environ.get("TERM") not in (None, "", "dumb", "unknown")


def is_unicode(stream: TextIO) -> bool:
    """Whether the stream's encoding has all characters."""
    return (stream.encoding or "").lower().replace("-", "") in ("utf8", "utf8sig")


def width_of(stream: TextIO) -> int:
    """Return the number of the stream's columns."""
    try:
        told = int(os.environ.get("COLUMNS") or 0) or os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        told = 0
    return told or DEFAULT_WIDTH


def height_of(stream: TextIO) -> int:
    """Return the number of the stream's rows."""
    try:
        return os.get_terminal_size(stream.fileno()).lines or DEFAULT_HEIGHT
    except (OSError, ValueError):
        return DEFAULT_HEIGHT


def paint(text: str, style: str, stream: TextIO) -> str:
    """Return a text in a style, if the stream takes colours and the user has not switched them off."""
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if text and style and is_drawn(stream) else text


class _Output:
    """One stream, with the state of its last text that separates blocks and keeps lines whole."""

    def __init__(self, stream: TextIO, *, spaced: bool) -> None:
        self.stream = stream
        self.moves = moves(stream)
        self._gap = 2 if spaced else 1
        """Number of newlines between two blocks."""
        self._newlines = 2
        """Number of newlines at the end of the text so far. It starts with enough for the first block."""
        self._block: str | None = None
        self._key: str | None = None
        self._rows = 0
        """Number of rows of the last note, if that can be rewritten."""
        self._seen: set[str] = set()

    @property
    def at_start(self) -> bool:
        return self._newlines > 0

    def speech(self, piece: StreamedText) -> str:
        """Return the text to write for a piece of speech."""
        begins = piece.new or self._block != piece.who
        before = self.begin(piece.who) if begins else ""
        # A pipe gets the agent's text unchanged. A terminal gets it without control characters.
        text = piece.text if piece.who == "agent" and not self.stream.isatty() else spoken(piece.text)
        if begins and self.stream.isatty():
            text = text.lstrip("\n")
        return before + paint(self.wrote(text), _SPEECH[piece.who], self.stream)

    def note(self, piece: Note, *, in_place: bool) -> str:
        """Return the text to write for a note. It replaces the last note if that has the same key and is visible."""
        again = in_place and piece.key is not None and piece.key == self._key and self.moves
        again = again and self._rows < height_of(self.stream)  # Rows that have scrolled away cannot be rewritten.
        lines = piece.lines if again else self.lines_of(piece)
        back = f"\x1b[{self._rows}A{_CLEAR_BELOW}" if again else ""
        if not lines:
            return ""
        # No gap: a note after typed input is about that input.
        before = back or ("" if self._block in ("note", "typed") and self.at_start else self.begin("note"))
        self._block, self._newlines = "note", 1
        if piece.key is not None:
            self._seen.add(piece.key)
        self._key, self._rows = piece.key, len(lines)
        # Cut lines that may be rewritten: each must take exactly one row.
        return before + "".join(f"{self.line(line, whole=piece.key is None)}\n" for line in lines)

    def lines_of(self, piece: Note) -> Sequence[Line]:
        """Return the lines to show: the brief ones if a note with the same key was shown before."""
        return piece.brief if piece.brief is not None and piece.key in self._seen else piece.lines

    def line(self, line: Line, *, whole: bool = False) -> str:
        """Return a line in its colours, cut at the width unless `whole`."""
        shown = cut(line, width_of(self.stream) - 1) if self.moves and not whole else line
        return "".join(paint(text, style, self.stream) for text, style in shown)

    @property
    def is_after_words(self) -> bool:
        """Whether there should be a gap before the input line."""
        return self._block not in (None, "note", "typed") and self._newlines < self._gap

    def end_line(self) -> str:
        """Return the text that ends the current line."""
        self._key = None
        if self.at_start:
            return ""
        self._newlines = 1
        return "\n"

    def is_in(self, block: str) -> bool:
        """Whether the last block is of this kind."""
        return self._block == block

    def wrote(self, text: str) -> str:
        """Count the newlines at the end of a text that is written as part of the block, and return the text."""
        ends = len(text) - len(text.rstrip("\n"))
        if text:
            self._newlines = ends if ends < len(text) else self._newlines + ends
        return text

    def typed(self) -> None:
        """Note that a line was typed."""
        self._block, self._newlines, self._key = "typed", 1, None

    def begin(self, block: str) -> str:
        """Start a block, and return the newlines before it."""
        missing = max(0, self._gap - self._newlines)
        self._block, self._key = block, None
        self._newlines += missing
        return "\n" * missing


class InputLine(Protocol):
    """The input line below all other text."""

    def print_above(self, text: str) -> None:
        """Write whole lines above the input line."""
        ...

    def refresh(self) -> None:
        """Redraw, because the live text has changed."""
        ...


class Screen:
    """The output for people: the agent's text on one stream, and all other text on the same or another one."""

    def __init__(self, words: TextIO, notes: TextIO, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._words = _Output(words, spaced=True)
        self._notes = self._words if notes is words else _Output(notes, spaced=notes.isatty())
        self._below: InputLine | None = None
        self._status = ""
        """The text that says what the program waits for."""
        self._block = ""
        """Text of the last speaker that may still change, because more of its block may come."""
        self._speaker: StreamedText | None = None
        """The last piece of that text, with its speaker."""
        self._shown = ""
        """The part of that text on the screen, which is erased before it is written again."""
        self._pending: Note | None = None
        """A note that may still change, while there is an input line."""

    @property
    def stream(self) -> TextIO:
        """The stream on which the user is asked."""
        return self._notes.stream

    @property
    def moves(self) -> bool:
        return self._notes.moves

    @property
    def width(self) -> int:
        return width_of(self.stream)

    @property
    def height(self) -> int:
        return height_of(self.stream)

    def show(self, blocks: Iterable[Block]) -> None:
        """Write blocks. With `quiet`, write only the agent's text."""
        for piece in blocks:
            if isinstance(piece, StreamedText):
                if piece.who == "agent" or not self._quiet:
                    self._speech(piece)
            elif not self._quiet:
                self._note(piece, may_change=True)

    def tell(self, note: Note) -> None:
        """Write a note, even with --quiet."""
        self._note(note, may_change=False)

    def status(self, text: str) -> None:
        """Show what the program waits for. Above an input line it stays, else until the next text is written."""
        if self._quiet or not self.moves or not self._notes.at_start:
            return
        self._status = text
        if self._below is None:
            self._put(self._notes, _CLEAR_LINE + self._notes.line([Span(text, "dim")]))
        else:
            self._below.refresh()

    def clear_status(self) -> None:
        """Remove what the program waits for."""
        status, self._status = self._status, ""
        if status and self._below is None:
            self._put(self._notes, _CLEAR_LINE)
        elif status and self._below is not None:
            self._below.refresh()

    def finish(self) -> None:
        """Complete all text, at the end of the program."""
        self.end_lines()

    def end_lines(self) -> None:
        """Complete the text so far and end its lines, because programs in a pipe wait for the end of a line."""
        self._settle()
        for output in (self._words, self._notes):
            self._put(output, output.end_line())

    # With an input line

    @property
    def live(self) -> str:
        """The text that may still change, for the rows above the input line: as much of its end as fits."""
        parts: list[str] = []
        if self._pending is not None:
            parts += [self._notes.line(line) for line in self._notes.lines_of(self._pending)]
        if self._speaker is not None and self._block.strip():
            gap = [] if self._notes.at_start and not parts else [""]
            parts += [*gap, self._drawn(self._block.strip("\n"), self._speaker, self._notes)]
        if self._status:
            gap = [""] if self.is_after_words else []
            parts += [*gap, paint(self._status, "dim", self.stream)]
        rows = "\n".join(parts).split("\n")
        return "\n".join(rows[-max(1, height_of(self.stream) - ROOM_BELOW) :])

    @property
    def is_after_words(self) -> bool:
        """Whether there should be a gap between the text and the input line."""
        return bool(self._block.strip()) or self._notes.is_after_words

    def put_below(self, below: InputLine) -> None:
        """Put an input line below the text."""
        self.end_lines()
        self._below = below

    def take_away(self) -> None:
        """Remove the input line."""
        self._settle()
        self._below = None

    def type_line(self, mark: str, text: str) -> None:
        """Write a line that was typed into the input line above it."""
        self._settle()
        before = self._notes.begin("typed") if self._notes.is_after_words else self._notes.end_line()
        indented = spoken(text).replace("\n", "\n  ")
        self._put(self._notes, f"{before}{mark}{indented}\n")
        self._notes.typed()

    def typed(self) -> None:
        """Note that a line was typed, which the terminal shows already."""
        self._notes.typed()

    def ask(self, mark: str) -> None:
        """Write a mark, after which the user types, on a terminal without cursor movements."""
        self._settle()
        self._put(self._notes, self._notes.end_line() + mark)

    # Writing

    def _note(self, note: Note, *, may_change: bool) -> None:
        self._uncover()
        if self._below is None:
            self._settle()
            self._put(self._notes, self._notes.note(note, in_place=True))
            return
        if self._pending is not None and note.key == self._pending.key:
            self._pending = None
        self._settle()
        if may_change and note.key is not None:
            self._pending = note
            self._below.refresh()
        else:
            self._put(self._notes, self._notes.note(note, in_place=False))

    def _speech(self, piece: StreamedText) -> None:
        output = self._words if piece.who == "agent" else self._notes
        self._uncover()
        if piece.new or self._speaker is None or self._speaker.who != piece.who:
            self._settle()
        if not output.moves:
            self._put(output, output.speech(piece))
            return
        begins = self._speaker is None
        self._speaker = piece
        text = spoken(piece.text)
        if begins and (piece.new or not output.is_in(piece.who)):
            text = text.lstrip("\n")
            self._put(output, output.begin(piece.who))
        whole, rest = self._parts(self._block + text, piece)
        if whole and not self._fits(output):
            # Rows that have scrolled away cannot be rewritten.
            unseen = (self._block + text)[len(self._shown) : -len(rest) or None]
            self._put(output, output.wrote(unseen))
            self._shown = ""
        elif whole:
            back = self._take_back(output)
            self._put(output, back + "".join(output.wrote(self._drawn(block, piece, output)) for block in whole))
        self._block = rest
        if self._below is not None and output is self._notes:
            self._below.refresh()
        else:
            self._put(output, paint(output.wrote(rest[len(self._shown) :]), _SPEECH[piece.who], output.stream))
            self._shown = rest

    def _parts(self, text: str, piece: StreamedText) -> tuple[list[str], str]:
        """Split a text into parts that are final, with their line ends, and the rest."""
        if piece.who == "agent" and is_drawn(self._words.stream):
            whole, rest = split_blocks(text)
            return [f"{block}\n\n" for block in whole], rest
        if self._below is None:
            return [], text
        whole, newline, rest = text.rpartition("\n")
        return ([whole + newline] if newline else []), rest

    def _drawn(self, block: str, piece: StreamedText, output: _Output) -> str:
        if piece.who == "agent" and is_drawn(output.stream):
            ends = len(block) - len(block.rstrip("\n"))
            return render(block, width_of(output.stream) - 1) + "\n" * ends
        return paint(block, _SPEECH[piece.who], output.stream)

    def _take_back(self, output: _Output) -> str:
        """Return the text that erases the incomplete block from the screen, for the same write that draws it again."""
        if not self._shown:
            return ""
        width = width_of(output.stream)
        rows = sum(max(1, -(-cell_len(line) // width)) for line in self._shown.split("\n")) - 1
        self._shown = ""
        return (f"\x1b[{rows}A" if rows else "") + _CLEAR_BELOW

    def _settle(self) -> None:
        """Write the text that could still have changed in its final form."""
        self._uncover()
        pending, self._pending = self._pending, None
        if pending is not None:
            self._put(self._notes, self._notes.note(pending, in_place=False))
        piece, block = self._speaker, self._block
        self._speaker, self._block = None, ""
        if piece is None:
            return
        output = self._words if piece.who == "agent" else self._notes
        if self._shown and not (piece.who == "agent" and is_drawn(output.stream) and self._fits(output)):
            self._shown = ""
            return
        text = self._take_back(output)
        if block.strip():
            below = self._below is not None and output is self._notes
            text += output.wrote(self._drawn(block.strip("\n") if below else block.rstrip("\n"), piece, output))
            text += output.end_line() if below else ""
        self._put(output, text)

    def _fits(self, output: _Output) -> bool:
        """Whether the whole incomplete block is still on the screen."""
        return self._shown.count("\n") + len(self._shown) // width_of(output.stream) < height_of(output.stream) - 1

    def _uncover(self) -> None:
        """Remove what the program waits for from the row where text is written next."""
        if self._below is None:
            self.clear_status()

    def _put(self, output: _Output, text: str) -> None:
        if not text:
            return
        if self._below is not None and output is self._notes:
            self._below.print_above(text)
        else:
            output.stream.write(text)
            output.stream.flush()
