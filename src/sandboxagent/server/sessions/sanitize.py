"""Remove the members from agents' lines that only the server may write.

Clients trust the notifications under `_sandboxagent/` and `_meta["sandboxagent.dev"]`. A line that names one of these
in a member it repeats, or repeats `sessionId`, could mean one thing to us and another to a client: it is rebuilt as we
read it. Pure.
"""

import ctypes
import re

from msgspec import Raw

from sandboxagent.protocol.envelope import BACKSLASH, META, is_object, members_of, with_members

OURS = "_sandboxagent/"
"""Methods of the server begin with this."""

_NAME = b"sandboxagent"
_LONG = 512
"""Bytes from which on the C library is quicker than Python, whose search depends on the letters of the text."""
_LARGE = 1 << 20
_find_bytes = ctypes.PyDLL(None).memmem
_find_bytes.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
_find_bytes.restype = ctypes.c_void_p
_SESSION = b'"sessionId"'
"""Once on each line, unless an agent nests or repeats it."""
_ESCAPED_LETTER = re.compile(rb"\\u00(?:4[1-9a-fA-F]|5[0-9aAfF]|6[1-9a-fA-F]|7[0-9aA]|2[eEfF])")
_ESCAPED = (b"\\u004", b"\\u005", b"\\u006", b"\\u007", b"\\u002")
"""How an escaped letter begins."""
_SIGNED = (("params",), ("params", "update"), ("params", "toolCall"), ("result",))
"""Where an envelope can carry a `_meta` that clients look at."""


def needs_check(blob: bytes, lines: int) -> bool:
    """Whether lines of an agent need a closer look. Quick, and never False for one that a client could be misled by."""
    # Spelled out, and not a function: this runs for every line of every agent.
    size = len(blob)
    names_us = _NAME in blob if size < _LONG else _find_bytes(blob, size, _NAME, len(_NAME)) is not None
    if names_us or blob.count(_SESSION) > lines:
        return True
    # A single byte is found in no time, and most batches have no escape at all.
    if BACKSLASH not in blob or b"\\u00" not in blob:
        return False
    # Many programs escape accents, and hardly any a letter.
    if not any(start in blob for start in _ESCAPED):
        return False
    # What is large is looked at closely at once, which takes no longer.
    return size > _LARGE or _ESCAPED_LETTER.search(blob) is not None


def strip_server_fields(line: bytes) -> bytes:
    """An agent's envelope without what only the server says in `_meta`, and with each of the members around it once.

    A line that is harmless keeps its bytes. Raises msgspec.DecodeError or RecursionError for what is no JSON.
    """
    whole, changed = members_of(line)
    for path in _SIGNED:
        forged = _without_signature(whole, path)
        changed = changed or forged
    return with_members(whole) if changed else line


def _without_signature(container: dict[str, Raw], path: tuple[str, ...]) -> bool:
    """Take our key out of the `_meta` under a path; True when the container has other text now."""
    name = path[0] if path else "_meta"
    raw = container.get(name)
    if raw is None or not is_object(raw):
        return False
    inner, changed = members_of(bytes(raw))
    if path:
        changed = _without_signature(inner, path[1:]) or changed
    else:
        changed = inner.pop(META, None) is not None or changed
    if changed:
        container[name] = Raw(with_members(inner))
    return changed
