"""Lines on stdin and stdout as messages of the SDK.

Knows nothing of sessions. It stands in for the SDK's own line transport because of two habits of the SDK: its router
lets the keys of `_meta` overwrite the arguments of a method, and its receive loop dies of a line that is JSON but no
object, or has an id that cannot be hashed.
"""

import asyncio
import contextlib
import json
import logging
from typing import cast

LINE_LIMIT = 128 * 1024 * 1024
"""Twice what a client of ours may send in one line."""

GRACE = 0.1
"""Seconds that the other side has, at the end of input, to read what is written."""

logger = logging.getLogger(__name__)


class StdioTransport:
    """One JSON object per line, in both directions."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        # With a limit of zero, `drain` returns when the pipe has taken everything: nothing is lost when we exit.
        writer.transport.set_write_buffer_limits(high=0)
        self._closed = False

    async def receive(self) -> dict[str, object] | None:
        """The next message for the SDK, or None at the end of input."""
        while True:
            try:
                line = await self._reader.readline()
            except ValueError:
                logger.warning("line skipped reason=over_limit limit=%d", LINE_LIMIT)
                continue
            if not line:
                return None
            message = _message(line)
            if message is not None:
                return message

    async def send(self, message: dict[str, object]) -> None:
        """Write one message; waits while the other side does not read."""
        if self._closed:
            return
        if self._writer.is_closing():
            raise ConnectionError("stdout is closed")
        self._writer.write(json.dumps(message, separators=(",", ":"), default=str).encode() + b"\n")
        await self._writer.drain()

    async def close(self) -> None:
        """Stop writing. What the other side has not read within the grace is lost."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(GRACE):
                await self._writer.drain()
        self._writer.transport.abort()


def _message(line: bytes) -> dict[str, object] | None:
    """The message in a line without its `_meta`, or None when there is nothing in it for the SDK."""
    if line.isspace():
        return None
    try:
        parsed: object = json.loads(line)
    except (ValueError, RecursionError):
        logger.warning("line skipped reason=not_json bytes=%d", len(line))
        return None
    if not isinstance(parsed, dict):
        logger.warning("line skipped reason=not_an_object bytes=%d", len(line))
        return None
    message = cast("dict[str, object]", parsed)
    method = message.get("method")
    if method is None and isinstance(message.get("id"), list | dict):
        return None  # a response to nothing; the SDK would look its id up in a dictionary
    if isinstance(method, str) and method.startswith("$/") and "id" not in message:
        return None  # JSON-RPC peers may ignore these, and the SDK would print a traceback for each
    params = message.get("params")
    if isinstance(params, dict):
        cast("dict[str, object]", params).pop("_meta", None)
    return message
