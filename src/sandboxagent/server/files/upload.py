"""Unpack an uploaded archive beside its target, and move it in as a whole or not at all.

Callers run it in a thread.
"""

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from itertools import islice

from sandboxagent.core.archives import tar
from sandboxagent.core.archives.tar import detect_packing, unpack_stream
from sandboxagent.core.archives.tree import MAX_DEPTH, PIECE_BYTES, Damaged, Parts, Tree
from sandboxagent.protocol.errors import (
    ArchiveTooLarge,
    BadArchive,
    DiskFull,
    FileConflict,
    FileForbidden,
    NoRoom,
    UnsafeArchive,
)
from sandboxagent.protocol.files import Uploaded
from sandboxagent.server.files.confined import MAX_PATH, Confined
from sandboxagent.server.files.descriptors import error_of
from sandboxagent.server.files.flow import Inflow
from sandboxagent.server.files.roots import encode_name, file_problems

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC

SLACK_BYTES = 64 << 20
"""Number of unpacked bytes that every archive may have, however small it is."""
MAX_PATHS = 1024
"""Maximum number of paths that the answer lists."""
_HEAD = 6


class Staging:
    """A store for a tree that will be moved to `target`. Raises OSError if it cannot be made. The caller closes it."""

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
        """Delete the files that were not moved in."""
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
        """Return the final paths of the files and links, in the order of the archive."""
        return (self._path(parts) for parts in self._waiting)

    def move_in(self) -> None:
        """Put all files in their places. Nothing is changed if an existing entry is in the way.

        Raises FileProblem.
        """
        groups: dict[Parts, list[tuple[str, str]]] = {parts: [] for parts in self._folders}
        for parts, number in self._waiting.items():
            groups[parts[:-1]].append((parts[-1], number))
        new: set[Parts] = set()
        for folder, files in groups.items():
            # If a folder is missing, everything in it is missing too.
            if folder[:-1] in new or not self._check(folder, [name for name, _ in files]):
                new.add(folder)
        for folder, files in groups.items():
            path = self._path(folder)
            # The last `.` makes the folder itself one of the parents that are made.
            with file_problems(path), self._confined.reach(f"{path}/.", parents=True) as place:
                for name, number in files:
                    self._move(number, name, place.existing())

    def _check(self, folder: Parts, names: list[str]) -> bool:
        """Return whether the folder exists. Raises if an existing entry is in the way."""
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
        """Raise if the final path would be too long, before anything is changed."""
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
        """Copy a file to another file system, because a directory of the target can be on another one."""
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
                    while piece := old.read(PIECE_BYTES):
                        new.write(piece)
            os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=directory)
            raise

    def _path(self, parts: Parts) -> str:
        return "/".join((self._target.rstrip("/") or "/", *parts)).replace("//", "/", 1) if parts else self._target


def _nearest(confined: Confined, path: str) -> int:
    """Open the directory at a path, or the nearest parent that exists."""
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
        raise FileConflict(encode_name(path), "is a directory, but something else in the archive")
    if stat.S_ISREG(mode) and not os.access(name, os.W_OK, dir_fd=directory):
        raise FileForbidden(encode_name(path), os.strerror(errno.EACCES), errno="EACCES")


@dataclass(frozen=True, slots=True)
class UploadLimits:
    """The limits of an unpacked archive.

    `bytes` is the size of all files, `entries` the number of files and folders, `ratio` the unpacked bytes for each
    sent byte, and `depth` the levels of a path.
    """

    bytes: int
    entries: int
    ratio: int
    depth: int = MAX_DEPTH


def receive(confined: Confined, path: str, stream: Inflow, limits: UploadLimits) -> Uploaded:
    """Unpack a tar archive into a directory, which is made if it does not exist. Blocks.

    Raises BadArchive, ArchiveTooLarge, a FileProblem, or Abandoned if the stream ends early. Nothing is changed until
    the whole archive has arrived and is valid. Then each file is replaced at once, one after another.
    """
    with file_problems(path):
        staging = Staging(confined, path)
    try:
        with file_problems(path):
            _unpack(stream, staging, limits)
        staging.move_in()
        paths = [encode_name(each) for each in islice(staging.paths(), MAX_PATHS + 1)]
        return Uploaded(paths[:MAX_PATHS], len(paths) > MAX_PATHS)
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
        tar.unpack(
            unpack_stream(stream, packed),
            tree,
            max_bytes=limits.bytes,
            max_entries=limits.entries,
            allowed=(lambda: SLACK_BYTES + limits.ratio * stream.count) if packed else None,
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
