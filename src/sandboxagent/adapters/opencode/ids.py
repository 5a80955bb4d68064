"""Make ids in OpenCode's form: a prefix, twelve hex digits of time, fourteen unique letters.

OpenCode's programs sort by ids. Ids of messages, parts and requests ascend; ids of sessions descend, so that the newest
session comes first. Ids of messages and parts depend only on the session's log, so that a view that is built again has
the same ids. Pure.
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
"""Highest accepted tick of a client's id. A higher one leaves no room for the ids that must come after it."""
PERIOD_MS = (1 << 48) // _PER_MS
"""Milliseconds until the digits of time start over."""


def milliseconds(at: float) -> int:
    """Convert a time in seconds to OpenCode's milliseconds."""
    return int(at * 1000)


def make_id(prefix: str, tick: int, *names: object) -> str:
    """Return an id at a tick of time. `names` make it unique in that tick."""
    return f"{prefix}_{tick & _MASK:012x}{_letters(names)}"


def tick_of(ms: int) -> int:
    """Return the first tick of a millisecond."""
    return ms * _PER_MS & _MASK


def make_session_id(created_at: float, session_id: str) -> str:
    """Return an id for a session that was not made by OpenCode's programs."""
    return make_id("ses", ~tick_of(milliseconds(created_at)), session_id)


def is_session_id(text: str | None) -> bool:
    """Return whether a text has the form of OpenCode's ids of sessions."""
    return text is not None and _SESSION.fullmatch(text) is not None


def read_created(id: str) -> int:
    """Return the millisecond at which a session was made, modulo PERIOD_MS, from its id."""
    return (~int(id[4:16], 16) & _MASK) // _PER_MS


def is_given_id(prefix: str, id: str) -> bool:
    """Return whether a client may use an id for a message or a part."""
    return id.startswith(prefix) and _GIVEN.fullmatch(id) is not None and (_read_tick(id) or 0) < LATEST


class Ticks:
    """A clock that orders the ids of one session: each tick is later than the one before."""

    def __init__(self) -> None:
        self._last = 0

    def next(self, ms: int) -> int:
        """Return a tick at a time or, if that has passed already, just after the last tick."""
        self._last = max(self._last + 1, tick_of(ms))
        return self._last

    def note(self, id: str) -> None:
        """Make later ticks follow an id that a client made by its own clock."""
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
