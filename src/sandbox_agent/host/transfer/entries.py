"""What is told of files and directories: one of them, or a directory's, page by page. Everything here blocks."""

import base64
import binascii
import errno
import heapq
import os
import stat
from collections.abc import Iterator
from datetime import UTC, datetime

from msgspec import UNSET

from sandbox_agent.errors import BadPath
from sandbox_agent.host.paths.confined import Confined
from sandbox_agent.host.paths.names import shown
from sandbox_agent.host.paths.refusals import file_problems
from sandbox_agent.host.transfer.conditions import etag
from sandbox_agent.wire.files import EntriesPage, EntryType, FileView

_FIRST, _LAST = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)


def entry_at(confined: Confined, path: str, *, follow: bool = True) -> FileView:
    """What a path leads to or, without `follow`, a link itself. Raises FileProblem."""
    with file_problems(path), confined.reach(path, follow=follow) as place:
        node = place.existing()
        facts = os.fstat(node)
        target = os.readlink(b"", dir_fd=node) if stat.S_ISLNK(facts.st_mode) else None
    name = path.rstrip("/").rpartition("/")[2]
    return _entry(name or "/", path, facts, target)


def page_of(confined: Confined, path: str, cursor: str | None, limit: int) -> EntriesPage:
    """A part of a directory, by name: as many entries as a page may have, after the cursor.

    However many there are, memory is that of a page; what comes or goes between two pages moves nothing else.
    Raises FileProblem; BadPath for a cursor that was never given out.
    """
    after = None if cursor is None else _after(path, cursor)
    with file_problems(path), confined.reach(path) as place:
        node = place.existing()
        names = heapq.nsmallest(limit + 1, (name for name in names_in(node) if after is None or name > after))
        page = names[:limit]
        entries = list(_entries(node, path.rstrip("/"), page))
    return EntriesPage(shown(path), entries, _cursor(page[-1]) if len(names) > limit else UNSET)


def names_in(directory: int) -> Iterator[str]:
    """The names in a directory, in the order of the file system; one after the other, however many there are."""
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
            # It went, or became something else, since it was seen.
            continue
        yield _entry(name, f"{path}/{name}", facts, target)


def _entry(name: str, path: str, facts: os.stat_result, target: bytes | None) -> FileView:
    kind = _kind(facts.st_mode)
    return FileView(
        name=shown(name),
        path=shown(path),
        entry_type=kind,
        size=facts.st_size,
        modified=_iso(facts.st_mtime_ns),
        mode=f"{stat.S_IMODE(facts.st_mode):04o}",
        etag=etag(facts) if kind == "file" else UNSET,
        link_target=UNSET if target is None else shown(os.fsdecode(target)),
    )


def _kind(mode: int) -> EntryType:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "symlink" if stat.S_ISLNK(mode) else "other"


def _iso(nanoseconds: int) -> str:
    # Programs set times that no calendar has.
    seconds = min(max(nanoseconds // 1_000_000 / 1000, _FIRST.timestamp()), _LAST.timestamp())
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _cursor(name: str) -> str:
    return base64.urlsafe_b64encode(os.fsencode(name)).decode()


def _after(path: str, cursor: str) -> str:
    try:
        return os.fsdecode(base64.b64decode(cursor, altchars=b"-_", validate=True))
    except (binascii.Error, ValueError):
        raise BadPath(shown(path), "the cursor is not one that this server has given out") from None
