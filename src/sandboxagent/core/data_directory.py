"""Lock a server's data directory, and keep the token and the server's record there.

A server holds the lock on `server.lock` for as long as it runs. So a file that a crash left behind misleads nobody. The
module knows neither settings nor how a server is called.
"""

import fcntl
import hashlib
import logging
import os
import shlex
import stat
import tempfile
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

LOCK = "server.lock"
PREFIX, TEMPORARY = "sandbox-agent-", "temporary"
"""The prefix of the name of a temporary directory, and the file in it that marks it. Only directories with both are
ever deleted."""
_TOKEN_CHARACTERS = 1 << 12
LOCK_TIMEOUT = 0.2
"""Seconds to retry, because a process that only checks the lock holds it for a moment."""

logger = logging.getLogger(__name__)


class DirectoryLocked(Exception):
    """Another server holds the lock. `pid` is the process id in the lock file, if there is one."""

    def __init__(self, pid: int | None) -> None:
        super().__init__(f"locked by process {pid or 'unknown'}")
        self.pid = pid


class Untrusted(Exception):
    """Another user could change the directory's content. The message says how, and what to do."""


def check_owner(directory: Path) -> None:
    """Warn if some other users can write the directory. Refuse it if every user can, or if another user owns it.

    Root may use another user's directory, as in a container with a volume of its host. Any user may use a directory of
    root, as with a volume that a group may write. Raises Untrusted and OSError.
    """
    about, user = directory.stat(), os.geteuid()
    if about.st_mode & stat.S_IWOTH:
        command = f"chmod o-w {shlex.quote(str(directory))}"
        raise Untrusted(f"every user of this machine can write it; name a new directory inside it, or run: {command}")
    if about.st_uid not in (user, 0) and user != 0:
        raise Untrusted(f"it belongs to user {about.st_uid}, and this is user {user}; run as that user, or chown it")
    if about.st_uid not in (user, 0):
        logger.warning("data directory belongs to another user path=%s user=%d", directory, about.st_uid)
    if about.st_mode & stat.S_IWGRP and about.st_gid != os.getegid():
        logger.warning("data directory can be written by a group path=%s group=%d", directory, about.st_gid)


def check_content(directory: Path, files: Iterable[str], directories: Iterable[str]) -> None:
    """Refuse links in the directory, and files of other users. Raises Untrusted and OSError."""
    for name in files:
        with suppress(FileNotFoundError):
            _check_file(directory / name, (directory / name).lstat())
    for name in directories:
        about = (directory / name).lstat()
        if not stat.S_ISDIR(about.st_mode):
            raise Untrusted(f"{name} in it is no directory; move that away")


def _check_file(path: Path, about: os.stat_result) -> None:
    if not stat.S_ISREG(about.st_mode) or about.st_nlink > 1:
        raise Untrusted(f"{path.name} in it is a link or no file; move that away")
    if about.st_uid not in (os.geteuid(), 0) and os.geteuid() != 0:
        raise Untrusted(f"{path.name} in it belongs to user {about.st_uid}; move that away")


def owner_of(directory: Path) -> str:
    """Return the mark on the processes of all servers that use the directory, one after another."""
    return hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()[:32]


def keep_token(path: Path, new: str, *, rotate: bool = False) -> str:
    """Return the token in the file, which only its user can read. Write `new` there if it has none, or with `rotate`.

    A token that other users could read or change is replaced. Raises OSError.
    """
    if not rotate and (kept := _read_token(path)):
        return kept
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(new + "\n")
    return new


def _read_token(path: Path) -> str | None:
    try:
        with open_checked(path) as file:
            about = os.fstat(file.fileno())
            token = file.read(_TOKEN_CHARACTERS + 1).strip()
    except OSError:
        return None
    if about.st_mode & 0o077 or about.st_nlink > 1 or about.st_uid not in (os.geteuid(), 0):
        logger.warning("other users could read the token; it is replaced path=%s", path)
        return None
    is_one = len(token) <= _TOKEN_CHARACTERS and token.isascii() and token.isprintable() and " " not in token
    return token if is_one and token else None


@contextmanager
def make_temporary(discard: Callable[[Path], None]) -> Generator[Path]:
    """Make a new directory for this user alone, and `discard` it at the end. Raises OSError if none can be made."""
    directory = Path(tempfile.mkdtemp(prefix=PREFIX))
    try:
        (directory / TEMPORARY).touch()
        yield directory
    finally:
        discard(directory)


def find_leftovers() -> list[Path]:
    """Return the temporary directories of this user whose servers were killed."""
    return [path for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*") if _is_leftover(path)]


def _is_leftover(directory: Path) -> bool:
    try:
        about = directory.lstat()
        ours = stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid()
        if not ours or not (directory / TEMPORARY).exists():
            return False
    except OSError:
        return False
    # A server that is starting has not locked its directory yet, but then the lock has no process id either.
    return _read_pid(directory) is not None and find_lock_owner(directory) is None


@contextmanager
def lock_directory(directory: Path) -> Generator[None]:
    """Lock the directory for this server alone.

    Raises:
        DirectoryLocked: another server holds the lock.
        Untrusted: the lock file is a link, or belongs to another user.
        OSError: the lock file cannot be written.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(directory / LOCK, flags, 0o600)
    try:
        _check_file(directory / LOCK, os.fstat(descriptor))
    except Untrusted:
        os.close(descriptor)
        raise
    with os.fdopen(descriptor, "r+") as lock:
        if not _try_lock(lock.fileno()):
            raise DirectoryLocked(_read_pid(directory))
        # Write only after locking: the content belongs to the server that holds the lock.
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def find_lock_owner(directory: Path) -> int | None:
    """Return the process id of the server that holds the lock, 0 if it is unknown; None if nobody holds the lock."""
    try:
        with open_checked(directory / LOCK) as lock:
            try:
                # A shared lock, so that processes that only check the lock do not find each other.
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _read_pid(directory) or 0
    except OSError:
        pass
    return None


def open_checked(path: Path) -> IO[str]:
    """Open a regular file to read; refuse links, pipes and devices. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is no file")
    return os.fdopen(descriptor, errors="replace")


def _try_lock(lock: int) -> bool:
    end = time.monotonic() + LOCK_TIMEOUT
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                return False
            time.sleep(0.01)
        else:
            return True


def _read_pid(directory: Path) -> int | None:
    try:
        with open_checked(directory / LOCK) as lock:
            return int(lock.read(32))
    except (OSError, ValueError):
        return None
