"""Check the log's file for damage without changing it.

All checks use a read-only connection. SQLite's integrity check covers the structure of the pages. A checksum in each
row shows whether the row is as it was written.
"""

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path

from msgspec import Struct

from sandboxagent.server.log.damage import Statement
from sandboxagent.server.log.database import SCHEMA, SCHEMA_VERSION, DatabaseError, read_text
from sandboxagent.server.log.rows import DamagedRow, checksum, decode_row

logger = logging.getLogger(__name__)

_BATCH = 200
SMALL_BATCH = 20
"""Rows that an inspection beside a running server checks between two rests. An event loop that wakes up waits for
them."""
REST_RATIO = 19
"""Ratio of rest to work of an inspection beside a running server: it takes a twentieth of the interpreter's time."""

_ELSEWHERE = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_READONLY,
    }
)
"""SQLite error codes whose cause is not the file's content, such as a full disk or a lock."""


class DamagedLog(Exception):
    """The file differs from what was written. The text says how."""


class _Pace(Struct):
    """A throttle: rests after work, `REST_RATIO` times as long as the work took."""

    sleep: Callable[[float], object]
    spent: Callable[[], float]
    began: float

    def rest(self) -> None:
        self.sleep((self.spent() - self.began) * REST_RATIO)
        self.began = self.spent()


class _Inspection(Struct, frozen=True):
    sqlite: sqlite3.Connection
    path: Path

    def check_commits(self, known: Statement | None) -> None:
        """Check that the file has the log's tables and all committed transactions. Raises DamagedLog."""
        (version,) = self.sqlite.execute("pragma user_version").fetchone()
        if version != SCHEMA_VERSION:
            if known is not None and known.schema == SCHEMA_VERSION:
                raise DamagedLog(f"{self.path.name} has a damaged header")
            # An empty file, the first schema version or an unknown version: `Database` deals with these.
            return
        names = {name for (name,) in self.sqlite.execute("select name from sqlite_schema")}
        if missing := sorted(_names() - names):
            raise DamagedLog(f"{self.path.name} has lost its table {missing[0]}")
        row = self.sqlite.execute("select * from state").fetchone()
        commits = 0
        if row is not None:
            *values, check = row
            commits = values[1]
            if check is not None and check != checksum(*values):
                raise DamagedLog(f"{self.path.name} has a damaged row in its table state")
        if known is not None and known.schema == SCHEMA_VERSION and commits < known.commits:
            lost = known.commits - commits
            raise DamagedLog(f"{self.path.name} lacks {lost} of {known.commits} writes that were acknowledged")

    def check_pages(self) -> None:
        (result,) = self.sqlite.execute("pragma integrity_check(1)").fetchone()
        if result != "ok":
            raise DamagedLog(f"{self.path.name}: {result}")

    def check_rows(self, batch: int = _BATCH, pause: Callable[[], object] = lambda: None) -> None:
        """Check that every row is as it was written. Raises DamagedLog."""
        for table in ("events", "sessions", "outcomes", "trims", "ages"):
            after = -1
            while rows := self._rows(table, after, batch):
                for rowid, *row in rows:
                    if rowid <= after or not is_intact(table, row):
                        raise DamagedLog(f"{self.path.name}: row {rowid} of {table} is damaged")
                    after = rowid
                pause()

    def _rows(self, table: str, after: int, batch: int) -> list[tuple[int, object]]:
        query = f"select rowid, * from {table} where rowid > ? order by rowid limit ?"
        return self.sqlite.execute(query, (after, batch)).fetchall()


def is_intact(table: str, row: list[object]) -> bool:
    """Whether a row is as it was written."""
    *values, check = row
    if table != "events":
        return check is None or check == checksum(*values)
    try:
        decode_row(tuple(row))  # pyright: ignore[reportArgumentType]
    except DamagedRow:
        return False
    return True


def inspect(path: Path, known: Statement | None, *, thoroughly: bool) -> None:
    """Inspect a file that no server has open.

    Raises:
        DamagedLog: the file differs from what was written.
        DatabaseError: the file cannot be read, or is no database, for reasons other than damage.
    """
    with _translate_errors(path, known), closing(_connect(path)) as sqlite:
        looking = _Inspection(sqlite, path)
        looking.check_commits(known)
        if thoroughly and sqlite.execute("pragma user_version").fetchone()[0] == SCHEMA_VERSION:
            looking.check_pages()
            looking.check_rows()


def inspect_meanwhile(
    path: Path,
    found: Callable[[str], None],
    sleep: Callable[[float], object] = time.sleep,
    spent: Callable[[], float] = time.thread_time,
) -> threading.Thread:
    """Inspect a file that is in use, in a thread that ends with the program.

    `found` is called with the damage. `spent` returns the processor time that the thread has used.
    """

    def run() -> None:
        try:
            with _translate_errors(path, None), closing(_connect(path)) as sqlite:
                looking = _Inspection(sqlite, path)
                # SQLite checks the pages without the interpreter, so no rest is needed.
                looking.check_pages()
                looking.check_rows(SMALL_BATCH, _Pace(sleep, spent, spent()).rest)
        except DamagedLog as damage:
            found(str(damage))
        except DatabaseError as error:
            logger.warning("log not inspected reason=%s", error)

    thread = threading.Thread(target=run, name="log-inspection", daemon=True)
    thread.start()
    return thread


def _names() -> set[str]:
    with closing(sqlite3.connect(":memory:")) as empty:
        empty.executescript(SCHEMA)
        return {name for (name,) in empty.execute("select name from sqlite_schema")}


def _connect(path: Path) -> sqlite3.Connection:
    # Read-only, because a connection that may write copies the write-ahead log into the file when it closes.
    sqlite = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, check_same_thread=False)
    sqlite.text_factory = read_text
    return sqlite


@contextmanager
def _translate_errors(path: Path, known: Statement | None) -> Generator[None]:
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
        elsewhere = code & 0xFF in _ELSEWHERE and code != sqlite3.SQLITE_IOERR_SHORT_READ
        # Without a witness file, a file that is no database may be something else under the same name.
        if elsewhere or (known is None and code == sqlite3.SQLITE_NOTADB):
            raise DatabaseError(f"{path}: {error}") from error
        raise DamagedLog(f"{path.name}: {error}") from error
    except UnicodeDecodeError as error:
        # Python puts names of tables into its messages, and a damaged name may not decode.
        raise DamagedLog(f"{path.name}: a name in its schema is not valid text") from error
