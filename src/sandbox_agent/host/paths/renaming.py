"""rename(2), and the one that replaces nothing, which Python does not have."""

import ctypes
import errno
import os
from functools import cache

_NO_REPLACE = 1


def rename(from_directory: int, old: bytes, to_directory: int, new: bytes, *, replace: bool) -> None:
    """Rename; without `replace`, FileExistsError when the new name is taken, in one step. Raises OSError."""
    if not replace:
        function = _renameat2()
        if function is not None:
            if function(from_directory, old, to_directory, new, _NO_REPLACE) == 0:
                return
            number = ctypes.get_errno()
            # Some file systems do not know the flag, and say so in the same word as for a move into itself.
            if number not in (errno.ENOSYS, errno.EINVAL):
                raise OSError(number, os.strerror(number))
        if _taken(to_directory, new):
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
    os.rename(old, new, src_dir_fd=from_directory, dst_dir_fd=to_directory)


@cache
def _renameat2() -> "ctypes._NamedFuncPointer | None":  # pyright: ignore[reportPrivateUsage]
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is not None:
        function.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    return function


def _taken(directory: int, name: bytes) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
