"""What a terminal sends when keys are pressed, as keys. Pure: bytes in, keys out, however they are cut.

A key is a name, such as `left`; what is typed or pasted is a text.
"""

import codecs
import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Typed:
    """Letters that were typed, or a text that was pasted."""

    text: str
    pasted: bool = False


Key = str | Typed
"""A name of one of those below, or letters."""

PASTE_BEGINS, PASTE_ENDS = "\x1b[200~", "\x1b[201~"
LONGEST_PASTE = 1 << 20
"""Characters; what is pasted beyond is dropped."""
_CONTROLS = {
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x01": "home",
    "\x05": "end",
    "\x02": "left",
    "\x06": "right",
    "\x10": "up",
    "\x0e": "down",
    "\x0b": "kill-end",
    "\x15": "kill-start",
    "\x17": "kill-word",
    "\x19": "yank",
    "\x04": "end-of-input",
    "\x0c": "clear",
}
_ESCAPES = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[C": "right",
    "\x1b[D": "left",
    "\x1b[H": "home",
    "\x1b[F": "end",
    "\x1b[1~": "home",
    "\x1b[4~": "end",
    "\x1b[7~": "home",
    "\x1b[8~": "end",
    "\x1b[3~": "delete",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1bOC": "right",
    "\x1bOD": "left",
    "\x1bOH": "home",
    "\x1bOF": "end",
    "\x1b[1;5C": "word-right",
    "\x1b[1;5D": "word-left",
    "\x1b[1;3C": "word-right",
    "\x1b[1;3D": "word-left",
    "\x1bf": "word-right",
    "\x1bb": "word-left",
    "\x1b\x7f": "kill-word",
    "\x1b\r": "newline",
    "\x1b\n": "newline",
}
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.|[^\[O])", re.DOTALL)
_PRINTABLE = re.compile(r"[^\x00-\x1f\x7f]+")


class Keys:
    """Takes bytes as they come."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        """The beginning of something that has not come to its end."""
        self._pasting = False
        self._pasted = 0

    def feed(self, data: bytes) -> list[Key]:
        """The keys that are complete now."""
        text = self._rest + self._decoder.decode(data)
        self._rest = ""
        keys: list[Key] = []
        while text:
            key, used = self._paste(text) if self._pasting else self._key(text)
            if not used:
                self._rest = text
                break
            if key is not None:
                keys.append(key)
            text = text[used:]
        return keys

    def _key(self, text: str) -> tuple[Key | None, int]:
        """The first key and how many characters it has; none of them when it is not complete."""
        if text[0] != "\x1b":
            letters = _PRINTABLE.match(text)
            if letters is not None:
                return Typed(letters[0]), letters.end()
            return _CONTROLS.get(text[0]), 1
        sequence = _SEQUENCE.match(text)
        if sequence is None:
            # Escape itself, or what is no sequence of any kind.
            return (None, 0) if re.fullmatch(r"\x1b(\[[0-?]*[ -/]*|O)?", text) else (None, 1)
        self._pasting = sequence[0] == PASTE_BEGINS
        self._pasted = 0
        return _ESCAPES.get(sequence[0]), sequence.end()

    def _paste(self, text: str) -> tuple[Key | None, int]:
        end = text.find(PASTE_ENDS)
        if end < 0:
            # Perhaps the end has come in part.
            kept = next((i for i in range(len(PASTE_ENDS) - 1, 0, -1) if text.endswith(PASTE_ENDS[:i])), 0)
            return self._typed(text[: len(text) - kept]), len(text) - kept
        self._pasting = False
        return self._typed(text[:end]), end + len(PASTE_ENDS)

    def _typed(self, text: str) -> Typed | None:
        room = LONGEST_PASTE - self._pasted
        self._pasted += len(text)
        text = text[: max(0, room)].replace("\r\n", "\n").replace("\r", "\n")
        clean = "".join(letter for letter in text if letter.isprintable() or letter in "\n\t\u200c\u200d")
        return Typed(clean, pasted=True) if clean else None
