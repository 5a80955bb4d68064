"""Write the log of a server in the background, and rotate it when it is full."""

import logging
import os
import sys
from pathlib import Path
from typing import TextIO

MAX_LOG_BYTES = 8 << 20
"""Default maximum number of bytes of one file. One older file is kept."""


def log_file(directory: Path) -> Path:
    """Return the path of the log of the server with this data directory."""
    return directory / "logs" / "server.log"


def open_log(path: Path, largest: int = MAX_LOG_BYTES) -> int:
    """Open the file for appending. A full file replaces the older one first. Raises OSError."""
    if path.exists() and path.stat().st_size > largest:
        path.replace(path.with_suffix(".log.1"))
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


class ReportHandler(logging.StreamHandler[TextIO]):
    """A handler that writes log messages to stderr.

    If stderr is the log file, the handler limits the size of the file.
    """

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
        """Start a new file, and redirect everything that is written to stdout and stderr to it."""
        try:
            # Empty if somebody has moved the log away. Another file at its path must not be moved.
            old = [number for number in (1, 2) if _is_same(number, self._path)]
            new = open_log(self._path, self._largest)
        except OSError:
            # Keep writing to this file if there is no new one.
            return
        for number in old or (2,):
            os.dup2(new, number)
        os.close(new)


def _is_same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False
