"""Unpack tar archives (plain, gzip, bzip2, xz or zstd) into a tree, in bounded memory.

Streams are read forward only.
"""

import bz2
import gzip
import io
import lzma
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import IO, TYPE_CHECKING, Literal, NoReturn, Protocol, cast

from sandboxagent.core.archives.tree import PIECE_BYTES, Damaged, Tree

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Packing = Literal["", "gz", "bz2", "xz", "zst"]

MAX_WINDOW_LOG = 23
"""Maximum window of zstd as a power of two: 8 MiB, the size that RFC 8878 recommends every reader to support."""

MAX_MEMORY_BYTES = 128 << 20
"""Maximum number of bytes of memory for unpacking an xz archive. Its strongest level needs half of that."""

DAMAGE = (EOFError, OSError, zlib.error, lzma.LZMAError, zstd.ZstdError)
"""The exceptions that reading raises for damaged bytes."""

STEP_BYTES = 1 << 15
"""The number of bytes to unpack at once."""

_MAGIC: tuple[tuple[bytes, Packing], ...] = (
    (b"\x1f\x8b", "gz"),
    (b"BZh", "bz2"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"\x28\xb5\x2f\xfd", "zst"),
)


class ByteReader(Protocol):
    """A stream that returns at most the requested number of bytes, and none at its end."""

    def read(self, size: int, /) -> bytes: ...


def detect_packing(head: bytes) -> Packing:
    """Return the packing of a stream, by its first bytes."""
    for magic, packing in _MAGIC:
        if head.startswith(magic):
            return packing
    return ""


def unpack_stream(stream: ByteReader, packing: Packing) -> ByteReader:
    """Return the unpacked stream, which uses bounded memory."""
    file = cast("IO[bytes]", cast("object", stream))
    match packing:
        case "gz":
            return gzip.GzipFile(fileobj=file)
        case "bz2":
            return bz2.BZ2File(file)
        case "xz":
            return io.BufferedReader(_Xz(stream), STEP_BYTES)
        case "zst":
            return zstd.ZstdFile(file, options={zstd.DecompressionParameter.window_log_max: MAX_WINDOW_LOG})
        case "":
            return stream


class _Xz(io.RawIOBase):
    """A reader like LZMAFile, but with a limit on memory."""

    def __init__(self, stream: ByteReader) -> None:
        super().__init__()
        self._stream = stream
        self._part = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MAX_MEMORY_BYTES)
        self._coming = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        with memoryview(buffer) as view:
            content = self._next(len(view))
            view[: len(content)] = content
        return len(content)

    def _next(self, size: int) -> bytes:
        while True:
            if self._part.eof:
                # Several xz streams may follow each other, with zeros between them.
                self._coming = self._part.unused_data.lstrip(b"\0") or self._stream.read(STEP_BYTES).lstrip(b"\0")
                if not self._coming:
                    return b""
                self._part = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MAX_MEMORY_BYTES)
            if self._part.needs_input and not self._coming:
                self._coming = self._stream.read(STEP_BYTES)
                if not self._coming:
                    raise EOFError("it ends before its end is marked")
            given, self._coming = self._coming, b""
            if content := self._part.decompress(given, size):
                return content


class Packer(Protocol):
    """A compressor that packs piece by piece."""

    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self) -> bytes: ...


def make_packer(packing: Literal["gz", "zst"]) -> Packer:
    """Return a compressor that favors speed over size."""
    if packing == "gz":
        return zlib.compressobj(level=4, wbits=zlib.MAX_WBITS | 16)
    return zstd.ZstdCompressor(level=3)


MAX_EXTENDED_BYTES = 1 << 16
"""Maximum number of bytes of the extended headers of one entry together."""
MAX_GLOBAL_BYTES = 1 << 20
"""Maximum number of bytes of all global headers together."""

BLOCK = tarfile.BLOCKSIZE
NAMES = ("utf-8", "surrogateescape")
"""Encoding of names, which also keeps bytes that are not UTF-8."""

_RECORDS = {tarfile.XHDTYPE: "pax", tarfile.SOLARIS_XHDTYPE: "pax"}
_LONG = {tarfile.GNUTYPE_LONGNAME: b"path", tarfile.GNUTYPE_LONGLINK: b"linkpath"}
_COUNTED = (b"path", b"linkpath", b"size")
_SPARSE = b"GNU.sparse."
_MAX_DIGITS = 8
"""Maximum number of digits of a record's length."""

MAX_HEADERS_BYTES = 4096
"""Maximum number of bytes of an entry besides its content."""
NOWHERE = "/nowhere"
"""A destination for Python's own filter. It does not exist, so that the filter judges names and not this disk."""
Put = Callable[[tarfile.TarInfo, Iterable[bytes], Tree], None]
"""Puts an entry with its content into a tree."""


class Refuse(Protocol):
    """Raises the error for an entry that breaks a rule. The facts include a `limit`, if the rule is one."""

    def __call__(self, name: str, rule: str, **facts: object) -> NoReturn: ...


class Headers:
    """An iterator over entries. Read the content of a file from the stream before you request the next entry.

    `stream` returns as many bytes as requested, fewer only at its end. Raises Damaged, and the exceptions of `refuse`.
    """

    def __init__(self, stream: ByteReader, refuse: Refuse) -> None:
        self.entry = ""
        """The name of the last entry."""
        self._stream = stream
        self._refuse = refuse
        self._global = 0

    def __iter__(self) -> Iterator[tarfile.TarInfo]:
        block = self._stream.read(BLOCK)
        if not block:
            raise Damaged("empty file")
        while block and block.strip(b"\0"):
            member = self._member(block)
            self.entry = member.name
            yield member
            if has_content(member) and member.size % BLOCK:
                self._whole(BLOCK - member.size % BLOCK)
            block = self._stream.read(BLOCK)
        if len(block) not in (0, BLOCK):
            raise Damaged("it ends in the middle")

    def _member(self, block: bytes) -> tarfile.TarInfo:
        """Return the entry that begins with this block, with its extended headers applied."""
        found: dict[bytes, bytes] = {}
        kinds: set[str] = set()
        size = 0
        while (header := _parse_header(block)).type in {*_RECORDS, *_LONG, tarfile.XGLTYPE}:
            padded = -(-header.size // BLOCK) * BLOCK
            size += BLOCK + padded
            if size > MAX_EXTENDED_BYTES:
                rule = "is followed by" if self.entry else "begins with"
                self._refuse(
                    self.entry, f"{rule} headers of more than {MAX_EXTENDED_BYTES} bytes", limit=MAX_EXTENDED_BYTES
                )
            body = self._whole(padded)[: header.size]
            if header.type == tarfile.XGLTYPE:
                self._pass_over(body)
            else:
                kind = _RECORDS.get(header.type) or str(header.type)
                if kind in kinds:
                    raise Damaged("an entry has two extended headers of one kind")
                kinds.add(kind)
                found |= _parse_extended(header.type, body)
            block = self._whole(BLOCK)
        _apply(found, header)
        if _SPARSE in found or header.type == tarfile.GNUTYPE_SPARSE:
            # The archive decides with the map of holes at which offsets bytes go.
            self._refuse(header.name, "is a sparse file")
        return header

    def _pass_over(self, body: bytes) -> None:
        """Skip a global header. Raises Damaged if it would give all entries one name or size."""
        self._global += BLOCK + len(body)
        if self._global > MAX_GLOBAL_BYTES:
            self._refuse(
                "", f"has headers for all entries of more than {MAX_GLOBAL_BYTES} bytes", limit=MAX_GLOBAL_BYTES
            )
        if any(keyword in _COUNTED or keyword.startswith(_SPARSE) for keyword, _ in _parse_records(body)):
            raise Damaged("a header gives all entries one name or one size")

    def _whole(self, size: int) -> bytes:
        body = self._stream.read(size) if size else b""
        if len(body) < size:
            raise Damaged("unexpected end of data")
        return body


def has_content(member: tarfile.TarInfo) -> bool:
    """Return whether content follows the header. Unknown kinds count as files."""
    return member.isreg() or member.type not in tarfile.SUPPORTED_TYPES


def _parse_header(block: bytes) -> tarfile.TarInfo:
    try:
        header = tarfile.TarInfo.frombuf(block, *NAMES)
    except (tarfile.HeaderError, ValueError, ArithmeticError) as error:
        raise Damaged(str(error)) from error
    if header.size < 0:
        raise Damaged("an entry has a size below zero")
    return header


def _parse_records(body: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keyword and the value of each record of an extended header."""
    at = 0
    while at < len(body):
        space = body.find(b" ", at, at + _MAX_DIGITS)
        length = body[at:space] if space > at else b""
        end = at + int(length) if length.isdigit() else 0
        keyword, equals, value = body[space + 1 : end - 1].partition(b"=")
        if not space < end <= len(body) or body[end - 1 : end] != b"\n" or not keyword or not equals:
            raise Damaged("a record of an extended header makes no sense")
        yield keyword, value
        at = end


def _parse_extended(type: bytes, body: bytes) -> dict[bytes, bytes]:
    """Return the records of an extended header that matter."""
    if type in _LONG:
        return {_LONG[type]: body.partition(b"\0")[0]}
    said: dict[bytes, bytes] = {}
    for keyword, value in _parse_records(body):
        if keyword in _COUNTED and value:
            said[keyword] = value
        elif keyword.startswith(_SPARSE):
            said[_SPARSE] = value
    return said


def _apply(found: dict[bytes, bytes], header: tarfile.TarInfo) -> None:
    if b"path" in found:
        header.name = found[b"path"].decode(*NAMES)
    if b"linkpath" in found:
        header.linkname = found[b"linkpath"].decode(*NAMES)
    size = found.get(b"size")
    if size is not None:
        if not size.isdigit() or len(size) > len(str(1 << 64)):
            raise Damaged("an entry has a size that is no number")
        header.size = int(size)


def put(member: tarfile.TarInfo, content: Iterable[bytes], tree: Tree) -> None:
    """Put files, folders and links into the tree, and refuse every other entry."""
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
        # For files and folders the filter only checks names, and the tree has done that.
        _filter(member, tree)


def unpack(
    stream: ByteReader,
    tree: Tree,
    *,
    max_bytes: int,
    max_entries: int,
    allowed: Callable[[], int] | None = None,
    put: Put = put,
) -> None:
    """Put all entries into the tree, which enforces its own limits.

    The archive may have little more data than the tree.

    `allowed` returns the maximum number of unpacked bytes at this moment. `put` handles one entry.

    Raises:
        Damaged: the archive is not valid.
    """
    forward = _Forward(stream, tree, max_bytes + MAX_HEADERS_BYTES * max_entries, allowed)
    for number, member in enumerate(forward.headers, 1):
        if number > max_entries:
            tree.refuse("", f"has more than {max_entries} entries", limit=max_entries)
        content = forward.pieces(member.size if has_content(member) else 0)
        put(member, content, tree)
        for _ in content:  # Skip content that was not read.
            pass
    while forward.read(PIECE_BYTES):  # Read to the very end, where the checksum is.
        pass


def _filter(member: tarfile.TarInfo, tree: Tree) -> None:
    """Refuse entries that Python's data filter (PEP 706) refuses.

    The tree's rules are stricter; this is a safety net.
    """
    # The first releases of 3.11 have no filter.
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
    """A stream that is read forward only, in small steps and up to a limit."""

    def __init__(self, stream: ByteReader, tree: Tree, most: int, allowed: Callable[[], int] | None) -> None:
        self.headers = Headers(self, tree.refuse)
        self._stream = stream
        self._tree = tree
        self._most = most
        self._allowed = allowed
        self._at = 0

    def read(self, size: int, /) -> bytes:
        """Return the requested number of bytes, fewer only at the end."""
        if self._at + size > self._most + PIECE_BYTES:
            rule = f"makes the archive unpack to more than {self._most} bytes"
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
            self._tree.refuse(self.headers.entry, "makes the archive unpack to far more than its own size", limit=limit)
        return content

    def pieces(self, size: int) -> Iterator[bytes]:
        """Yield the next `size` bytes, all of them."""
        while size > 0:
            piece = self.read(min(PIECE_BYTES, size))
            if not piece:
                raise Damaged("unexpected end of data")
            size -= len(piece)
            yield piece
