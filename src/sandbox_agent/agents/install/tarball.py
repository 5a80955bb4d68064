"""Tar archives, packed or plain, into a tree.

tarfile reads the headers, and nothing else: it would believe sizes, and read as much into memory as a header claims.
"""

import bz2
import gzip
import lzma
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, BinaryIO, Literal, cast

from sandbox_agent.agents.install.tree import PIECE, Damaged, Tree

HEADERS = 4096
"""Bytes that an entry may take besides its content."""

Format = Literal["tar", "tar.gz", "tar.bz2", "tar.xz"]

Unpacked = gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile | BinaryIO

# What tarfile and the unpackers raise over bytes that make no sense. ValueError and LookupError: numbers and maps in
# extended headers are converted as they come.
_DAMAGE = (
    tarfile.TarError,
    EOFError,
    OSError,
    zlib.error,
    lzma.LZMAError,
    ValueError,
    LookupError,
    ArithmeticError,
    RecursionError,
)


def unpack(archive: Path, format: Format, tree: Tree, *, max_bytes: int, max_entries: int) -> None:
    """Put everything into the tree, which counts what it gets; the archive may hold little more than that.

    Raises:
        Damaged: it makes no sense.
    """
    try:
        _unpack(archive, format, tree, max_bytes, max_entries)
    except _DAMAGE as error:
        raise Damaged(str(error)) from error


def _unpack(archive: Path, format: Format, tree: Tree, max_bytes: int, max_entries: int) -> None:
    with _unpacked(archive, format) as unpacked:
        stream = _Forward(unpacked, tree, max_bytes + HEADERS * max_entries)
        with tarfile.TarFile(fileobj=cast("IO[bytes]", cast("object", stream)), errors="surrogateescape") as tar:
            for number, member in enumerate(iter(tar.next, None), 1):
                stream.entry = member.name
                if number > max_entries:
                    tree.refuse("", f"has more than {max_entries} entries")
                _put(member, stream, tree)
        # Zeros end an archive, and so does the end of the file. Anything else was no header.
        if stream.last.strip(b"\0") or len(stream.last) not in (0, tarfile.BLOCKSIZE):
            raise tarfile.ReadError("it ends in the middle")
        while stream.read(PIECE):  # To the very end, where the checksum is.
            pass


def _put(member: tarfile.TarInfo, stream: "_Forward", tree: Tree) -> None:
    name = member.name
    if member.isdir():
        tree.folder(name)
    elif member.issym():
        tree.link(name, member.linkname)
    elif member.islnk():
        tree.copy(name, member.linkname)
    elif member.issparse():
        # Its map of holes is the archive's word for where bytes go, and tarfile can be led in circles by it.
        tree.refuse(name, "is a sparse file")
    elif member.isreg():
        tree.file(name, member.mode, stream.pieces(member.size))
    else:
        tree.refuse(name, "is neither a file nor a folder nor a link")


def _unpacked(archive: Path, format: Format) -> Unpacked:
    match format:
        case "tar.gz":
            return gzip.open(archive)
        case "tar.bz2":
            return bz2.open(archive)
        case "tar.xz":
            return lzma.open(archive)
        case "tar":
            return archive.open("rb")


class _Forward:
    """A stream that only goes forward, in small steps, and not too far: what tarfile gets to read from."""

    def __init__(self, stream: Unpacked, tree: Tree, most: int) -> None:
        self._stream = stream
        self._tree = tree
        self._most = most
        self._at = 0
        self.last = b""
        """What was read last."""
        self.entry = ""

    def tell(self) -> int:
        return self._at

    def read(self, size: int) -> bytes:
        if not 0 <= size <= PIECE:
            self._tree.refuse(self.entry, "is followed by a header that is larger than any needs to be")
        if self._at + size > self._most + PIECE:
            self._tree.refuse(self.entry, f"makes the archive unfold into more than {self._most} bytes")
        parts: list[bytes] = []
        while size > 0 and (part := self._stream.read(size)):
            parts.append(part)
            size -= len(part)
        self.last = b"".join(parts)
        self._at += len(self.last)
        return self.last

    def seek(self, position: int) -> None:
        if position < self._at:
            self._tree.refuse(self.entry, "leads backwards in the archive")
        while self._at < position and self.read(min(PIECE, position - self._at)):
            pass

    def pieces(self, size: int) -> Iterator[bytes]:
        """The next so many bytes, all of them."""
        while size > 0:
            piece = self.read(min(PIECE, size))
            if not piece:
                raise tarfile.ReadError("unexpected end of data")
            size -= len(piece)
            yield piece
