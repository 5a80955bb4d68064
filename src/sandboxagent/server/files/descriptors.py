"""Open files and directories by descriptor, so that the checked file is the used one.

No link is followed. All functions block.
"""

import errno
import os
import secrets
import stat
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from msgspec import Struct

_ENTER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Between listing and opening, an entry may disappear or be replaced. EINVAL: readlink of an entry that was replaced by
# something other than a link.
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.EINVAL)


class NotAFile(OSError):
    """The entry is neither a regular file nor a directory. Opening it might block, or have an effect."""


class Place(Struct, frozen=True):
    """The place that a path leads to: a directory, a name in it, and the entry of that name.

    A directory can be its own entry, with the name `.`.
    """

    directory: int
    name: bytes
    node: int | None

    def existing(self) -> int:
        if self.node is None:
            raise error_of(errno.ENOENT)
        return self.node


def error_of(number: int) -> OSError:
    """Make an error as the system would raise it."""
    return OSError(number, os.strerror(number))


def descriptor_path(node: int) -> str:
    """Return a path for a descriptor that is valid even if the file was renamed."""
    return f"/proc/self/fd/{node}"


def require_regular(node: int) -> int:
    """Return the node if it is a regular file. Raises IsADirectoryError or NotAFile otherwise."""
    mode = os.fstat(node).st_mode
    if stat.S_ISDIR(mode):
        raise error_of(errno.EISDIR)
    if not stat.S_ISREG(mode):
        raise NotAFile(errno.EINVAL, "is not a regular file")
    return node


def require_writable(node: int) -> int:
    """Return the node if this process may write the file. Replacing a read-only file would not check that."""
    if not os.access(descriptor_path(node), os.W_OK):
        raise error_of(errno.EACCES)
    return node


def make_temporary_name() -> bytes:
    """Make a name for a temporary entry."""
    return b".sandbox-agent-%b" % secrets.token_hex(8).encode()


@contextmanager
def enter_directory(directory: int, names: Sequence[str]) -> Generator[int]:
    """Open the directory below, while the block runs. Raises OSError if a name is no directory, or is a link."""
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
    """Return whether a directory is in /proc or /sys, which are endless and have no user's files."""
    return os.fstat(directory).st_dev in _kernel_devices()


@cache
def _kernel_devices() -> frozenset[int]:
    return frozenset(Path(each).stat().st_dev for each in ("/proc", "/sys") if Path(each).is_mount())


@contextmanager
def ignore_gone() -> Generator[None]:
    """End the block if its file disappears or is replaced meanwhile."""
    try:
        yield
    except OSError as error:
        if error.errno not in _GONE:
            raise
