"""Make directories, and move and delete files.

Moves and deletions never follow a link at the end of a path. To another file system, a move first copies the file
beside its target, renames the copy, and then deletes the original.

All functions block. They raise FileProblem, and ShuttingDown if the server stops during a long operation.
"""

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress

from sandboxagent.core.archives.remove import remove
from sandboxagent.protocol.errors import FileConflict, FileForbidden, ShuttingDown
from sandboxagent.server.files.descriptors import NotAFile, Place, error_of, make_temporary_name
from sandboxagent.server.files.replace import rename
from sandboxagent.server.files.roots import Roots, encode_name, file_problems

MAX_DEPTH = 100
"""Maximum number of levels of a tree that is copied."""
BLOCK_BYTES = 1 << 20
_LOOK = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


Stopped = Callable[[], bool]
"""Returns whether the server is stopping, so that long operations are abandoned."""


def move_across(old: Place, new: Place, *, replace: bool, stopped: Callable[[], bool]) -> None:
    """Move to another file system. A failure before the end of the copy changes nothing.

    Raises OSError or ShuttingDown.
    """
    if new.node is not None and not replace:
        raise error_of(errno.EEXIST)
    passing = make_temporary_name()
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
            raise NotAFile(errno.EINVAL, "has an entry that is no file, directory or link and stays on its device")
        node = os.open(name, _LOOK, dir_fd=source)
        try:
            # The entry may have changed since `stat`, so use the facts of the open file.
            facts = os.fstat(node)
            if stat.S_ISDIR(facts.st_mode):
                self._directory(node, facts, target, new, depth)
            else:
                self._file(node, facts, target, new)
        finally:
            os.close(node)

    def _directory(self, node: int, facts: os.stat_result, target: int, new: bytes, depth: int) -> None:
        if depth == MAX_DEPTH:
            raise OSError(errno.ENAMETOOLONG, f"has more than {MAX_DEPTH} levels")
        os.mkdir(new, 0o700, dir_fd=target)
        copy = os.open(new, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=target)
        try:
            with os.scandir(node) as entries:
                for entry in entries:
                    name = os.fsencode(entry.name)
                    self.entry(node, name, copy, name, depth + 1)
            _copy_attributes(facts, copy)
        finally:
            os.close(copy)

    def _file(self, node: int, facts: os.stat_result, target: int, new: bytes) -> None:
        copy = os.open(new, _CREATE, 0o600, dir_fd=target)
        try:
            done = 0
            while sent := os.sendfile(copy, node, done, BLOCK_BYTES):
                done += sent
                if self._stopped():
                    raise ShuttingDown
            _copy_attributes(facts, copy)
        finally:
            os.close(copy)


def _copy_attributes(facts: os.stat_result, copy: int) -> None:
    with suppress(PermissionError):
        os.fchown(copy, facts.st_uid, facts.st_gid)
    os.fchmod(copy, stat.S_IMODE(facts.st_mode))
    os.utime(copy, ns=(facts.st_atime_ns, facts.st_mtime_ns))


def make_directory(roots: Roots, path: str) -> None:
    """Make a directory and its missing parents. It may exist already."""
    with file_problems(path), roots.confined.reach(path.rstrip("/") or "/", parents=True) as place:
        if place.node is not None:
            if not stat.S_ISDIR(os.fstat(place.node).st_mode):
                raise error_of(errno.EEXIST)
            return
        try:
            os.mkdir(place.name, dir_fd=place.directory)
        except FileExistsError:
            # Another process made an entry first: open it to check that it is a directory.
            os.close(os.open(place.name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=place.directory))


def delete(roots: Roots, path: str, *, recursive: bool, stopped: Stopped) -> None:
    """Delete a file, a link or an empty directory; with `recursive` also a full one. Never deletes a root."""
    with file_problems(path), roots.confined.reach(_strip_slashes(path), follow=False) as place:
        _check_removable(roots, place, path)
        if recursive:
            remove(place.directory, place.name, stopped)
        elif stat.S_ISDIR(os.fstat(place.existing()).st_mode):
            os.rmdir(place.name, dir_fd=place.directory)
        else:
            os.unlink(place.name, dir_fd=place.directory)


def move(roots: Roots, source: str, target: str, *, overwrite: bool, stopped: Stopped) -> None:
    """Rename an entry, also to another file system. Never moves a root.

    With `overwrite`, a file may replace a file, and a directory an empty directory.
    """
    with file_problems(source), roots.confined.reach(_strip_slashes(source), follow=False) as old:
        _check_removable(roots, old, source)
        with file_problems(target), roots.confined.reach(_strip_slashes(target), follow=False) as new:
            if _is_same(old, new):
                return
            if new.node is not None:
                _check_removable(roots, new, target)
            _move(old, new, target, overwrite=overwrite, stopped=stopped)


def _move(old: Place, new: Place, target: str, *, overwrite: bool, stopped: Stopped) -> None:
    try:
        rename(old.directory, old.name, new.directory, new.name, replace=overwrite)
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise FileConflict(
                encode_name(target), "is inside the directory that you move there", errno="EINVAL"
            ) from error
        if error.errno != errno.EXDEV:
            raise
        move_across(old, new, replace=overwrite, stopped=stopped)
    else:
        # If both names are links to one file, rename(2) leaves both.
        if overwrite and new.node is not None and os.path.samestat(os.fstat(old.existing()), os.fstat(new.node)):
            with suppress(FileNotFoundError):
                os.unlink(old.name, dir_fd=old.directory)


def _strip_slashes(path: str) -> str:
    """Remove slashes at the end of a path, which would follow a link."""
    return path.rstrip("/") or "/"


def _check_removable(roots: Roots, place: Place, path: str) -> None:
    """Raise FileForbidden if the entry is a root or contains one."""
    if roots.protects(place.existing()):
        raise FileForbidden(
            encode_name(path), "is a root of the file API or contains one, and cannot be moved or deleted"
        )
    _check_name(place)


def _check_name(place: Place) -> None:
    if place.name == b".":
        raise OSError(errno.EINVAL, "ends in . or .., and so has no name of its own")


def _is_same(one: Place, other: Place) -> bool:
    return one.name == other.name and os.path.samestat(os.fstat(one.directory), os.fstat(other.directory))
