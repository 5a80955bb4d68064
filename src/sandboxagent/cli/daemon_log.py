"""Write the log of a server in the background, and read its last lines."""

import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO

from sandboxagent.protocol.errors import SettingsError
from sandboxagent.server.server_log import log_file, open_log

LOG_INTERVAL = 0.1
"""Seconds between two checks for new lines."""
MAX_SHOWN_BYTES = 1 << 14
"""Maximum number of bytes that are read from the log of a server that did not start."""
BLOCK_BYTES = 1 << 16


def begin_log(directory: Path, largest: int) -> tuple[int, int]:
    """Open the log for appending and return its descriptor and its size. Raises SettingsError."""
    path = log_file(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.parent.mkdir(exist_ok=True, mode=0o700)
        descriptor = open_log(path, largest)
    except OSError as error:
        raise SettingsError(f"--data-dir {directory}: {error.strerror}") from error
    return descriptor, os.fstat(descriptor).st_size


def read_since(directory: Path, begin: int) -> str:
    """Return the text that was appended to the log after position `begin`, but at most its last `MAX_SHOWN_BYTES`."""
    with log_file(directory).open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(begin, size - MAX_SHOWN_BYTES))
        return file.read().decode(errors="replace")


def read_lines(path: Path, count: int, *, follow: bool) -> Generator[bytes]:
    """Yield the last lines, in pieces. With `follow`, yield all that is appended, also after the log was replaced.

    Raises OSError.
    """
    file = path.open("rb")
    try:
        file.seek(_beginning(file, count))
        while True:
            while piece := file.read(BLOCK_BYTES):
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
    """Return where the last `count` lines begin. It reads the file backwards, because the file may be large."""
    size = end = file.seek(0, os.SEEK_END)
    wanted = count
    while end > 0 and wanted > 0:
        begin = max(0, end - BLOCK_BYTES)
        file.seek(begin)
        block = file.read(end - begin)
        at = len(block)
        if end == size and block.endswith(b"\n"):
            at -= 1  # This newline ends the last line.
        while wanted > 0 and (at := block.rfind(b"\n", 0, at)) >= 0:
            wanted -= 1
            if wanted == 0:
                return begin + at + 1
        end = begin
    return size if count == 0 else 0


def _is_replaced(path: Path, file: BinaryIO) -> bool:
    """Whether the path names another file than the open one."""
    try:
        return not os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except OSError:
        return False
