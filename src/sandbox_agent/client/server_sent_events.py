"""Server-sent events, out of bytes that come in pieces of any size."""

from collections.abc import Iterator
from typing import NamedTuple


class ServerSentEvent(NamedTuple):
    """One event. `id` is that of the last event that had one."""

    event: str
    id: str
    data: str


class EventDecoder:
    """Reads one stream. What has no data is no event: comments, or an id alone."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        """The beginning of a line that has not ended."""
        self._event = self._id = ""
        self._data: list[str] = []

    def feed(self, piece: bytes) -> Iterator[ServerSentEvent]:
        """The events that end in this piece."""
        for line in self._lines(piece):
            if line:
                self._read(line)
                continue
            event, data = self._event or "message", "\n".join(self._data)
            self._event, self._data = "", []
            if data:
                yield ServerSentEvent(event, self._id, data)

    def _lines(self, piece: bytes) -> list[bytes]:
        after_return = bool(self._pieces) and self._pieces[-1].endswith(b"\r")
        self._pieces.append(piece)
        if b"\n" not in piece and b"\r" not in piece and not after_return:
            return []
        text = b"".join(self._pieces)
        # A return at the end may be half of a line's end.
        held = b"\r" if text.endswith(b"\r") else b""
        if b"\r" in text:
            text = text.removesuffix(b"\r").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = text.split(b"\n")
        self._pieces = [rest + held] if rest or held else []
        return lines

    def _read(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        text = value.removeprefix(b" ").decode(errors="replace")
        match name:
            case b"data":
                self._data.append(text)
            case b"id" if "\0" not in text:
                self._id = text
            case b"event":
                self._event = text
            case _:
                pass
