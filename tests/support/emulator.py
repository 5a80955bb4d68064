"""A terminal, as far as programs here use one: bytes in, lines of a screen out. Knows no colours."""

import re

from rich.cells import cell_len

_SEQUENCE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])")


class Emulator:
    """A screen of so many columns; what has scrolled away stays on top of it."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.rows: list[list[str]] = [[]]
        self.row = self.column = 0
        self._text = ""
        self._top = 0

    def feed(self, text: str) -> None:
        """What a program writes; the beginning of a sequence waits for its end."""
        self._text += text
        while self._text:
            if self._text[0] != "\x1b":
                self._put(self._text[0])
                self._text = self._text[1:]
                continue
            found = _SEQUENCE.match(self._text)
            if found is None:
                assert len(self._text) < 12, f"no sequence that programs here should send: {self._text[:12]!r}"
                return
            self._act(found[1], found[2])
            self._text = self._text[found.end() :]

    @property
    def lines(self) -> list[str]:
        """All lines, without blanks at their ends and empty ones at the end."""
        lines = ["".join(row).rstrip() for row in self.rows]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def _put(self, letter: str) -> None:
        match letter:
            case "\r":
                self.column = 0
            case "\n":
                self.row += 1
            case "\x08":
                self.column = max(0, self.column - 1)
            case "\x07":
                pass
            case _:
                width = cell_len(letter)
                if not width:
                    row = self._row()
                    if self.column and len(row) >= self.column:
                        row[self.column - 1] += letter
                    return
                if self.column + width > self.columns:
                    self.row, self.column = self.row + 1, 0
                row = self._row()
                row += [" "] * (self.column + width - len(row))
                row[self.column : self.column + width] = [letter, *[""] * (width - 1)]
                self.column += width
        self._row()

    def _row(self) -> list[str]:
        while len(self.rows) <= self.row:
            self.rows.append([])
        return self.rows[self.row]

    def _act(self, arguments: str, kind: str) -> None:
        number = int(arguments) if arguments.isdecimal() else 1
        match kind:
            case "A":
                self.row = max(self._top, self.row - number)
            case "B":
                self.row += number
            case "C":
                self.column = min(self.columns - 1, self.column + number)
            case "D":
                self.column = max(0, self.column - number)
            case "K":
                del self._row()[self.column :]
            case "J":
                if arguments == "2":
                    self._top = self.row = len(self.rows)
                else:
                    del self._row()[self.column :]
                    del self.rows[self.row + 1 :]
            case "H":
                self.row, self.column = self._top, 0
            case "m" | "h" | "l":
                pass
            case _:
                raise AssertionError(f"no sequence that programs here should send: {arguments}{kind}")
        self._row()
