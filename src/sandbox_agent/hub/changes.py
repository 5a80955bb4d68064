"""Which sessions have changed, so that lists of many sessions can be kept up to date.

It keeps the newest change of each session, in order, and no more than `MOST` of them: a client that was away for longer
reads all sessions again. Knows nothing of what has changed.
"""

import secrets
from collections.abc import Callable

from msgspec import Struct

MOST = 500
"""Sessions whose newest change is kept."""


class Changed(Struct, frozen=True):
    """What has changed since a client looked."""

    sessions: list[str]
    gone: list[str]


class Changes:
    """The newest change of each session, by the order of changes."""

    def __init__(self) -> None:
        self._boot = secrets.token_hex(4)
        self._number = 0
        self._forgotten = 0
        """Changes up to this one are no longer told apart."""
        self._newest: dict[str, tuple[int, bool]] = {}
        """By session, oldest change first: its number, and whether the session is gone."""
        self._waiting: dict[int, Callable[[], None]] = {}
        self._callbacks = 0
        self._closed = False

    @property
    def cursor(self) -> str:
        """Names this moment; of use to clients of this server until it ends."""
        return f"{self._boot}.{self._number}"

    def note(self, session_id: str, *, gone: bool = False) -> None:
        """A session has changed, or was deleted."""
        self._number += 1
        self._newest.pop(session_id, None)
        self._newest[session_id] = (self._number, gone)
        if len(self._newest) > MOST:
            oldest = next(iter(self._newest))
            self._forgotten = self._newest.pop(oldest)[0]
        if self._waiting:
            self._wake()

    def after(self, cursor: str) -> Changed | None:
        """What has changed since then, newest first; None when that is no longer known."""
        number = self._read(cursor)
        if number is None or number < self._forgotten:
            return None
        changed = Changed([], [])
        for session_id, (at, gone) in reversed(self._newest.items()):
            if at <= number:
                break
            (changed.gone if gone else changed.sessions).append(session_id)
        return changed

    def call_after(self, cursor: str, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back once something has changed since then, at once if it has; returns how to take that back."""
        if self._closed or self._read(cursor) != self._number:
            callback()
            return lambda: None
        self._callbacks += 1
        number = self._callbacks
        self._waiting[number] = callback
        return lambda: self._forget(number)

    def close(self) -> None:
        """The server is stopping: release all that wait."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for callback in waiting.values():
            callback()

    def _forget(self, number: int) -> None:
        self._waiting.pop(number, None)

    def _read(self, cursor: str) -> int | None:
        boot, _, number = cursor.partition(".")
        return int(number) if boot == self._boot and number.isdecimal() and len(number) < 20 else None
