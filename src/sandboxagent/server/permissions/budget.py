"""Limit what deciding one request may cost, and keep what it has found out so far.

Knows nothing of rules.
"""

from collections.abc import Callable, Hashable
from typing import TypeVar, cast

STEPS = 250_000
"""Of one decision, unless a setting says otherwise: about a second. What agents really ask takes a few thousand."""
PATH_STEPS = 20
"""What following one path costs."""

T = TypeVar("T")


class TooMuch(Exception):
    """A decision takes more steps than it may."""


class Work:
    """The steps that are left for one decision, and its notes."""

    def __init__(self, steps: int, resolve: Callable[[str], str]) -> None:
        """`resolve` gives an absolute path without links; it may raise OSError or ValueError."""
        self._left = steps
        self._resolve = resolve
        self._real: dict[str, str | None] = {}
        self._known: dict[Hashable, object] = {}

    def spend(self, steps: int) -> None:
        """Raises TooMuch when there are not that many left."""
        self._left -= steps
        if self._left < 0:
            raise TooMuch

    @property
    def left(self) -> int:
        return self._left

    def real(self, path: str) -> str | None:
        """A path without links; None when it cannot be followed."""
        if path not in self._real:
            self.spend(PATH_STEPS + len(path) // 16)
            try:
                self._real[path] = self._resolve(path)
            except (OSError, ValueError):
                self._real[path] = None
        return self._real[path]

    def once(self, key: Hashable, find: Callable[[], T]) -> T:
        """What `find` gives, which is asked once for each key."""
        if key not in self._known:
            self._known[key] = find()
        return cast(T, self._known[key])
