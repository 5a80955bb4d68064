"""Serve whole directories: as archives in both directions, by search, and by watching.

Archives are streams in both directions, in constant memory. `GET /v1/fs/search` is a page of JSON, or a line of it for
each match as it is found; `GET /v1/fs/watch` has changes as server-sent events.
"""

import asyncio
import logging
import os
import re
from collections.abc import AsyncGenerator, Awaitable, Generator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from typing import Literal, TypeVar, cast
from urllib.parse import quote

import msgspec
from msgspec import UNSET
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sandbox_agent.archives.tarball import make_packer
from sandbox_agent.host.paths.confined import Confined
from sandbox_agent.host.paths.roots import file_problems
from sandbox_agent.host.search import Query, Search, Searches
from sandbox_agent.host.transfer.archives import UploadLimits, receive
from sandbox_agent.host.transfer.download import bundle
from sandbox_agent.host.transfer.flow import Abandoned, Inflow, Outflow
from sandbox_agent.host.watching import Watch, Watches
from sandbox_agent.http.asgi import EVENT_STREAM, transport
from sandbox_agent.http.downloads import Streamed
from sandbox_agent.http.files import PATH, PROBLEMS, SESSION, Paths
from sandbox_agent.http.views import Endpoint, json_response, read_query, read_switch
from sandbox_agent.pools import Pool
from sandbox_agent.protocol.errors import (
    ArchiveTooLarge,
    BadArchive,
    BadRequest,
    NoRoom,
    ShuttingDown,
    TooMany,
    UnsupportedMediaType,
    WatchesExhausted,
)
from sandbox_agent.wire.files import ChangesEvent, Found, Match, SearchEnding, Uploaded

SILENCE = 60.0
"""Seconds in which nothing of an upload may come."""

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
    """The handlers. `most` archives are under way at once: each has a thread, because either side may be slow."""

    def __init__(self, paths: Paths, limits: UploadLimits, most: int, files: Pool, silence: float = SILENCE) -> None:
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
                _WHERE | {"format": f"{', '.join(f'`{each}`' for each in _FORMATS)}; `tar` unless given."},
                (*PROBLEMS, TooMany),
                required=("path",),
                gives=_TAR,
            ),
        ]

    async def post_upload_batch(self, request: Request) -> Response:
        path = self._paths.read_path(request)
        _check_type(request)
        with self.take_slot():
            inflow = Inflow()
            work = self.threads.start(receive, self._paths.roots.confined, path, inflow, self.limits)
            pump = asyncio.create_task(_pump(request, inflow, self._silence))
            for each in (work, pump):
                each.add_done_callback(_retrieve_failure)
            try:
                await asyncio.wait({work, pump}, return_when=asyncio.FIRST_COMPLETED)
                if not work.done():
                    await pump
                return json_response(await work)
            except (ClientDisconnect, Abandoned):
                return Response(status_code=400)  # The client is gone.
            finally:
                pump.cancel()
                inflow.abandon()
                # Until it is gone, so is nothing of what it has put aside.
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
        """Take one of the slots. Raises TooMany."""
        if self._under_way >= self._most:
            raise TooMany("archives under way", self._most, "--archives")
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1


class _Bundle(Streamed):
    """The answer that is an archive. Owns the directory's descriptor."""

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
        """In the thread: write the whole archive, or as much of it as the client reads."""
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
            # Half an archive must not look like a whole one: break off the response.
            self._outflow.loop.call_soon_threadsafe(transport(scope).abort)
        finally:
            # Close it here: only here no thread reads it any more.
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


async def _pump(request: Request, inflow: Inflow, silence: float) -> None:
    """The body, as fast as it is taken. Raises ClientDisconnect, or BadRequest when it falls silent."""
    pieces = aiter(request.stream())
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
    """The directory, readable: one that is not is known before the answer begins."""
    place = confined.open_directory(path)
    try:
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=place)
    finally:
        os.close(place)


NDJSON = "application/x-ndjson"
T = TypeVar("T")
_CASES = ("smart", "sensitive", "ignore")
_QUERY = {
    "path": PATH,
    "sessionId": SESSION,
    "text": "A text in files.",
    "regex": "`true`: the text is a regular expression, of Rust's kind.",
    "case": "`smart`, unless given: capitals in the text make it matter. Or `sensitive`, or `ignore`.",
    "name": "A part of a file's name, or a glob: `*.py`, `src/**/test_*`.",
    "hidden": "`true`: also files whose names begin with a dot.",
    "ignored": "`true`: also what `.gitignore`, `.ignore` and `.rgignore` leave out.",
    "limit": "Most results, up to the server's own limit.",
}


class SearchRoute:
    """The handler."""

    def __init__(self, paths: Paths, searches: Searches) -> None:
        self._paths = paths
        self._searches = searches

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                "GET",
                "/v1/fs/search",
                self.get_search,
                "Files by name, lines by text; `text` or `name` must be there.",
                Found,
                _QUERY,
                (*PROBLEMS, TooMany),
                required=("path",),
                answer="What was found, by path.",
                also={NDJSON: 'A line for each match as it is found, in no order; the last is `{"truncated": …}`.'},
            )
        ]

    async def get_search(self, request: Request) -> Response:
        path = self._paths.read_path(request)
        search = self._searches.prepare(path, *_asked(request))
        if NDJSON in request.headers.get("accept", ""):
            batches = self._searches.run(search, path)
            # What is wrong is known before the first match is.
            first = await _unless_gone(request, anext(batches, list[Match]()), list[Match]())
            return _Lines(search, first, batches)
        nothing = Found([], truncated=False)
        return json_response(await _unless_gone(request, self._searches.find(search, path), nothing))


def _asked(request: Request) -> tuple[Query, int | None]:
    """What is searched for, and how many results are wanted. Raises BadRequest."""
    query = read_query(request)
    case, limit = query.get("case", "smart"), query.get("limit")
    if case not in _CASES:
        raise BadRequest(f"case is one of {', '.join(_CASES)}", parameter="case")
    if limit is not None and (re.fullmatch("[0-9]{1,9}", limit) is None or not int(limit)):
        raise BadRequest("limit is a number from 1 to 999999999", parameter="limit")
    flags = {each: read_switch(query, each) for each in ("regex", "hidden", "ignored")}
    wanted = Query(query.get("text"), query.get("name"), case=case, **flags)
    return wanted, None if limit is None else int(limit)


class _Lines(Streamed):
    """Matches, a line each, and how it ended."""

    def __init__(self, search: Search, first: list[Match], batches: AsyncGenerator[list[Match]]) -> None:
        self._search = search
        self._first = first
        self._batches = batches
        super().__init__(self._lines(), NDJSON, {"cache-control": "no-store"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._batches.aclose()

    async def _lines(self) -> AsyncGenerator[bytes]:
        encoder = msgspec.json.Encoder()
        if self._first:
            yield encoder.encode_lines(self._first)
        async for batch in self._batches:
            yield encoder.encode_lines(batch)
        reason = self._search.reason
        yield encoder.encode_lines([SearchEnding(reason is not None, reason or UNSET)])


async def _unless_gone(request: Request, work: Awaitable[T], otherwise: T) -> T:
    """The result; cancels the search when the caller stops waiting."""

    async def leave() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, gone = asyncio.ensure_future(work), asyncio.create_task(leave())
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        return await working if working.done() else otherwise
    finally:
        gone.cancel()
        working.cancel()
        await asyncio.wait({working})


@dataclass(frozen=True, slots=True)
class Watching:
    """The handler."""

    paths: Paths
    watches: Watches
    heartbeat: float

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                "GET",
                "/v1/fs/watch",
                self.get_watch,
                "Changes in a directory, as server-sent events.",
                None,
                {"path": PATH, "sessionId": SESSION, "recursive": "`false`: not what is in directories below it."},
                (*PROBLEMS, TooMany, WatchesExhausted),
                required=("path",),
                gives=EVENT_STREAM,
                answer="Events `changes`, `overflow` and `ended`.",
            )
        ]

    async def get_watch(self, request: Request) -> Response:
        path = self.paths.read_path(request)
        recursive = read_switch(read_query(request), "recursive", default=True)
        # Watch before the response starts: a client that has the headers misses nothing.
        opened = AsyncExitStack()
        watch = await opened.enter_async_context(
            self.watches.open(self.paths.roots.confined, path, recursive=recursive)
        )
        return _Events(watch, opened, self.heartbeat)


class _Events(Streamed):
    """The answer. Owns the watch."""

    def __init__(self, watch: Watch, opened: AsyncExitStack, heartbeat: float) -> None:
        self._watch = watch
        self._opened = opened
        self._heartbeat = heartbeat
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(self._events(), EVENT_STREAM, headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._opened:
            if scope["method"] == "HEAD":
                await Response(headers=dict(self.headers))(scope, receive, send)
            else:
                await super().__call__(scope, receive, send)

    async def _events(self) -> AsyncGenerator[bytes]:
        yield b": watching\n\n"
        while True:
            changes, missed = await self._watch.take(self._heartbeat)
            if missed:
                yield _event("overflow", {"detail": "some changes are missing; list the directory again"})
            if changes:
                yield _event("changes", ChangesEvent(changes))
            if self._watch.ended is not None:
                yield _event("ended", {"reason": self._watch.ended})
                return
            if not changes and not missed:
                yield b": still here\n\n"


def _event(name: str, data: object) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(data))
