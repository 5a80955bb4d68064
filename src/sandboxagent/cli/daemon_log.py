"""Write the log of a server in the background, and read its last lines."""

import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO

from sandboxagent.protocol.errors import SettingsError
from sandboxagent.server.server_log import log_file, open_log

LOG_INTERVAL = 0.1
"""Seconds between two looks at its log."""
SHOWN = 1 << 14
"""Bytes that are read of the log of a server that did not start."""
BLOCK = 1 << 16


def begin_log(directory: Path, largest: int) -> tuple[int, int]:
    """The log, to be written at its end, and where that is. Raises SettingsError."""
    path = log_file(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.parent.mkdir(exist_ok=True, mode=0o700)
        descriptor = open_log(path, largest)
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
    """The last lines, in pieces; with `follow`, everything that is added, also after the log was replaced.

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
                time.sleep(LOG_INTERVAL)
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
