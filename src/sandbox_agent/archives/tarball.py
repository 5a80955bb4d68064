"""Tar archives, packed or plain, into a tree.

tarfile reads the headers, and nothing else: it would believe sizes, and read as much into memory as a header claims.
"""

import tarfile
from collections.abc import Callable, Iterator
from typing import IO, cast

from sandbox_agent.archives.packing import DAMAGE, Reader
from sandbox_agent.archives.tree import PIECE, Damaged, Tree

HEADERS = 4096
"""Bytes that an entry may take besides its content."""

NOWHERE = "/nowhere"
"""Where Python's own filter is told that things go: it is asked for its opinion of names, not of this disk."""

# What tarfile raises over bytes that make no sense. ValueError and LookupError: numbers and maps in extended headers
# are converted as they come.
_DAMAGE = (tarfile.TarError, EOFError, ValueError, LookupError, ArithmeticError, RecursionError)


def unpack(
    stream: Reader, tree: Tree, *, max_bytes: int, max_entries: int, allowed: Callable[[], int] | None = None
) -> None:
    """Put everything into the tree, which counts what it gets; the archive may hold little more than that.

    `allowed` says how many bytes the stream may have had by now.

    Raises:
        Damaged: it makes no sense.
    """
    try:
        _unpack(_Forward(stream, tree, max_bytes + HEADERS * max_entries, allowed), tree, max_entries)
    except _DAMAGE as error:
        raise Damaged(str(error)) from error


def _unpack(stream: "_Forward", tree: Tree, max_entries: int) -> None:
    with tarfile.TarFile(fileobj=cast("IO[bytes]", cast("object", stream)), errors="surrogateescape") as tar:
        for number, member in enumerate(iter(tar.next, None), 1):
            stream.entry = member.name
            if number > max_entries:
                tree.refuse("", f"has more than {max_entries} entries", limit=max_entries)
            _put(member, stream, tree)
            # It keeps all of them for whoever wants to go back.
            tar.members = []  # pyright: ignore[reportAttributeAccessIssue] - documented, and not in its stub
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
    if member.issym() or member.islnk():
        # For files and folders it looks at names alone, and the tree has done that.
        _filter(member, tree)


def _filter(member: tarfile.TarInfo, tree: Tree) -> None:
    """Refuse what Python's filter for data (PEP 706) refuses. Our own rules are stricter; it has been right before."""
    # Absent from the first releases of 3.11.
    data_filter = getattr(tarfile, "data_filter", None)
    if data_filter is None:
        return
    try:
        data_filter(member, NOWHERE)
    except (tarfile.AbsoluteLinkError, tarfile.LinkOutsideDestinationError):
        tree.refuse(member.name, "is a link that leads out of the folder")
    except tarfile.FilterError as error:
        tree.refuse(member.name, f"is not data: {type(error).__name__}")


class _Forward:
    """A stream that only goes forward, in small steps, and not too far: what tarfile gets to read from."""

    def __init__(self, stream: Reader, tree: Tree, most: int, allowed: Callable[[], int] | None) -> None:
        self._stream = stream
        self._tree = tree
        self._most = most
        self._allowed = allowed
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
            rule = f"makes the archive unfold into more than {self._most} bytes"
            self._tree.refuse(self.entry, rule, limit=self._most)
        parts: list[bytes] = []
        try:
            while size > 0 and (part := self._stream.read(size)):
                parts.append(part)
                size -= len(part)
        except DAMAGE as error:
            raise tarfile.ReadError(str(error)) from error
        self.last = parts[0] if len(parts) == 1 else b"".join(parts)
        self._at += len(self.last)
        if self._allowed is not None and self._at > (limit := self._allowed()):
            self._tree.refuse(self.entry, "makes the archive unfold into far more than it is", limit=limit)
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
