"""Zip archives into a tree."""

import io
import mmap
import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO, cast

from sandbox_agent.archives.tree import LONGEST_TARGET, PIECE, Damaged, Tree

# RuntimeError: NotImplementedError, for a method of packing that Python does not know.
_DAMAGE = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, RuntimeError, ValueError, LookupError)

_ENTRY = re.compile(rb"PK\x01\x02")
_ENCRYPTED = 0x1
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2)
"""Those that need little memory to unpack, whatever the archive says."""

DIRECTORY = 64 << 20
"""Bytes that the list of entries may have: ZipFile reads it at once, and makes an object of each."""


def unpack(archive: Path, tree: Tree, *, max_entries: int) -> None:
    """Put everything into the tree, which counts what it gets.

    Raises:
        Damaged: it makes no sense.
    """
    try:
        _unpack(archive, tree, max_entries)
    except _DAMAGE as error:
        raise Damaged(str(error)) from error


def _unpack(archive: Path, tree: Tree, max_entries: int) -> None:
    with _Archive(archive, tree) as file:
        # ZipFile creates an object per entry before they can be checked; the archive's own count may be a lie.
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if next(islice(_ENTRY.finditer(content), max_entries, None), None) is not None:
                tree.refuse("", f"has more than {max_entries} entries")
        with zipfile.ZipFile(cast("IO[bytes]", file)) as packed:
            for info in packed.infolist():
                _put(packed, info, tree)


class _Archive(io.FileIO):
    """The archive file, with a bound on how much one read may return."""

    def __init__(self, path: Path, tree: Tree) -> None:
        super().__init__(path, "rb")
        self._tree = tree

    def read(self, size: int | None = -1, /) -> bytes:
        rest = max(0, os.fstat(self.fileno()).st_size - self.tell())
        wanted = rest if size is None or size < 0 else min(size, rest)
        if wanted > DIRECTORY:
            self._tree.refuse("", f"has a list of entries of more than {DIRECTORY} bytes", limit=DIRECTORY)
        return super().read(wanted)


def _put(packed: zipfile.ZipFile, info: zipfile.ZipInfo, tree: Tree) -> None:
    name = info.orig_filename  # As it is in the archive: `filename` is cut off at a NUL.
    mode = info.external_attr >> 16
    if info.flag_bits & _ENCRYPTED:
        tree.refuse(name, "is encrypted")
    if info.compress_type not in _METHODS:
        tree.refuse(name, "is packed in a way that is not taken: only deflate and bzip2 are")
    match stat.S_IFMT(mode):
        case stat.S_IFLNK:
            with packed.open(info) as file:
                target = file.read(LONGEST_TARGET + 1)
            tree.link(name, target.decode("utf-8", "surrogateescape"))
        case stat.S_IFDIR:
            tree.folder(name)
        case 0 | stat.S_IFREG if name.endswith("/"):
            tree.folder(name)
        case 0 | stat.S_IFREG:
            tree.file(name, mode, _pieces(packed, info))
        case _:
            tree.refuse(name, "is neither a file nor a folder nor a link")


def _pieces(packed: zipfile.ZipFile, info: zipfile.ZipInfo) -> Iterator[bytes]:
    with packed.open(info) as file:
        while piece := file.read(PIECE):
            yield piece
