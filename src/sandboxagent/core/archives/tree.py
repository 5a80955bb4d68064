"""Fill a tree from an archive and touch nothing outside of it, whatever the entries are called.

Knows no archive formats, and not where things are put: that is its shelf (`Folder` is one on the disk). It keeps
account of all it has, so that what is on disk need not be asked: every name is made once, below folders of its own
making, and links come last, when nothing is written any more that could go through one.
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

PIECE = 1 << 16
MAX_LINKS = 40
"""Links that a kernel follows for one path, at most."""

MAX_NAME = 255
MAX_PATH = MAX_TARGET = 4095
"""Bytes, as the kernel has it."""

MAX_DEPTH = 256
"""Levels of a path, unless you say otherwise."""
LEVELS, FREE_LEVELS = 32, 1 << 16
"""Levels that the paths of an archive may have: for each entry allowed, and besides. It bounds what they cost."""

_SHOWN = 300  # Characters of a name; an archive may have any.
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Damaged(Exception):
    """What should be an archive makes no sense."""


class TreeStore(Protocol):
    """Where the things of a tree are put. The tree asks for each name once, and for folders before what is in them."""

    name: str
    """For people, when the disk is full."""

    def folder(self, parts: Parts) -> None: ...

    def file(self, parts: Parts, *, runs: bool) -> FileIO:
        """A new file, to be written. `runs` is all that is kept of a mode: whether it can be run."""
        ...

    def read(self, parts: Parts) -> FileIO:
        """A file that was put here, to be read."""
        ...

    def link(self, parts: Parts, target: str) -> None: ...


class Tree:
    """What was unpacked so far. `label` names the archive for people.

    Every method may raise UnsafeArchive, which names the entry, the rule, and the `limit` if it was one, or DiskFull.
    """

    def __init__(
        self,
        shelf: TreeStore,
        label: str,
        *,
        max_bytes: int,
        max_entries: int,
        max_depth: int = MAX_DEPTH,
        backslashes: bool = False,
    ) -> None:
        self._shelf = shelf
        self._label = label
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._max_depth = max_depth
        self._max_levels = LEVELS * max_entries + FREE_LEVELS
        self._levels = 0
        self._unfit = "\0" if backslashes else "\0\\"
        self._bytes = 0
        self._kinds: dict[Parts, Kind] = {}
        self._names: dict[str, str] = {}
        """One string for each name, however many paths go through it."""
        self._links: dict[Parts, str] = {}
        self._similar: dict[str, str] = {}
        """The same, by names as a file system sees them that knows no upper case."""

    def folder(self, name: str) -> None:
        self._folders(name, self._parts(name))

    def file(self, name: str, mode: int, pieces: Iterable[bytes]) -> None:
        """Write a file. Of its mode only one fact is kept: whether it can be run."""
        parts = self._claim(name, "file")
        with self._disk(name), self._shelf.file(parts, runs=mode & 0o111 != 0) as file:
            for piece in pieces:
                self._bytes += len(piece)
                if self._bytes > self._max_bytes:
                    self.refuse(name, f"makes the whole larger than {self._max_bytes} bytes", limit=self._max_bytes)
                rest = memoryview(piece)
                while rest:
                    rest = rest[file.write(rest) :]

    def copy(self, name: str, original: str) -> None:
        """What stands for a hard link: a file with the content of an earlier one."""
        known = len(original) <= MAX_PATH and not original.startswith("/")
        parts = tuple(part for part in original.split("/") if part not in ("", ".")) if known else ()
        if self._kinds.get(parts) != "file":
            self.refuse(name, "is a hard link to something that is not an earlier file of the archive")
        with self._disk(name), self._shelf.read(parts) as file:
            self.file(name, os.fstat(file.fileno()).st_mode, iter(lambda: file.read(PIECE), b""))

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
        """Make the links, once all of them are known to stay inside."""
        for parts, target in self._links.items():
            self._follow(parts, target)
        for parts, target in self._links.items():
            with self._disk("/".join(parts)):
                self._shelf.link(parts, target)

    def refuse(self, name: str, rule: str, **facts: object) -> NoReturn:
        """Raise UnsafeArchive for an entry, or for the whole when it has no name."""
        who = f"its entry {name[:_SHOWN]!r}" if name else "it"
        # Names need not be text, and one that is not cannot be sent as JSON.
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
        """Make a folder, and those above it; usually all of them are there."""
        there = len(parts)
        while there and (kind := self._kinds.get(parts[:there])) != "folder":
            if kind is not None:
                self.refuse(name, f"needs a folder where another entry is a {kind}")
            there -= 1
        for depth in range(there + 1, len(parts) + 1):
            self._add(name, parts[:depth], "folder")
            with self._disk(name):
                self._shelf.folder(parts[:depth])

    def _add(self, name: str, parts: Parts, kind: Kind) -> None:
        if len(self._kinds) >= self._max_entries:
            rule = f"is one more than the {self._max_entries} files and folders that are allowed"
            self.refuse(name, rule, limit=self._max_entries)
        self._spend(name, len(parts))
        self._names.setdefault(parts[-1], parts[-1])
        self._kinds[parts] = kind

    def _spend(self, name: str, levels: int) -> None:
        """Count what a path costs in memory and time: as much as it has levels."""
        self._levels += levels
        if self._levels > self._max_levels:
            rule = f"makes the paths of the archive have more than {self._max_levels} levels together"
            self.refuse(name, rule, limit=self._max_levels)

    def _follow(self, parts: Parts, target: str) -> None:
        """Go where a link leads, as the kernel would; refuse it when that is up and out, at any point on the way."""
        at = parts[:-1]
        ahead = target.split("/")[::-1]
        followed = 0
        while ahead and followed <= MAX_LINKS:  # More lead in a circle, that is nowhere.
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
        """Where the link of that name leads; None when it is none, not even where upper case is not known."""
        if parts in self._kinds:
            return self._links.get(parts)
        return self._similar.get(_fold_names(parts))

    @contextmanager
    def _disk(self, name: str) -> Generator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in _FULL:
                raise DiskFull(self._shelf.name) from error
            if error.errno == errno.EEXIST:
                self.refuse(name, "has a name that is taken, perhaps but for upper and lower case")
            if error.errno == errno.ENAMETOOLONG:
                self.refuse(name, "has a name that is too long")
            raise


def _fold_names(parts: Parts) -> str:
    return unicodedata.normalize("NFC", "/".join(parts)).casefold()


class Folder:
    """A shelf for a tree. `root` must be new or empty, and used by nothing else: its content is reached by path."""

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
