"""Remove the members from agents' lines that only the server may write.

Clients trust the notifications under `_sandboxagent/` and `_meta["sandboxagent.dev"]`. A line may have such a member
twice, or `sessionId` twice. It could mean one thing to the server and another to a client, so it is rebuilt as the
server reads it. Pure.
"""

import ctypes
import re

from msgspec import Raw

from sandboxagent.protocol.envelope import BACKSLASH, META, is_object, members_of, with_members

OURS = "_sandboxagent/"
"""Prefix of the server's own methods."""

_NAME = b"sandboxagent"
_LONG_BYTES = 512
"""Bytes above which the C library's search is faster than Python's, whose speed depends on the text's letters."""
_LARGE_BYTES = 1 << 20
_find_bytes = ctypes.PyDLL(None).memmem
_find_bytes.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
_find_bytes.restype = ctypes.c_void_p
_SESSION = b'"sessionId"'
"""Text that a line has at most once, unless an agent nests or repeats the member."""
_ESCAPED_LETTER = re.compile(rb"\\u00(?:4[1-9a-fA-F]|5[0-9aAfF]|6[1-9a-fA-F]|7[0-9aA]|2[eEfF])")
_ESCAPED = (b"\\u004", b"\\u005", b"\\u006", b"\\u007", b"\\u002")
"""Beginnings of escaped letters."""
_SIGNED = (("params",), ("params", "update"), ("params", "toolCall"), ("result",))
"""Paths in an envelope whose `_meta` clients read."""


def needs_check(blob: bytes, lines: int) -> bool:
    """Return whether an agent's lines must be checked. It is fast, and never False for a line that could mislead."""
    # Inlined for speed: this runs for every line of every agent.
    size = len(blob)
    names_us = _NAME in blob if size < _LONG_BYTES else _find_bytes(blob, size, _NAME, len(_NAME)) is not None
    if names_us or blob.count(_SESSION) > lines:
        return True
    # The search for a single byte is fastest, and most batches have no escapes at all.
    if BACKSLASH not in blob or b"\\u00" not in blob:
        return False
    # Many programs escape accented letters; hardly any escapes plain ones.
    if not any(start in blob for start in _ESCAPED):
        return False
    # A large batch is checked without this search, which would take as long as the check.
    return size > _LARGE_BYTES or _ESCAPED_LETTER.search(blob) is not None


def strip_server_fields(line: bytes) -> bytes:
    """Remove the server's key from each `_meta` of an agent's envelope, and repeated members around it.

    A harmless line keeps its bytes. Raises msgspec.DecodeError or RecursionError if the line is not JSON.
    """
    whole, changed = members_of(line)
    for path in _SIGNED:
        forged = _without_signature(whole, path)
        changed = changed or forged
    return with_members(whole) if changed else line


def _without_signature(container: dict[str, Raw], path: tuple[str, ...]) -> bool:
    """Remove the server's key from the `_meta` under a path; return whether the container's text has changed."""
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
