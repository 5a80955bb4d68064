"""How archives are packed: gzip, bzip2, xz and zstd, read from a stream that only goes forward."""

import bz2
import gzip
import io
import lzma
import sys
import zlib
from typing import IO, TYPE_CHECKING, Literal, Protocol, cast

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Packing = Literal["", "gz", "bz2", "xz", "zst"]

WINDOW_LOG = 23
"""How far back zstd may refer, as a power of two: 8 MiB, what every reader should hold (RFC 8878), and no more."""

MEMORY = 128 << 20
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
    """How a stream is packed that begins so."""
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
        self._part = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MEMORY)
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
                self._part = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MEMORY)
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
