"""Descriptors of what is in a file system, as a walk finds it. What was looked at is what is used."""

import errno
import os
import secrets
import stat
from dataclasses import dataclass


class NotAFile(OSError):
    """Neither a regular file nor a directory: to open it might block, or do something."""


@dataclass(frozen=True, slots=True)
class Place:
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


def itself(node: int) -> str:
    """A name for what a descriptor stands for, whatever has become of its path."""
    return f"/proc/self/fd/{node}"


def regular(node: int) -> int:
    """The node, when it is a regular file; raises what it is else."""
    mode = os.fstat(node).st_mode
    if stat.S_ISDIR(mode):
        raise error_of(errno.EISDIR)
    if not stat.S_ISREG(mode):
        raise NotAFile(errno.EINVAL, "is not a regular file")
    return node


def writable(node: int) -> int:
    """To replace a file takes no permission of that file; whoever made it read-only meant something else."""
    if not os.access(itself(node), os.W_OK):
        raise error_of(errno.EACCES)
    return node


def passing_name() -> bytes:
    """A name for what is there only while it is made."""
    return b".sandbox-agent-%b" % secrets.token_hex(8).encode()
