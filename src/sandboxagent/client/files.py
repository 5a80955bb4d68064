"""Use files on the server's machine: read, write, move, search and watch them, and whole directories.

A path is absolute, or relative to the session's directory, or else to the server's root directory. A failure is a
ServerProblem, such as `file-not-found`, with the path in `fields`.
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
    FIRST_RETRY_INTERVAL,
    MAX_RETRY_INTERVAL,
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
    """A match of a search: a file, or a line of a file."""

    path: str
    """Absolute path of the file."""
    line: int | None = None
    """Line number, from 1; None if only a file name was searched for."""
    column: int | None = None
    """Column of the match in its line, from 1, in characters."""
    text: str | None = None
    """The line, or the part of it around the match; at most 1,000 characters."""
    text_truncated: bool = False
    """Whether the line is longer than `text`."""


class _Line(Struct, rename="camel", kw_only=True):
    """A line of the response: a match, or the last line, which has no path."""

    path: str | None = None
    line: int | None = None
    column: int | None = None
    text: str | None = None
    text_truncated: bool = False
    truncated: bool = False
    reason: str | None = None


class Search(AsyncIterator[Match]):
    """The matches of a search, in no particular order.

    The search begins with the first step of the iteration. When you leave the iteration, the server stops searching.
    """

    def __init__(self, api: Api, params: Params) -> None:
        self.truncated = False
        """Whether there may be more matches than were returned. Known after the iteration."""
        self.reason: str | None = None
        """Which limit ended the search early: `results`, `bytes`, `time`, or `lines` (a line was too long to be
        searched)."""
        self._matches = self._run(api, params)

    async def __anext__(self) -> Match:
        return await anext(self._matches)

    async def close(self) -> None:
        """End the search at once. Otherwise it ends when the object is garbage-collected."""
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
    """Yield the lines of a response."""
    begun: list[bytes] = []
    async for part in response.aiter_bytes():
        first, *rest = part.split(b"\n")
        begun.append(first)
        for piece in rest:
            yield b"".join(begun)
            begun = [piece]


RECONNECT_TIMEOUT = 30.0
"""Seconds that a watch tries to reach the server again."""

_PASSING = {HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT}
_OVERFLOW = "overflow"


class Change(Struct, rename="camel", kw_only=True, frozen=True):
    """A change of a file or directory."""

    kind: str
    """`added`, `modified` or `deleted`; or `overflow` if too many changes came to be reported: read `path` again."""
    path: str
    """Absolute path that changed. For `overflow`, the watched path as you gave it."""


class _Changes(Struct):
    changes: list[Change]


class _Ended(Struct):
    reason: str


class Watch(AsyncIterator[Change]):
    """The changes in a directory, from the first step of the iteration on.

    With `async with`, the watch begins at the start of the block. If the connection breaks, the watch reconnects, and
    an `overflow` follows. The iteration ends when the watched path is gone.
    """

    def __init__(self, api: Api, path: str, params: Params, *, timeout: float = RECONNECT_TIMEOUT) -> None:
        self.path = path
        """The watched path."""
        self.ended: str | None = None
        """Why no more changes come: `gone` (the path was deleted or moved), or `exhausted` (the kernel watches no more
        directories). None while the watch runs."""
        self._api = api
        self._params = params
        self._timeout = timeout
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
        """End the watch at once. Otherwise it ends when the object is garbage-collected."""
        await self._changes.aclose()

    async def _run(self) -> AsyncGenerator[Change | None]:
        """Yield the changes, over any number of connections. None means that the server watches."""
        clock = asyncio.get_running_loop().time
        begun, lost_at, pause = False, None, FIRST_RETRY_INTERVAL
        while True:
            failure: ClientError = ConnectionLost(f"{self._api.url} stopped and does not watch {self.path} any more")
            try:
                async with aclosing(self._watched()) as changes:
                    async for change in changes:
                        yield Change(kind=_OVERFLOW, path=self.path) if change is None and begun else change
                        begun, lost_at, pause = True, None, FIRST_RETRY_INTERVAL
            except ClientError as error:
                if not begun or not _may_pass(error):
                    raise
                failure = error
            if self.ended is not None:
                return
            lost_at = clock() if lost_at is None else lost_at
            if clock() - lost_at > self._timeout:
                raise failure
            await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - so that clients do not return all at once
            pause = min(2 * pause, MAX_RETRY_INTERVAL)

    async def _watched(self) -> AsyncGenerator[Change | None]:
        """Yield the changes that one connection delivers. None means that the server watches."""
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
                        pass  # A newer server sends other events, too.


def _may_pass(error: ClientError) -> bool:
    return isinstance(error, ConnectionLost) or (isinstance(error, ServerProblem) and error.status in _PASSING)


RemotePath: TypeAlias = str | PurePosixPath
"""A path on the server's machine: absolute, or relative to the session's directory, or else to the server's root
directory."""
ArchiveFormat: TypeAlias = Literal["tar", "tar.gz", "tar.zst"]
"""Format of an archive."""

_PARTIAL = 206
# Python represents bytes of a name that are not UTF-8 as surrogates. The wire has other characters for them (contract,
# section 13).
_SPELLED = {0xDC00 + byte: chr(0xEF00 + byte) for byte in range(0x80, 0x100)}


class Entry(Struct, rename="camel", kw_only=True, frozen=True):
    """A file, a directory or a link on the server's machine."""

    name: str
    """Name of the entry."""
    path: str
    """Absolute path of the entry."""
    entry_type: str
    """`file`, `directory`, `symlink` or `other`."""
    size: int = 0
    """Size in bytes."""
    modified: datetime | None = None
    """Time of the last change."""
    mode: str = ""
    """Permissions in octal, such as `0644`."""
    etag: str | None = None
    """For a file: identifier of its current version, for `if_match` of `write`."""
    link_target: str | None = None
    """For a link: its target, which need not exist."""


class Written(Struct, rename="camel", kw_only=True, frozen=True):
    """A file that was written."""

    path: str
    """Absolute path of the file."""
    bytes_written: int = 0
    """Size of the file in bytes."""
    sha256: str = ""
    """SHA-256 hash of the content, in hexadecimal."""
    etag: str = ""
    """Identifier of the new version, for `if_match` of `write`."""


class Uploaded(Struct, rename="camel", kw_only=True, frozen=True):
    """The result of unpacking an archive."""

    paths: list[str] = []
    """Absolute paths of the first 1024 files and links that were written."""
    truncated: bool = False
    """Whether more files and links were written than `paths` lists."""
    left_out: list[str] = []
    """For `upload`: entries that were not sent because no server accepts them. These are links out of the directory,
    sockets, pipes and devices."""


class _Page(Struct, rename="camel"):
    entries: list[Entry]
    next_cursor: str | None = None


class Files:
    """Files on the server's machine. With the files of a session, paths are relative to the session's directory."""

    def __init__(self, api: Api, session_id: str | None = None, node: str | None = None) -> None:
        self._api = api
        self._where: dict[str, str | None] = {"sessionId": session_id, "node": node}

    def of_node(self, node: str) -> "Files":
        """Return the files of one node of a fleet. A gateway with several nodes needs to know which node you mean."""
        return Files(self._api, node=node)

    async def read(self, path: RemotePath, *, start: int = 0, end: int | None = None) -> bytes:
        """Return a file's content, or its bytes from `start` to before `end`."""
        async with aclosing(self.stream(path, start=start, end=end)) as blocks:
            return b"".join([block async for block in blocks])

    async def read_text(self, path: RemotePath, *, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Return a file's content as text."""
        return (await self.read(path)).decode(encoding, errors)

    async def stream(self, path: RemotePath, *, start: int = 0, end: int | None = None) -> AsyncGenerator[bytes]:
        """Yield a file's content in blocks, or its bytes from `start` to before `end`."""
        headers = _range(start, end)
        async with self._api.stream("GET", "/v1/fs/file", params=self._at(path), headers=headers) as response:
            if headers and response.status_code != _PARTIAL:
                raise self._api.foreign(response, b"")
            async for block in response.aiter_bytes():
                yield block

    async def write(
        self, path: RemotePath, data: Data, *, if_match: str | None = None, if_none_match: str | None = None
    ) -> Written:
        """Write a file completely or not at all. Missing parent directories are created.

        Args:
            path: path of the file.
            data: content of the file. A `str` is written as UTF-8. A `pathlib.Path` names a file of your own machine,
                which is read while it is sent.
            if_match: etag that the existing file must have.
            if_none_match: `"*"` if the file must not exist yet.

        Raises:
            ServerProblem: `if_match` or `if_none_match` is not fulfilled (`file-changed`), or the file cannot be
                written.
        """
        conditions = {"If-Match": if_match, "If-None-Match": if_none_match}
        headers = {name: value for name, value in conditions.items() if value is not None}
        async with sending(data) as body:
            response = await self._api.request(
                "PUT", "/v1/fs/file", params=self._at(path), content=body, headers=headers
            )
        return self._api.decoded(response, Written)

    async def list(self, path: RemotePath = ".") -> AsyncGenerator[Entry]:
        """Yield a directory's entries, by name. Pages are requested as they are needed."""
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
        """Return the facts about a file or directory. Without `follow`, a link is described instead of its target."""
        params = {**self._at(path), "follow": follow}
        return await self._api.json("GET", "/v1/fs/stat", params=params, type=Entry)

    async def mkdir(self, path: RemotePath) -> str:
        """Create a directory and its missing parents, and return its absolute path. The directory may exist already."""
        return (await self._api.json("POST", "/v1/fs/mkdir", params=self._at(path), type=Done)).path

    async def move(self, source: RemotePath, target: RemotePath, *, overwrite: bool = False) -> str:
        """Rename or move a file or directory, and return its new absolute path. The new parent directory must exist.

        With `overwrite`, an existing file is replaced, and a directory may replace an empty directory.
        """
        body = {"from": encode_path(source), "to": encode_path(target), "overwrite": overwrite}
        return (await self._api.json("POST", "/v1/fs/move", params=self._where, body=body, type=Moved)).target

    async def delete(self, path: RemotePath, *, recursive: bool = False) -> None:
        """Delete a file, a link or a directory. A directory that is not empty needs `recursive`."""
        params = {**self._at(path), "recursive": recursive}
        await self._api.request("DELETE", "/v1/fs/entry", params=params)

    async def upload_archive(self, path: RemotePath, archive: Data) -> Uploaded:
        """Unpack a tar archive, plain or packed with gzip or zstd, into a directory: completely or not at all."""
        headers = {"Content-Type": "application/x-tar"}
        async with sending(archive) as body:
            response = await self._api.request(
                "POST", "/v1/fs/upload-batch", params=self._at(path), content=body, headers=headers
            )
        return self._api.decoded(response, Uploaded)

    async def download_archive(self, path: RemotePath, *, format: ArchiveFormat = "tar") -> AsyncGenerator[bytes]:
        """Yield a directory as a tar archive, in blocks."""
        params = {**self._at(path), "format": format}
        async with self._api.stream("GET", "/v1/fs/archive", params=params) as response:
            async for block in response.aiter_bytes():
                yield block

    async def upload(self, local: str | Path, path: RemotePath) -> Uploaded:
        """Copy the content of a directory of your machine into a directory of the server, completely or not at all.

        Links are sent as links. `left_out` of the result lists the entries that were not sent.
        """
        from sandboxagent.client.archives import pack_in_threads

        left_out: list[str] = []
        with translate_local_failures():
            async with aclosing(pack_in_threads(Path(local), lambda name, why: left_out.append(name))) as archive:
                uploaded = await self.upload_archive(path, archive)
        return structs.replace(uploaded, left_out=left_out)

    async def download(self, path: RemotePath, local: str | Path) -> "list[str]":
        """Copy the content of a directory of the server into a directory of your machine, completely or not at all.

        The local directory is created if it does not exist. Its existing files stay, unless the server's directory has
        the same names. Nothing is written outside of `local`, whatever the server sends. The result lists the links
        that were left out because they lead out of `local`.
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
        """Search for lines that contain `text`, for files by `name`, or for lines in files of that name.

        Iterate over the result. After that, `truncated` says whether there may be more matches.

        Args:
            path: directory to search in.
            text: text to find in a line.
            name: a part of a file's name, or a glob such as `*.py` or `src/**/test_*`.
            regex: whether `text` is a regular expression, in the syntax of Rust.
            case: "smart" makes case matter if `text` contains a capital letter.
            hidden: whether to include names that begin with a dot.
            ignored: whether to include files that `.gitignore`, `.ignore` and `.rgignore` exclude.
            limit: maximum number of matches, up to the server's own limit.
        """
        flags = {"regex": regex, "hidden": hidden, "ignored": ignored}
        params = {**self._at(path), "text": text, "name": name, "case": case, "limit": limit, **flags}
        return Search(self._api, params)

    def watch(self, path: RemotePath = ".", *, recursive: bool = True) -> Watch:
        """Watch a directory and, with `recursive`, everything below it for changes.

        `async with files.watch("src") as changes:` reports every change after the start of the block. With `async for`
        alone, the watch begins with the first step.
        """
        return Watch(self._api, str(path), {**self._at(path), "recursive": recursive})

    def _at(self, path: RemotePath) -> dict[str, str | None]:
        return {"path": encode_path(path), **self._where}


def encode_path(path: RemotePath) -> str:
    """Return a path in the form that it has on the wire."""
    return str(path).translate(_SPELLED)


def _range(start: int, end: int | None) -> dict[str, str]:
    if start < 0 or (end is not None and end <= start):
        raise InvalidCall(f"there are no bytes from {start} to before {end}")
    if start == 0 and end is None:
        return {}
    return {"Range": f"bytes={start}-{'' if end is None else end - 1}"}
