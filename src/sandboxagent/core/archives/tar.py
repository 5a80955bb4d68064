"""Unpack tar archives (plain, gzip, bzip2, xz or zstd) into a tree, in bounded memory.

gzip, bzip2, xz and zstd are read from a stream that only goes forward.
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

from sandboxagent.core.archives.tree import PIECE, Damaged, Tree

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Packing = Literal["", "gz", "bz2", "xz", "zst"]

WINDOW_LOG = 23
"""How far back zstd may refer, as a power of two: 8 MiB, what every reader should hold (RFC 8878), and no more."""

MAX_MEMORY_BYTES = 128 << 20
"""Bytes of memory that an xz archive may ask for; its strongest level takes half of them."""

DAMAGE = (EOFError, OSError, zlib.error, lzma.LZMAError, zstd.ZstdError)
"""What reading raises over bytes that make no sense."""

STEP = 1 << 15
"""Bytes that are unpacked at once."""

_MAGIC: tuple[tuple[bytes, Packing], ...] = (
    (b"\x1f\x8b", "gz"),
    (b"BZh", "bz2"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"\x28\xb5\x2f\xfd", "zst"),
)


class ByteReader(Protocol):
    """As much of a stream as is needed: the next bytes, at most so many; none at its end."""

    def read(self, size: int, /) -> bytes: ...


def detect_packing(head: bytes) -> Packing:
    """How a stream is packed, by its first bytes."""
    for magic, packing in _MAGIC:
        if head.startswith(magic):
            return packing
    return ""


def unpack_stream(stream: ByteReader, packing: Packing) -> ByteReader:
    """The stream without its packing, in bounded memory."""
    file = cast("IO[bytes]", cast("object", stream))
    match packing:
        case "gz":
            return gzip.GzipFile(fileobj=file)
        case "bz2":
            return bz2.BZ2File(file)
        case "xz":
            return io.BufferedReader(_Xz(stream), STEP)
        case "zst":
            return zstd.ZstdFile(file, options={zstd.DecompressionParameter.window_log_max: WINDOW_LOG})
        case "":
            return stream


class _Xz(io.RawIOBase):
    """As LZMAFile, which has no bound."""

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
                # Several may follow each other, with zeros between them.
                self._coming = self._part.unused_data.lstrip(b"\0") or self._stream.read(STEP).lstrip(b"\0")
                if not self._coming:
                    return b""
                self._part = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MAX_MEMORY_BYTES)
            if self._part.needs_input and not self._coming:
                self._coming = self._stream.read(STEP)
                if not self._coming:
                    raise EOFError("it ends before its end is marked")
            given, self._coming = self._coming, b""
            if content := self._part.decompress(given, size):
                return content


class Packer(Protocol):
    """Packs piece by piece."""

    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self) -> bytes: ...


def make_packer(packing: Literal["gz", "zst"]) -> Packer:
    """Packs a stream; quickly rather than small."""
    if packing == "gz":
        return zlib.compressobj(level=4, wbits=zlib.MAX_WBITS | 16)
    return zstd.ZstdCompressor(level=3)


MAX_EXTENDED_BYTES = 1 << 16
"""Bytes that the extended headers of one entry may have, together."""
MAX_GLOBAL_BYTES = 1 << 20
"""Bytes that headers for all entries may have, together."""

BLOCK = tarfile.BLOCKSIZE
NAMES = ("utf-8", "surrogateescape")
"""How names are written: those that are no text, too."""

_RECORDS = {tarfile.XHDTYPE: "pax", tarfile.SOLARIS_XHDTYPE: "pax"}
_LONG = {tarfile.GNUTYPE_LONGNAME: b"path", tarfile.GNUTYPE_LONGLINK: b"linkpath"}
_COUNTED = (b"path", b"linkpath", b"size")
_SPARSE = b"GNU.sparse."
_DIGITS = 8
"""Digits that the length of a record has at most."""

HEADERS = 4096
"""Bytes that an entry may take besides its content."""
NOWHERE = "/nowhere"
"""The destination passed to Python's own filter, which is to judge names and not this disk."""
Put = Callable[[tarfile.TarInfo, Iterable[bytes], Tree], None]
"""Puts an entry, with its content, into a tree."""


class Refuse(Protocol):
    """Raises that an entry breaks a rule; says which `limit` it was."""

    def __call__(self, name: str, rule: str, **facts: object) -> NoReturn: ...


class Headers:
    """Iterates over entries. Take the content of a file from the stream before you ask for the next one.

    `stream` gives as many bytes as it is asked for, fewer only at its end. Raises Damaged, and what `refuse` raises.
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
        """The entry that begins with this block, with all that is said of it before."""
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
            # Its map of holes is the archive's word for where bytes go.
            self._refuse(header.name, "is a sparse file")
        return header

    def _pass_over(self, body: bytes) -> None:
        """A header for all entries; those that give all of them one name or size make no sense."""
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
    """Whether content follows the header; unknown kinds count as files."""
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
    """What an extended header says: records of their length, a keyword and a value."""
    at = 0
    while at < len(body):
        space = body.find(b" ", at, at + _DIGITS)
        length = body[at:space] if space > at else b""
        end = at + int(length) if length.isdigit() else 0
        keyword, equals, value = body[space + 1 : end - 1].partition(b"=")
        if not space < end <= len(body) or body[end - 1 : end] != b"\n" or not keyword or not equals:
            raise Damaged("a record of an extended header makes no sense")
        yield keyword, value
        at = end


def _parse_extended(type: bytes, body: bytes) -> dict[bytes, bytes]:
    """What counts in an extended header."""
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
    stream: ByteReader,
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

    def __init__(self, stream: ByteReader, tree: Tree, most: int, allowed: Callable[[], int] | None) -> None:
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
