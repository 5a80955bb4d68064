"""The witness: a small file beside the database that knows how much was committed, and which positions were given out.

SQLite drops the end of a write-ahead log that fails its checksums, and says nothing. The witness is written after each
commit, and after each record of the journal, so it never knows of more than was written; files that know of less have
lost something. Knows nothing of SQL.
"""

import contextlib
import logging
import os
from pathlib import Path
from zlib import crc32

from msgspec import Struct

logger = logging.getLogger(__name__)

_SLOT = 128
_TEXT, _JOURNALED, _CHECK = "schema=%d commits=%020d reserved=%020d", " journaled=%d", " crc=%08x"


class Statement(Struct, frozen=True):
    """What the file says."""

    schema: int
    """Version of the database's schema."""
    commits: int
    """How many transactions were committed."""
    reserved: int
    """Up to which position all may have been given out."""
    journaled: int = 0
    """How many records the journal has since."""

    def encode(self) -> bytes:
        values = (self.schema, self.commits, self.reserved)
        text = _TEXT % values
        if self.journaled:
            values, text = (*values, self.journaled), text + _JOURNALED % self.journaled
        text += _CHECK % crc32(repr(values).encode())
        return text.encode().ljust(_SLOT - 1) + b"\n"


class UnreadableWitness(Exception):
    """The file is there, and neither of its lines is whole."""


class Witness:
    """The open file. It has two lines, written in turn: a write that a power failure tears leaves the other one."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._turn = 0
        self._synced = -1
        self._failed = False

    def note(self, statement: Statement) -> None:
        """Write it. Positions are forced to the disk, because a client may see them before any event is."""
        try:
            os.pwrite(self._file, statement.encode(), self._turn * _SLOT)
            self._turn ^= 1
            if statement.reserved != self._synced:
                os.fsync(self._file)
                self._synced = statement.reserved
            self._failed = False
        except OSError as error:
            if not self._failed:
                logger.warning("witness of the log not written reason=%s", error.strerror)
            self._failed = True

    def close(self) -> None:
        os.close(self._file)


def read_statement(path: Path) -> Statement | None:
    """What an earlier server left there; None when there is no file.

    Raises:
        UnreadableWitness: no line of it is whole.
        OSError: the file cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(4 * _SLOT)
    found = [one for line in content.split(b"\n") if (one := _decode(line)) is not None]
    if not found and content:
        raise UnreadableWitness
    return max(found, key=lambda one: (one.commits, one.reserved, one.journaled), default=None)


def _decode(line: bytes) -> Statement | None:
    with contextlib.suppress(ValueError, KeyError):
        fields = dict(word.split("=") for word in line.decode("ascii").split())
        found = Statement(
            int(fields["schema"]), int(fields["commits"]), int(fields["reserved"]), int(fields.get("journaled", 0))
        )
        if found.encode() == line + b"\n":
            return found
    return None
