"""The `_sandboxagent/fs/*` methods of clients: the file API over ACP, for files that fit into an envelope."""

import asyncio
import base64
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from sandbox_agent.envelope import Envelope, success
from sandbox_agent.errors import BadPath, FileTooLarge, InvalidParams
from sandbox_agent.host.changes import Done, Moved, delete, make_directory, move
from sandbox_agent.host.conditions import Condition, etag
from sandbox_agent.host.entries import MAX_PAGE, PAGE, entry_at, page_of
from sandbox_agent.host.incoming import IncomingFile, Written
from sandbox_agent.host.names import shown
from sandbox_agent.host.refusals import file_problems
from sandbox_agent.host.roots import Roots
from sandbox_agent.hub.calls import Answer
from sandbox_agent.hub.checks import Method
from sandbox_agent.hub.connection import Connection
from sandbox_agent.hub.hub import Hub

CARRIED = 8 << 20
"""Bytes of a file that an envelope may carry."""

Params = TypeVar("Params", bound="_Where")


class Content(Struct, rename="camel"):
    """A file, or a part of it, as base64."""

    path: str
    content: str
    size: int
    """Of the whole file."""
    etag: str


@dataclass(frozen=True, slots=True)
class FileMethods:
    """The methods. All of their work is done in threads."""

    hub: Hub
    roots: Roots
    max_file: int | None

    def table(self) -> dict[str, Method]:
        return {
            "_sandboxagent/fs/read_file": self._method(_Read, self._read),
            "_sandboxagent/fs/write_file": self._method(_Write, self._write),
            "_sandboxagent/fs/entries": self._method(_Entries, self._entries),
            "_sandboxagent/fs/stat": self._method(_Stat, self._stat),
            "_sandboxagent/fs/mkdir": self._method(_Where, self._mkdir),
            "_sandboxagent/fs/move": self._move,
            "_sandboxagent/fs/delete": self._method(_Delete, self._delete),
        }

    def _method(self, type: type[Params], work: Callable[[str, Params], object]) -> Method:
        async def method(connection: Connection, envelope: Envelope) -> Answer:
            asked = _params(envelope, type)
            path = self._absolute(asked.path, asked.session_id)
            return await _answer(envelope, lambda: work(path, asked))

        return method

    def _absolute(self, path: str, session_id: str | None) -> str:
        if not path:
            raise BadPath(path, "a path has at least one character")
        directory = None if session_id is None else self.hub.session(session_id).facts.cwd
        return self.roots.absolute(path, directory)

    def _read(self, path: str, asked: "_Read") -> Content:
        with file_problems(path), self.roots.confined.open(path) as file:
            facts = os.fstat(file.fileno())
            wanted = CARRIED + 1 if asked.length is None else min(asked.length, CARRIED + 1)
            content = bytearray()
            # Some files, those of /proc for one, give less at a time than was asked for.
            while part := os.pread(file.fileno(), wanted - len(content), asked.offset + len(content)):
                content += part
        if len(content) > CARRIED:
            raise _too_large(path, "GET /v1/fs/file")
        return Content(shown(path), base64.b64encode(content).decode(), facts.st_size, etag(facts))

    def _write(self, path: str, asked: "_Write") -> Written:
        if len(asked.content) > CARRIED:
            raise _too_large(path, "PUT /v1/fs/file")
        incoming = IncomingFile(self.roots, path, Condition(), self.max_file)
        try:
            incoming.write([asked.content])
            return incoming.finish()
        finally:
            incoming.close()

    def _entries(self, path: str, asked: "_Entries") -> object:
        return page_of(self.roots.confined, path, asked.cursor, asked.limit)

    def _stat(self, path: str, asked: "_Stat") -> object:
        return entry_at(self.roots.confined, path, follow=asked.follow)

    def _mkdir(self, path: str, asked: "_Where") -> Done:
        make_directory(self.roots, path)
        return Done(shown(path))

    def _delete(self, path: str, asked: "_Delete") -> Done:
        delete(self.roots, path, recursive=asked.recursive, stopped=self.roots.stopped)
        return Done(shown(path))

    async def _move(self, connection: Connection, envelope: Envelope) -> Answer:
        asked = _params(envelope, _Move)
        source, target = (self._absolute(path, asked.session_id) for path in (asked.source, asked.target))

        def work() -> Moved:
            move(self.roots, source, target, overwrite=asked.overwrite, stopped=self.roots.stopped)
            return Moved(shown(source), shown(target))

        return await _answer(envelope, work)


class _Where(Struct, rename="camel"):
    path: str
    session_id: str | None = None


class _Read(_Where, rename="camel"):
    offset: Annotated[int, Meta(ge=0, lt=1 << 62)] = 0
    length: Annotated[int, Meta(ge=0)] | None = None


class _Write(_Where, rename="camel", kw_only=True):
    content: bytes
    """In JSON it is base64."""


class _Entries(_Where, rename="camel"):
    cursor: str | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = PAGE


class _Stat(_Where, rename="camel"):
    follow: bool = True


class _Delete(_Where, rename="camel"):
    recursive: bool = False


class _Move(Struct, rename={"source": "from", "target": "to", "session_id": "sessionId"}):
    source: str
    target: str
    overwrite: bool = False
    session_id: str | None = None


T = TypeVar("T")


def _params(envelope: Envelope, type: type[T]) -> T:
    try:
        return msgspec.convert(envelope.params(), type)
    except msgspec.ValidationError as error:
        raise InvalidParams(f"{envelope.method}: {error}", method=envelope.method) from None


async def _answer(envelope: Envelope, work: Callable[[], object]) -> Answer:
    """The result as a line, made in a thread as well: a file may be large."""
    assert envelope.id is not None
    id = envelope.id
    return Answer(await asyncio.to_thread(lambda: success(id, work())))


def _too_large(path: str, route: str) -> FileTooLarge:
    meaning = f"more than the {CARRIED} bytes that an envelope carries; use {route}"
    return FileTooLarge(shown(path), meaning, limit=CARRIED, route=route)
