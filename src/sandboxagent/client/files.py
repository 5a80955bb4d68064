"""Use files of the server's machine: read, write, move, search and watch them, and whole directories.

A path is absolute, or relative to the session's directory, or else to the server's root directory. What goes wrong with
one is a ServerProblem, such as `file-not-found`, with the path in `fields`.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from datetime import datetime
from http import HTTPStatus
from pathlib import Path, PurePosixPath
from typing import Literal, TypeAlias

from msgspec import Struct, structs

from sandboxagent.client.api import (
    EVENT_STREAM,
    FIRST_PAUSE,
    MAX_PAUSE,
    Api,
    Data,
    Params,
    read_events,
    sending,
    translate_local_failures,
)
from sandboxagent.client.errors import ClientError, ConnectionLost, InvalidCall, ServerProblem
from sandboxagent.client.http import Response
from sandboxagent.protocol.files import Done, Moved

_NDJSON = "application/x-ndjson"


class Match(Struct, rename="camel", kw_only=True, frozen=True):
    """A file, or a line of it: `line` and `column` count from 1, the column in characters."""

    path: str
    line: int | None = None
    column: int | None = None
    text: str | None = None
    text_truncated: bool = False
    """The line is longer than the text shown here."""


class _Line(Struct, rename="camel", kw_only=True):
    """A match, or the last line, which has no path."""

    path: str | None = None
    line: int | None = None
    column: int | None = None
    text: str | None = None
    text_truncated: bool = False
    truncated: bool = False
    reason: str | None = None


class Search(AsyncIterator[Match]):
    """The matches, in no order. Begins with the first step, and ends on the server when it is left."""

    def __init__(self, api: Api, params: Params) -> None:
        self.truncated = False
        """Whether there may be more than was found; known at the end."""
        self.reason: str | None = None
        """What ended it early: `results`, `bytes`, `time` or `lines`."""
        self._matches = self._run(api, params)

    async def __anext__(self) -> Match:
        return await anext(self._matches)

    async def close(self) -> None:
        """End it now instead of when it is garbage-collected."""
        await self._matches.aclose()

    async def _run(self, api: Api, params: Params) -> AsyncGenerator[Match]:
        async with api.stream("GET", "/v1/fs/search", params=params, headers={"Accept": _NDJSON}) as response:
            if response.headers.get("content-type", "").partition(";")[0] != _NDJSON:
                raise api.foreign(response, b"")
            async for text in _lines(response):
                line = api.parsed(response, text, _Line)
                if line.path is None:
                    self.truncated, self.reason = line.truncated, line.reason
                    return
                yield Match(
                    path=line.path,
                    line=line.line,
                    column=line.column,
                    text=line.text,
                    text_truncated=line.text_truncated,
                )
        raise ConnectionLost(f"{api.url} ended its answer before the search had ended")


async def _lines(response: Response) -> AsyncGenerator[bytes]:
    """Lines of JSON."""
    begun: list[bytes] = []
    async for part in response.aiter_bytes():
        first, *rest = part.split(b"\n")
        begun.append(first)
        for piece in rest:
            yield b"".join(begun)
            begun = [piece]


RECONNECT_TIMEOUT = 30.0
"""Seconds for which a server that cannot be reached is tried again."""

_PASSING = {HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT}
_OVERFLOW = "overflow"


class Change(Struct, rename="camel", kw_only=True, frozen=True):
    """What became of a path."""

    kind: str
    """`added`, `modified`, `deleted`; or `overflow`: there were too many changes to report, so scan this path again."""
    path: str


class _Changes(Struct):
    changes: list[Change]


class _Ended(Struct):
    reason: str


class Watch(AsyncIterator[Change]):
    """The changes, from the first step on; with `async with`, from the beginning of the block.

    A connection that breaks is made again, followed by an `overflow`. It ends when what is watched is gone.
    """

    def __init__(self, api: Api, path: str, params: Params, *, patience: float = RECONNECT_TIMEOUT) -> None:
        self.path = path
        self.ended: str | None = None
        """Why no more changes come: `gone` (it was deleted or moved), or `exhausted` (the kernel watches no more)."""
        self._api = api
        self._params = params
        self._patience = patience
        self._changes = self._run()

    async def __aenter__(self) -> "Watch":
        await anext(self._changes)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def __anext__(self) -> Change:
        while (change := await anext(self._changes)) is None:
            pass
        return change

    async def close(self) -> None:
        """End it now instead of when it is garbage-collected."""
        await self._changes.aclose()

    async def _run(self) -> AsyncGenerator[Change | None]:
        """The changes; None when the server has begun to watch."""
        clock = asyncio.get_running_loop().time
        begun, lost_at, pause = False, None, FIRST_PAUSE
        while True:
            failure: ClientError = ConnectionLost(f"{self._api.url} stopped and does not watch {self.path} any more")
            try:
                async with aclosing(self._watched()) as changes:
                    async for change in changes:
                        yield Change(kind=_OVERFLOW, path=self.path) if change is None and begun else change
                        begun, lost_at, pause = True, None, FIRST_PAUSE
            except ClientError as error:
                if not begun or not _may_pass(error):
                    raise
                failure = error
            if self.ended is not None:
                return
            lost_at = clock() if lost_at is None else lost_at
            if clock() - lost_at > self._patience:
                raise failure
            await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - so that not all come at once
            pause = min(2 * pause, MAX_PAUSE)

    async def _watched(self) -> AsyncGenerator[Change | None]:
        """The same, over one connection."""
        headers = {"Accept": EVENT_STREAM}
        async with (
            self._api.stream("GET", "/v1/fs/watch", params=self._params, headers=headers) as response,
            aclosing(read_events(response)) as stream,
        ):
            yield None
            async for event in stream:
                data = event.data.encode()
                match event.event:
                    case "changes":
                        for change in self._api.parsed(response, data, _Changes).changes:
                            yield change
                    case "overflow":
                        yield Change(kind=_OVERFLOW, path=self.path)
                    case "ended":
                        reason = self._api.parsed(response, data, _Ended).reason
                        self.ended = None if reason == "stopping" else reason
                        return
                    case _:
                        pass  # Of a newer server.


def _may_pass(error: ClientError) -> bool:
    return isinstance(error, ConnectionLost) or (isinstance(error, ServerProblem) and error.status in _PASSING)


RemotePath: TypeAlias = str | PurePosixPath
"""A path of the server's machine: absolute, or relative to the session's or to the server's root directory."""
ArchiveFormat: TypeAlias = Literal["tar", "tar.gz", "tar.zst"]
"""How a directory is packed."""

_PARTIAL = 206
# A name that is not UTF-8, as Python has it, is spelled with other characters on its way (contract, section 13).
_SPELLED = {0xDC00 + byte: chr(0xEF00 + byte) for byte in range(0x80, 0x100)}


class Entry(Struct, rename="camel", kw_only=True, frozen=True):
    """A file, a directory or a link."""

    name: str
    path: str
    entry_type: str
    """`file`, `directory`, `symlink` or `other`."""
    size: int = 0
    modified: datetime | None = None
    mode: str = ""
    """Permissions, in octal: `0644`."""
    etag: str | None = None
    """Of a file: names this version of it, for `if_match`."""
    link_target: str | None = None
    """Of a link: its target, which need not exist."""


class Written(Struct, rename="camel", kw_only=True, frozen=True):
    """A file that was written."""

    path: str
    bytes_written: int = 0
    sha256: str = ""
    etag: str = ""


class Uploaded(Struct, rename="camel", kw_only=True, frozen=True):
    """The result of unpacking an archive."""

    paths: list[str] = []
    """The first of the files and links that were written."""
    truncated: bool = False
    """Whether there are more than `paths` has."""
    left_out: list[str] = []
    """Of `upload`: what was not sent, as no server takes it: links out of the directory, sockets, pipes, devices."""


class _Page(Struct, rename="camel"):
    entries: list[Entry]
    next_cursor: str | None = None


class Files:
    """Files of the server's machine; those of a session have paths relative to its directory."""

    def __init__(self, api: Api, session_id: str | None = None, node: str | None = None) -> None:
        self._api = api
        self._where: dict[str, str | None] = {"sessionId": session_id, "node": node}

    def of_node(self, node: str) -> "Files":
        """Files of one node of a fleet; a gateway has to know which one when there are several."""
        return Files(self._api, node=node)

    async def read(self, path: RemotePath, *, start: int = 0, end: int | None = None) -> bytes:
        """A file's content, or its bytes from `start` to before `end`."""
        async with aclosing(self.stream(path, start=start, end=end)) as blocks:
            return b"".join([block async for block in blocks])

    async def read_text(self, path: RemotePath, *, encoding: str = "utf-8", errors: str = "strict") -> str:
        """A file's content as text."""
        return (await self.read(path)).decode(encoding, errors)

    async def stream(self, path: RemotePath, *, start: int = 0, end: int | None = None) -> AsyncGenerator[bytes]:
        """A file's content as it comes, or its bytes from `start` to before `end`."""
        headers = _range(start, end)
        async with self._api.stream("GET", "/v1/fs/file", params=self._at(path), headers=headers) as response:
            if headers and response.status_code != _PARTIAL:
                raise self._api.foreign(response, b"")
            async for block in response.aiter_bytes():
                yield block

    async def write(
        self, path: RemotePath, data: Data, *, if_match: str | None = None, if_none_match: str | None = None
    ) -> Written:
        """Write a file, whole or not at all, with the directories on its way.

        A `str` is written as UTF-8; a `pathlib.Path` names a file of this machine, which is read as it is sent.
        `if_match` is the etag that the old file must have; with `if_none_match="*"` there must be none. Else it is a
        ServerProblem, `file-changed`.
        """
        conditions = {"If-Match": if_match, "If-None-Match": if_none_match}
        headers = {name: value for name, value in conditions.items() if value is not None}
        async with sending(data) as body:
            response = await self._api.request(
                "PUT", "/v1/fs/file", params=self._at(path), content=body, headers=headers
            )
        return self._api.decoded(response, Written)

    async def list(self, path: RemotePath = ".") -> AsyncGenerator[Entry]:
        """A directory's entries, by name; asks for a page when it is needed."""
        cursor = None
        while True:
            params = {**self._at(path), "cursor": cursor}
            page = await self._api.json("GET", "/v1/fs/entries", params=params, type=_Page)
            for entry in page.entries:
                yield entry
            if page.next_cursor is None:
                return
            cursor = page.next_cursor

    async def stat(self, path: RemotePath, *, follow: bool = True) -> Entry:
        """A file, a directory or, without `follow`, a link itself."""
        params = {**self._at(path), "follow": follow}
        return await self._api.json("GET", "/v1/fs/stat", params=params, type=Entry)

    async def mkdir(self, path: RemotePath) -> str:
        """Make a directory, including parents; it may exist already. Returns its absolute path."""
        return (await self._api.json("POST", "/v1/fs/mkdir", params=self._at(path), type=Done)).path

    async def move(self, source: RemotePath, target: RemotePath, *, overwrite: bool = False) -> str:
        """Rename or move something; the new parent directory must exist. Returns the new absolute path.

        With `overwrite` it takes the place of a file, or a directory that of an empty one.
        """
        body = {"from": encode_path(source), "to": encode_path(target), "overwrite": overwrite}
        return (await self._api.json("POST", "/v1/fs/move", params=self._where, body=body, type=Moved)).target

    async def delete(self, path: RemotePath, *, recursive: bool = False) -> None:
        """Delete a file, a link, or a directory; a directory that is not empty needs `recursive`."""
        params = {**self._at(path), "recursive": recursive}
        await self._api.request("DELETE", "/v1/fs/entry", params=params)

    async def upload_archive(self, path: RemotePath, archive: Data) -> Uploaded:
        """Unpack a tar archive, plain or packed with gzip or zstd, into a directory: all of it, or nothing."""
        headers = {"Content-Type": "application/x-tar"}
        async with sending(archive) as body:
            response = await self._api.request(
                "POST", "/v1/fs/upload-batch", params=self._at(path), content=body, headers=headers
            )
        return self._api.decoded(response, Uploaded)

    async def download_archive(self, path: RemotePath, *, format: ArchiveFormat = "tar") -> AsyncGenerator[bytes]:
        """A directory as a tar archive, as it comes."""
        params = {**self._at(path), "format": format}
        async with self._api.stream("GET", "/v1/fs/archive", params=params) as response:
            async for block in response.aiter_bytes():
                yield block

    async def upload(self, local: str | Path, path: RemotePath) -> Uploaded:
        """Send what is in a directory of this machine into one of the server: all of it, or nothing.

        Links are sent as links. `left_out` of the result has what was not sent.
        """
        from sandboxagent.client.archives import pack_in_threads

        left_out: list[str] = []
        with translate_local_failures():
            async with aclosing(pack_in_threads(Path(local), lambda name, why: left_out.append(name))) as archive:
                uploaded = await self.upload_archive(path, archive)
        return structs.replace(uploaded, left_out=left_out)

    async def download(self, path: RemotePath, local: str | Path) -> "list[str]":
        """Take what is in a directory of the server into one of this machine: all of it, or nothing.

        The directory is made when it is not there. What is there stays, unless it has the same name. Nothing is written
        outside of `local`, whatever the server sends. Gives the links that were left out because they lead out of it.
        """
        from sandboxagent.client.archives import unpack

        left_out: list[str] = []
        with translate_local_failures():
            async with aclosing(self.download_archive(path)) as archive:
                await unpack(archive, Path(local), lambda name, why: left_out.append(name))
        return left_out

    def search(
        self,
        path: RemotePath = ".",
        *,
        text: str | None = None,
        name: str | None = None,
        regex: bool = False,
        case: Literal["smart", "sensitive", "ignore"] = "smart",
        hidden: bool = False,
        ignored: bool = False,
        limit: int | None = None,
    ) -> Search:
        """Lines with `text` in files, or files by `name` (a part of it, or a glob), or both.

        With `smart`, capitals in the text make it matter. `hidden` adds names with a dot in front, `ignored` what
        `.gitignore` and its kin leave out. Iterate over the result; then `truncated` says whether there may be more.
        """
        flags = {"regex": regex, "hidden": hidden, "ignored": ignored}
        params = {**self._at(path), "text": text, "name": name, "case": case, "limit": limit, **flags}
        return Search(self._api, params)

    def watch(self, path: RemotePath = ".", *, recursive: bool = True) -> Watch:
        """Changes in a directory and, unless told otherwise, all below it, as they happen.

        `async with files.watch("src") as changes:` misses nothing from there on; `async for` alone begins by itself.
        """
        return Watch(self._api, str(path), {**self._at(path), "recursive": recursive})

    def _at(self, path: RemotePath) -> dict[str, str | None]:
        return {"path": encode_path(path), **self._where}


def encode_path(path: RemotePath) -> str:
    """A path as it goes on the wire."""
    return str(path).translate(_SPELLED)


def _range(start: int, end: int | None) -> dict[str, str]:
    if start < 0 or (end is not None and end <= start):
        raise InvalidCall(f"there are no bytes from {start} to before {end}")
    if start == 0 and end is None:
        return {}
    return {"Range": f"bytes={start}-{'' if end is None else end - 1}"}
