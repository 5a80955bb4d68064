"""Pack directories of this machine into tar archives and unpack them, a block at a time in threads.

An archive from a server is not trusted, because any program on the server's machine may have written it. Nothing is
written outside of the target directory. The directory does not change before the whole archive has arrived.
"""

import asyncio
import os
import posixpath
import stat
import tarfile
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from concurrent.futures import CancelledError, Future
from pathlib import Path, PurePosixPath

from sandboxagent.client.api import BLOCK_BYTES, in_thread
from sandboxagent.client.errors import ClientError
from sandboxagent.core.archives import tar
from sandboxagent.core.archives.remove import discard
from sandboxagent.core.archives.tree import Damaged, Folder, Tree
from sandboxagent.protocol.errors import DiskFull, UnsafeArchive

LeaveOut = Callable[[str, str], None]
"""Called for each entry that is not copied, with its path in the directory and the reason."""

NAMES = ("utf-8", "surrogateescape")
"""Encoding and error handler for names in an archive. They also support names that are not valid UTF-8."""

BESIDE = ".sandbox-agent-"
"""Prefix of the names of incomplete directories."""
_NO_LIMIT = 1 << 62
_END = bytes(2 * tarfile.BLOCKSIZE)
# If a file is replaced by a link or a pipe meanwhile, opening it neither follows the link nor blocks.
_CAREFULLY = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY"))


# --- out --------------------------------------------------------------------------------------------------------------


def pack_in_threads(directory: Path, leave_out: LeaveOut) -> AsyncGenerator[bytes]:
    """Yield the blocks of `make_archive`, which runs in threads."""
    return in_thread(make_archive(directory, leave_out))


def make_archive(directory: Path, leave_out: LeaveOut) -> Generator[bytes]:
    """Yield a directory as an archive, in blocks. Entries that no server accepts are left out.

    Raises:
        OSError: a file cannot be read, or becomes shorter meanwhile.
    """
    block = bytearray()
    for piece in _pieces(directory, leave_out):
        block += piece
        if len(block) >= BLOCK_BYTES:
            yield bytes(block)
            block.clear()
    yield bytes(block)


def _pieces(root: Path, leave_out: LeaveOut) -> Generator[bytes]:
    inside = os.path.realpath(root)
    below: list[PurePosixPath] = [PurePosixPath()]
    while below:
        place = below.pop()
        with os.scandir(root / place) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        for entry in found:
            name = place / entry.name
            if entry.is_symlink():
                target = os.readlink(entry.path)  # noqa: PTH115 - as it stands there, character by character
                if leads_out(str(name), target) or _passes_outside(inside, name, target):
                    leave_out(str(name), f"a link to {target}")
                else:
                    yield _header(name, tarfile.SYMTYPE, entry.stat(follow_symlinks=False), target)
            elif entry.is_dir():
                below.append(name)
                yield _header(name, tarfile.DIRTYPE, entry.stat())
            elif entry.is_file():
                yield from _file(root / name, name)
            else:
                leave_out(str(name), "neither a file nor a directory nor a link")
    yield _END


def leads_out(name: str, target: str) -> bool:
    """Return whether a link of that name leads out of its archive, judging by the text of its target."""
    joined = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
    return target.startswith("/") or joined == ".." or joined.startswith("../")


def _passes_outside(inside: str, name: PurePosixPath, target: str) -> bool:
    """Return whether other links on the path to the target lead out. The last part of the target is not followed.

    The last part may be a link as well, which is checked by itself.
    """
    way, end = posixpath.split(target)
    real = os.path.realpath(Path(inside, name.parent, target if end in (".", "..") else way))
    return os.path.commonpath([inside, real]) != inside


def _file(path: Path, name: PurePosixPath) -> Generator[bytes]:
    with open(path, "rb", opener=lambda path, flags: os.open(path, flags | _CAREFULLY)) as file:
        status = os.fstat(file.fileno())
        yield _header(name, tarfile.REGTYPE, status)
        left = status.st_size
        while left and (block := file.read(min(BLOCK_BYTES, left))):
            yield block
            left -= len(block)
    if left:
        raise OSError(f"{path} became shorter while it was sent; nothing was copied")
    yield bytes(-status.st_size % tarfile.BLOCKSIZE)


def _header(name: PurePosixPath, type: bytes, status: os.stat_result, target: str = "") -> bytes:
    info = tarfile.TarInfo(str(name))
    info.type, info.linkname = type, target
    info.mode, info.mtime = stat.S_IMODE(status.st_mode), int(status.st_mtime)
    info.size = status.st_size if type == tarfile.REGTYPE else 0
    return info.tobuf(tarfile.PAX_FORMAT, *NAMES)


# --- in ---------------------------------------------------------------------------------------------------------------


async def unpack(pieces: AsyncGenerator[bytes], directory: Path, leave_out: LeaveOut) -> None:
    """Unpack an archive into a directory, which is created if it does not exist: completely or not at all.

    The files are first written to a temporary directory beside their target. When the archive is complete, they replace
    files of the same names, one after another. Links that lead out of the directory are left out.

    Raises:
        ClientError: the archive is damaged or not safe, or an existing file or directory is in the way. Nothing was
            changed.
        OSError: the files cannot be written.
    """
    reader = _Reader(pieces)
    work = asyncio.ensure_future(asyncio.to_thread(_unpack, reader, directory, leave_out))
    try:
        await asyncio.shield(work)
    finally:
        reader.abandon()
        # The thread must not write any more after this function has ended.
        await asyncio.wait({work})
        if not work.cancelled():
            work.exception()


class _Abandoned(Exception):
    """The caller does not need the rest of the archive."""


class _Reader:
    """A file-like object for a thread, with pieces that arrive in the event loop."""

    def __init__(self, pieces: AsyncGenerator[bytes]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")
        self._loop = asyncio.get_running_loop()
        self._asked: Future[bytes] | None = None
        self._abandoned = False
        self._tail = b""

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes; empty at the end."""
        if not self._rest:
            self._rest = memoryview(self._piece())
        taken, self._rest = self._rest[:size], self._rest[size:]
        self._tail = (self._tail + bytes(taken))[-len(_END) :]
        return bytes(taken)

    def finish(self) -> None:
        """Read to the end. Raises Damaged if the data does not end like an archive."""
        while self.read(BLOCK_BYTES):
            pass
        if self._tail != _END:
            raise Damaged("unexpected end of data")

    def _piece(self) -> bytes:
        if self._abandoned:
            raise _Abandoned
        self._asked = asyncio.run_coroutine_threadsafe(self._next(), self._loop)
        try:
            return self._asked.result()
        except CancelledError:
            raise _Abandoned from None

    async def _next(self) -> bytes:
        if self._abandoned:
            raise _Abandoned
        return await anext(self._pieces, b"")

    def abandon(self) -> None:
        """Stop a thread that waits for more data. Called in the event loop."""
        self._abandoned = True
        if self._asked is not None:
            self._asked.cancel()


def _unpack(reader: _Reader, directory: Path, leave_out: LeaveOut) -> None:
    there = directory.is_dir()
    beside = directory if there else directory.parent
    beside.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=BESIDE, dir=beside))
    try:
        files = staging / "files"
        tree = Tree(
            Folder(files), "the archive from the server", max_bytes=_NO_LIMIT, max_entries=_NO_LIMIT, backslashes=True
        )
        _fill(tree, reader, leave_out)
        tree.finish()
        if there:
            _merge(files, directory)
        else:
            files.rename(directory)
    except Damaged as error:
        raise ClientError(f"the archive from the server is damaged: {error}") from error
    except (UnsafeArchive, DiskFull) as error:
        raise ClientError(str(error)) from error
    finally:
        discard(staging)


def _fill(tree: Tree, reader: _Reader, leave_out: LeaveOut) -> None:
    def put(member: tarfile.TarInfo, content: Iterable[bytes], tree: Tree) -> None:
        if member.isdir():
            tree.folder(member.name)
        elif member.issym() and leads_out(member.name, member.linkname):
            leave_out(member.name, f"a link to {member.linkname}")
        elif member.issym():
            tree.link(member.name, member.linkname)
        elif member.isreg():
            tree.file(member.name, member.mode, content)
        else:
            leave_out(member.name, "neither a file nor a directory nor a link")

    tar.unpack(reader, tree, max_bytes=_NO_LIMIT, max_entries=_NO_LIMIT, put=put)
    reader.finish()


def _merge(files: Path, directory: Path) -> None:
    """Move all files to their target, after a check that nothing is in the way. No link of this machine is followed."""
    folders: list[Path] = []
    others: list[Path] = []
    for place, names, rest in os.walk(files):
        links = [name for name in names if Path(place, name).is_symlink()]
        folders += [Path(place, name).relative_to(files) for name in names if name not in links]
        others += [Path(place, name).relative_to(files) for name in (*rest, *links)]
    for path in folders:
        there = directory / path
        if there.is_symlink() or (there.exists() and not there.is_dir()):
            raise ClientError(f"{there} is in the way of a directory; nothing was changed")
    for path in others:
        if (directory / path).is_dir() and not (directory / path).is_symlink():
            raise ClientError(f"{directory / path} is a directory, in the way of a file; nothing was changed")
    for path in folders:
        (directory / path).mkdir(exist_ok=True)
    for path in others:
        (files / path).replace(directory / path)
