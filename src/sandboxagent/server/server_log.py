"""Write the log of a server in the background, and begin it anew when it is full."""

import logging
import os
import sys
from pathlib import Path
from typing import TextIO

MAX_LOG_BYTES = 8 << 20
"""Bytes of one file, unless set otherwise. One older file is kept."""


def log_file(directory: Path) -> Path:
    """Where the server of a data directory writes it."""
    return directory / "logs" / "server.log"


def open_log(path: Path, largest: int = MAX_LOG_BYTES) -> int:
    """The file, to be written at its end; one that is full becomes the older one. Raises OSError."""
    if path.exists() and path.stat().st_size > largest:
        path.replace(path.with_suffix(".log.1"))
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


class ReportHandler(logging.StreamHandler[TextIO]):
    """Writes reports to stderr. Where that is the log's file, the file stays within its size while the server runs."""

    def __init__(self, path: Path, largest: int) -> None:
        super().__init__(sys.stderr)
        self._path = path
        self._largest = largest
        self._is_file = _is_same(2, path)

    def emit(self, record: logging.LogRecord) -> None:
        if self._is_file and os.fstat(2).st_size > self._largest:
            self._begin_anew()
        super().emit(record)

    def _begin_anew(self) -> None:
        """Whatever else writes to stdout and stderr goes to the new file, too."""
        try:
            # None when somebody has moved it away: what is there now is not ours to move.
            old = [number for number in (1, 2) if _is_same(number, self._path)]
            new = open_log(self._path, self._largest)
        except OSError:
            # Without a new file, this one goes on.
            return
        for number in old or (2,):
            os.dup2(new, number)
        os.close(new)


def _is_same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False
