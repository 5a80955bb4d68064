"""Record how much was committed, and keep found damage until it is acknowledged.

SQLite drops the end of a write-ahead log that fails its checksums, without an error. So a small file beside the
database, the witness file (`log.db.witness`), records how much was committed and which positions were given out. It is
written after each commit and after each record of the journal, so it never counts more than was written. If the other
files have less, data was lost. The counts of the journal's records (tallies) are written to mapped memory, as the
journal is.

Each case of damage has a directory `log.db.damaged-<time>` beside the log. While it exists, the server reports that it
is degraded. To acknowledge the damage, move or delete the directory. This module knows nothing of SQL.
"""

import contextlib
import logging
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from zlib import crc32

from msgspec import Struct

from sandboxagent.server.log.mapped import MappedFile

logger = logging.getLogger(__name__)

_SLOT_BYTES = 128
_TEXT, _JOURNALED, _CHECK = "schema=%d commits=%020d reserved=%020d", " journaled=%d", " crc=%08x"
_TALLY = b"half=%d transaction=%020d records=%020d"
_TALLY_LINE = (b"%b crc=%08x" + b" " * (_SLOT_BYTES - 14 - len(_TALLY % (0, 0, 0)))) + b"\n"
"""Format of a tally's line. All lines have the same length."""
TALLY_BYTES = _SLOT_BYTES
"""Bytes of a tally."""
_LINES, _TALLIES = 2, 4
"""Number of lines for statements at the start of the file, and of lines for tallies after them."""


class Statement(Struct, frozen=True):
    """A statement of the witness file: how much was committed."""

    schema: int
    """Version of the database's schema."""
    commits: int
    """Number of committed transactions."""
    reserved: int
    """Last position that may have been given out."""
    journaled: int = 0
    """Number of the journal's records after the last commit. Servers whose journal has halves write tallies instead."""

    def encode(self) -> bytes:
        values = (self.schema, self.commits, self.reserved)
        text = _TEXT % values
        if self.journaled:
            values, text = (*values, self.journaled), text + _JOURNALED % self.journaled
        text += _CHECK % crc32(repr(values).encode())
        return text.encode().ljust(_SLOT_BYTES - 1) + b"\n"


class CommitRecordUnreadable(Exception):
    """The witness file exists, and none of its statements is whole."""


class CommitRecord:
    """The open witness file.

    It has two lines of each kind, written in turn: a torn write leaves the other line whole.
    """

    def __init__(self, path: Path) -> None:
        """Open or create the file. Raises OSError."""
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._turn = 0
        self._synced = -1
        self._failed = False

    def map_tallies(self) -> MappedFile:
        """Map the file for tallies, which follow the statements. A statement must have been noted. Raises OSError."""
        return MappedFile(self._path, (_LINES + _TALLIES) * _SLOT_BYTES)

    def renew(self) -> None:
        """Begin the file anew, whatever has become of the old one. A statement must be noted next. Raises OSError."""
        new = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        os.close(self._file)
        self._file, self._turn, self._synced = new, 0, -1

    def note(self, statement: Statement) -> None:
        """Write a statement.

        Positions are forced to the disk, because a client may see them before any event is there.
        """
        try:
            os.pwrite(self._file, statement.encode(), self._turn * _SLOT_BYTES)
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


def encode_tally(half: int, number: int, records: int) -> tuple[int, bytes]:
    """Return the place and the text of a tally: how many records a half of the journal has.

    `number` is the number of the transaction that will have the records.
    """
    text = _TALLY % (half, number, records)
    return (_LINES + 2 * half + (records & 1)) * _SLOT_BYTES, _TALLY_LINE % (text, crc32(text))


def read_statement(path: Path) -> Statement | None:
    """Return the newest statement that an earlier server left; None when there is no file.

    Raises:
        CommitRecordUnreadable: no statement is whole.
        OSError: the file cannot be read.
    """
    lines = _read_lines(path)
    found = [one for line in lines if (one := _decode(line)) is not None]
    if not found and any(lines):
        raise CommitRecordUnreadable
    return max(found, key=lambda one: (one.commits, one.reserved, one.journaled), default=None)


def read_tallies(path: Path) -> dict[int, int]:
    """Return the number of the journal's records for each transaction. Raises OSError."""
    found = [one for line in _read_lines(path) if (one := _decode_tally(line)) is not None]
    # Sorted, because of two lines about a half the later one has more records.
    return dict(sorted(found))


def _read_lines(path: Path) -> list[bytes]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return []
    with os.fdopen(descriptor, "rb") as file:
        content = file.read((_LINES + _TALLIES) * _SLOT_BYTES)
    return [content[at : at + _SLOT_BYTES] for at in range(0, len(content), _SLOT_BYTES)]


def _decode(line: bytes) -> Statement | None:
    with contextlib.suppress(ValueError, KeyError):
        fields = dict(word.split("=") for word in line.decode("ascii").split())
        found = Statement(
            int(fields["schema"]), int(fields["commits"]), int(fields["reserved"]), int(fields.get("journaled", 0))
        )
        if found.encode() == line:
            return found
    return None


def _decode_tally(line: bytes) -> tuple[int, int] | None:
    text, _, check = line.rstrip().rpartition(b" crc=")
    with contextlib.suppress(ValueError, KeyError):
        if check == b"%08x" % crc32(text):
            fields = dict(word.split("=") for word in text.decode("ascii").split())
            return int(fields["transaction"]), int(fields["records"])
    return None


REASON, PENDING = "reason.txt", "salvage-at-next-start"
_MAX_FINDINGS = 100
"""Maximum number of findings that a running server writes down."""


class Damage:
    """All cases of damage that are not acknowledged yet. May be used from any thread."""

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
        """Reason why the server is degraded; None when there was no damage, or all of it was acknowledged."""
        with self._lock:
            self._cases = [case for case in self._cases if case.is_dir()]
            if not self._cases:
                return self._unwritten[0] if self._unwritten else None
            case = self._cases[0]
        first = next(iter(_reasons(case)), "the session log was damaged")
        return f"{first}; see {case}, and delete or move that directory to acknowledge it"

    @property
    def pending(self) -> Path | None:
        """The case that a running server has found, and that the next start has to repair."""
        return next((case for case in self._cases if (case / PENDING).exists()), None)

    def open_case(self, reason: str) -> Path:
        """Create the directory of a new case, with the reason in it. Raises OSError."""
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
        """Write down damage that a running server found. The next start repairs it."""
        with self._lock:
            if reason in self._said or len(self._said) >= _MAX_FINDINGS:
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
