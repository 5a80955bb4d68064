"""The log of a server in the background: where it is, how it begins anew, its last lines, and what is added."""

import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO

from sandbox_agent.errors import SettingsError

LARGEST = 1 << 20
"""Bytes; a log that is larger at a start becomes the old one. There is one old one."""
SHOWN = 1 << 14
"""Bytes that are read of the log of a server that did not start."""
BLOCK = 1 << 16
INTERVAL = 0.1
"""Seconds between two looks for more."""


def log_file(directory: Path) -> Path:
    """Where a server in the background writes its log."""
    return directory / "logs" / "server.log"


def open_log(directory: Path) -> tuple[int, int]:
    """The log, to be written at its end, and where that is. Raises SettingsError."""
    path = log_file(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.parent.mkdir(exist_ok=True, mode=0o700)
        if path.exists() and path.stat().st_size > LARGEST:
            path.replace(path.with_suffix(".log.1"))
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise SettingsError(f"--data-dir {directory}: {error.strerror}") from error
    return descriptor, os.fstat(descriptor).st_size


def read_since(directory: Path, begin: int) -> str:
    """The end of what was written into the log since then."""
    with log_file(directory).open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(begin, size - SHOWN))
        return file.read().decode(errors="replace")


def read_lines(path: Path, count: int, *, follow: bool) -> Generator[bytes]:
    """The last lines, in pieces; with `follow`, all that is added for ever, also after the log began anew.

    Raises OSError.
    """
    file = path.open("rb")
    try:
        file.seek(_beginning(file, count))
        while True:
            while piece := file.read(BLOCK):
                yield piece
            if not follow:
                return
            if _is_replaced(path, file):
                file.close()
                file = path.open("rb")
            else:
                time.sleep(INTERVAL)
    finally:
        file.close()


def _beginning(file: BinaryIO, count: int) -> int:
    """Where the last lines begin. The file is read backwards: it may be large."""
    size = end = file.seek(0, os.SEEK_END)
    wanted = count
    while end > 0 and wanted > 0:
        begin = max(0, end - BLOCK)
        file.seek(begin)
        block = file.read(end - begin)
        at = len(block)
        if end == size and block.endswith(b"\n"):
            at -= 1  # It ends the last line, and begins none.
        while wanted > 0 and (at := block.rfind(b"\n", 0, at)) >= 0:
            wanted -= 1
            if wanted == 0:
                return begin + at + 1
        end = begin
    return size if count == 0 else 0


def _is_replaced(path: Path, file: BinaryIO) -> bool:
    """Whether another file has its name now, of which nothing was read yet."""
    try:
        return not os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except OSError:
        return False
