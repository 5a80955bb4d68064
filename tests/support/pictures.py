"""Small pictures, made here: agents look at what they are given, and want it larger than a dot."""

import struct
import zlib


def png(width: int = 32, height: int = 32, grey: int = 0x80) -> bytes:
    """A grey picture."""
    rows = b"".join(b"\0" + bytes([grey]) * width for _ in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )


def large(size: int) -> bytes:
    """A picture, as far as its first bytes tell, of this size."""
    return png().ljust(size, b"\0")
