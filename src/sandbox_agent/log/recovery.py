"""Opening the log's file: is all there that was acknowledged, and if not, what can be read is served and the loss told.

The one place that puts witness, inspection, salvage and database together.
"""

from pathlib import Path
from threading import Thread
from typing import NamedTuple

from sandbox_agent.log.damage import PENDING, REASON, Damage
from sandbox_agent.log.database import SCHEMA_VERSION, Database, DatabaseError
from sandbox_agent.log.inspection import Damaged, inspect, inspect_meanwhile
from sandbox_agent.log.salvage import finish_interrupted, salvage
from sandbox_agent.log.witness import Statement, UnreadableWitness, Witness, read_statement

FILE_SUFFIXES = ("", "-wal", "-shm", ".witness", ".new", ".new-wal", ".new-shm", ".scratch", ".scratch-journal")
"""What may follow the log's name in the names of its files."""
SMALL = 64 << 20
"""Bytes up to which a file is looked through before it is used; a larger one is looked through meanwhile."""


class Opened(NamedTuple):
    """An open file, and what is known of its state."""

    database: Database
    damage: Damage
    inspection: Thread | None = None
    """Looks through a large file."""


def open_database(path: Path | None, small: int = SMALL) -> Opened:
    """The log's file, whatever has become of it; None is a log in memory. Raises DatabaseError."""
    if path is None:
        return Opened(Database(None), Damage(None))
    try:
        return _open(path, small)
    except OSError as error:
        raise DatabaseError(f"{path}: {error}") from error


def _open(path: Path, small: int) -> Opened:
    finish_interrupted(path)
    damage = Damage(path)
    place = path.with_name(f"{path.name}.witness")
    known: Statement | None = None
    try:
        known = read_statement(place)
    except UnreadableWitness:
        # Nothing says how much was committed. What is in the file can be served all the same.
        damage.open_case(f"{place.name} is damaged, so that a loss at the end of the log would not be noticed")
        place.unlink()
        # Of the log it is known that it was ours, and nothing else.
        known = Statement(SCHEMA_VERSION, commits=0, reserved=0)
    thoroughly = path.exists() and path.stat().st_size <= small
    _mend(path, known, damage, thoroughly=thoroughly)
    large = path.exists() and not thoroughly
    database = Database(path, Witness(place), damage, reserved=known.reserved if known else 0)
    return Opened(database, damage, inspect_meanwhile(path, damage.found) if large else None)


def _mend(path: Path, known: Statement | None, damage: Damage, *, thoroughly: bool) -> None:
    case = damage.pending
    try:
        if case is None:
            _look(path, known, thoroughly=thoroughly)
            return
    except Damaged as found:
        case = damage.open_case(str(found))
    try:
        result = salvage(path, case, known)
    except (OSError, DatabaseError) as error:
        raise DatabaseError(
            f"{path} is damaged (see {case / REASON}), and what can be read of it cannot be written to a new file "
            f"({error}); make room in {path.parent}, or move {path.name} away to begin an empty log"
        ) from error
    damage.add(case, result)
    (case / PENDING).unlink(missing_ok=True)


def _look(path: Path, known: Statement | None, *, thoroughly: bool) -> None:
    if path.exists():
        inspect(path, known, thoroughly=thoroughly)
    elif known is not None and known.commits:
        raise Damaged(f"{path.name} is gone, with {known.commits} writes that were acknowledged")
