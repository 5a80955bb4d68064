"""How archives are packed: gzip, bzip2, xz and zstd, read from a stream that only goes forward."""

import bz2
import gzip
import lzma
import sys
import zlib
from typing import IO, Literal, Protocol, cast

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Packing = Literal["", "gz", "bz2", "xz", "zst"]

WINDOW_LOG = 23
"""How far back zstd may refer, as a power of two: 8 MiB, what every reader should hold (RFC 8878), and no more."""

DAMAGE = (EOFError, OSError, zlib.error, lzma.LZMAError, zstd.ZstdError)
"""What reading raises over bytes that make no sense."""

_MAGIC: tuple[tuple[bytes, Packing], ...] = (
    (b"\x1f\x8b", "gz"),
    (b"BZh", "bz2"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"\x28\xb5\x2f\xfd", "zst"),
)


class Reader(Protocol):
    """As much of a stream as is needed: the next bytes, at most so many; none at its end."""

    def read(self, size: int, /) -> bytes: ...


def packing(head: bytes) -> Packing:
    """How a stream is packed that begins so."""
    for magic, packing in _MAGIC:
        if head.startswith(magic):
            return packing
    return ""


def unpacked(stream: Reader, packing: Packing) -> Reader:
    """The stream without its packing. Memory is bounded, but for xz, whose archives say themselves what they need."""
    file = cast("IO[bytes]", cast("object", stream))
    match packing:
        case "gz":
            return gzip.GzipFile(fileobj=file)
        case "bz2":
            return bz2.BZ2File(file)
        case "xz":
            return lzma.LZMAFile(file)
        case "zst":
            return zstd.ZstdFile(file, options={zstd.DecompressionParameter.window_log_max: WINDOW_LOG})
        case "":
            return stream


class Packer(Protocol):
    """Packs piece by piece."""

    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self) -> bytes: ...


def packer(packing: Literal["gz", "zst"]) -> Packer:
    """Packs a stream; quickly rather than small."""
    if packing == "gz":
        return zlib.compressobj(level=4, wbits=zlib.MAX_WBITS | 16)
    return zstd.ZstdCompressor(level=3)
