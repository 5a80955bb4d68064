"""Write the archive of a directory while it may change.

Deleted files are left out, and files that shrink are filled with zeros. Callers run it in a thread.
"""

import errno
import os
import stat
import tarfile
from collections.abc import Callable, Iterator

from sandboxagent.core.archives.tree import MAX_DEPTH
from sandboxagent.server.files.descriptors import enter_directory, ignore_gone, is_kernel_directory

_READ_ANYTHING = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


READ_BYTES = 1 << 18
"""Number of bytes of a file to read at once."""


Write = Callable[[bytes], None]


def bundle(directory: int, write: Write, max_depth: int = MAX_DEPTH) -> None:
    """Write the archive of an open directory: its files, links and directories, without the directory itself.

    Sockets, pipes, devices and the kernel's own files are left out.

    Raises:
        OSError: an entry cannot be read, or is too deep. The written data is then half an archive.
    """
    left: list[tuple[str, ...]] = [()]
    size = 0

    def count(data: bytes) -> None:
        nonlocal size
        size += len(data)
        write(data)

    while left:
        parts = left.pop()
        if len(parts) >= max_depth:
            raise OSError(errno.ENAMETOOLONG, f"has an entry more than {max_depth} levels deep", "/".join(parts))
        with ignore_gone(), enter_directory(directory, parts) as here:
            if parts and is_kernel_directory(here):
                continue
            if parts:
                count(_header("/".join(parts), os.fstat(here), tarfile.DIRTYPE))
            with os.scandir(here) as entries:
                left += _files(here, entries, parts, count)
    # An archive ends with two empty blocks, and zeros up to a whole record.
    end = 2 * tarfile.BLOCKSIZE
    write(bytes(end + -(size + end) % tarfile.RECORDSIZE))


def _files(
    here: int, entries: "Iterator[os.DirEntry[str]]", parts: tuple[str, ...], write: Write
) -> list[tuple[str, ...]]:
    """Write all entries of a directory except its directories, and return those."""
    directories: list[tuple[str, ...]] = []
    for entry in entries:
        name = "/".join((*parts, entry.name))
        with ignore_gone():
            mode = os.lstat(entry.name, dir_fd=here).st_mode
            if stat.S_ISDIR(mode):
                directories.append((*parts, entry.name))
            elif stat.S_ISLNK(mode):
                target = os.readlink(entry.name, dir_fd=here)
                write(_header(name, os.lstat(entry.name, dir_fd=here), tarfile.SYMTYPE, target))
            elif stat.S_ISREG(mode):
                _file(here, entry.name, name, write)
    return directories


def _file(here: int, entry: str, name: str, write: Write) -> None:
    descriptor = os.open(entry, _READ_ANYTHING, dir_fd=here)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return
        write(_header(name, status, tarfile.REGTYPE))
        left = status.st_size
        while left and (piece := os.read(descriptor, min(READ_BYTES, left))):
            write(piece)
            left -= len(piece)
    finally:
        os.close(descriptor)
    # The file has shrunk, but the header has its old size: add zeros, as for a hole.
    while left:
        write(bytes(min(READ_BYTES, left)))
        left -= min(READ_BYTES, left)
    write(bytes(-status.st_size % tarfile.BLOCKSIZE))


def _header(name: str, status: os.stat_result, type: bytes, target: str = "") -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = type, target
    info.mode, info.mtime = stat.S_IMODE(status.st_mode), int(status.st_mtime)
    info.uid, info.gid = status.st_uid, status.st_gid
    info.size = status.st_size if type == tarfile.REGTYPE else 0
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
