"""Recognize a request head that repeats an earlier one on its socket, so that it is not parsed again.

Pure.

A client repeats its head on a socket in each request, except two values. A head that was parsed and checked is
recognized by its bytes around these values, and the result of the check still holds.
"""

import re
from collections.abc import Sequence

from sandboxagent.protocol.headers import IDEMPOTENCY_KEY, raw

MAX_MEMO_HEAD_BYTES = 4096
"""Maximum bytes of a head that is remembered. Each socket has one."""
_LENGTH, _KEY = b"content-length", raw(IDEMPOTENCY_KEY)
_VALUES = re.compile(rb"\r\n(content-length|idempotency-key): ?([!-~]+)(?=\r\n)", re.IGNORECASE)
_ANY_KEY = re.compile(rb"[!-~]{1,256}")
_MAX_DIGITS = 9


class HeadMemo:
    """The bytes of a head around the two values that change: the length of the body, and the idempotency key."""

    __slots__ = ("_between", "_end", "_is_key_first", "_start")

    def __init__(self, start: bytes, between: bytes | None, end: bytes, *, is_key_first: bool) -> None:
        self._start = start
        self._between = between
        """Bytes between the two values; None when there is no key."""
        self._end = end
        self._is_key_first = is_key_first

    @classmethod
    def of(cls, head: bytes, headers: Sequence[tuple[bytes, bytes]]) -> "HeadMemo | None":
        """Remember a head, which was parsed into these headers. Return None for a head that is long or unusual."""
        if len(head) > MAX_MEMO_HEAD_BYTES:
            return None
        found = list(_VALUES.finditer(head))
        values = [(match[1].lower(), match[2]) for match in found]
        names = [name for name, _ in values]
        if values != [each for each in headers if each[0] in (_LENGTH, _KEY)]:
            # The parser has read the head differently.
            return None
        if names == [_LENGTH]:
            return cls(head[: found[0].start(2)], None, head[found[0].end(2) :], is_key_first=False)
        if names in ([_LENGTH, _KEY], [_KEY, _LENGTH]):
            first, second = found
            between = head[first.end(2) : second.start(2)]
            return cls(head[: first.start(2)], between, head[second.end(2) :], is_key_first=names[0] == _KEY)
        return None

    def read(self, data: bytes) -> tuple[int, int, bytes | None] | None:
        """Return start and end of the body, and the key, of a request that has this head.

        Return None for all other bytes.
        """
        if not data.startswith(self._start):
            return None
        begin = len(self._start)
        end = data.find(b"\r", begin)
        length, key = data[begin:end], None
        if self._between is not None:
            if not data.startswith(self._between, end):
                return None
            begin = end + len(self._between)
            end = data.find(b"\r", begin)
            key = data[begin:end]
            if self._is_key_first:
                length, key = key, length
            if _ANY_KEY.fullmatch(key) is None:
                return None
        if not data.startswith(self._end, end):
            return None
        begin = end + len(self._end)
        return (begin, begin + int(length), key) if length.isdigit() and len(length) <= _MAX_DIGITS else None
