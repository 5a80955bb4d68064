"""Archives: those that clients send are staged beside their target and moved in as a whole, or not at all.

Those that clients get are made of a directory while it may change: what is gone is left out, what shrinks is filled up.
Both are made in a thread. The event loop hands it bytes, or gets them from it, and never are more than a bound on their
way: the thread waits for the other side, and when that gives up, `Abandoned` ends the wait.
"""

import asyncio
import errno
import os
import secrets
import stat
import tarfile
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from itertools import islice

from sandbox_agent.archives import tarball
from sandbox_agent.archives.tarball import detect_packing, unpack_stream
from sandbox_agent.archives.tree import DEEPEST, PIECE, Damaged, Parts, Tree
from sandbox_agent.host.paths.confined import MAX_PATH, Confined
from sandbox_agent.host.paths.nodes import enter_directory, error_of, ignore_gone, is_kernel_directory
from sandbox_agent.host.paths.roots import encode_name, file_problems
from sandbox_agent.protocol.errors import (
    ArchiveTooLarge,
    BadArchive,
    DiskFull,
    FileConflict,
    FileForbidden,
    NoRoom,
    UnsafeArchive,
)
from sandbox_agent.wire.files import Uploaded

LIMIT = 1 << 20
"""Bytes that may be on their way."""
HANDED_OVER = 1 << 18
"""Bytes that are handed over at once, when there are as many."""


class Abandoned(Exception):
    """The other side is gone."""


class Inflow:
    """From the event loop to a thread. `feed` and `finish` are for the loop, the rest for the thread."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._changed = threading.Condition()
        self._room = asyncio.Event()
        self._coming: deque[bytes] = deque()
        self._size = 0
        self._ended = False
        self._abandoned = False
        self._at_hand: deque[bytes] = deque()
        """What the thread has taken and not read: needs no lock."""
        self._start = 0
        """How much of the first of these has been read."""
        self.count = 0
        """Bytes that the thread has taken."""

    async def feed(self, piece: bytes) -> None:
        """Hand bytes over, and wait until there is room for more."""
        if piece:
            with self._changed:
                self._coming.append(piece)
                self._size += len(piece)
                self._changed.notify()
        while True:
            with self._changed:
                if self._size <= self._limit or self._abandoned:
                    return
                self._room.clear()
            await self._room.wait()

    def finish(self) -> None:
        """That was all."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def abandon(self) -> None:
        """One side is gone, so the other must not wait. May be called from either side."""
        with self._changed:
            self._abandoned = True
            self._changed.notify()
        with suppress(RuntimeError):  # The loop has ended.
            self._loop.call_soon_threadsafe(self._room.set)

    def peek(self, size: int) -> bytes:
        """The very first bytes, without taking them; fewer only when there are no more."""
        while sum(map(len, self._at_hand)) < size and self._take():
            pass
        return b"".join(self._at_hand)[:size]

    def read(self, size: int, /) -> bytes:
        """The next bytes, at most so many; none at the end. Raises Abandoned."""
        if not self._at_hand and not self._take():
            return b""
        start, piece = self._start, self._at_hand[0]
        if len(piece) - start > size:
            self._start += size
            return piece[start : start + size]
        self._at_hand.popleft()
        self._start = 0
        return piece[start:]

    def _take(self) -> bool:
        """Take all that has come; waits for something. False at the end."""
        with self._changed:
            while not self._coming and not self._ended and not self._abandoned:
                self._changed.wait()
            if self._abandoned:
                raise Abandoned
            taken, self._coming, self._size = self._coming, deque(), 0
        self._at_hand.extend(taken)
        self.count += sum(map(len, taken))
        if taken:
            self._loop.call_soon_threadsafe(self._room.set)
        return bool(taken)


class Outflow:
    """From a thread to the event loop. `write` and `finish` are for the thread, the rest for the loop."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self.loop = asyncio.get_running_loop()
        self._changed = threading.Condition()
        self._some = asyncio.Event()
        self._pieces: deque[bytes] = deque()
        self._gathered = bytearray()
        self._size = 0
        self._ended = False
        self._abandoned = False

    def write(self, data: bytes) -> None:
        """Hand bytes over, sooner or later. Raises Abandoned."""
        self._gathered += data
        if len(self._gathered) >= HANDED_OVER:
            self._hand_over()

    def finish(self) -> None:
        """That was all. Raises Abandoned."""
        self._hand_over()
        self.close()

    def close(self) -> None:
        """Nothing more comes, be that all or not."""
        with self._changed:
            self._ended = True
        self._tell()

    async def pieces(self) -> AsyncGenerator[bytes]:
        """All that comes."""
        while True:
            with self._changed:
                piece = self._pieces.popleft() if self._pieces else None
                ended = self._ended
                if piece is None:
                    self._some.clear()
                else:
                    self._size -= len(piece)
                    self._changed.notify()
            if piece is not None:
                yield piece
            elif ended:
                return
            else:
                await self._some.wait()

    def abandon(self) -> None:
        """The reader is gone."""
        with self._changed:
            self._abandoned = True
            self._pieces.clear()
            self._changed.notify()

    def _hand_over(self) -> None:
        piece = bytes(self._gathered)
        self._gathered.clear()
        with self._changed:
            while self._size >= self._limit and not self._abandoned:
                self._changed.wait()
            if self._abandoned:
                raise Abandoned
            if piece:
                self._pieces.append(piece)
                self._size += len(piece)
        self._tell()

    def _tell(self) -> None:
        with suppress(RuntimeError):  # The loop has ended.
            self.loop.call_soon_threadsafe(self._some.set)


_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ_ANYTHING = _READ | os.O_NONBLOCK | os.O_NOCTTY

PATHS = 1024
"""Paths that the answer lists."""
SLACK = 64 << 20
"""Bytes that any archive may unfold into, however small it is."""
READ_AT_ONCE = 1 << 18
"""Bytes of a file on its way into an archive."""
_HEAD = 6

Write = Callable[[bytes], None]


class Staging:
    """A shelf for a tree that is meant for `target`. Raises OSError when there is no place for it. To be closed."""

    def __init__(self, confined: Confined, target: str) -> None:
        self.name = encode_name(target)
        self._confined = confined
        self._target = target
        self._folders: list[Parts] = [()]
        self._waiting: dict[Parts, str] = {}
        self._beside = _nearest(confined, target)
        self._called = f".sandbox-agent-{secrets.token_hex(8)}"
        try:
            os.mkdir(self._called, 0o700, dir_fd=self._beside)
            self._here = os.open(self._called, _READ | os.O_DIRECTORY, dir_fd=self._beside)
        except BaseException:
            os.close(self._beside)
            raise

    def close(self) -> None:
        """Take away what was not moved in."""
        for number in self._waiting.values():
            with suppress(OSError):
                os.unlink(number, dir_fd=self._here)
        os.close(self._here)
        with suppress(OSError):
            os.rmdir(self._called, dir_fd=self._beside)
        os.close(self._beside)

    def folder(self, parts: Parts) -> None:
        self._check_length(parts)
        self._folders.append(parts)

    def file(self, parts: Parts, *, runs: bool) -> FileIO:
        self._check_length(parts)
        number = self._waiting[parts] = str(len(self._waiting))
        return FileIO(os.open(number, _NEW, 0o777 if runs else 0o666, dir_fd=self._here), "wb")

    def read(self, parts: Parts) -> FileIO:
        return FileIO(os.open(self._waiting[parts], _READ, dir_fd=self._here), "rb")

    def link(self, parts: Parts, target: str) -> None:
        self._check_length(parts)
        number = self._waiting[parts] = str(len(self._waiting))
        os.symlink(target, number, dir_fd=self._here)

    def paths(self) -> Iterator[str]:
        """Where the files and links go, in the order of the archive."""
        return (self._path(parts) for parts in self._waiting)

    def move_in(self) -> None:
        """Put everything in its place. Nothing is changed when anything is in the way.

        Raises FileProblem.
        """
        groups: dict[Parts, list[tuple[str, str]]] = {parts: [] for parts in self._folders}
        for parts, number in self._waiting.items():
            groups[parts[:-1]].append((parts[-1], number))
        new: set[Parts] = set()
        for folder, files in groups.items():
            # Where a folder is missing, so is all that is to be in it.
            if folder[:-1] in new or not self._check(folder, [name for name, _ in files]):
                new.add(folder)
        for folder, files in groups.items():
            path = self._path(folder)
            # The last `.` makes it a directory, to be made like those above it.
            with file_problems(path), self._confined.reach(f"{path}/.", parents=True) as place:
                for name, number in files:
                    self._move(number, name, place.existing())

    def _check(self, folder: Parts, names: list[str]) -> bool:
        """Whether the folder is there already. Raises when something is in the way."""
        path = self._path(folder)
        with file_problems(path):
            try:
                directory = self._confined.open_directory(path)
            except FileNotFoundError:
                return False
            try:
                for name in names:
                    _check_place(directory, name, f"{path}/{name}")
            finally:
                os.close(directory)
        return True

    def _check_length(self, parts: Parts) -> None:
        """Know before anything is changed that it can have its place."""
        if len(os.fsencode(self._path(parts))) > MAX_PATH:
            raise error_of(errno.ENAMETOOLONG)

    def _move(self, number: str, name: str, directory: int) -> None:
        try:
            os.rename(number, name, src_dir_fd=self._here, dst_dir_fd=directory)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            self._carry(number, name, directory)

    def _carry(self, number: str, name: str, directory: int) -> None:
        """Move to another file system, which a directory of the target can be."""
        temporary = f"{self._called}-{number}"
        status = os.lstat(number, dir_fd=self._here)
        try:
            if stat.S_ISLNK(status.st_mode):
                os.symlink(os.readlink(number, dir_fd=self._here), temporary, dir_fd=directory)
            else:
                with (
                    FileIO(os.open(number, _READ, dir_fd=self._here), "rb") as old,
                    open(os.open(temporary, _NEW, status.st_mode & 0o777, dir_fd=directory), "wb") as new,
                ):
                    while piece := old.read(PIECE):
                        new.write(piece)
            os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=directory)
            raise

    def _path(self, parts: Parts) -> str:
        return "/".join((self._target.rstrip("/") or "/", *parts)).replace("//", "/", 1) if parts else self._target


def _nearest(confined: Confined, path: str) -> int:
    """The directory itself, or the one above it that is there."""
    while True:
        try:
            return confined.open_directory(path)
        except FileNotFoundError:
            above = path.rstrip("/").rpartition("/")[0]
            if not above:
                raise
            path = above


def _check_place(directory: int, name: str, path: str) -> None:
    try:
        mode = os.lstat(name, dir_fd=directory).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        raise FileConflict(encode_name(path), "is a directory, and the archive has something else of that name")
    if stat.S_ISREG(mode) and not os.access(name, os.W_OK, dir_fd=directory):
        raise FileForbidden(encode_name(path), os.strerror(errno.EACCES), errno="EACCES")


@dataclass(frozen=True, slots=True)
class UploadLimits:
    """What an archive may unfold into.

    Bytes of files, files and folders, bytes for each byte that was sent, and levels of a path.
    """

    bytes: int
    entries: int
    ratio: int
    depth: int = DEEPEST


def receive(confined: Confined, path: str, stream: Inflow, limits: UploadLimits) -> Uploaded:
    """Unpack a tar archive into a directory, which is made when it is not there. Blocks.

    Raises BadArchive, ArchiveTooLarge, a FileProblem, or Abandoned when the stream ends early. Until all of the archive
    is there and good, nothing is changed; then each file is replaced at once, one after another.
    """
    with file_problems(path):
        staging = Staging(confined, path)
    try:
        with file_problems(path):
            _unpack(stream, staging, limits)
        staging.move_in()
        paths = [encode_name(each) for each in islice(staging.paths(), PATHS + 1)]
        return Uploaded(paths[:PATHS], len(paths) > PATHS)
    finally:
        staging.close()


def _unpack(stream: Inflow, staging: Staging, limits: UploadLimits) -> None:
    tree = Tree(
        staging,
        "the archive",
        max_bytes=limits.bytes,
        max_entries=limits.entries,
        max_depth=limits.depth,
        backslashes=True,
    )
    packed = detect_packing(stream.peek(_HEAD))
    if packed in ("bz2", "xz"):
        raise BadArchive("a tar archive may be packed with gzip or zstd, or not at all", entry="", rule=packed)
    try:
        tarball.unpack(
            unpack_stream(stream, packed),
            tree,
            max_bytes=limits.bytes,
            max_entries=limits.entries,
            allowed=(lambda: SLACK + limits.ratio * stream.count) if packed else None,
        )
        tree.finish()
    except Damaged as error:
        raise BadArchive(f"the archive cannot be read: {error}; nothing was changed", entry="", rule="") from error
    except DiskFull as error:
        raise NoRoom(staging.name, "no room for the files of the archive; nothing was changed") from error
    except UnsafeArchive as error:
        facts = {name: value for name, value in error.fields.items() if name != "archive"}
        kind = ArchiveTooLarge if "limit" in facts else BadArchive
        raise kind(f"{error}; nothing was changed", **facts) from error


def bundle(directory: int, write: Write, max_depth: int = DEEPEST) -> None:
    """Write the archive of an open directory, without that itself, sockets, pipes, devices, and the kernel's own files.

    Raises:
        OSError: something in it cannot be read, or is too deep; what was written is half an archive.
    """
    left: list[tuple[str, ...]] = [()]
    size = 0

    def count(data: bytes) -> None:
        nonlocal size
        size += len(data)
        write(data)

    while left:
        parts = left.pop()
        if len(parts) >= max_depth:
            raise OSError(errno.ENAMETOOLONG, f"has something more than {max_depth} levels deep", "/".join(parts))
        with ignore_gone(), enter_directory(directory, parts) as here:
            if parts and is_kernel_directory(here):
                continue
            if parts:
                count(_header("/".join(parts), os.fstat(here), tarfile.DIRTYPE))
            with os.scandir(here) as entries:
                left += _files(here, entries, parts, count)
    # Two empty blocks, and zeros up to a whole record.
    end = 2 * tarfile.BLOCKSIZE
    write(bytes(end + -(size + end) % tarfile.RECORDSIZE))


def _files(
    here: int, entries: "Iterator[os.DirEntry[str]]", parts: tuple[str, ...], write: Write
) -> list[tuple[str, ...]]:
    """Write all of a directory but its directories; gives those."""
    directories: list[tuple[str, ...]] = []
    for entry in entries:
        name = "/".join((*parts, entry.name))
        with ignore_gone():
            mode = os.lstat(entry.name, dir_fd=here).st_mode
            if stat.S_ISDIR(mode):
                directories.append((*parts, entry.name))
            elif stat.S_ISLNK(mode):
                target = os.readlink(entry.name, dir_fd=here)
                write(_header(name, os.lstat(entry.name, dir_fd=here), tarfile.SYMTYPE, target))
            elif stat.S_ISREG(mode):
                _file(here, entry.name, name, write)
    return directories


def _file(here: int, entry: str, name: str, write: Write) -> None:
    descriptor = os.open(entry, _READ_ANYTHING, dir_fd=here)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return
        write(_header(name, status, tarfile.REGTYPE))
        left = status.st_size
        while left and (piece := os.read(descriptor, min(READ_AT_ONCE, left))):
            write(piece)
            left -= len(piece)
    finally:
        os.close(descriptor)
    # It has become shorter meanwhile, and its size is said: zeros, as of a hole.
    while left:
        write(bytes(min(READ_AT_ONCE, left)))
        left -= min(READ_AT_ONCE, left)
    write(bytes(-status.st_size % tarfile.BLOCKSIZE))


def _header(name: str, status: os.stat_result, type: bytes, target: str = "") -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = type, target
    info.mode, info.mtime = stat.S_IMODE(status.st_mode), int(status.st_mtime)
    info.uid, info.gid = status.st_uid, status.st_gid
    info.size = status.st_size if type == tarfile.REGTYPE else 0
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
