"""Damage of the log's file: what was found, and a directory for each case that stays until a person has looked at it.

The directory is the acknowledgement as well: while `log.db.damaged-<time>` lies beside the log, the server says that it
is degraded; move or delete it, and it is not. Knows nothing of SQL.
"""

import logging
import threading
import time
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger(__name__)

REASON, PENDING = "reason.txt", "salvage-at-next-start"
_MOST = 100
"""Findings that are written down in one case."""


class Damage:
    """All cases that are not acknowledged yet. May be used from any thread."""

    def __init__(self, path: Path | None) -> None:
        """`path` is the log's file; None for a log in memory."""
        self._path = path
        self._lock = threading.Lock()
        self._cases: list[Path] = [] if path is None else sorted(path.parent.glob(f"{path.name}.damaged-*"))
        self._current: Path | None = None
        self._unwritten: list[str] = []
        self._said: set[str] = set()

    @property
    def reason(self) -> str | None:
        """Why the server is degraded; None when there was no damage, or all of it was acknowledged."""
        with self._lock:
            self._cases = [case for case in self._cases if case.is_dir()]
            if not self._cases:
                return self._unwritten[0] if self._unwritten else None
            case = self._cases[0]
        first = next(iter(_reasons(case)), "the session log was damaged")
        return f"{first}; see {case}, and delete or move that directory to acknowledge it"

    @property
    def pending(self) -> Path | None:
        """A case that a running server has found, and that the next start is to mend."""
        return next((case for case in self._cases if (case / PENDING).exists()), None)

    def open_case(self, reason: str) -> Path:
        """A new directory with the reason in it. Raises OSError."""
        assert self._path is not None
        name = f"{self._path.name}.damaged-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
        for number in range(1000):
            case = self._path.with_name(f"{name}-{number}" if number else name)
            with suppress(FileExistsError):
                case.mkdir(mode=0o700)
                break
        else:
            raise FileExistsError(f"{name} is there a thousand times")
        with self._lock:
            self._cases.append(case)
        self.add(case, reason)
        return case

    def add(self, case: Path, reason: str) -> None:
        """Write one more finding into a case."""
        logger.error("session log damaged reason=%s see=%s", reason, case)
        with (case / REASON).open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(reason + "\n")

    def report(self, reason: str) -> None:
        """Write down what a running server found; the next start mends it."""
        with self._lock:
            if reason in self._said or len(self._said) >= _MOST:
                return
            self._said.add(reason)
        if self._path is None:
            self._keep_in_memory(reason, "the log is in memory")
            return
        try:
            if self._current is None or not self._current.is_dir():
                self._current = self.open_case(reason)
                (self._current / PENDING).touch()
            else:
                self.add(self._current, reason)
        except OSError as error:
            self._keep_in_memory(reason, str(error))

    def _keep_in_memory(self, reason: str, why: str) -> None:
        logger.error("session log damaged reason=%s not_written_because=%s", reason, why)
        with self._lock:
            self._unwritten.append(reason)


def _reasons(case: Path) -> list[str]:
    try:
        return (case / REASON).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
