"""Serve a directory as an archive, and unpack an archive into a directory.

Archives are streamed in both directions, in constant memory.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from typing import Literal, cast
from urllib.parse import quote

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sandboxagent.core.archives.tar import make_packer
from sandboxagent.core.threads import Pool
from sandboxagent.protocol.errors import (
    ArchiveTooLarge,
    BadArchive,
    BadRequest,
    NoRoom,
    ShuttingDown,
    TooMany,
    UnsupportedMediaType,
)
from sandboxagent.protocol.files import Uploaded
from sandboxagent.server.file_api.routes import PATH, PROBLEMS, SESSION, Paths
from sandboxagent.server.files.confined import Confined
from sandboxagent.server.files.download import bundle
from sandboxagent.server.files.flow import Abandoned, Inflow, Outflow
from sandboxagent.server.files.roots import file_problems
from sandboxagent.server.files.upload import UploadLimits, receive
from sandboxagent.server.http.asgi import transport
from sandboxagent.server.http.downloads import Streamed
from sandboxagent.server.http.views import Endpoint, json_response, read_query

SILENCE_TIMEOUT = 60.0
"""Maximum number of seconds without any bytes of an upload."""

_WHERE = {"path": PATH, "sessionId": SESSION}
_TAR = "application/x-tar"
_TYPES = {
    *(_TAR, "application/tar", "application/x-gtar", "application/x-gtar-compressed", "application/octet-stream"),
    *("application/gzip", "application/x-gzip", "application/x-compressed-tar", "application/zstd", ""),
}
_CODINGS = {"", "identity", "gzip", "x-gzip", "zstd"}
_FORMATS = {"tar": _TAR, "tar.gz": "application/gzip", "tar.zst": "application/zstd"}

logger = logging.getLogger(__name__)


class Archives:
    """The handlers.

    At most `most` archives run at once, each with a thread of its own, because either side may be slow.
    """

    def __init__(
        self, paths: Paths, limits: UploadLimits, most: int, files: Pool, silence: float = SILENCE_TIMEOUT
    ) -> None:
        self._paths = paths
        self._files = files
        self.limits = limits
        self._most = most
        self._silence = silence
        self._under_way = 0
        self.threads = Pool("archives", max(most, 1))

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                "POST",
                "/v1/fs/upload-batch",
                self.post_upload_batch,
                "Unpack a tar archive, plain or packed with gzip or zstd, into a directory: all of it, or nothing.",
                Uploaded,
                _WHERE,
                (*PROBLEMS, BadArchive, ArchiveTooLarge, UnsupportedMediaType, NoRoom, TooMany, ShuttingDown),
                required=("path",),
                takes=_TAR,
            ),
            Endpoint(
                "GET",
                "/v1/fs/archive",
                self.get_archive,
                "A directory as a tar archive.",
                None,
                _WHERE | {"format": f"{', '.join(f'`{each}`' for each in _FORMATS)}; the default is `tar`."},
                (*PROBLEMS, TooMany),
                required=("path",),
                schemas={"format": {"type": "string", "enum": list(_FORMATS)}},
                gives=_TAR,
            ),
        ]

    async def post_upload_batch(self, request: Request) -> Response:
        path = self._paths.read_path(request)
        _check_type(request)
        try:
            return json_response(await self.unpack(path, request.stream()))
        except (ClientDisconnect, Abandoned):
            return Response(status_code=400)  # The client is gone.

    async def unpack(self, path: str, archive: AsyncIterator[bytes]) -> Uploaded:
        """Unpack an archive into a directory, as its bytes come.

        Raises TooMany, BadRequest after too much silence, and the exceptions of `receive` and of `archive`.
        """
        with self.take_slot():
            inflow = Inflow()
            work = self.threads.start(receive, self._paths.roots.confined, path, inflow, self.limits)
            pump = asyncio.create_task(_pump(archive, inflow, self._silence))
            for each in (work, pump):
                each.add_done_callback(_retrieve_failure)
            try:
                await asyncio.wait({work, pump}, return_when=asyncio.FIRST_COMPLETED)
                if not work.done():
                    await pump
                return await work
            finally:
                pump.cancel()
                inflow.abandon()
                # The files that it has unpacked remain until the thread has ended.
                await asyncio.wait({work})

    async def get_archive(self, request: Request) -> Response:
        path, format = self._paths.read_path(request), read_query(request).get("format", "tar")
        if format not in _FORMATS:
            raise BadRequest(f"format is one of {', '.join(_FORMATS)}", parameter="format")
        with file_problems(path):
            directory = await self._files.run(_open, self._paths.roots.confined, path)
        name = quote(os.fsencode(path.rstrip("/").rpartition("/")[2] or "files"))
        headers = {
            "cache-control": "no-store",
            "content-disposition": f"attachment; filename*=UTF-8''{name}.{format}",
        }
        return _Bundle(self, directory, format, headers)

    @contextmanager
    def take_slot(self) -> Generator[None]:
        """Take one of the slots, while the block runs. Raises TooMany."""
        if self._under_way >= self._most:
            raise TooMany("archives under way", self._most, "--archives")
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1


class _Bundle(Streamed):
    """A response with an archive. It owns the directory's descriptor."""

    def __init__(self, archives: Archives, directory: int, format: str, headers: dict[str, str]) -> None:
        self._archives = archives
        self._directory = directory
        self._format = format
        self._outflow = Outflow()
        super().__init__(self._outflow.pieces(), _FORMATS[format], headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":
            os.close(self._directory)
            await Response(headers=self.headers)(scope, receive, send)
            return
        with self._closing_if_refused(), self._archives.take_slot():
            work = self._archives.threads.start(self._write, scope)
            await self._send(work, scope, receive, send)

    async def _send(self, work: "asyncio.Future[None]", scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._outflow.abandon()
            await asyncio.wait({work})

    def _write(self, scope: Scope) -> None:
        """Write the archive, as far as the client reads it. Runs in the thread."""
        try:
            if self._format == "tar":
                bundle(self._directory, self._outflow.write, self._archives.limits.depth)
            else:
                self._write_packed()
            self._outflow.finish()
        except Abandoned:
            pass
        except OSError as error:
            logger.warning("an archive was cut off error=%s", error)
            # Half an archive must not look like a whole one, so abort the connection.
            self._outflow.loop.call_soon_threadsafe(transport(scope).abort)
        finally:
            # Close the directory in this thread, which is the only one that reads it.
            os.close(self._directory)
            self._outflow.close()

    @contextmanager
    def _closing_if_refused(self) -> Generator[None]:
        try:
            yield
        except TooMany:
            os.close(self._directory)
            raise

    def _write_packed(self) -> None:
        pack = make_packer(cast('Literal["gz", "zst"]', self._format.removeprefix("tar.")))
        depth = self._archives.limits.depth
        bundle(self._directory, lambda data: self._outflow.write(pack.compress(data)), depth)
        self._outflow.write(pack.flush())


async def _pump(pieces: AsyncIterator[bytes], inflow: Inflow, silence: float) -> None:
    """Feed the pieces, as fast as they are taken. Raises their exceptions, and BadRequest after too much silence."""
    while True:
        try:
            async with asyncio.timeout(silence):
                piece = await anext(pieces, None)
        except TimeoutError:
            raise BadRequest(f"nothing of the archive came for {silence:g} s; nothing was changed") from None
        if piece is None:
            break
        await inflow.feed(piece)
    inflow.finish()


def _retrieve_failure(done: "asyncio.Future[Uploaded] | asyncio.Future[None]") -> None:
    """Retrieve the second of two failures, so that asyncio does not report it."""
    if not done.cancelled():
        done.exception()


def _check_type(request: Request) -> None:
    type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    coding = request.headers.get("content-encoding", "").strip().lower()
    if type not in _TYPES or coding not in _CODINGS:
        wanted = f"Content-Type: {_TAR}, packed with gzip or zstd or not at all"
        raise UnsupportedMediaType(f"{type} {coding}".strip(), wanted)


def _open(confined: Confined, path: str) -> int:
    """Open a directory to read it, so that an unreadable one is refused before the response begins."""
    place = confined.open_directory(path)
    try:
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=place)
    finally:
        os.close(place)
