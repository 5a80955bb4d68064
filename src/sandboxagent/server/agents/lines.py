"""Cut bytes of an agent's pipes into lines, and keep the first and last lines of its stderr.

This module does no I/O, and knows nothing of processes or of the meaning of a line.
"""

from collections import deque

from msgspec import Struct

MAX_LINE_BYTES = 64 * 1024 * 1024
"""Maximum bytes of a line of stdout that is passed on, without its newline."""

OVERSIZED_HEAD_BYTES = 4096
"""Bytes that are kept from the beginning of a longer line."""


class LineSplitter:
    """A splitter of pieces, which end anywhere, into whole lines. It drops only the lines over the limit."""

    def __init__(self, max_line: int = MAX_LINE_BYTES) -> None:
        self._max_line = max_line
        # Grows in place: a line may come in thousands of pieces, or a byte at a time.
        self._rest = bytearray()
        self._dropping = False
        self._oversized: list[bytes] = []

    def feed(self, data: bytes) -> bytes:
        """Add a piece, and return all lines that are complete, as one blob. Each line ends in a newline."""
        if self._dropping:
            end = data.find(b"\n")
            if end < 0:
                return b""
            self._dropping = False
            data = data[end + 1 :]
        end = data.rfind(b"\n") + 1
        if not end:
            self._keep(data)
            return b""
        # If all bytes together are within the limit, each line is.
        if len(self._rest) + end - 1 > self._max_line:
            return self._feed_line_by_line(data, end)
        if self._rest:
            # A view, so that each byte is copied once.
            lines = b"".join((self._rest, memoryview(data)[:end]))
            self._rest = bytearray()
        else:
            lines = data if end == len(data) else data[:end]
        if end < len(data):
            self._keep(data[end:])
        return lines

    def rest(self) -> bytes:
        """Return the last line, when it has no newline; empty when there is none."""
        return bytes(self._rest)

    def take_oversized(self) -> list[bytes]:
        """Return the beginnings of the lines that were dropped since the last call."""
        taken, self._oversized = self._oversized, []
        return taken

    def _feed_line_by_line(self, data: bytes, end: int) -> bytes:
        lines: list[bytes | bytearray] = []
        start = 0
        while start < end:
            after = data.index(b"\n", start) + 1
            if len(self._rest) + after - 1 - start > self._max_line:
                self._drop(data[start : min(after - 1, start + OVERSIZED_HEAD_BYTES)])
            else:
                lines += (self._rest, data[start:after])
                self._rest = bytearray()
            start = after
        self._keep(data[end:])
        return b"".join(lines)

    def _keep(self, data: bytes) -> None:
        if len(self._rest) + len(data) > self._max_line:
            self._drop(data[:OVERSIZED_HEAD_BYTES])
            self._dropping = True
        else:
            self._rest += data

    def _drop(self, more: bytes) -> None:
        self._oversized.append(bytes(self._rest[:OVERSIZED_HEAD_BYTES] + more)[:OVERSIZED_HEAD_BYTES])
        self._rest = bytearray()


class Stderr(Struct, frozen=True):
    """The stderr of an agent process: its first lines, its last lines, and whether something is missing."""

    head: list[str]
    tail: list[str]
    truncated: bool
    total_lines: int

    def text(self, limit: int) -> str:
        """Return as many of the last lines as fit into `limit` characters.

        If none fits, return the end of the last one.
        """
        gap = self.total_lines > len(self.head) + len(self.tail)
        text = "\n".join(self.tail if gap else self.head + self.tail)
        if len(text) <= limit:
            return text
        _, newline, whole_lines = text[-limit - 1 :].partition("\n")
        return whole_lines if newline else text[-limit:]


class StderrTail:
    """The first and the last lines of an endless stream, in bounded memory."""

    def __init__(self, head: int = 20, tail: int = 50, line_limit: int = 4096) -> None:
        self._head_size = head
        self._tail_size = tail
        self._line_limit = line_limit
        self._head: list[bytes] = []
        self._tail: deque[bytes] = deque(maxlen=tail)
        self._lines = 0
        self._rest = b""
        self._cut = False

    def feed(self, data: bytes) -> None:
        lines = data.split(b"\n")
        if len(lines) == 1:
            self._rest = self._limited(self._rest + data)
            return
        lines[0] = self._rest + lines[0]
        self._rest = self._limited(lines.pop())
        self._lines += len(lines)
        room = self._head_size - len(self._head)
        self._head += map(self._limited, lines[:room])
        # Only lines that can stay are processed: an agent process may write millions.
        last = lines[room:][-self._tail_size :]
        self._tail.extend(map(self._limited, last))

    def snapshot(self) -> Stderr:
        head, tail, total = list(self._head), list(self._tail), self._lines
        if self._rest:
            total += 1
            (head if len(head) < self._head_size else tail).append(self._rest)
        tail = tail[-self._tail_size :]
        return Stderr(
            head=[_decoded(line) for line in head],
            tail=[_decoded(line) for line in tail],
            truncated=self._cut or total > len(head) + len(tail),
            total_lines=total,
        )

    def text(self, limit: int) -> str:
        """Return the last lines, for an error message."""
        return self.snapshot().text(limit)

    def _limited(self, line: bytes) -> bytes:
        if len(line) > self._line_limit:
            self._cut = True
            return line[: self._line_limit]
        return line


def _decoded(line: bytes) -> str:
    return line.decode("utf-8", "replace").removesuffix("\r")
