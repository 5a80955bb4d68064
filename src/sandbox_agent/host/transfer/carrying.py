"""Moves from one file system to another: copied beside, renamed, and only then deleted. Everything here blocks."""

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress

from sandbox_agent.archives.removal import remove
from sandbox_agent.errors import ShuttingDown
from sandbox_agent.host.paths.nodes import NotAFile, Place, error_of, passing_name
from sandbox_agent.host.paths.renaming import rename

DEEPEST = 100
"""Levels of a tree that can be copied."""
BLOCK = 1 << 20
_LOOK = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def carry(old: Place, new: Place, *, replace: bool, stopped: Callable[[], bool]) -> None:
    """Move across file systems. What fails before all is copied changes nothing. Raises OSError or ShuttingDown."""
    if new.node is not None and not replace:
        raise error_of(errno.EEXIST)
    passing = passing_name()
    try:
        _Copy(stopped).entry(old.directory, old.name, new.directory, passing, 0)
        rename(new.directory, passing, new.directory, new.name, replace=replace)
    except BaseException:
        with suppress(OSError):
            remove(new.directory, passing, lambda: False)
        raise
    remove(old.directory, old.name, stopped)


class _Copy:
    def __init__(self, stopped: Callable[[], bool]) -> None:
        self._stopped = stopped

    def entry(self, source: int, name: bytes, target: int, new: bytes, depth: int) -> None:
        facts = os.stat(name, dir_fd=source, follow_symlinks=False)
        if stat.S_ISLNK(facts.st_mode):
            os.symlink(os.readlink(name, dir_fd=source), new, dir_fd=target)
            return
        if not stat.S_ISREG(facts.st_mode) and not stat.S_ISDIR(facts.st_mode):
            raise NotAFile(errno.EINVAL, "has something that is no file, directory or link, and stays on its device")
        node = os.open(name, _LOOK, dir_fd=source)
        try:
            # What it is now, and not what it was when its name was looked at.
            facts = os.fstat(node)
            if stat.S_ISDIR(facts.st_mode):
                self._directory(node, facts, target, new, depth)
            else:
                self._file(node, facts, target, new)
        finally:
            os.close(node)

    def _directory(self, node: int, facts: os.stat_result, target: int, new: bytes, depth: int) -> None:
        if depth == DEEPEST:
            raise OSError(errno.ENAMETOOLONG, f"has more than {DEEPEST} levels")
        os.mkdir(new, 0o700, dir_fd=target)
        copy = os.open(new, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=target)
        try:
            with os.scandir(node) as entries:
                for entry in entries:
                    name = os.fsencode(entry.name)
                    self.entry(node, name, copy, name, depth + 1)
            _be_like(facts, copy)
        finally:
            os.close(copy)

    def _file(self, node: int, facts: os.stat_result, target: int, new: bytes) -> None:
        copy = os.open(new, _CREATE, 0o600, dir_fd=target)
        try:
            done = 0
            while sent := os.sendfile(copy, node, done, BLOCK):
                done += sent
                if self._stopped():
                    raise ShuttingDown
            _be_like(facts, copy)
        finally:
            os.close(copy)


def _be_like(facts: os.stat_result, copy: int) -> None:
    with suppress(PermissionError):
        os.fchown(copy, facts.st_uid, facts.st_gid)
    os.fchmod(copy, stat.S_IMODE(facts.st_mode))
    os.utime(copy, ns=(facts.st_atime_ns, facts.st_mtime_ns))
