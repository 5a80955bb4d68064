"""Where pieces become text: the agent's words on one stream, notes on the same or on another.

On a terminal it can take the last note back to write it anew, and keeps what is being typed below everything else.
Knows nothing of keys.
"""

import os
from collections.abc import Iterable
from typing import TextIO

from sandbox_agent.cli.output import is_drawn
from sandbox_agent.cli.talk.editor import Layout
from sandbox_agent.cli.talk.pieces import Line, Note, Piece, Span, Speech, cut, spoken

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_SPEECH = {"agent": "", "thought": "dim", "person": "bold"}
_CLEAR_LINE, _CLEAR_BELOW, _CLEAR_ALL = "\r\x1b[K", "\r\x1b[J", "\x1b[2J\x1b[H"
DEFAULT_WIDTH = 80


def moves(stream: TextIO) -> bool:
    """Whether it is a terminal on which the cursor can be moved."""
    return stream.isatty() and os.environ.get("TERM") not in (None, "", "dumb", "unknown")


def is_unicode(stream: TextIO) -> bool:
    """Whether it takes all letters."""
    return (stream.encoding or "").lower().replace("-", "") in ("utf8", "utf8sig")


def width_of(stream: TextIO) -> int:
    """Its columns."""
    try:
        told = int(os.environ.get("COLUMNS") or 0) or os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        told = 0
    return told or DEFAULT_WIDTH


def painted(text: str, style: str, stream: TextIO) -> str:
    """A text in a colour, when somebody looks at the stream who likes that."""
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if text and style and is_drawn(stream) else text


class _Output:
    """One stream: what was written last, so that blocks are apart and lines whole."""

    def __init__(self, stream: TextIO, *, spaced: bool) -> None:
        self.stream = stream
        self.moves = moves(stream)
        self._gap = 2 if spaced else 1
        """How many newlines are between two blocks."""
        self._newlines = 2
        """How many there are at the end of what was written; before anything, none is needed."""
        self._block: str | None = None
        self._key: str | None = None
        self._rows = 0
        """Of the last note, if it can be written anew."""
        self._seen: set[str] = set()

    @property
    def at_start(self) -> bool:
        return self._newlines > 0

    def speech(self, piece: Speech) -> str:
        """What to write for it."""
        begins = piece.new or self._block != piece.who
        before = self._begin(piece.who) if begins else ""
        # What an agent says goes through a pipe as it is; where somebody looks, it must do no harm.
        text = piece.text if piece.who == "agent" and not self.stream.isatty() else spoken(piece.text)
        if begins and self.stream.isatty():
            text = text.lstrip("\n")
        if not text:
            return before
        ends = len(text) - len(text.rstrip("\n"))
        self._newlines = ends if ends < len(text) else self._newlines + ends
        return before + painted(text, _SPEECH[piece.who], self.stream)

    def note(self, piece: Note) -> str:
        """What to write for it: in place of the last one, if it has the same key and that can be done."""
        again = piece.key is not None and piece.key == self._key and self.moves
        lines = piece.lines
        if piece.brief is not None and piece.key in self._seen and not again:
            lines = piece.brief
        back = f"\x1b[{self._rows}A{_CLEAR_BELOW}" if again else ""
        if not lines:
            return ""
        # What is told after something was typed is about that.
        before = back or ("" if self._block in ("note", "typed") and self.at_start else self._begin("note"))
        self._block, self._newlines = "note", 1
        if piece.key is not None:
            self._seen.add(piece.key)
        self._key, self._rows = piece.key, len(lines)
        # What can be taken back has to be as many rows as it has lines.
        return before + "".join(f"{self.line(line, whole=piece.key is None)}\n" for line in lines)

    def line(self, line: Line, *, whole: bool = False) -> str:
        """A line in its colours; as much of it as there is room for, unless it is to be whole."""
        shown = cut(line, width_of(self.stream) - 1) if self.moves and not whole else line
        return "".join(painted(text, style, self.stream) for text, style in shown)

    @property
    def is_after_words(self) -> bool:
        """Whether what is typed now should be a row apart."""
        return self._block not in (None, "note", "typed") and self._newlines < self._gap

    def end_line(self) -> str:
        """What brings it to the beginning of a line."""
        self._key = None
        if self.at_start:
            return ""
        self._newlines = 1
        return "\n"

    def typed(self) -> None:
        """Somebody has typed a line."""
        self._block, self._newlines, self._key = "typed", 1, None

    def _begin(self, block: str) -> str:
        missing = max(0, self._gap - self._newlines)
        self._block, self._key = block, None
        self._newlines += missing
        return "\n" * missing


class Screen:
    """What people see."""

    def __init__(self, words: TextIO, notes: TextIO, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._words = _Output(words, spaced=True)
        self._notes = self._words if notes is words else _Output(notes, spaced=notes.isatty())
        self._input: Layout | None = None
        self._drawn: Layout | None = None
        """What is being typed, as it stands below everything else now."""
        self._status = False
        self._held: list[Speech] = []
        """The beginning of a line that is written when it is whole: something is being typed below."""

    @property
    def stream(self) -> TextIO:
        """Where people are asked."""
        return self._notes.stream

    @property
    def moves(self) -> bool:
        return self._notes.moves

    @property
    def width(self) -> int:
        return width_of(self.stream)

    def show(self, pieces: Iterable[Piece]) -> None:
        """Write pieces; when it is quiet, the agent's words alone."""
        for piece in pieces:
            if isinstance(piece, Speech):
                if piece.who == "agent" or not self._quiet:
                    self._speech(piece)
            elif not self._quiet:
                self.tell(piece)

    def tell(self, note: Note) -> None:
        """Write a note, also when it is quiet."""
        with _Above(self):
            self._release()
            self._write(self._notes, self._notes.note(note))

    def status(self, text: str) -> None:
        """Say what is being waited for; it goes with the next thing that is written."""
        if self._quiet or not self.moves or self._drawn is not None or not self._notes.at_start:
            return
        self._write(self._notes, _CLEAR_LINE + self._notes.line([Span(text, "dim")]))
        self._status = True

    def finish(self) -> None:
        """Bring everything to an end."""
        self.input(None)
        self.end_lines()

    def end_lines(self) -> None:
        """Let what was said so far be whole lines: who reads line by line waits for the end of one."""
        with _Above(self):
            self._release()
            for output in (self._words, self._notes):
                self._write(output, output.end_line())

    # What is being typed

    def input(self, layout: Layout | None) -> None:
        """Show what is being typed, or nothing."""
        self._input = layout
        self.erase()
        if layout is None:
            self._release()
        self.draw()

    def typed(self) -> None:
        """The line is complete: it stays where it is, and becomes a part of what was."""
        drawn, self._input, self._drawn = self._drawn, None, None
        if drawn is not None and self.moves:
            below = len(drawn.rows) - 1 - drawn.row
            self._write(self._notes, (f"\x1b[{below}B" if below else "") + "\n")
        self._notes.typed()
        self._release()

    def clear(self) -> None:
        """Begin at the top of an empty screen."""
        self._drawn = None
        self._write(self._notes, _CLEAR_ALL)
        self.draw()

    def redraw(self) -> None:
        """Show what is being typed on a line of its own: somebody else has written since."""
        self._drawn, self._status = None, False
        self._write(self._notes, _CLEAR_LINE)
        self.draw()

    def erase(self) -> None:
        """Take away what is below: what is being typed, or what is being waited for."""
        if self._status:
            self._status = False
            self._write(self._notes, _CLEAR_LINE)
        drawn, self._drawn = self._drawn, None
        if drawn is None:
            return
        if self.moves:
            self._write(self._notes, (f"\x1b[{drawn.row}A" if drawn.row else "") + _CLEAR_BELOW)
        else:
            self._write(self._notes, "\n")

    def draw(self) -> None:
        """Show it again."""
        layout = self._input
        if layout is None or self._drawn is not None:
            return
        before = self._notes.end_line()
        if not self.moves:
            text = before + layout.rows[0]
        else:
            if self._notes.is_after_words:
                # Not a part of what was: it goes when this goes.
                layout = Layout(["", *layout.rows], layout.row + 1, layout.column)
            up = len(layout.rows) - 1 - layout.row
            back = (f"\x1b[{up}A" if up else "") + (f"\r\x1b[{layout.column}C" if layout.column else "\r")
            text = before + "\n".join(layout.rows) + back
        self._drawn = layout
        self._write(self._notes, text)

    # Writing

    def _speech(self, piece: Speech) -> None:
        output = self._words if piece.who == "agent" else self._notes
        if self._input is None or output is not self._notes:
            with _Above(self):
                self._release()
                self._write(output, output.speech(piece))
            return
        if self._held and (piece.new or self._held[-1].who != piece.who):
            with _Above(self):
                self._release()
        whole, newline, rest = piece.text.rpartition("\n")
        if newline:
            with _Above(self):
                self._release()
                self._write(output, output.speech(Speech(piece.who, whole + newline, piece.new)))
        if rest:
            self._held.append(Speech(piece.who, rest, piece.new and not newline))

    def _release(self) -> None:
        held, self._held = self._held, []
        for piece in held:
            self._write(self._notes, self._notes.speech(piece))

    def _write(self, output: _Output, text: str) -> None:
        if text:
            output.stream.write(text)
            output.stream.flush()


class _Above:
    """Writes above what is being typed: takes it away, and puts it back."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def __enter__(self) -> None:
        self._screen.erase()

    def __exit__(self, *_: object) -> None:
        self._screen.draw()
