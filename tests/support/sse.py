"""Server-sent events read as the standard says, by a parser that shares nothing with the server or with httpx.

A line ends with CR, LF or CRLF and with nothing else: not with U+2028, U+0085 or a form feed.
"""

import re
from dataclasses import dataclass

_LINE_END = re.compile(b"\r\n|\n|\r")


@dataclass(frozen=True)
class Frame:
    """One dispatched event."""

    event: str
    id: str
    data: str


def parse(data: bytes) -> tuple[list[Frame], list[str]]:
    """The events and the comments of a whole stream; what is not ended by a blank line is dropped."""
    frames: list[Frame] = []
    comments: list[str] = []
    event, last_id, pieces = "", "", []
    *lines, _unfinished = _LINE_END.split(data.removeprefix(b"\xef\xbb\xbf"))
    for line in lines:
        text = line.decode()
        if text.startswith(":"):
            comments.append(text[1:].removeprefix(" "))
        elif text:
            name, _, value = text.partition(":")
            value = value.removeprefix(" ")
            match name:
                case "event":
                    event = value
                case "id" if "\0" not in value:
                    last_id = value
                case "data":
                    pieces.append(value)
        else:
            if pieces:
                frames.append(Frame(event or "message", last_id, "\n".join(pieces)))
            event, pieces = "", []
    return frames, comments
