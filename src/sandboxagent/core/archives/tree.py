"""Fill a tree from an archive and touch nothing outside of it, whatever the names of the entries are.

The module knows neither archive formats nor the place of the tree: a store (such as `Folder`, on the disk) has that.
The tree records everything that it makes, so it need not ask the disk. Each name is made once, below folders that the
tree made. Links are made last, when no later write could follow one.
"""

import errno
import os
import unicodedata
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Literal, NoReturn, Protocol

from sandboxagent.protocol.errors import DiskFull, UnsafeArchive

Parts = tuple[str, ...]
Kind = Literal["folder", "file", "link"]

PIECE_BYTES = 1 << 16
MAX_LINKS = 40
"""Maximum number of links that a kernel follows for one path."""

MAX_NAME = 255
MAX_PATH = MAX_TARGET = 4095
"""Maximum number of bytes, as in the kernel."""

MAX_DEPTH = 256
"""Default maximum number of levels of a path."""
MAX_LEVELS_PER_ENTRY, MAX_FREE_LEVELS = 32, 1 << 16
"""Maximum number of levels of all paths of an archive together: for each allowed entry, and besides. This bounds their
cost in memory and time."""

_SHOWN = 300  # Maximum number of characters of a name in messages; an archive may have longer names.
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Damaged(Exception):
    """The data is not a valid archive."""


class TreeStore(Protocol):
    """The place where a tree puts its entries. The tree makes each name once, and folders before their content."""

    name: str
    """The name of the place in messages about a full disk."""

    def folder(self, parts: Parts) -> None: ...

    def file(self, parts: Parts, *, runs: bool) -> FileIO:
        """Make a new file to write. Of its mode only one fact is kept: whether the file can be executed."""
        ...

    def read(self, parts: Parts) -> FileIO:
        """Open a file that the tree has made, to read it."""
        ...

    def link(self, parts: Parts, target: str) -> None: ...


class Tree:
    """The entries that were unpacked so far. `label` names the archive in messages.

    Every method may raise UnsafeArchive or DiskFull. UnsafeArchive has the entry, the rule, and the `limit` if the rule
    is one.
    """

    def __init__(
        self,
        store: TreeStore,
        label: str,
        *,
        max_bytes: int,
        max_entries: int,
        max_depth: int = MAX_DEPTH,
        backslashes: bool = False,
    ) -> None:
        self._store = store
        self._label = label
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._max_depth = max_depth
        self._max_levels = MAX_LEVELS_PER_ENTRY * max_entries + MAX_FREE_LEVELS
        self._levels = 0
        self._unfit = "\0" if backslashes else "\0\\"
        self._bytes = 0
        self._kinds: dict[Parts, Kind] = {}
        self._names: dict[str, str] = {}
        """One string for each name, shared by all paths with that name."""
        self._links: dict[Parts, str] = {}
        self._similar: dict[str, str] = {}
        """The targets of links by their names as a case-insensitive file system compares them."""

    def folder(self, name: str) -> None:
        self._folders(name, self._parts(name))

    def file(self, name: str, mode: int, pieces: Iterable[bytes]) -> None:
        """Write a file. Of its mode only one fact is kept: whether the file can be executed."""
        parts = self._claim(name, "file")
        with self._disk(name), self._store.file(parts, runs=mode & 0o111 != 0) as file:
            for piece in pieces:
                self._bytes += len(piece)
                if self._bytes > self._max_bytes:
                    self.refuse(name, f"makes the whole larger than {self._max_bytes} bytes", limit=self._max_bytes)
                rest = memoryview(piece)
                while rest:
                    rest = rest[file.write(rest) :]

    def copy(self, name: str, original: str) -> None:
        """Make a file with the content of an earlier one, in place of a hard link."""
        known = len(original) <= MAX_PATH and not original.startswith("/")
        parts = tuple(part for part in original.split("/") if part not in ("", ".")) if known else ()
        if self._kinds.get(parts) != "file":
            self.refuse(name, "is a hard link to something that is not an earlier file of the archive")
        with self._disk(name), self._store.read(parts) as file:
            self.file(name, os.fstat(file.fileno()).st_mode, iter(lambda: file.read(PIECE_BYTES), b""))

    def link(self, name: str, target: str) -> None:
        """Remember a symbolic link; `finish` makes it."""
        if not 0 < len(os.fsencode(target)) <= MAX_TARGET or self._is_unfit(target):
            self.refuse(name, "is a link to something that has no proper name")
        if target.startswith("/"):
            self.refuse(name, "is a link to an absolute path")
        if (levels := target.count("/") + 1) > self._max_depth:
            self.refuse(name, f"is a link through more than {self._max_depth} names", limit=self._max_depth)
        self._spend(name, levels)
        parts = self._claim(name, "link")
        self._links[parts] = target
        self._similar.setdefault(_fold_names(parts), target)

    def finish(self) -> None:
        """Make the links, after checking that all of them stay inside."""
        for parts, target in self._links.items():
            self._follow(parts, target)
        for parts, target in self._links.items():
            with self._disk("/".join(parts)):
                self._store.link(parts, target)

    def refuse(self, name: str, rule: str, **facts: object) -> NoReturn:
        """Raise UnsafeArchive for an entry, or for the whole archive if the name is empty."""
        who = f"its entry {name[:_SHOWN]!r}" if name else "it"
        # Names may have bytes that are not UTF-8, which JSON cannot carry.
        entry = name[:_SHOWN].encode("utf-8", "backslashreplace").decode()
        detail = f"{self._label} is not unpacked: {who} {rule}"
        raise UnsafeArchive(detail, archive=self._label, entry=entry, rule=rule, **facts)

    def _parts(self, name: str) -> Parts:
        if self._is_unfit(name):
            self.refuse(name, "has a NUL or a backslash in its name")
        if name.startswith("/"):
            self.refuse(name, "has an absolute name")
        if len(os.fsencode(name)) > MAX_PATH:
            self.refuse(name, f"has a path of more than {MAX_PATH} bytes", limit=MAX_PATH)
        parts = tuple(self._names.get(part, part) for part in name.split("/") if part not in ("", "."))
        if ".." in parts:
            self.refuse(name, "has '..' in its name")
        if len(parts) > self._max_depth:
            self.refuse(name, f"is more than {self._max_depth} levels deep", limit=self._max_depth)
        if any(len(os.fsencode(part)) > MAX_NAME for part in parts):
            self.refuse(name, "has a name that is too long")
        return parts

    def _is_unfit(self, text: str) -> bool:
        return any(character in text for character in self._unfit)

    def _claim(self, name: str, kind: Kind) -> Parts:
        parts = self._parts(name)
        if not parts:
            self.refuse(name, "has no name")
        self._folders(name, parts[:-1])
        if parts in self._kinds:
            self.refuse(name, "has the name of another entry")
        self._add(name, parts, kind)
        return parts

    def _folders(self, name: str, parts: Parts) -> None:
        """Make a folder and its missing parents; usually all of them exist."""
        there = len(parts)
        while there and (kind := self._kinds.get(parts[:there])) != "folder":
            if kind is not None:
                self.refuse(name, f"needs a folder where another entry is a {kind}")
            there -= 1
        for depth in range(there + 1, len(parts) + 1):
            self._add(name, parts[:depth], "folder")
            with self._disk(name):
                self._store.folder(parts[:depth])

    def _add(self, name: str, parts: Parts, kind: Kind) -> None:
        if len(self._kinds) >= self._max_entries:
            rule = f"is one more than the {self._max_entries} files and folders that are allowed"
            self.refuse(name, rule, limit=self._max_entries)
        self._spend(name, len(parts))
        self._names.setdefault(parts[-1], parts[-1])
        self._kinds[parts] = kind

    def _spend(self, name: str, levels: int) -> None:
        """Count the cost of a path in memory and time, which is its number of levels."""
        self._levels += levels
        if self._levels > self._max_levels:
            rule = f"makes the paths of the archive have more than {self._max_levels} levels together"
            self.refuse(name, rule, limit=self._max_levels)

    def _follow(self, parts: Parts, target: str) -> None:
        """Follow a link as the kernel would. Refuse it if it leads out of the tree at any point."""
        at = parts[:-1]
        ahead = target.split("/")[::-1]
        followed = 0
        while ahead and followed <= MAX_LINKS:  # More links form a circle, which leads nowhere.
            part = ahead.pop()
            self._spend("/".join(parts), len(at) + 1)
            if part == ".." and not at:
                self.refuse("/".join(parts), "is a link that leads out of the folder")
            if part == "..":
                at = at[:-1]
            elif part not in ("", "."):
                further = self._target((*at, part))
                if further is None:
                    at = (*at, part)
                else:
                    followed += 1
                    ahead += further.split("/")[::-1]

    def _target(self, parts: Parts) -> str | None:
        """Return the target of the link with that name; None if there is none, ignoring case."""
        if parts in self._kinds:
            return self._links.get(parts)
        return self._similar.get(_fold_names(parts))

    @contextmanager
    def _disk(self, name: str) -> Generator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in _FULL:
                raise DiskFull(self._store.name) from error
            if error.errno == errno.EEXIST:
                self.refuse(name, "has a name that is taken, perhaps but for upper and lower case")
            if error.errno == errno.ENAMETOOLONG:
                self.refuse(name, "has a name that is too long")
            raise


def _fold_names(parts: Parts) -> str:
    return unicodedata.normalize("NFC", "/".join(parts)).casefold()


class Folder:
    """A store on the disk.

    `root` must be new or empty, and used by nothing else, because its content is reached by path.
    """

    def __init__(self, root: Path) -> None:
        self.name = str(root)
        self._root = root
        root.mkdir(parents=True, exist_ok=True)

    def folder(self, parts: Parts) -> None:
        self._root.joinpath(*parts).mkdir()

    def file(self, parts: Parts, *, runs: bool) -> FileIO:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return FileIO(os.open(self._root.joinpath(*parts), flags, 0o755 if runs else 0o644), "wb")

    def read(self, parts: Parts) -> FileIO:
        return FileIO(self._root.joinpath(*parts), "rb")

    def link(self, parts: Parts, target: str) -> None:
        self._root.joinpath(*parts).symlink_to(target)
