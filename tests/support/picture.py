"""A picture for prompts."""

import base64
import struct
import zlib


def png(width: int, height: int) -> bytes:
    """A grey picture: some agents look at what they are given, and want it larger than a dot."""
    rows = b"".join(b"\0" + b"\x80" * width for _ in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )


PICTURE = base64.b64encode(png(32, 32)).decode()
