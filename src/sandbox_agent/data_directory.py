"""The data directory of a server: who holds it, and what that one says of itself there, for whoever looks for it.

A server holds the lock on `server.lock` as long as it lives, so that nobody need believe a file that a crash has left.
Knows nothing of settings, and nothing of how a server is called.
"""

import fcntl
import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from sandbox_agent.archives.removal import discard
from sandbox_agent.processes.table import Process, read

LOCK, NOTICE = "server.lock", "server.json"
PREFIX, TEMPORARY = "sandbox-agent-", "temporary"
"""What the name of a temporary one begins with, and the file in it that says so: nothing else is ever deleted."""
LOCK_PATIENCE = 0.2
"""Seconds to try: who only looks whether somebody holds the lock, has it for a moment."""

logger = logging.getLogger(__name__)


class Held(Exception):
    """Another server has it; `pid` is what it has written into the lock, if it has."""

    def __init__(self, pid: int | None) -> None:
        super().__init__(f"held by process {pid or 'unknown'}")
        self.pid = pid


class Notice(msgspec.Struct, rename="camel", frozen=True):
    """What a server that listens says of itself in `server.json`. No secrets."""

    pid: int
    process_start: int
    """When its process began, in clock ticks since boot: the pid may be somebody else's by now."""
    url: str
    """Where it is reached from this machine."""
    version: str
    started_at: str
    token_file: str | None
    """Where its token is, if it is in a file."""
    needs_token: bool
    embedded: bool = False
    """It is some program's own, and ends with that."""

    @property
    def process(self) -> Process | None:
        """The server's process; None when it is not there any more, or cannot be seen from here."""
        process = read(self.pid)
        return process if process is not None and process.start == self.process_start and process.alive else None


def owner(directory: Path) -> str:
    """What marks the processes of the servers that hold it, one after another."""
    return hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()[:32]


@contextmanager
def temporary() -> Generator[Path]:
    """A new one for its user alone, which is deleted at the end. Raises OSError when there is no place for it."""
    directory = Path(tempfile.mkdtemp(prefix=PREFIX))
    try:
        (directory / TEMPORARY).touch()
        yield directory
    finally:
        discard(directory)


def left_behind() -> list[Path]:
    """Temporary ones of ours whose servers were killed."""
    return [path for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*") if _is_left(path)]


def _is_left(directory: Path) -> bool:
    try:
        about = directory.lstat()
        if about.st_uid != os.getuid() or not (directory / TEMPORARY).exists():
            return False
    except OSError:
        return False
    # A server that starts has not locked it yet, and then there is no process id in the lock either.
    return _pid_in(directory) is not None and holder(directory) is None


@contextmanager
def held(directory: Path) -> Generator[None]:
    """Hold it for this server alone.

    Raises:
        Held: another one does.
        OSError: it cannot be written.
    """
    with (directory / LOCK).open("a+") as lock:
        if not _taken(lock.fileno()):
            raise Held(_pid_in(directory))
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def holder(directory: Path) -> int | None:
    """The process id of the server that holds it, 0 when it has not said; None when there is none."""
    try:
        with (directory / LOCK).open() as lock:
            try:
                # Shared, so that those who look do not find each other.
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _pid_in(directory) or 0
    except OSError:
        pass
    return None


def notice(directory: Path) -> Notice | None:
    """What the server says of itself that holds it now; None when there is none, or it does not listen yet."""
    pid = holder(directory)
    if pid is None:
        return None
    try:
        found = msgspec.json.decode((directory / NOTICE).read_bytes(), type=Notice)
    except (OSError, msgspec.DecodeError):
        return None
    # One that was killed leaves its own; whoever came after it has not written another yet.
    return found if found.pid == pid and found.process is not None else None


@contextmanager
def noticed(directory: Path, about: Notice) -> Generator[None]:
    """Say in `server.json` what a server is, for its user alone, as long as the block lasts."""
    path = directory / NOTICE
    new = path.with_suffix(".new")
    try:
        new.unlink(missing_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(about) + b"\n")
        new.replace(path)
    except OSError as error:
        # It serves all the same.
        logger.warning("server.json not written reason=%s", error.strerror)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _taken(lock: int) -> bool:
    end = time.monotonic() + LOCK_PATIENCE
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                return False
            time.sleep(0.01)
        else:
            return True


def _pid_in(directory: Path) -> int | None:
    try:
        return int((directory / LOCK).read_text()[:32])
    except (OSError, ValueError):
        return None
