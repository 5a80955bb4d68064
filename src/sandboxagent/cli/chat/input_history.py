"""Keep what you typed in earlier runs, in a bounded file of your own."""

import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path

import msgspec

NAME = "input-history"
"""Its name in the data directory."""
MAX_ENTRIES, MAX_BYTES = 1000, 1 << 20
MAX_TEXT_BYTES = 1 << 16
"""Bytes of a text that is kept; one that is longer was pasted."""


class InputHistory:
    """The file; without it, or where it cannot be trusted, there is no past and nothing is kept."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last: str | None = None

    def load(self) -> list[str]:
        """All that is kept, oldest first."""
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
        """Keep a text; not one that begins with a space, and not the same one twice."""
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
        """The file, which must be ours and is read by us alone. Raises OSError."""
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
    """Forget the oldest. Another run may write meanwhile: all append, so no line is cut in two."""
    with suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        kept = b"".join(msgspec.json.encode(text) + b"\n" for text in _texts(_tail(descriptor)))
        os.ftruncate(descriptor, 0)
        os.write(descriptor, kept)
