"""Describe files and list directories page by page, and check the conditions of a write.

Conditions (`If-Match` and `If-None-Match`) state which version of a file a client expects before it changes it. All
functions block, and raise FileProblem.
"""

import base64
import binascii
import errno
import hashlib
import heapq
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime

from msgspec import UNSET, Struct

from sandboxagent.protocol.errors import BadPath, BadRequest, FileChanged, FileTooLarge
from sandboxagent.protocol.files import EntriesPage, EntryType, FileView, Written
from sandboxagent.server.files.confined import Confined
from sandboxagent.server.files.replace import Replacement
from sandboxagent.server.files.roots import Roots, encode_name, file_problems

ANY = "*"
_TAG = re.compile(r'\s*((?:W/)?"[\x21\x23-\x7e\x80-\xff]*")\s*(?:,|$)')

_FIRST, _LAST = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)


def etag(facts: os.stat_result) -> str:
    """Return a tag that changes with the file: a write changes its time, and a replacement its inode."""
    return f'"{facts.st_mtime_ns:x}-{facts.st_size:x}-{facts.st_ino:x}"'


def parse_tags(header: str | None) -> frozenset[str] | None:
    """Return the entity tags of a header; None if it is absent. Raises BadRequest."""
    if header is None:
        return None
    if header.strip() == ANY:
        return frozenset((ANY,))
    found, position = set[str](), 0
    while position < len(header):
        match = _TAG.match(header, position)
        if match is None:
            raise BadRequest('entity tags are written as "tag", separated by commas, or *')
        found.add(match[1])
        position = match.end()
    return frozenset(found)


class WriteCondition(Struct, frozen=True):
    """The condition of a write. None means that the client expects nothing."""

    match: frozenset[str] | None = None
    none_match: frozenset[str] | None = None

    @property
    def new(self) -> bool:
        """Whether the file must not exist."""
        return self.none_match is not None and ANY in self.none_match

    def check(self, path: str, facts: os.stat_result | None) -> None:
        """Raise FileChanged if the file, or its absence, is not the expected one."""
        current = None if facts is None else etag(facts)
        if self.match is not None and (current is None or not self.match & {ANY, current}):
            raise self._changed(path, current, "is not the file that If-Match names")
        if self.none_match is not None and current is not None and self.none_match & {ANY, current}:
            raise self._changed(path, current, "exists, which If-None-Match excludes")

    @staticmethod
    def _changed(path: str, current: str | None, meaning: str) -> FileChanged:
        return FileChanged(path, meaning) if current is None else FileChanged(path, meaning, etag=current)


def has_version(tag: str, given: frozenset[str]) -> bool:
    """Return whether a reader has this version, by the weak comparison that RFC 9110 allows for reads."""
    return ANY in given or tag in {each.removeprefix("W/") for each in given}


def read_entry(confined: Confined, path: str, *, follow: bool = True) -> FileView:
    """Describe the target of a path or, without `follow`, a link itself. Raises FileProblem."""
    with file_problems(path), confined.reach(path, follow=follow) as place:
        node = place.existing()
        facts = os.fstat(node)
        target = os.readlink(b"", dir_fd=node) if stat.S_ISLNK(facts.st_mode) else None
    name = path.rstrip("/").rpartition("/")[2]
    return _entry(name or "/", path, facts, target)


def read_page(confined: Confined, path: str, cursor: str | None, limit: int) -> EntriesPage:
    """Return a page of a directory, sorted by name: at most `limit` entries after the cursor.

    Memory is needed for one page only, however large the directory. Entries that come or go between two pages do not
    move others. Raises FileProblem, and BadPath for a cursor that was never given out.
    """
    after = None if cursor is None else _after(path, cursor)
    with file_problems(path), confined.reach(path) as place:
        node = place.existing()
        names = heapq.nsmallest(limit + 1, (name for name in read_names(node) if after is None or name > after))
        page = names[:limit]
        entries = list(_entries(node, path.rstrip("/"), page))
    return EntriesPage(encode_name(path), entries, _cursor(page[-1]) if len(names) > limit else UNSET)


def read_names(directory: int) -> Iterator[str]:
    """Yield the names in a directory, in the order of the file system, without collecting them."""
    reading = os.open(b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
    try:
        with os.scandir(reading) as found:
            for entry in found:
                yield entry.name
    finally:
        os.close(reading)


def _entries(node: int, path: str, names: list[str]) -> Iterator[FileView]:
    for name in names:
        try:
            facts = os.stat(name, dir_fd=node, follow_symlinks=False)
            target = os.readlink(os.fsencode(name), dir_fd=node) if stat.S_ISLNK(facts.st_mode) else None
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EINVAL):
                raise
            # The entry was deleted or replaced since it was listed.
            continue
        yield _entry(name, f"{path}/{name}", facts, target)


def _entry(name: str, path: str, facts: os.stat_result, target: bytes | None) -> FileView:
    kind = _kind(facts.st_mode)
    return FileView(
        name=encode_name(name),
        path=encode_name(path),
        entry_type=kind,
        size=facts.st_size,
        modified=_iso(facts.st_mtime_ns),
        mode=f"{stat.S_IMODE(facts.st_mode):04o}",
        etag=etag(facts) if kind == "file" else UNSET,
        link_target=UNSET if target is None else encode_name(os.fsdecode(target)),
    )


def _kind(mode: int) -> EntryType:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "symlink" if stat.S_ISLNK(mode) else "other"


def _iso(nanoseconds: int) -> str:
    # Programs set times that are outside of the calendar.
    seconds = min(max(nanoseconds // 1_000_000 / 1000, _FIRST.timestamp()), _LAST.timestamp())
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _cursor(name: str) -> str:
    return base64.urlsafe_b64encode(os.fsencode(name)).decode()


def _after(path: str, cursor: str) -> str:
    try:
        return os.fsdecode(base64.b64decode(cursor, altchars=b"-_", validate=True))
    except (binascii.Error, ValueError):
        raise BadPath(encode_name(path), "the cursor is not one that this server has given out") from None


class IncomingFile:
    """A file that arrives in parts. It is counted, hashed, and put in its place when it is complete.

    Raises FileProblem, also from the constructor. Call its methods one after the other.
    """

    def __init__(self, roots: Roots, path: str, condition: WriteCondition, limit: int | None) -> None:
        self._roots = roots
        self._path = path
        self._condition = condition
        self._limit = limit
        self._size = 0
        self._digest = hashlib.sha256()
        self._stack = ExitStack()
        with file_problems(path), ExitStack() as stack:
            # If the path cannot be a file, no directories are made.
            parents = not condition.match and not path.endswith("/")
            place = stack.enter_context(roots.confined.reach(path, parents=parents))
            self._file = Replacement(place)
            stack.callback(self._file.close)
            condition.check(encode_name(path), self._file.old)
            self._stack = stack.pop_all()

    def write(self, parts: Iterable[bytes]) -> None:
        """Append bytes."""
        with file_problems(self._path):
            for part in parts:
                self._size += len(part)
                if self._limit is not None and self._size > self._limit:
                    raise too_large(self._path, self._limit)
                self._file.write(part)
                self._digest.update(part)

    def finish(self) -> Written:
        """Put the complete file in its place."""
        path, condition = encode_name(self._path), self._condition
        with file_problems(self._path), self._roots.turn:
            try:
                facts = self._file.commit(lambda old: condition.check(path, old), new=condition.new)
            except FileExistsError:
                condition.check(path, self._file.present())
                raise
        return Written(path, self._size, self._digest.hexdigest(), etag(facts))

    def close(self) -> None:
        """Release the file. An unfinished file is deleted."""
        self._stack.close()


def too_large(path: str, limit: int) -> FileTooLarge:
    """Make the problem of a file over `--max-file`."""
    return FileTooLarge(encode_name(path), f"larger than {limit} bytes; --max-file sets the limit", limit=limit)
