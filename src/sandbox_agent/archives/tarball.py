"""Tar archives, packed or plain, into a tree."""

import tarfile
from collections.abc import Callable, Iterable, Iterator

from sandbox_agent.archives.headers import Headers, has_content
from sandbox_agent.archives.packing import DAMAGE, Reader
from sandbox_agent.archives.tree import PIECE, Damaged, Tree

HEADERS = 4096
"""Bytes that an entry may take besides its content."""

NOWHERE = "/nowhere"
"""The destination passed to Python's own filter, which is to judge names and not this disk."""


Put = Callable[[tarfile.TarInfo, Iterable[bytes], Tree], None]
"""Puts an entry, with its content, into a tree."""


def put(member: tarfile.TarInfo, content: Iterable[bytes], tree: Tree) -> None:
    """Take files, folders and links, and refuse everything else."""
    name = member.name
    if member.isdir():
        tree.folder(name)
    elif member.issym():
        tree.link(name, member.linkname)
    elif member.islnk():
        tree.copy(name, member.linkname)
    elif member.isreg():
        tree.file(name, member.mode, content)
    else:
        tree.refuse(name, "is neither a file nor a folder nor a link")
    if member.issym() or member.islnk():
        # For files and folders it looks at names alone, and the tree has done that.
        _filter(member, tree)


def unpack(
    stream: Reader,
    tree: Tree,
    *,
    max_bytes: int,
    max_entries: int,
    allowed: Callable[[], int] | None = None,
    put: Put = put,
) -> None:
    """Put everything into the tree, which counts what it gets; the archive may hold little more than that.

    `allowed` says how many bytes the stream may have had by now, `put` what becomes of an entry.

    Raises:
        Damaged: it makes no sense.
    """
    forward = _Forward(stream, tree, max_bytes + HEADERS * max_entries, allowed)
    for number, member in enumerate(forward.headers, 1):
        if number > max_entries:
            tree.refuse("", f"has more than {max_entries} entries", limit=max_entries)
        content = forward.pieces(member.size if has_content(member) else 0)
        put(member, content, tree)
        for _ in content:  # What was left out is passed over.
            pass
    while forward.read(PIECE):  # To the very end, where the checksum is.
        pass


def _filter(member: tarfile.TarInfo, tree: Tree) -> None:
    """Refuse what Python's data filter (PEP 706) refuses. Our own rules are stricter; this is a safety net."""
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
    """A stream that only goes forward, in small steps, and not too far."""

    def __init__(self, stream: Reader, tree: Tree, most: int, allowed: Callable[[], int] | None) -> None:
        self.headers = Headers(self, tree.refuse)
        self._stream = stream
        self._tree = tree
        self._most = most
        self._allowed = allowed
        self._at = 0

    def read(self, size: int, /) -> bytes:
        """So many bytes, fewer only at the end."""
        if self._at + size > self._most + PIECE:
            rule = f"makes the archive unfold into more than {self._most} bytes"
            self._tree.refuse(self.headers.entry, rule, limit=self._most)
        parts: list[bytes] = []
        try:
            while size > 0 and (part := self._stream.read(size)):
                parts.append(part)
                size -= len(part)
        except DAMAGE as error:
            raise Damaged(str(error)) from error
        content = parts[0] if len(parts) == 1 else b"".join(parts)
        self._at += len(content)
        if self._allowed is not None and self._at > (limit := self._allowed()):
            self._tree.refuse(self.headers.entry, "makes the archive unfold into far more than it is", limit=limit)
        return content

    def pieces(self, size: int) -> Iterator[bytes]:
        """The next so many bytes, all of them."""
        while size > 0:
            piece = self.read(min(PIECE, size))
            if not piece:
                raise Damaged("unexpected end of data")
            size -= len(piece)
            yield piece
