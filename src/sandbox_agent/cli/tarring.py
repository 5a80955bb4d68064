"""Directories of this machine as tar archives, and archives as directories.

Whatever an archive says, nothing is written outside of its directory: its files are put aside first, links last.
"""

import os
import posixpath
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, cast

from sandbox_agent.archives.folder import Folder
from sandbox_agent.archives.tree import PIECE, Tree
from sandbox_agent.cli.remote import Refused

LeaveOut = Callable[[str, str], None]
"""Told of what is not copied: its name, and why."""

BESIDE = ".sandbox-agent-"
"""How names of what waits to be whole begin."""

_MOST = 1 << 62
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


# --- out --------------------------------------------------------------------------------------------------------------


def packed(root: Path, leave_out: LeaveOut) -> Iterator[bytes]:
    """The archive of what is in a directory, piece by piece.

    Raises:
        OSError: something cannot be read.
        Refused: a file has changed meanwhile.
    """
    size = 0
    for piece in _entries(root, leave_out):
        size += len(piece)
        yield piece
    end = 2 * tarfile.BLOCKSIZE
    yield bytes(end + -(size + end) % tarfile.RECORDSIZE)


def _entries(root: Path, leave_out: LeaveOut) -> Iterator[bytes]:
    for place, folders, files in os.walk(root, onerror=_raise):
        folders.sort()
        for name in sorted([*folders, *files]):
            path = Path(place, name)
            called = path.relative_to(root).as_posix()
            status = path.lstat()
            mode = status.st_mode
            if stat.S_ISDIR(mode):
                yield _header(called, status, tarfile.DIRTYPE)
            elif stat.S_ISLNK(mode):
                target = os.readlink(path)  # noqa: PTH115 - as it is written
                if leads_out(called, target):
                    leave_out(called, f"a link to {target}")
                else:
                    yield _header(called, status, tarfile.SYMTYPE, target)
            elif stat.S_ISREG(mode):
                yield from _file(path, called)
            else:
                leave_out(called, "neither a file nor a directory nor a link")


def _file(path: Path, called: str) -> Iterator[bytes]:
    descriptor = os.open(path, _READ)
    try:
        status = os.fstat(descriptor)
        yield _header(called, status, tarfile.REGTYPE)
        left = status.st_size
        while left:
            piece = os.read(descriptor, min(PIECE, left))
            if not piece:
                raise Refused(f"{path} has become shorter while it was read; nothing was copied")
            yield piece
            left -= len(piece)
    finally:
        os.close(descriptor)
    yield bytes(-status.st_size % tarfile.BLOCKSIZE)


def _header(name: str, status: os.stat_result, type: bytes, target: str = "") -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = type, target
    info.mode, info.mtime = stat.S_IMODE(status.st_mode), int(status.st_mtime)
    info.size = status.st_size if type == tarfile.REGTYPE else 0
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _raise(error: OSError) -> None:
    raise error


def leads_out(name: str, target: str) -> bool:
    """Whether a link of that name leads out of its archive, as far as its text tells."""
    joined = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
    return target.startswith("/") or joined == ".." or joined.startswith("../")


# --- in ---------------------------------------------------------------------------------------------------------------


def unpack(pieces: Iterable[bytes], target: Path, leave_out: LeaveOut) -> None:
    """Put what is in an archive into a directory, which is made when it is not there.

    Nothing is changed before all of it has come; then each file is replaced at once, one after another.

    Raises:
        OSError: the disk does not let it.
        Refused: it is no archive, or something is in the way.
        UnsafeArchive: it would write elsewhere.
    """
    there = target.is_dir()
    beside = target if there else target.parent
    beside.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=BESIDE, dir=beside))
    try:
        files = staging / "files"
        stream = _Stream(pieces)
        tree = Tree(Folder(files), "what the server sends", max_bytes=_MOST, max_entries=_MOST, backslashes=True)
        _fill(tree, stream, leave_out)
        tree.finish()
        while stream.read(PIECE):  # To its very end: one that was cut off would have none.
            pass
        if there:
            _merge(files, target)
        else:
            files.rename(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _fill(tree: Tree, stream: "_Stream", leave_out: LeaveOut) -> None:
    file = cast("IO[bytes]", cast("object", stream))
    try:
        with tarfile.open(fileobj=file, mode="r|", bufsize=PIECE, encoding="utf-8", errors="surrogateescape") as tar:
            for member in iter(tar.next, None):
                _put(tree, tar, member, leave_out)
                # It keeps all of them for whoever wants to go back.
                tar.members = []  # pyright: ignore[reportAttributeAccessIssue] - documented, and not in its stub
    except tarfile.TarError as error:
        raise Refused(f"what the server sends is no archive: {error}") from error


def _put(tree: Tree, tar: tarfile.TarFile, member: tarfile.TarInfo, leave_out: LeaveOut) -> None:
    if member.isdir():
        tree.folder(member.name)
    elif member.issym() and leads_out(member.name, member.linkname):
        leave_out(member.name, f"a link to {member.linkname}")
    elif member.issym():
        tree.link(member.name, member.linkname)
    elif member.isreg() and (content := tar.extractfile(member)) is not None:
        tree.file(member.name, member.mode, iter(lambda: content.read(PIECE), b""))
    else:
        leave_out(member.name, "neither a file nor a directory nor a link")


def _merge(files: Path, target: Path) -> None:
    """Move everything to its place, once nothing is in the way."""
    folders: list[Path] = []
    others: list[Path] = []
    for place, names, rest in os.walk(files):
        links = [name for name in names if Path(place, name).is_symlink()]
        folders += [Path(place, name).relative_to(files) for name in names if name not in links]
        others += [Path(place, name).relative_to(files) for name in (*rest, *links)]
    for path in folders:
        if (target / path).exists() and not (target / path).is_dir():
            raise Refused(f"{target / path} is in the way of a directory; nothing was changed")
    for path in others:
        if (target / path).is_dir() and not (target / path).is_symlink():
            raise Refused(f"{target / path} is a directory, in the way of a file; nothing was changed")
    for path in folders:
        (target / path).mkdir(exist_ok=True)
    for path in others:
        (files / path).replace(target / path)


class _Stream:
    """Pieces, to be read as a file."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._rest = memoryview(b"")

    def read(self, size: int) -> bytes:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._rest = memoryview(piece)
        taken, self._rest = self._rest[:size], self._rest[size:]
        return bytes(taken)
