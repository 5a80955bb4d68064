"""Limit the cost of deciding one request, and cache intermediate results.

The module knows nothing of rules.
"""

from collections.abc import Callable, Hashable
from typing import TypeVar, cast

STEPS = 250_000
"""Default number of steps for one decision, which take about a second. Real requests of agents need a few thousand."""
PATH_STEPS = 20
"""The number of steps that following one path costs."""

T = TypeVar("T")


class TooMuch(Exception):
    """A decision needs more steps than it may use."""


class StepBudget:
    """The steps that are left for one decision, and its cache."""

    def __init__(self, steps: int, resolve: Callable[[str], str]) -> None:
        """Take `resolve`, which returns an absolute path without links. It may raise OSError or ValueError."""
        self._left = steps
        self._resolve = resolve
        self._real: dict[str, str | None] = {}
        self._known: dict[Hashable, object] = {}

    def spend(self, steps: int) -> None:
        """Use up steps. Raises TooMuch if fewer are left."""
        self._left -= steps
        if self._left < 0:
            raise TooMuch

    @property
    def left(self) -> int:
        return self._left

    def real(self, path: str) -> str | None:
        """Return a path without links; None if it cannot be followed."""
        if path not in self._real:
            self.spend(PATH_STEPS + len(path) // 16)
            try:
                self._real[path] = self._resolve(path)
            except (OSError, ValueError):
                self._real[path] = None
        return self._real[path]

    def once(self, key: Hashable, find: Callable[[], T]) -> T:
        """Return the result of `find`, which is called once for each key."""
        if key not in self._known:
            self._known[key] = find()
        return cast(T, self._known[key])
