"""Send files or ranges of them, read in threads one block ahead.

Every streamed response ends when its reader leaves or stops reading.
"""

import asyncio
import logging
import mimetypes
import os
import re
from collections.abc import AsyncIterable, Mapping
from dataclasses import dataclass
from email.utils import formatdate, parsedate_to_datetime
from io import FileIO
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse

from sandboxagent.core.threads import Pool
from sandboxagent.protocol.errors import RangeNotSatisfiable
from sandboxagent.server.files.entries import etag, has_version, parse_tags
from sandboxagent.server.http.asgi import Message, Receive, Scope, Send, is_gone, transport

logger = logging.getLogger(__name__)


_RANGE = re.compile(r"bytes=\s*(\d*)-(\d*)\s*", re.ASCII | re.IGNORECASE)
MAX_DIGITS = 19

BLOCK_BYTES = 512 << 10
STALL_TIMEOUT = 300.0
"""Seconds that a client may read nothing before the server closes the socket. The client can resume a file with
Range."""
_TYPES = mimetypes.MimeTypes()
_PACKED = {"gzip": "application/gzip", "bzip2": "application/x-bzip2", "xz": "application/x-xz"}
_BINARY = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Version:
    """The current version of a file."""

    etag: str
    modified: float
    size: int

    @property
    def last_modified(self) -> str:
        return formatdate(int(self.modified), usegmt=True)


def is_known(headers: Mapping[str, str], version: Version) -> bool:
    """Whether the client has this version already, so that the answer is 304. Raises BadRequest for invalid tags."""
    given = parse_tags(headers.get("if-none-match"))
    if given is not None:
        return has_version(version.etag, given)
    since = _date(headers.get("if-modified-since"))
    return since is not None and int(version.modified) <= since


def find_part(headers: Mapping[str, str], path: str, version: Version) -> tuple[int, int] | None:
    """Return the first byte and the length of the requested range; None for the whole file.

    A range that the server does not understand stands for the whole file, and so do several ranges (RFC 9110). Raises
    RangeNotSatisfiable.
    """
    match = _RANGE.fullmatch(headers.get("range", ""))
    if match is None or match[0] == "bytes=-" or not _is_current(headers.get("if-range"), version):
        return None
    first, last = match[1][:MAX_DIGITS], match[2][:MAX_DIGITS]
    size = version.size
    if not first and not last:
        return None
    if not first:
        length = min(int(last), size)
        start = size - length
    else:
        start = int(first)
        if last and int(last) < start:
            return None
        length = min(int(last) + 1, size) - start if last else size - start
    if length <= 0:
        raise RangeNotSatisfiable(path, f"has {size} bytes, and none of those asked for", size=size)
    return start, length


def _is_current(if_range: str | None, version: Version) -> bool:
    if if_range is None:
        return True
    if if_range.startswith(('"', "W/")):
        return if_range == version.etag
    return if_range == version.last_modified


def _date(value: str | None) -> float | None:
    try:
        return None if value is None else parsedate_to_datetime(value).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


class Streamed(StreamingResponse):
    """A streamed response, which ends when its reader stalls.

    Subclasses release their resources when `__call__` ends.
    """

    def __init__(
        self, pieces: AsyncIterable[bytes], type: str, headers: Mapping[str, str], stalled: float = STALL_TIMEOUT
    ) -> None:
        self._stalled = stalled
        super().__init__(pieces, media_type=type, headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def patient(message: Message) -> None:
            try:
                async with asyncio.timeout(self._stalled):
                    await send(message)
            except TimeoutError:
                # After that, `receive` reports that the client has left.
                transport(scope).abort()

        await super().__call__(scope, receive, patient)


class FileDownload(Response):
    """A response with a file, or with `length` bytes of it from `start` on. Closes the file."""

    def __init__(self, file: FileIO, start: int, length: int, status: int, headers: dict[str, str], pool: Pool) -> None:
        super().__init__(None, status, headers=headers)
        # Files that the kernel generates as they are read, as in /proc, have content but no size.
        self._made_up = length == 0 and status == 200
        del self.headers["content-length"]
        if not self._made_up:
            self.headers["content-length"] = str(length)
        self._file, self._start, self._length = file, start, length
        self._pool = pool

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            if scope["method"] != "HEAD" and not await self._send_content(scope, send):
                await _hang_up(scope, receive)
                return
            await send({"type": "http.response.body", "body": b""})
        finally:
            self._file.close()

    async def _send_content(self, scope: Scope, send: Send) -> bool:
        """Send the content. Return False when the file has shrunk, or cannot be read or sent.

        The headers have already announced the length.
        """
        position, left = self._start, self._length
        reading = self._read(position, left)
        try:
            while self._made_up or left:
                block = await reading
                if not block:
                    return self._made_up
                position, left = position + len(block), left - len(block)
                reading = self._read(position, left)
                async with asyncio.timeout(STALL_TIMEOUT):
                    await send({"type": "http.response.body", "body": block, "more_body": True})
                if is_gone(scope):
                    return True
        except TimeoutError:
            return False
        except OSError as error:
            logger.warning("a file could not be read to its end errno=%s", error.errno)
            return False
        finally:
            # The file must not be closed while a thread reads it. That thread's errors no longer matter.
            await asyncio.gather(reading, return_exceptions=True)
        return True

    def _read(self, position: int, left: int) -> "asyncio.Future[bytes]":
        size = BLOCK_BYTES if self._made_up else min(BLOCK_BYTES, left)
        return self._pool.start(os.pread, self._file.fileno(), size, position)


async def _hang_up(scope: Scope, receive: Receive) -> None:
    """Abort the socket, so that the client notices that the download is incomplete."""
    transport(scope).abort()
    while (await receive())["type"] != "http.disconnect":
        pass


def read_version(facts: os.stat_result) -> Version:
    """Return the current version of a file."""
    return Version(etag(facts), facts.st_mtime, facts.st_size)


def media_type(name: str) -> str:
    """Return the media type by the name alone. The content of the file is not read."""
    kind, packed = _TYPES.guess_type(name.rpartition("/")[2])
    return (kind or _BINARY) if packed is None else _PACKED.get(packed, _BINARY)


def content_disposition(name: str) -> str:
    """Return the Content-Disposition for a file that is to be saved under its name (RFC 6266)."""
    plain = "".join(each if " " <= each <= "~" and each not in '"\\%' else "_" for each in name)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name.encode(errors='replace'), safe='')}"
