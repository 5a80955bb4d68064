"""Limit the depth and the number of values of untrusted JSON by measuring its text.

Parsers recurse, here and in every client. A value that one parser can read may be too deep for the next one, which then
cannot read any list that contains the value. And a value of two bytes takes fifty bytes as a Python object. So the text
is measured before it is parsed, in one pass and piece by piece: no step takes long, whatever the text is.
"""

from collections.abc import Callable, Iterator
from typing import TypeVar, cast

import msgspec
from msgspec import Raw

MAX_DEPTH = 128
"""Maximum number of arrays and objects inside one another."""
MAX_VALUES = 250_000
"""Maximum number of values in one text, counted as its arrays, objects and commas."""
MAX_DEPTH_OF_ANSWERS = MAX_DEPTH + 16
"""Maximum depth of an answer of a server, which nests client data inside lists and objects of its own."""
MIN_DEEP_BYTES = 2 * MAX_DEPTH
"""Size in bytes up to which no text can be too deep or have too many values."""
_MAX_COUNTED = MAX_DEPTH + 1
"""Maximum number of opening brackets of one kind that are counted; more make no difference."""
_PIECE_BYTES = 64 << 10
MAX_STEP_BYTES = 1 << 20
"""Maximum bytes of a text that one step handles. Between steps, other threads get their turn."""
_OPEN, _CLOSE = b"[{", b"]}"
_BITS = bytes.maketrans(_OPEN + _CLOSE, b"1100")
_NO_BRACKET = bytes(set(range(256)) - set(_OPEN + _CLOSE))
_BACKSLASH = ord("\\")

T = TypeVar("T")


def _walk(bits: str) -> tuple[int, int]:
    """Return the change of depth over a sequence of brackets, and the greatest depth on the way."""
    depth = peak = 0
    for bit in bits:
        depth += 1 if bit == "1" else -1
        peak = max(peak, depth)
    return depth, peak


_STEPS = [_walk(f"{byte:08b}") for byte in range(256)]
"""The result of `_walk` for every byte of eight brackets: Python handles eight at once in the time of one."""


def excess(text: bytes | bytearray) -> str | None:
    """Return why a JSON text is out of bounds; None if it is within. Does not check that the text is JSON."""
    if len(text) <= MAX_VALUES and is_surely_shallow(text):
        return None
    return _measure(text, MAX_DEPTH, MAX_VALUES)


def is_surely_shallow(text: bytes | bytearray) -> bool:
    """Return whether a text is too short, or has too few brackets, to be too deep."""
    size = len(text)
    # The difference in length counts the brackets; `count` would take five times as long.
    return (
        size <= MIN_DEEP_BYTES
        or size - len(text.replace(b"{", b"", _MAX_COUNTED).replace(b"[", b"", _MAX_COUNTED)) <= MAX_DEPTH
    )


def excess_of_answer(text: bytes | bytearray) -> str | None:
    """Return why an answer of a server is out of bounds.

    Like `excess`, but with a greater depth and any number of values, because pages of lists are long.
    """
    return None if is_surely_shallow(text) else _measure(text, MAX_DEPTH_OF_ANSWERS, len(text))


def read(text: bytes | bytearray, type: type[T]) -> T:
    """Decode a JSON text as a type.

    Raises msgspec.DecodeError, also if the text is out of bounds, and UnicodeDecodeError.
    """
    return _read(text, type, excess(text))


def read_answer(text: bytes | bytearray, type: type[T]) -> T:
    """Decode an answer of a server as a type. Like `read`, with the looser limits of `excess_of_answer`."""
    return _read(text, type, excess_of_answer(text))


def _read(text: bytes | bytearray, type: type[T], reason: str | None) -> T:
    if reason is not None:
        raise msgspec.DecodeError(reason)
    return msgspec.json.decode(text, type=type)


def shallow(text: bytes, kind: type[T], part: Callable[[T], bytes]) -> tuple[dict[str, Raw], list[str]]:
    """Return the members of a stored object that are within bounds, and the names of the others.

    An earlier release stored the object without bounds. `part` takes it from a text of type `kind`. Raises
    msgspec.DecodeError, UnicodeDecodeError or RecursionError.
    """
    from concurrent.futures import ThreadPoolExecutor

    def read_members() -> dict[str, Raw]:
        return msgspec.json.decode(part(msgspec.json.decode(text, type=kind)), type=dict[str, Raw])

    # A new thread has an unused stack, so it can decode as deep as any thread could encode.
    with ThreadPoolExecutor(1) as thread:
        members = thread.submit(read_members).result()
    left_out = [name for name, raw in members.items() if excess_of_answer(bytes(raw)) is not None]
    return {name: raw for name, raw in members.items() if name not in left_out}, left_out


def check_depth(value: object) -> str | None:
    """Return why a value from a source other than JSON is nested too deep; None if it is not."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [item for each in level for item in _items(each)]
        if not level:
            return None
    return _too_deep(MAX_DEPTH)


def cut_between_escapes(text: bytes | bytearray) -> Iterator[tuple[int, int]]:
    """Yield the start and the end of each step of a text. No step ends between a backslash and what it escapes."""
    start, size = 0, len(text)
    while start < size:
        end = min(start + MAX_STEP_BYTES, size)
        if text[end - 1] == _BACKSLASH and end < size:
            piece = text[start:end]
            # In a step that begins outside of an escape, pairs of backslashes count from its beginning.
            end -= (len(piece) - len(piece.rstrip(b"\\"))) & 1
        yield start, end
        start = end


def _without_escapes(text: bytes | bytearray) -> Iterator[bytes | bytearray]:
    """Yield a text without pairs of backslashes and escaped quotes, in steps. No string has a quote inside then."""
    if _BACKSLASH not in text:
        yield text
        return
    for start, end in cut_between_escapes(text):
        yield text[start:end].replace(b"\\\\", b"").replace(b'\\"', b"")


def _measure(text: bytes | bytearray, most_depth: int, most_values: int) -> str | None:
    depth = values = in_string = 0
    for step in _without_escapes(text):
        start, size = 0, len(step)
        while start < size:
            if in_string:
                # Skip to the end of the string: most of a large text is one string.
                start = step.find(b'"', start)
                if start < 0:
                    break
            parts = step[start : start + _PIECE_BYTES].split(b'"')
            start += _PIECE_BYTES
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
    """Return whether a sequence of brackets goes more than `room` levels deeper."""
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
