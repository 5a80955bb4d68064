"""Open files and directories by descriptor, so that what was checked is what is used.

No link is followed. Everything here blocks.
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
# What was there while we looked may be gone, or something else, when we open it.
# EINVAL: what was a link is none any more, and cannot be read as one.
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.EINVAL)


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
