"""Report at a bounded rate what may happen again and again, with how often it happened."""

from collections.abc import Callable

REPORT_INTERVAL = 10.0
"""Seconds between two reports of the same."""


class Reports:
    """Of one kind, by who is reported."""

    def __init__(self, monotonic: Callable[[], float], report: Callable[[str, int, str], None]) -> None:
        """`report` gets who it is, how often it has happened since the last report, and what is known of the last."""
        self._monotonic = monotonic
        self._report = report
        self._counts: dict[str, tuple[int, float, str]] = {}
        """How many since the last report, when the next one is due, and the newest."""

    def note(self, who: str, times: int = 1, what: str = "") -> None:
        """It has happened: reported at once, or with what comes after."""
        count, due, _ = self._counts.get(who, (0, 0.0, ""))
        now = self._monotonic()
        if now >= due:
            self._report(who, count + times, what)
            self._counts[who] = 0, now + REPORT_INTERVAL, ""
        else:
            self._counts[who] = count + times, due, what

    def forget(self, who: str) -> None:
        """It cannot happen there any more: report what was left out."""
        count, _, what = self._counts.pop(who, (0, 0.0, ""))
        if count:
            self._report(who, count, what)
