"""Keep the typed lines of earlier runs in a bounded file that only the user can read."""

import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path

import msgspec

NAME = "input-history"
"""Name of the file in the data directory."""
MAX_ENTRIES, MAX_BYTES = 1000, 1 << 20
MAX_TEXT_BYTES = 1 << 16
"""Maximum number of bytes of an entry. A longer text was pasted, and is not kept."""


class InputHistory:
    """The typed lines of all runs, in a file. If it cannot be used or trusted, none are loaded and none kept."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last: str | None = None

    def load(self) -> list[str]:
        """Return the entries, oldest first."""
        with suppress(OSError):
            descriptor = self._open(os.O_RDONLY)
            try:
                texts = _texts(_tail(descriptor))
            finally:
                os.close(descriptor)
            self._last = texts[-1] if texts else None
            return texts
        return []

    def add(self, text: str) -> None:
        """Add an entry, unless it begins with a space, is too long, or is the same as the one before."""
        line = msgspec.json.encode(text) + b"\n"
        if not text.strip() or text.startswith(" ") or text == self._last or len(line) > MAX_TEXT_BYTES:
            return
        self._last = text
        with suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = self._open(os.O_RDWR | os.O_APPEND | os.O_CREAT)
            try:
                os.write(descriptor, line)
                if os.fstat(descriptor).st_size > 2 * MAX_BYTES:
                    _shorten(descriptor)
            finally:
                os.close(descriptor)

    def _open(self, flags: int) -> int:
        """Open the file, which must belong to the user, and make it private. Raises OSError."""
        descriptor = os.open(self._path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        try:
            _claim(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


def _claim(descriptor: int) -> None:
    about = os.fstat(descriptor)
    if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid():
        raise PermissionError("not a file of yours")
    if stat.S_IMODE(about.st_mode) != 0o600:
        os.fchmod(descriptor, 0o600)


def _tail(descriptor: int) -> bytes:
    size = os.fstat(descriptor).st_size
    data = os.pread(descriptor, MAX_BYTES, max(0, size - MAX_BYTES))
    return data if size <= MAX_BYTES else data.partition(b"\n")[2]


def _texts(data: bytes) -> list[str]:
    texts: list[str] = []
    for line in data.splitlines()[-MAX_ENTRIES:]:
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            texts.append(msgspec.json.decode(line, type=str))
    return texts


def _shorten(descriptor: int) -> None:
    """Drop the oldest entries. Another run may write at the same time; appending never cuts its line in two."""
    with suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        kept = b"".join(msgspec.json.encode(text) + b"\n" for text in _texts(_tail(descriptor)))
        os.ftruncate(descriptor, 0)
        os.write(descriptor, kept)
