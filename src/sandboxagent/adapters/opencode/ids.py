"""Make ids as OpenCode makes them: a prefix, twelve hex digits of time, fourteen unique letters.

Pure.

OpenCode's programs sort by them. Messages, parts and requests ascend; sessions descend, so that the newest comes first.
Ids of what is in a session's log follow from the log alone: a view that is built again has the same ones.
"""

import hashlib
import re

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_MASK = (1 << 48) - 1
_PER_MS = 4096
_TICK = re.compile(r"[a-z]{3}_([0-9a-f]{12})[0-9A-Za-z]{14}")
_SESSION = re.compile(r"ses_[0-9a-f]{12}[0-9A-Za-z]{14}")
_GIVEN = re.compile(r"[A-Za-z0-9_-]{1,120}")
LATEST = _MASK - (1 << 40)
"""Ids beyond it leave no room for those that must come after them."""
PERIOD_MS = (1 << 48) // _PER_MS
"""How long it takes until the digits of time start over, in milliseconds."""


def milliseconds(at: float) -> int:
    """A point in time as OpenCode has it."""
    return int(at * 1000)


def make_id(prefix: str, tick: int, *names: object) -> str:
    """An id at a tick of time; `names` make it unique in that tick."""
    return f"{prefix}_{tick & _MASK:012x}{_letters(names)}"


def tick_of(ms: int) -> int:
    """The first tick of a millisecond."""
    return ms * _PER_MS & _MASK


def make_session_id(created_at: float, session_id: str) -> str:
    """The id of a session that has none of OpenCode's."""
    return make_id("ses", ~tick_of(milliseconds(created_at)), session_id)


def is_session_id(text: str | None) -> bool:
    """Whether it looks like an id that OpenCode makes."""
    return text is not None and _SESSION.fullmatch(text) is not None


def read_created(id: str) -> int:
    """The millisecond at which a session was made, by its id, modulo PERIOD_MS."""
    return (~int(id[4:16], 16) & _MASK) // _PER_MS


def is_given_id(prefix: str, id: str) -> bool:
    """Whether a client may call a message or a part so."""
    return id.startswith(prefix) and _GIVEN.fullmatch(id) is not None and (_read_tick(id) or 0) < LATEST


class Ticks:
    """The order of what is in one session: each tick is later than the one before."""

    def __init__(self) -> None:
        self._last = 0

    def next(self, ms: int) -> int:
        """A tick at a point in time, or just after the last one when that is later."""
        self._last = max(self._last + 1, tick_of(ms))
        return self._last

    def note(self, id: str) -> None:
        """What comes next comes after an id that a client made by its own clock."""
        tick = _read_tick(id)
        if tick is not None and tick < LATEST:
            self._last = max(self._last, tick)


def _read_tick(id: str) -> int | None:
    match = _TICK.fullmatch(id)
    return None if match is None else int(match[1], 16)


def _letters(names: tuple[object, ...]) -> str:
    number = int.from_bytes(hashlib.sha256("\0".join(map(str, names)).encode(errors="replace")).digest()[:11])
    letters = ""
    for _ in range(14):
        number, rest = divmod(number, len(_DIGITS))
        letters += _DIGITS[rest]
    return letters
