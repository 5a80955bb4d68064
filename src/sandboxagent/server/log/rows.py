"""Turn chunks into rows with checksums, and back.

Pure: knows nothing of SQL or of files.
"""

import struct
from zlib import crc32

from sandboxagent.protocol.envelope import notification
from sandboxagent.protocol.methods import GAP
from sandboxagent.server.log.event import Chunk, Direction, split_lines

PAGE_BYTES = 8192
"""Bytes of a page of the file."""
_MAX_ROW_BYTES, _MIN_ROW_BYTES = PAGE_BYTES - 35, (PAGE_BYTES - 12) * 32 // 255 - 23
"""Maximum bytes of a row in one page, and minimum bytes there of a row that is longer."""
_FIXED_BYTES = 100
"""Bytes of a row besides its texts: numbers, headers, and its entries in two indexes."""

EventRow = tuple[int, int, str | None, str, str, str, float, int, int | None, int, bytes, int | None]
NewRow = tuple[int, int, str | None, str, str, str, float, int, int, int, bytearray, int]
"""A row to be written. Python's `sqlite3` takes a `bytearray` or a number as it is. For `bytes` or None it looks for an
adapter, which takes long."""
NO_REQUEST = -1
"""Stands for null in the column `request` of a row to be written."""
_WRITTEN = {direction: direction.value for direction in Direction}


class DamagedRow(Exception):
    """The row differs from what was written."""


def checksum(*values: object) -> int:
    """Return the checksum of a row's values. A blob in the last place is not copied."""
    *some, last = values
    if isinstance(last, bytes):
        return crc32(last, crc32(repr(some).encode("utf-8", "surrogatepass")))
    return crc32(repr(values).encode("utf-8", "surrogatepass"))


def encode_chunk(chunk: Chunk) -> NewRow:
    """Return the chunk as a row of the table of events."""
    lines = _LINE_BREAK.join(chunk.lines)
    values = (
        chunk.first,
        chunk.last,
        chunk.session_id,
        chunk.channel,
        chunk.exclude,
        _WRITTEN[chunk.direction],
        float(chunk.at),
        int(chunk.history),
        NO_REQUEST if chunk.request is None else chunk.request,
        size_on_disk(chunk, len(lines)),
        lines,
    )
    return (*values, _event_checksum(*values))


def encode_session(values: tuple[str, bytes]) -> tuple[str, bytearray, int]:
    """Return a session's id and record as a row of the table of sessions."""
    session_id, record = values
    return session_id, bytearray(record), checksum(session_id, record)


def encode_outcome(values: tuple[str, str, bytes, bytes | None, float]) -> tuple[object, ...]:
    """Return scope, key, digest, response and age of an outcome as a row of the table of outcomes."""
    scope, key, digest, response, at = values
    return scope, key, bytearray(digest), response and bytearray(response), at, checksum(*values)


_LINE_BREAK = bytearray(b"\n")
_NUMBERS = struct.Struct("<qqdqqq")


def _event_checksum(
    first: int,
    last: int,
    session_id: str | None,
    channel: str,
    exclude: str,
    direction: str,
    at: float,
    history: int,
    request: int | None,
    size: int,
    lines: bytes | bytearray,
) -> int:
    """Return the checksum of an event's row. Several times faster than `checksum`: each written chunk needs one."""
    numbers = _NUMBERS.pack(first, last, at, history, NO_REQUEST if request is None else request, size)
    texts = f"{session_id}\n{channel}\n{exclude}\n{direction}".encode("utf-8", "surrogatepass")
    return crc32(lines, crc32(texts, crc32(numbers)))


def decode_row(row: EventRow) -> Chunk:
    """Return the chunk of a row. Raises DamagedRow."""
    first, last, session_id, channel, exclude, direction, at, history, request, size, lines, check = row
    try:
        expected = _event_checksum(
            first, last, session_id, channel, exclude, direction, at, history, request, size, lines
        )
        # Rows of the first version of the file have no checksum.
        if check not in (None, expected):
            raise DamagedRow
        split = split_lines(lines, last - first + 1)
        chunk = Chunk(first, split, Direction(direction), session_id, channel, at, exclude, bool(history), request)
    except (TypeError, ValueError, AttributeError, struct.error) as error:
        raise DamagedRow from error
    if chunk.last != last:
        raise DamagedRow
    return chunk


def gap_for(row: EventRow) -> Chunk:
    """Return the chunk that readers get in place of a damaged row: one event that announces the gap."""
    first, last, session_id, channel, exclude, _, at, history, *_ = row
    # The values of a damaged row may have any type.
    if not isinstance(last, int) or last < first:  # pyright: ignore[reportUnnecessaryIsInstance]
        last = first
    if not isinstance(at, float):
        at = 0.0
    line = notification(GAP, {"after": first - 1, "resumesAt": last + 1})
    return Chunk(last, [line], Direction.FROM_SERVER, session_id, channel, at, exclude, bool(history))


def size_on_disk(chunk: Chunk, length: int) -> int:
    """Estimate the bytes of the file that a chunk takes. `length` is the total length of its lines."""
    names = len(chunk.session_id or "") + len(chunk.channel)
    row = length + 2 * names + _FIXED_BYTES
    pages, local = 0, row
    if row > _MAX_ROW_BYTES:
        # A long row has overflow pages, and a part on a page with other rows, as SQLite's file format says.
        local = _MIN_ROW_BYTES + (row - _MIN_ROW_BYTES) % (PAGE_BYTES - 4)
        local = local if local <= _MAX_ROW_BYTES else _MIN_ROW_BYTES
        pages = -(-(row - local) // (PAGE_BYTES - 4))
    # A page takes whole rows only, so the rows of a page share its unused bytes.
    return pages * PAGE_BYTES + _MAX_ROW_BYTES // (_MAX_ROW_BYTES // local)
