"""Answer the methods of the file API, for files that fit into an envelope."""

import base64
import os
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec import Struct

from sandboxagent.core.threads import Pool, Pools
from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import LARGE_BYTES, Envelope, success
from sandboxagent.protocol.errors import BadPath, BadRequest, FileTooLarge, InvalidParams
from sandboxagent.protocol.files import (
    Content,
    DeleteParams,
    Done,
    EntriesParams,
    Moved,
    MoveParams,
    PathParams,
    ReadParams,
    SearchParams,
    StatParams,
    UploadParams,
    WriteParams,
    Written,
)
from sandboxagent.server.files.changes import delete, make_directory, move
from sandboxagent.server.files.entries import IncomingFile, WriteCondition, etag, read_entry, read_page
from sandboxagent.server.files.roots import Roots, encode_name, file_problems
from sandboxagent.server.sessions.connection import Connection
from sandboxagent.server.sessions.dispatch import Method
from sandboxagent.server.sessions.hub import Hub
from sandboxagent.server.sessions.reply import Answer

if TYPE_CHECKING:
    from sandboxagent.server.file_api.archives import Archives
    from sandboxagent.server.files.search import Searches

MAX_FILE_BYTES = 8 << 20
"""Maximum number of bytes of a file in an envelope."""

Params = TypeVar("Params", bound="PathParams")


class FileMethods(Struct, frozen=True):
    """The methods of the file API. All of their work is done in threads."""

    hub: Hub
    roots: Roots
    max_file: int | None
    pools: Pools
    searches: "Callable[[], Searches]"
    """Makes the searches on first use."""
    archives: "Callable[[], Archives]"
    """Makes the archives on first use."""

    def table(self) -> dict[str, Method]:
        return {
            methods.READ_FILE: self._method(ReadParams, self._read),
            methods.WRITE_FILE: self._method(WriteParams, self._write),
            methods.LIST_ENTRIES: self._method(EntriesParams, self._entries),
            methods.STAT: self._method(StatParams, self._stat),
            methods.MAKE_DIRECTORY: self._method(PathParams, self._mkdir),
            methods.MOVE: self._move,
            methods.SEARCH: self._search,
            methods.UPLOAD_BATCH: self._upload_batch,
            methods.DELETE_FILE: self._method(DeleteParams, self._delete, self.pools.trees),
        }

    def _method(self, type: type[Params], work: Callable[[str, Params], object], pool: Pool | None = None) -> Method:
        async def method(connection: Connection, envelope: Envelope) -> Answer:
            asked = await self._read_params(envelope, type)
            path = self._absolute(asked.path, asked.session_id)
            return await _answer_in_thread(envelope, lambda: work(path, asked), pool or self.pools.files)

        return method

    async def _read_params(self, envelope: Envelope, type: type[Params]) -> Params:
        is_large = len(envelope.line) > LARGE_BYTES
        return await self.pools.files.run(_params, envelope, type) if is_large else _params(envelope, type)

    def _absolute(self, path: str, session_id: str | None) -> str:
        if not path:
            raise BadPath(path, "a path has at least one character")
        directory = None if session_id is None else self.hub.session(session_id).facts.cwd
        return self.roots.absolute(path, directory)

    def _read(self, path: str, asked: "ReadParams") -> Content:
        with file_problems(path), self.roots.confined.open(path) as file:
            facts = os.fstat(file.fileno())
            wanted = MAX_FILE_BYTES + 1 if asked.length is None else min(asked.length, MAX_FILE_BYTES + 1)
            content = bytearray()
            # Some files, such as those of /proc, return fewer bytes at a time than requested.
            while part := os.pread(file.fileno(), wanted - len(content), asked.offset + len(content)):
                content += part
        if len(content) > MAX_FILE_BYTES:
            raise _too_large(path, "GET /v1/fs/file")
        return Content(encode_name(path), base64.b64encode(content).decode(), facts.st_size, etag(facts))

    def _write(self, path: str, asked: "WriteParams") -> Written:
        if len(asked.content) > MAX_FILE_BYTES:
            raise _too_large(path, "PUT /v1/fs/file")
        incoming = IncomingFile(self.roots, path, WriteCondition(), self.max_file)
        try:
            incoming.write([asked.content])
            return incoming.finish()
        finally:
            incoming.close()

    def _entries(self, path: str, asked: "EntriesParams") -> object:
        return read_page(self.roots.confined, path, asked.cursor, asked.limit)

    def _stat(self, path: str, asked: "StatParams") -> object:
        return read_entry(self.roots.confined, path, follow=asked.follow)

    def _mkdir(self, path: str, asked: "PathParams") -> Done:
        make_directory(self.roots, path)
        return Done(encode_name(path))

    def _delete(self, path: str, asked: "DeleteParams") -> Done:
        delete(self.roots, path, recursive=asked.recursive, stopped=self.roots.stopped)
        return Done(encode_name(path))

    async def _move(self, connection: Connection, envelope: Envelope) -> Answer:
        asked = _params(envelope, MoveParams)
        source, target = (self._absolute(path, asked.session_id) for path in (asked.source, asked.target))

        def work() -> Moved:
            move(self.roots, source, target, overwrite=asked.overwrite, stopped=self.roots.stopped)
            return Moved(encode_name(source), encode_name(target))

        return await _answer_in_thread(envelope, work, self.pools.trees)

    async def _search(self, connection: Connection, envelope: Envelope) -> Answer:
        from sandboxagent.server.files.search import Query

        asked = _params(envelope, SearchParams)
        path, searches = self._absolute(asked.path, asked.session_id), self.searches()
        wanted = Query(asked.text, asked.name, asked.regex, asked.case, asked.hidden, asked.ignored)
        try:
            found = await searches.find(searches.prepare(path, wanted, asked.limit), path)
        except BadRequest as error:
            raise InvalidParams(str(error), **error.fields) from error
        return await _answer_in_thread(envelope, lambda: found, self.pools.files)

    async def _upload_batch(self, connection: Connection, envelope: Envelope) -> Answer:
        asked = await self._read_params(envelope, UploadParams)
        path = self._absolute(asked.path, asked.session_id)
        if len(asked.archive) > MAX_FILE_BYTES:
            raise _too_large(path, "POST /v1/fs/upload-batch")
        uploaded = await self.archives().unpack(path, _pieces(asked.archive))
        return await _answer_in_thread(envelope, lambda: uploaded, self.pools.files)


async def _pieces(archive: bytes) -> AsyncGenerator[bytes]:
    yield archive


T = TypeVar("T")


def _params(envelope: Envelope, type: type[T]) -> T:
    try:
        return msgspec.convert(envelope.params(), type)
    except msgspec.ValidationError as error:
        raise InvalidParams(f"{envelope.method}: {error}", method=envelope.method) from None


async def _answer_in_thread(envelope: Envelope, work: Callable[[], object], pool: Pool) -> Answer:
    """Return the response as a line. It is encoded in the thread too, because a file may be large."""
    assert envelope.id is not None
    id = envelope.id
    return Answer(await pool.run(lambda: success(id, work())))


def _too_large(path: str, route: str) -> FileTooLarge:
    meaning = f"more than the {MAX_FILE_BYTES} bytes that an envelope carries; use {route}"
    return FileTooLarge(encode_name(path), meaning, limit=MAX_FILE_BYTES, route=route)
