"""Report repeated occurrences at a bounded rate, with their number."""

from collections.abc import Callable

REPORT_INTERVAL = 10.0
"""Seconds between two reports about the same subject."""


class Reports:
    """The reports of one kind, separate for each subject."""

    def __init__(self, monotonic: Callable[[], float], report: Callable[[str, int, str], None]) -> None:
        """Take `report`, to be called with the subject, the number of new occurrences, and the newest detail."""
        self._monotonic = monotonic
        self._report = report
        self._counts: dict[str, tuple[int, float, str]] = {}
        """By subject: the occurrences since the last report, the time when the next report is due, and the newest
        detail."""

    def note(self, who: str, times: int = 1, what: str = "") -> None:
        """Note an occurrence. It is reported at once, or together with later ones."""
        count, due, _ = self._counts.get(who, (0, 0.0, ""))
        now = self._monotonic()
        if now >= due:
            self._report(who, count + times, what)
            self._counts[who] = 0, now + REPORT_INTERVAL, ""
        else:
            self._counts[who] = count + times, due, what

    def forget(self, who: str) -> None:
        """Report the occurrences that were not reported yet, and forget the subject."""
        count, _, what = self._counts.pop(who, (0, 0.0, ""))
        if count:
            self._report(who, count, what)
