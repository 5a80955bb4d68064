"""What a walk finds in a file system: opening it by descriptor, going down from it, renaming it, replacing it.

What was looked at is what is used, and no link is followed. A file that replaces another is written beside it, and
takes its place when it is whole. Everything here blocks.
"""

import ctypes
import errno
import os
import secrets
import stat
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from msgspec import Struct

_ENTER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# What was there while we looked may be gone, or something else, when we open it.
# EINVAL: what was a link is none any more, and cannot be read as one.
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.EINVAL)
_NO_REPLACE = 1


class NotAFile(OSError):
    """Neither a regular file nor a directory: to open it might block, or do something."""


class Place(Struct, frozen=True):
    """Where a path leads: a directory, a name in it, and what has that name. A directory may itself be called `.`."""

    directory: int
    name: bytes
    node: int | None

    def existing(self) -> int:
        if self.node is None:
            raise error_of(errno.ENOENT)
        return self.node


def error_of(number: int) -> OSError:
    """An error as the system would raise it."""
    return OSError(number, os.strerror(number))


def descriptor_path(node: int) -> str:
    """A name for what a descriptor stands for, whatever has become of its path."""
    return f"/proc/self/fd/{node}"


def require_regular(node: int) -> int:
    """The node, when it is a regular file; raises what it is else."""
    mode = os.fstat(node).st_mode
    if stat.S_ISDIR(mode):
        raise error_of(errno.EISDIR)
    if not stat.S_ISREG(mode):
        raise NotAFile(errno.EINVAL, "is not a regular file")
    return node


def require_writable(node: int) -> int:
    """The node, when this process may write it: replacing a read-only file needs no permission of the file itself."""
    if not os.access(descriptor_path(node), os.W_OK):
        raise error_of(errno.EACCES)
    return node


def make_temporary_name() -> bytes:
    """A name for what is there only while it is made."""
    return b".sandbox-agent-%b" % secrets.token_hex(8).encode()


@contextmanager
def enter_directory(directory: int, names: Sequence[str]) -> Generator[int]:
    """The directory below, open for the time of the block. Raises OSError when a name is none, or a link."""
    here = os.open(".", _ENTER, dir_fd=directory)
    try:
        for name in names:
            below = os.open(name, _ENTER, dir_fd=here)
            os.close(here)
            here = below
        yield here
    finally:
        os.close(here)


def is_kernel_directory(directory: int) -> bool:
    """Whether this is in /proc or /sys: endless, and no files that a user keeps."""
    return os.fstat(directory).st_dev in _kernel_devices()


@cache
def _kernel_devices() -> frozenset[int]:
    return frozenset(Path(each).stat().st_dev for each in ("/proc", "/sys") if Path(each).is_mount())


@contextmanager
def ignore_gone() -> Generator[None]:
    """Leave the block when what it is about is no longer there, or no longer what it was."""
    try:
        yield
    except OSError as error:
        if error.errno not in _GONE:
            raise


def rename(from_directory: int, old: bytes, to_directory: int, new: bytes, *, replace: bool) -> None:
    """Rename; without `replace`, FileExistsError when the new name is taken, in one step. Raises OSError."""
    if not replace:
        function = _find_renameat2()
        if function is not None:
            if function(from_directory, old, to_directory, new, _NO_REPLACE) == 0:
                return
            number = ctypes.get_errno()
            # Some file systems do not know the flag, and say so in the same word as for a move into itself.
            if number not in (errno.ENOSYS, errno.EINVAL):
                raise OSError(number, os.strerror(number))
        if _exists(to_directory, new):
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
    os.rename(old, new, src_dir_fd=from_directory, dst_dir_fd=to_directory)


@cache
def _find_renameat2() -> "ctypes._NamedFuncPointer | None":  # pyright: ignore[reportPrivateUsage]
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is not None:
        function.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    return function


def _exists(directory: int, name: bytes) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NAMELESS = os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC
_NO_NAMELESS = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT)
"""What file systems say that cannot have a file without a name."""

Check = Callable[[os.stat_result | None], None]


class Replacement:
    """A file that is being written. It is invisible before `commit`, and nothing is left of it after `close`.

    Keeps the mode of the old file, and its owner if it can. Where the file system can, it has no name until it is
    whole, so that nothing is left either when the server is killed.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self.old = None if place.node is None else os.fstat(require_writable(require_regular(place.node)))
        self._name: bytes | None = None
        # Before it has its final mode, no other user may read what may be secret.
        mode = 0o666 if self.old is None else 0o600
        try:
            self._descriptor = os.open(b".", _NAMELESS, mode, dir_fd=place.directory)
        except OSError as error:
            if error.errno not in _NO_NAMELESS:
                raise
            name = make_temporary_name()
            self._descriptor = os.open(name, _CREATE, mode, dir_fd=place.directory)
            self._name = name

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Add to its end."""
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]

    def commit(self, check: Check | None = None, *, new: bool = False) -> os.stat_result:
        """Take the place, unless `check` raises of what is there now. Other readers see the old file or the new one.

        With `new` nothing may be there, whatever the others do: raises FileExistsError.
        """
        place = self._place
        if self.old is not None:
            _copy_attributes(self.old, self._descriptor)
        if check is not None:
            check(self.present())
        if new:
            self._link(place.name)
            self._drop_name()
        else:
            if self._name is None:
                name = make_temporary_name()
                self._link(name)
                self._name = name
            os.rename(self._name, place.name, src_dir_fd=place.directory, dst_dir_fd=place.directory)
            self._name = None
        return os.fstat(self._descriptor)

    def present(self) -> os.stat_result | None:
        """What has the name now."""
        try:
            return os.stat(self._place.name, dir_fd=self._place.directory, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def close(self) -> None:
        """Let go; what was not committed is gone."""
        self._drop_name()
        os.close(self._descriptor)

    def _link(self, name: bytes) -> None:
        os.link(
            descriptor_path(self._descriptor).encode(), name, dst_dir_fd=self._place.directory, follow_symlinks=True
        )

    def _drop_name(self) -> None:
        if self._name is not None:
            with suppress(OSError):
                os.unlink(self._name, dir_fd=self._place.directory)
            self._name = None


def _copy_attributes(old: os.stat_result, descriptor: int) -> None:
    new = os.fstat(descriptor)
    if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
        with suppress(PermissionError):
            os.fchown(descriptor, old.st_uid, old.st_gid)
    # Without set-user-id: as after any other write.
    os.fchmod(descriptor, old.st_mode & 0o777)
