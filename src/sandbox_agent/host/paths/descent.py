"""Going down from an open directory, through no link, while things may change."""

import errno
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

_ENTER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

# What was there while we looked may be gone, or something else, when we open it.
# EINVAL: what was a link is none any more, and cannot be read as one.
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.EINVAL)


@contextmanager
def entered(directory: int, names: Sequence[str]) -> Generator[int]:
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


def is_made_up(directory: int) -> bool:
    """Whether this is the kernel's /proc or /sys: endless, and nobody's files."""
    return os.fstat(directory).st_dev in _made_up()


@cache
def _made_up() -> frozenset[int]:
    return frozenset(Path(each).stat().st_dev for each in ("/proc", "/sys") if Path(each).is_mount())


@contextmanager
def unless_gone() -> Generator[None]:
    """Leave the block when what it is about is no longer there, or no longer what it was."""
    try:
        yield
    except OSError as error:
        if error.errno not in _GONE:
            raise
