"""Limit how deep JSON of others may nest and how many values it may have, measured in its text.

Parsers recurse, here and in every client: a value that one of them reads is too deep for the next, and would make a
list that contains it unreadable for good. And a value of two bytes takes fifty as an object of Python's. So the text is
measured before it is parsed, in one pass, piece by piece: no step takes long, whatever the text is.
"""

from collections.abc import Callable
from typing import TypeVar, cast

import msgspec
from msgspec import Raw

MAX_DEPTH = 128
"""Arrays and objects inside one another."""
MAX_VALUES = 250_000
"""Arrays, objects and commas in one text: what nests, and what stands beside something else."""
MAX_DEPTH_OF_ANSWERS = MAX_DEPTH + 16
"""What a server shows of a text stands inside lists and objects of its own."""
MIN_DEEP = 2 * MAX_DEPTH
"""Bytes up to which no text is too deep, nor has too many values."""
_MAX_COUNTED = MAX_DEPTH + 1
"""Brackets of a kind that are counted: more make no difference."""
_PIECE = 64 << 10
_OPEN, _CLOSE = b"[{", b"]}"
_BITS = bytes.maketrans(_OPEN + _CLOSE, b"1100")
_NO_BRACKET = bytes(set(range(256)) - set(_OPEN + _CLOSE))
_BACKSLASH = ord("\\")

T = TypeVar("T")


def _walk(bits: str) -> tuple[int, int]:
    """How far brackets lead up or down, and how high on the way."""
    depth = peak = 0
    for bit in bits:
        depth += 1 if bit == "1" else -1
        peak = max(peak, depth)
    return depth, peak


_STEPS = [_walk(f"{byte:08b}") for byte in range(256)]
"""For eight brackets at once: Python takes as long for them as for one."""


def excess(text: bytes | bytearray) -> str | None:
    """Why a JSON text is out of bounds; None when it is not. Says nothing about what is no JSON."""
    if len(text) <= MAX_VALUES and opens_little(text):
        return None
    return _measure(text, MAX_DEPTH, MAX_VALUES)


def opens_little(text: bytes | bytearray) -> bool:
    """Whether a text is too short, or has too few brackets, to be too deep."""
    size = len(text)
    # What is left without them says how many there are: `count` takes five times as long.
    return (
        size <= MIN_DEEP
        or size - len(text.replace(b"{", b"", _MAX_COUNTED).replace(b"[", b"", _MAX_COUNTED)) <= MAX_DEPTH
    )


def excess_of_answer(text: bytes | bytearray) -> str | None:
    """The same of what a server says: its pages have as many values as they have."""
    return None if opens_little(text) else _measure(text, MAX_DEPTH_OF_ANSWERS, len(text))


def read(text: bytes | bytearray, type: type[T]) -> T:
    """A JSON text as a type. Raises msgspec.DecodeError, also for what is out of bounds, and UnicodeDecodeError."""
    return _read(text, type, excess(text))


def read_answer(text: bytes | bytearray, type: type[T]) -> T:
    """The same of what a server says."""
    return _read(text, type, excess_of_answer(text))


def _read(text: bytes | bytearray, type: type[T], reason: str | None) -> T:
    if reason is not None:
        raise msgspec.DecodeError(reason)
    return msgspec.json.decode(text, type=type)


def shallow(text: bytes, kind: type[T], part: Callable[[T], bytes]) -> tuple[dict[str, Raw], list[str]]:
    """The members of an object that are within bounds, and the names of the others: of what was kept without bounds.

    The object is a part of a text of this kind. Raises msgspec.DecodeError, UnicodeDecodeError or RecursionError.
    """
    from concurrent.futures import ThreadPoolExecutor

    def read_members() -> dict[str, Raw]:
        return msgspec.json.decode(part(msgspec.json.decode(text, type=kind)), type=dict[str, Raw])

    # A thread of its own has a whole stack: what could be written with a part of one can be read.
    with ThreadPoolExecutor(1) as thread:
        members = thread.submit(read_members).result()
    left_out = [name for name, raw in members.items() if excess_of_answer(bytes(raw)) is not None]
    return {name: raw for name, raw in members.items() if name not in left_out}, left_out


def check_depth(value: object) -> str | None:
    """Why a value is out of bounds that was read from something else than JSON; None when it is not."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [item for each in level for item in _items(each)]
        if not level:
            return None
    return _too_deep(MAX_DEPTH)


def _measure(text: bytes | bytearray, most_depth: int, most_values: int) -> str | None:
    if _BACKSLASH in text:
        # What is left of a string has no quote in it, and a pair of backslashes escapes nothing.
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    depth = values = in_string = start = 0
    size = len(text)
    while start < size:
        if in_string:
            # To its end at once: most of a large text is one string.
            start = text.find(b'"', start)
            if start < 0:
                return None
        parts = text[start : start + _PIECE].split(b'"')
        start += _PIECE
        outside = b"".join(parts[in_string::2])
        in_string ^= (len(parts) - 1) & 1
        bits = outside.translate(_BITS, _NO_BRACKET)
        opened = bits.count(b"1")
        values += opened + outside.count(b",")
        if values > most_values:
            return f"it has more than {most_values} values"
        if depth + opened > most_depth and _reaches(bits, most_depth - depth):
            return _too_deep(most_depth)
        depth += 2 * opened - len(bits)
    return None


def _reaches(bits: bytes, room: int) -> bool:
    """Whether brackets lead further up than there is room."""
    whole = bits + b"0" * (-len(bits) % 8)
    at = 0
    for byte in int(whole, 2).to_bytes(len(whole) // 8, "big"):
        step, peak = _STEPS[byte]
        if at + peak > room:
            return True
        at += step
    return False


def _items(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(cast("dict[object, object]", value).values())
    return cast("list[object]", value) if isinstance(value, list) else []


def _too_deep(most: int) -> str:
    return f"it is nested deeper than {most} levels"
