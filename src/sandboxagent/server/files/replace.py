"""Replace a file atomically: write the new one beside it, and rename it when it is complete.

All functions block.
"""

import ctypes
import errno
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache

from sandboxagent.server.files.descriptors import (
    Place,
    descriptor_path,
    make_temporary_name,
    require_regular,
    require_writable,
)

_NO_REPLACE = 1


def rename(from_directory: int, old: bytes, to_directory: int, new: bytes, *, replace: bool) -> None:
    """Rename a file. Without `replace`, raises FileExistsError in one step if the name is taken. Raises OSError."""
    if not replace:
        function = _find_renameat2()
        if function is not None:
            if function(from_directory, old, to_directory, new, _NO_REPLACE) == 0:
                return
            number = ctypes.get_errno()
            # Some file systems do not know the flag. They use the same errno as for a move of a directory into itself.
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
"""Errors of file systems that cannot have a file without a name."""


Check = Callable[[os.stat_result | None], None]


class Replacement:
    """A file that is being written. It is invisible before `commit`, and `close` deletes an uncommitted file.

    It keeps the mode of the old file and, if possible, its owner. If the file system supports it, the file has no name
    until it is complete. So nothing remains even if the server is killed.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self.old = None if place.node is None else os.fstat(require_writable(require_regular(place.node)))
        self._name: bytes | None = None
        # Until the file has its final mode, no other user may read content that may be secret.
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
        """Append bytes."""
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]

    def commit(self, check: Check | None = None, *, new: bool = False) -> os.stat_result:
        """Put the file in its place, unless `check` raises for the present file.

        Readers see the old file or the new one.

        With `new` the name must not exist, even if other processes interfere: raises FileExistsError.
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
        """Return the facts of the file that has the name at this moment, else None."""
        try:
            return os.stat(self._place.name, dir_fd=self._place.directory, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def close(self) -> None:
        """Release the file. An uncommitted file is deleted."""
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
    # Without set-user-id, as after any other write.
    os.fchmod(descriptor, old.st_mode & 0o777)
