"""Serve the file API without archives, searches and watches: one table of endpoints, and uploads.

The module reads paths from HTTP requests. `server/files` resolves the paths and does the work, in threads.
"""

import asyncio
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from io import FileIO

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from sandboxagent.core.threads import Pool, Pools
from sandboxagent.protocol.errors import (
    BadPath,
    BadRequest,
    BodyTooLarge,
    FileChanged,
    FileConflict,
    FileForbidden,
    FileNotFound,
    FileProblem,
    FileTooLarge,
    NoRoom,
    OutsideRoots,
    RangeNotSatisfiable,
    RootReplaced,
    SandboxAgentError,
    SessionNotFound,
    ShuttingDown,
    UnsupportedMediaType,
)
from sandboxagent.protocol.files import MAX_PAGE, PAGE, Done, EntriesPage, FileView, Move, Moved, Written
from sandboxagent.protocol.json_bounds import read
from sandboxagent.server.files.changes import delete, make_directory, move
from sandboxagent.server.files.entries import (
    IncomingFile,
    WriteCondition,
    parse_tags,
    read_entry,
    read_page,
    too_large,
)
from sandboxagent.server.files.roots import Roots, encode_name, file_problems
from sandboxagent.server.http.asgi import check_json
from sandboxagent.server.http.downloads import (
    FileDownload,
    content_disposition,
    find_part,
    is_known,
    media_type,
    read_version,
)
from sandboxagent.server.http.views import BOOLEAN, COUNT, Endpoint, json_response, read_query, read_switch
from sandboxagent.server.sessions.hub import Hub

PATH = "The path: absolute, or relative to the session's directory, or else to the server's root directory."
SESSION = "The id or alias of the session to whose directory a relative path is relative."
PROBLEMS: tuple[type[SandboxAgentError], ...] = (
    *(BadPath, OutsideRoots, FileForbidden, FileNotFound, SessionNotFound, FileConflict, RootReplaced, FileProblem),
)
"""The problems that any path can cause."""


@dataclass(frozen=True, slots=True)
class Paths:
    """Resolves the paths of requests, with the roots and the sessions."""

    roots: Roots
    hub: Hub

    def read_path(self, request: Request, name: str = "path") -> str:
        """Return the absolute path in a query. Raises BadRequest, BadPath or SessionNotFound."""
        query = read_query(request)
        if name not in query:
            raise BadRequest(f"the query needs {name}", parameter=name)
        return self.absolute(query[name], query.get("sessionId"))

    def absolute(self, path: str, session_id: str | None) -> str:
        """Return the absolute path for a client's path. Raises BadPath or SessionNotFound."""
        if not path:
            raise BadPath(path, "a path has at least one character")
        if session_id is None:
            return self.roots.absolute(path)
        session = self.hub.find_session(session_id)
        if session is None:
            raise SessionNotFound(encode_name(session_id))
        return self.roots.absolute(path, session.facts.cwd)


BLOCK_BYTES = 1 << 20
SILENCE_TIMEOUT = 60.0
"""Maximum number of seconds without any bytes from a client."""

_WHERE = {"path": PATH, "sessionId": SESSION}
_SENDING = (FileChanged, FileTooLarge, NoRoom)


async def receive_file(
    incoming: IncomingFile, body: AsyncIterator[bytes], pool: Pool, silence: float = SILENCE_TIMEOUT
) -> Written:
    """Receive a whole body, then put the file in its place.

    Raises the exceptions of the file and the body, and BadRequest after too much silence.
    """
    writing: asyncio.Future[None] | None = None
    try:
        async for parts in _blocks(body, silence):
            if writing is not None:
                await writing
            writing = pool.start(incoming.write, parts)
        if writing is not None:
            await writing
        return await pool.run(incoming.finish)
    finally:
        # A thread may be writing, so the file is not closed before that ends.
        if writing is not None:
            await asyncio.gather(writing, return_exceptions=True)
        await pool.run(incoming.close)


async def _blocks(body: AsyncIterator[bytes], silence: float) -> AsyncGenerator[list[bytes]]:
    """Yield the parts of a body in groups, because a switch to a thread takes longer than the write of one part."""
    parts: list[bytes] = []
    size = 0
    while (part := await _next(body, silence)) is not None:
        parts.append(part)
        size += len(part)
        if size >= BLOCK_BYTES:
            yield parts
            parts, size = [], 0
    yield parts


async def _next(body: AsyncIterator[bytes], silence: float) -> bytes | None:
    try:
        async with asyncio.timeout(silence):
            return await anext(body, None)
    except TimeoutError:
        raise BadRequest(f"nothing of the file came for {silence:g} s; nothing was changed") from None


@dataclass(frozen=True, slots=True)
class FileRoutes:
    """The handlers of the file routes."""

    paths: Paths
    max_file: int | None
    max_body: int
    pools: Pools

    def endpoints(self) -> list[Endpoint]:
        page = {
            "cursor": "The `nextCursor` of the previous page. Without it, the first page.",
            "limit": f"Maximum number of entries of the page. The default is {PAGE}.",
        }
        follow = {"follow": "`false` describes a link itself instead of its target."}
        recursive = {"recursive": "`true` deletes a directory with everything in it."}
        download = {"download": "`true` adds a Content-Disposition, so that browsers save the file under its name."}
        reading = {
            "Range": "A range of bytes. Several ranges give the whole file.",
            "If-Range": "Use Range only if this is the file's ETag or Last-Modified.",
            "If-None-Match": "ETags of versions that the client has. A file with one of them is not sent again.",
            "If-Modified-Since": "The Last-Modified of the client's version. An unchanged file is not sent again.",
        }
        writing = {
            "If-Match": "ETags, one of which the present file must have; `*` if any file must exist.",
            "If-None-Match": "`*` if no file may exist; or ETags that the present file must not have.",
        }
        need = ("path",)
        return [
            Endpoint(
                "GET",
                "/v1/fs/file",
                self.get_file,
                "A file's content. HEAD for its headers.",
                None,
                _WHERE | download,
                (*PROBLEMS, RangeNotSatisfiable),
                required=need,
                schemas={"download": BOOLEAN},
                headers=reading,
                gives="*/*",
                statuses={206: "The requested range.", 304: "The client has this version already."},
            ),
            Endpoint(
                "PUT",
                "/v1/fs/file",
                self.put_file,
                "Write a file as a whole or not at all, and make its missing directories.",
                Written,
                _WHERE,
                (*PROBLEMS, *_SENDING),
                required=need,
                headers=writing,
                takes="application/octet-stream",
            ),
            Endpoint(
                "GET",
                "/v1/fs/entries",
                self.get_entries,
                "A page of a directory's entries, sorted by name.",
                EntriesPage,
                _WHERE | page,
                PROBLEMS,
                required=need,
                schemas={"limit": COUNT},
            ),
            Endpoint(
                "GET",
                "/v1/fs/stat",
                self.get_stat,
                "A file, a directory or a link.",
                FileView,
                _WHERE | follow,
                PROBLEMS,
                required=need,
                schemas={"follow": BOOLEAN},
            ),
            Endpoint(
                "POST",
                "/v1/fs/mkdir",
                self.post_mkdir,
                "Make a directory and its missing parents. It may exist already.",
                Done,
                _WHERE,
                (*PROBLEMS, NoRoom),
                required=need,
            ),
            Endpoint(
                "POST",
                "/v1/fs/move",
                self.post_move,
                "Move a file, a directory or a link, also to another file system.",
                Moved,
                {"sessionId": SESSION},
                (*PROBLEMS, NoRoom, BodyTooLarge, UnsupportedMediaType, ShuttingDown),
                body=Move,
            ),
            Endpoint(
                "DELETE",
                "/v1/fs/entry",
                self.delete_entry,
                "Delete a file, a link or a directory. Links are not followed; a root cannot be deleted.",
                Done,
                _WHERE | recursive,
                (*PROBLEMS, ShuttingDown),
                required=need,
                schemas={"recursive": BOOLEAN},
            ),
        ]

    async def get_file(self, request: Request) -> Response:
        path, query = self.paths.read_path(request), read_query(request)
        with file_problems(path):
            file = await self.pools.files.run(self.paths.roots.confined.open, path)
        try:
            return self._reading(request, path, file, keep=read_switch(query, "download"))
        except BaseException:
            file.close()
            raise

    def _reading(self, request: Request, path: str, file: FileIO, *, keep: bool) -> Response:
        now = read_version(os.fstat(file.fileno()))
        headers = {
            "etag": now.etag,
            "last-modified": now.last_modified,
            "cache-control": "no-cache",
        }
        if is_known(request.headers, now):
            file.close()
            return Response(status_code=304, headers=headers)
        name = encode_name(path.rpartition("/")[2])
        headers |= {
            "content-type": media_type(name),
            "accept-ranges": "bytes",
            # A browser must not run a file that an agent wrote as a page of this server.
            "content-security-policy": "sandbox",
            "x-content-type-options": "nosniff",
        }
        if keep:
            headers["content-disposition"] = content_disposition(name)
        wanted = find_part(request.headers, encode_name(path), now)
        if wanted is None:
            return FileDownload(file, 0, now.size, 200, headers, self.pools.files)
        start, length = wanted
        headers["content-range"] = f"bytes {start}-{start + length - 1}/{now.size}"
        return FileDownload(file, start, length, 206, headers, self.pools.files)

    async def put_file(self, request: Request) -> Response:
        path = self.paths.read_path(request)
        condition = WriteCondition(
            match=parse_tags(request.headers.get("if-match")),
            none_match=parse_tags(request.headers.get("if-none-match")),
        )
        if request.headers.get("content-encoding", "identity") != "identity" or "content-range" in request.headers:
            raise BadRequest("send the whole file as it is, without Content-Encoding and Content-Range")
        length = request.headers.get("content-length")
        if self.max_file is not None and length is not None and int(length) > self.max_file:
            raise too_large(path, self.max_file)
        incoming = await self.pools.files.run(IncomingFile, self.paths.roots, path, condition, self.max_file)
        written = await receive_file(incoming, request.stream(), self.pools.files)
        response = json_response(written)
        response.headers["etag"] = written.etag
        return response

    async def get_entries(self, request: Request) -> Response:
        path, query = self.paths.read_path(request), read_query(request)
        limit = query.get("limit", str(PAGE))
        if re.fullmatch("[0-9]{1,9}", limit) is None or not 1 <= int(limit) <= MAX_PAGE:
            raise BadRequest(f"limit is a number from 1 to {MAX_PAGE}", parameter="limit")
        cursor = query.get("cursor")
        return json_response(await self.pools.files.run(read_page, self.paths.roots.confined, path, cursor, int(limit)))

    async def get_stat(self, request: Request) -> Response:
        path, query = self.paths.read_path(request), read_query(request)
        follow = read_switch(query, "follow", default=True)
        return json_response(await self.pools.files.run(read_entry, self.paths.roots.confined, path, follow=follow))

    async def post_mkdir(self, request: Request) -> Response:
        path = self.paths.read_path(request)
        await self.pools.files.run(make_directory, self.paths.roots, path)
        return json_response(Done(encode_name(path)))

    async def post_move(self, request: Request) -> Response:
        asked = await self._move(request)
        session = read_query(request).get("sessionId")
        source, target = self.paths.absolute(asked.source, session), self.paths.absolute(asked.target, session)
        roots = self.paths.roots
        await self.pools.trees.run(move, roots, source, target, overwrite=asked.overwrite, stopped=roots.stopped)
        return json_response(Moved(encode_name(source), encode_name(target)))

    async def _move(self, request: Request) -> Move:
        check_json(request.headers.get("content-type", "").encode("latin-1"))
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > self.max_body:
                raise BodyTooLarge(self.max_body)
        try:
            return read(body, Move)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadRequest(f"move takes from, to and overwrite: {error}") from None

    async def delete_entry(self, request: Request) -> Response:
        path, query = self.paths.read_path(request), read_query(request)
        roots = self.paths.roots
        recursive = read_switch(query, "recursive")
        await self.pools.trees.run(delete, roots, path, recursive=recursive, stopped=roots.stopped)
        return json_response(Done(encode_name(path)))
