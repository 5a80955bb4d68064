"""A line that is being typed: its text, the cursor, what was typed before; and how it is laid out. Pure."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from rich.cells import cell_len

from sandbox_agent.cli.talk.keys import Key, Typed

TAB = "    "


class Editor:
    """A text and a cursor in it."""

    def __init__(self, history: Sequence[str] = ()) -> None:
        self.text = ""
        self.cursor = 0
        self._history = history
        self._at = len(history)
        """Which of the history is shown; the one after the last is what was being typed."""
        self._draft = ""
        self._killed = ""

    def press(self, key: Key) -> str | None:
        """Do what a key means; gives `enter` or `end-of-input` when that ends the line."""
        match key:
            case Typed():
                self._insert(key.text)
            case "newline":
                self._insert("\n")
            case "enter":
                return "enter"
            case "end-of-input":
                if not self.text:
                    return "end-of-input"
                self._delete(self.cursor, self._right())
            case "up" | "down":
                self._browse(-1 if key == "up" else 1)
            case _:
                self._edit(key)
        return None

    def clear(self) -> None:
        """Begin anew."""
        self.text, self.cursor, self._at = "", 0, len(self._history)

    def _edit(self, key: str) -> None:
        match key:
            case "left" | "right" | "home" | "end" | "word-left" | "word-right":
                self.cursor = self._target(key)
            case "backspace":
                self._delete(self._left(), self.cursor)
            case "delete":
                self._delete(self.cursor, self._right())
            case "kill-end":
                self._kill(self.cursor, len(self.text))
            case "kill-start":
                self._kill(0, self.cursor)
            case "kill-word":
                self._kill(self._target("word-left"), self.cursor)
            case "yank":
                self._insert(self._killed)
            case _:
                pass

    def _insert(self, text: str) -> None:
        text = text.replace("\t", TAB)
        self.text = self.text[: self.cursor] + text + self.text[self.cursor :]
        self.cursor += len(text)

    def _delete(self, start: int, end: int) -> None:
        self.text = self.text[:start] + self.text[end:]
        self.cursor = start

    def _kill(self, start: int, end: int) -> None:
        self._killed = self.text[start:end] or self._killed
        self._delete(start, end)

    def _target(self, key: str) -> int:
        match key:
            case "left":
                return self._left()
            case "right":
                return self._right()
            case "home":
                return 0
            case "word-left":
                return max((each.start() for each in re.finditer(r"\w+", self.text[: self.cursor])), default=0)
            case "word-right":
                following = re.compile(r"\w+").search(self.text, self.cursor)
                return len(self.text) if following is None else following.end()
            case _:
                return len(self.text)

    def _left(self) -> int:
        """Where the letter before the cursor begins, with all that is put above and below it."""
        at = max(0, self.cursor - 1)
        while at and not _has_width(self.text[at]):
            at -= 1
        return at

    def _right(self) -> int:
        at = min(len(self.text), self.cursor + 1)
        while at < len(self.text) and not _has_width(self.text[at]):
            at += 1
        return at

    def _browse(self, step: int) -> None:
        at = self._at + step
        if not 0 <= at <= len(self._history):
            return
        if self._at == len(self._history):
            self._draft = self.text
        self._at = at
        self.text = self._draft if at == len(self._history) else self._history[at]
        self.cursor = len(self.text)


class Layout(NamedTuple):
    """Rows of a terminal, and where the cursor stands in them."""

    rows: list[str]
    row: int
    column: int


def layout(mark: str, text: str, cursor: int, width: int) -> Layout:
    """A text after a mark, in rows of less than `width` columns; rows after the first are indented like the mark."""
    indent = " " * cell_len(mark)
    # The last column stays free: where the cursor is after a letter in it, terminals do not agree.
    room = max(2, width - 1 - len(indent))
    rows, used = [mark], 0
    place = 0, len(indent)
    for index, letter in enumerate([*text, ""]):
        if letter != "\n" and used + cell_len(letter) > room:
            rows.append(indent)
            used = 0
        if index == cursor:
            place = len(rows) - 1, len(indent) + used
        if letter == "\n":
            rows.append(indent)
            used = 0
        else:
            rows[-1] += letter
            used += cell_len(letter)
    return Layout(rows, *place)


def _has_width(letter: str) -> bool:
    return letter == "\n" or cell_len(letter) > 0
