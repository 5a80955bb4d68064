"""Directories of this machine as tar archives, and back. Made and read a block at a time, in threads.

`archived` alone makes one without threads, for a program that has no event loop.

An archive from a server is not trusted: what runs there may have written it. Nothing of it gets outside of the
directory that it is unpacked in.
"""

import asyncio
import os
import posixpath
import stat
import tarfile
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import CancelledError, Future
from io import RawIOBase
from pathlib import Path, PurePosixPath
from typing import Self

from sandbox_agent.client.contents import BLOCK, in_thread
from sandbox_agent.client.errors import ClientError

LeaveOut = Callable[[str, str], None]
"""Told of what is not copied: its path in the directory, and why."""

NAMES = ("utf-8", "surrogateescape")
"""How names are written in an archive: those that are no text, too."""

DEEPEST, LONGEST_PATH = 256, 4095
"""Levels and characters of a path that is unpacked."""
HEADERS, IN_A_ROW, RECORDS = 1 << 16, 16, 1000
"""Bytes of a header before an entry, how many of these there may be, and records that are kept for all entries."""

_END = bytes(2 * tarfile.BLOCKSIZE)
_EXTENDED = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)
# What has become a link or a pipe meanwhile is neither followed nor waited for.
_CAREFULLY = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY"))


# --- out --------------------------------------------------------------------------------------------------------------


def packed(directory: Path, left_out: list[str]) -> AsyncGenerator[bytes]:
    """What `archived` makes, in threads. What is left out is noted in `left_out`, by its path in the directory."""
    return in_thread(archived(directory, lambda name, why: left_out.append(name)))


def archived(directory: Path, leave_out: LeaveOut) -> Generator[bytes]:
    """A directory as an archive, in blocks. What no server would take is left out.

    Raises OSError for what cannot be read, or becomes shorter meanwhile.
    """
    block = bytearray()
    for piece in _pieces(directory, leave_out):
        block += piece
        if len(block) >= BLOCK:
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
    """Whether a link of that name leads out of its archive, as far as its text tells."""
    joined = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
    return target.startswith("/") or joined == ".." or joined.startswith("../")


def _passes_outside(inside: str, name: PurePosixPath, target: str) -> bool:
    """Whether other links on its way lead it out. What it ends at may be a link, too, that is judged for itself."""
    way, end = posixpath.split(target)
    real = os.path.realpath(Path(inside, name.parent, target if end in (".", "..") else way))
    return os.path.commonpath([inside, real]) != inside


def _file(path: Path, name: PurePosixPath) -> Generator[bytes]:
    with open(path, "rb", opener=lambda path, flags: os.open(path, flags | _CAREFULLY)) as file:
        status = os.fstat(file.fileno())
        yield _header(name, tarfile.REGTYPE, status)
        left = status.st_size
        while left and (block := file.read(min(BLOCK, left))):
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


async def unpack(pieces: AsyncGenerator[bytes], directory: Path) -> list[str]:
    """Take an archive into a directory, which is made when it is not there; gives the links that were left out.

    Raises:
        ClientError: the archive makes no sense, or is not safe. What came before that is there.
        OSError: the disk does not take it.
    """
    reader = _Reader(pieces)
    work = asyncio.ensure_future(asyncio.to_thread(_unpack, reader, directory))
    try:
        return await asyncio.shield(work)
    finally:
        reader.abandon()
        # It must not write any more when this is over.
        await asyncio.wait({work})
        if not work.cancelled():
            work.exception()


class _Abandoned(Exception):
    """Nobody wants the rest."""


class _Reader(RawIOBase):
    """What a thread reads of pieces that come in the event loop."""

    def __init__(self, pieces: AsyncGenerator[bytes]) -> None:
        super().__init__()
        self._pieces = pieces
        self._loop = asyncio.get_running_loop()
        self._asked: Future[bytes] | None = None
        self._abandoned = False
        self._tail = b""

    def read(self, size: int = -1, /) -> bytes:
        """The next piece, however long it is: tarfile goes on until it has enough."""
        if self._abandoned:
            raise _Abandoned
        self._asked = asyncio.run_coroutine_threadsafe(self._next(), self._loop)
        try:
            piece = self._asked.result()
        except CancelledError:
            raise _Abandoned from None
        self._tail = (self._tail + piece)[-len(_END) :]
        return piece

    def finish(self) -> None:
        """Read to the end; raises ReadError when that is not the end of an archive, which tarfile does not mind."""
        while self.read():
            pass
        if self._tail != _END:
            raise tarfile.ReadError("unexpected end of data")

    async def _next(self) -> bytes:
        if self._abandoned:
            raise _Abandoned
        return await anext(self._pieces, b"")

    def abandon(self) -> None:
        """For the event loop: a thread that waits for more gets none."""
        self._abandoned = True
        if self._asked is not None:
            self._asked.cancel()


def _entry_type() -> type[tarfile.TarInfo]:
    """Entries of one archive, whose headers fit into memory: tarfile reads each at once, and calls itself for each."""
    in_a_row = 0

    class Entry(tarfile.TarInfo):
        @classmethod
        def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
            nonlocal in_a_row
            entry = super().frombuf(buf, encoding, errors)
            in_a_row = in_a_row + 1 if entry.type in _EXTENDED else 0
            if in_a_row > IN_A_ROW or (in_a_row and not 0 <= entry.size <= HEADERS):
                raise tarfile.ReadError(f"more than {IN_A_ROW} headers for one entry, or one over {HEADERS} bytes")
            return entry

    return Entry


def _unpack(reader: _Reader, directory: Path) -> list[str]:
    directory.mkdir(parents=True, exist_ok=True)
    inside = os.path.realpath(directory)
    left_out: list[str] = []
    links: set[str] = set()
    try:
        with tarfile.open(
            mode="r|", fileobj=reader, bufsize=BLOCK, tarinfo=_entry_type(), encoding=NAMES[0], errors=NAMES[1]
        ) as archive:
            # What it would do by itself depends on the version of Python; ours is done before.
            archive.extraction_filter = lambda member, path: member
            for member in iter(archive.next, None):
                # It keeps all of them for whoever wants to go back.
                archive.members = []  # pyright: ignore[reportAttributeAccessIssue] - documented, and not in its stub
                if len(archive.pax_headers) > RECORDS:
                    raise tarfile.ReadError("it has too many records for all entries")
                _check(member, links)
                _confine(member, inside)
                if member.issym() and _link_leads_out(member, inside):
                    left_out.append(member.name)
                else:
                    archive.extract(member, directory)
        reader.finish()
    except (tarfile.TarError, EOFError) as error:
        raise ClientError(f"the archive is not unpacked any further: {error}") from error
    return left_out


def _confine(member: tarfile.TarInfo, inside: str) -> None:
    """Make it a file, a directory or a link of ours in the directory, or refuse it.

    As tarfile's own filter for data does, which the first versions of Python 3.11 do not have.
    """
    member.name = member.name.lstrip("/")
    if not (member.isreg() or member.isdir() or member.issym()):
        raise ClientError(f"the archive is not unpacked any further: {member.name!r} is no file, directory or link")
    if not _is_within(inside, os.path.realpath(Path(inside, member.name))) and not member.issym():
        raise ClientError(f"the archive is not unpacked any further: {member.name!r} is outside of the directory")
    member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
    # Ours to read and write; nobody else's to write.
    member.mode = member.mode & 0o755 | (0o700 if member.isdir() else 0o600)
    if member.isreg() and not member.mode & stat.S_IXUSR:
        member.mode &= 0o666


def _link_leads_out(member: tarfile.TarInfo, inside: str) -> bool:
    place = Path(inside, member.name).parent
    if not _is_within(inside, os.path.realpath(place)):
        raise ClientError(f"the archive is not unpacked any further: {member.name!r} is outside of the directory")
    return member.linkname.startswith("/") or not _is_within(inside, os.path.realpath(place / member.linkname))


def _is_within(inside: str, path: str) -> bool:
    return os.path.commonpath([inside, path]) == inside


def _check(member: tarfile.TarInfo, links: set[str]) -> None:
    """Refuse what goes through a link of the archive itself."""
    if len(member.name) > LONGEST_PATH or member.name.count("/") >= DEEPEST:
        shown = f"{member.name[:100]!r}…"
        raise ClientError(f"the archive is not unpacked any further: {shown} is longer or deeper than any path here")
    # As a file system sees it that knows no upper case.
    parts = [part.casefold() for part in PurePosixPath(member.name).parts if part != "."]
    if member.islnk() or any("/".join(parts[:depth]) in links for depth in range(1, len(parts) + 1)):
        raise ClientError(f"the archive is not unpacked any further: {member.name!r} goes through a link")
    if member.issym():
        links.add("/".join(parts))
