"""Fetch an archive to a file and unpack it, whatever format it has.

This module knows nothing of agents.
"""

import asyncio
import errno
import hashlib
import io
import mmap
import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, BinaryIO, Literal, cast
from urllib.parse import urlsplit

from sandboxagent.core.archives.tar import Packing, detect_packing, unpack_stream
from sandboxagent.core.archives.tree import MAX_TARGET, PIECE_BYTES, Damaged, Folder, Tree
from sandboxagent.protocol.errors import ChecksumMismatch, DiskFull, DownloadFailed, InstallFailed, UnsafeArchive
from sandboxagent.server.agents.install.download import Download, NotFetched, download, redact_url

Progress = Callable[[int, int | None], None]
"""Gets the bytes so far, and the total when that is known."""

Format = Literal["zip", "tar", "program"]

SILENCE_TIMEOUT = 30.0
FETCH_TIMEOUT = 3600.0
"""Maximum seconds without any bytes, and maximum seconds until all have come."""

_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".tbz2", ".xz", ".txz", ".zst")
# ELF, a script, Mach-O for one processor or several, and Windows.
_PROGRAMS = (b"\x7fELF", b"#!", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe", b"MZ")


async def fetch(
    url: str, target: Path, *, sha256: str | None, max_bytes: int, progress: Progress, silence: float = SILENCE_TIMEOUT
) -> str:
    """Fetch an address into a file, and return its SHA-256. When it fails, there is no file.

    Raises:
        DownloadFailed: the content did not come, or not whole.
        ChecksumMismatch: the content does not match `sha256`.
        UnsafeArchive: the content is larger than `max_bytes`.
        DiskFull: there is no room for the file.
    """
    with _no_file_unless_whole(target):
        try:
            async with asyncio.timeout(FETCH_TIMEOUT), download(url, silence=silence) as found:
                digest = await _save(found, target, redact_url(url), max_bytes, progress)
        except NotFetched as error:
            raise _failed(url, str(error), error.status) from error
        except TimeoutError as error:
            raise _failed(url, f"it did not come whole within {FETCH_TIMEOUT:g} s", None) from error
        if sha256 is not None and digest != sha256.lower():
            raise ChecksumMismatch(redact_url(url), sha256.lower(), digest)
    return digest


@contextmanager
def _no_file_unless_whole(target: Path) -> Generator[None]:
    try:
        yield
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def _failed(url: str, reason: str, status: int | None) -> DownloadFailed:
    # Not named `status`, because a problem document has its own.
    facts: dict[str, object] = {} if status is None else {"upstreamStatus": status}
    detail = (
        f"{redact_url(url)} could not be fetched: {reason}; check the address, the network and its proxies, then repeat"
    )
    return DownloadFailed(detail, url=redact_url(url), reason=reason, **facts)


async def _save(found: Download, target: Path, label: str, max_bytes: int, progress: Progress) -> str:
    digest = hashlib.sha256()
    size = 0

    def save(piece: bytes) -> None:
        digest.update(piece)
        file.write(piece)

    def check(size: int) -> None:
        if size > max_bytes:
            detail = f"{label} is larger than {max_bytes} bytes, and nothing of it is kept"
            raise UnsafeArchive(detail, archive=label, limit=max_bytes)

    check(found.total or 0)
    try:
        with target.open("wb") as file:
            async for piece in found.pieces:
                size += len(piece)
                check(size)
                await asyncio.to_thread(save, piece)
                progress(size, found.total)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(str(target.parent)) from error
        raise
    return digest.hexdigest()


def extract(archive: Path, into: Path, *, name: str, max_bytes: int, max_entries: int) -> None:
    """Unpack an archive into a new folder. A plain program is copied there under the last part of `name`.

    Blocks for as long as it takes. Files that a failure leaves behind are inside `into`.

    Raises:
        UnsafeArchive: an entry breaks a rule; both are named.
        InstallFailed: the archive is damaged, or of a kind that cannot be unpacked.
        DiskFull: there is no room for the files.
    """
    last = urlsplit(name).path.rpartition("/")[2] or "the archive"
    try:
        tree = Tree(Folder(into), last, max_bytes=max_bytes, max_entries=max_entries)
        with archive.open("rb") as file:
            format, packed = _format(file, last)
            file.seek(0)
            match format:
                case "program":
                    tree.file(last, 0o755, iter(lambda: file.read(PIECE_BYTES), b""))
                case "zip":
                    unpack_zip(archive, tree, max_entries=max_entries)
                case "tar":
                    from sandboxagent.core.archives import tar

                    tar.unpack(unpack_stream(file, packed), tree, max_bytes=max_bytes, max_entries=max_entries)
        tree.finish()
    except (Damaged, OSError) as error:
        raise InstallFailed(f"{last} cannot be unpacked: {error}", archive=last) from error


def _format(file: BinaryIO, name: str) -> tuple[Format, Packing]:
    """Detect the format of a file, by its content first."""
    head = file.read(512)
    if head.startswith(_ZIP):
        return "zip", ""
    if packed := detect_packing(head):
        return "tar", packed
    if head[257:262] == b"ustar" or (name.endswith(".tar") and head):
        return "tar", ""
    if name.lower().endswith(_ARCHIVES):
        raise InstallFailed(f"{name} is not the archive that its name promises", archive=name)
    if not head.startswith(_PROGRAMS):
        raise InstallFailed(f"{name} is neither an archive nor a program", archive=name)
    return "program", ""


# RuntimeError covers NotImplementedError, for a compression method that Python does not know.
_DAMAGE = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, RuntimeError, ValueError, LookupError)

_ENTRY = re.compile(rb"PK\x01\x02")
_ENCRYPTED = 0x1
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2)
"""Compression methods that need little memory, whatever the archive says."""

MAX_DIRECTORY_BYTES = 64 << 20
"""Maximum bytes of the list of entries: ZipFile reads it at once, and makes an object of each entry."""


def unpack_zip(archive: Path, tree: Tree, *, max_entries: int) -> None:
    """Put everything of a zip archive into the tree, which counts its bytes and entries.

    Raises:
        Damaged: the archive is invalid.
    """
    try:
        _unpack(archive, tree, max_entries)
    except _DAMAGE as error:
        raise Damaged(str(error)) from error


def _unpack(archive: Path, tree: Tree, max_entries: int) -> None:
    with _Archive(archive, tree) as file:
        # ZipFile creates an object per entry before they can be checked; the archive's own count may be a lie.
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if next(islice(_ENTRY.finditer(content), max_entries, None), None) is not None:
                tree.refuse("", f"has more than {max_entries} entries")
        with zipfile.ZipFile(cast("IO[bytes]", file)) as packed:
            for info in packed.infolist():
                _put(packed, info, tree)


class _Archive(io.FileIO):
    """The archive file, with a bound on how much one read may return."""

    def __init__(self, path: Path, tree: Tree) -> None:
        super().__init__(path, "rb")
        self._tree = tree

    def read(self, size: int | None = -1, /) -> bytes:
        rest = max(0, os.fstat(self.fileno()).st_size - self.tell())
        wanted = rest if size is None or size < 0 else min(size, rest)
        if wanted > MAX_DIRECTORY_BYTES:
            self._tree.refuse(
                "", f"has a list of entries of more than {MAX_DIRECTORY_BYTES} bytes", limit=MAX_DIRECTORY_BYTES
            )
        return super().read(wanted)


def _put(packed: zipfile.ZipFile, info: zipfile.ZipInfo, tree: Tree) -> None:
    name = info.orig_filename  # The whole name: `filename` is cut off at a NUL.
    mode = info.external_attr >> 16
    if info.flag_bits & _ENCRYPTED:
        tree.refuse(name, "is encrypted")
    if info.compress_type not in _METHODS:
        tree.refuse(name, "has a compression method that is not supported: only deflate and bzip2 are")
    match stat.S_IFMT(mode):
        case stat.S_IFLNK:
            with packed.open(info) as file:
                target = file.read(MAX_TARGET + 1)
            tree.link(name, target.decode("utf-8", "surrogateescape"))
        case stat.S_IFDIR:
            tree.folder(name)
        case 0 | stat.S_IFREG if name.endswith("/"):
            tree.folder(name)
        case 0 | stat.S_IFREG:
            tree.file(name, mode, _pieces(packed, info))
        case _:
            tree.refuse(name, "is neither a file nor a folder nor a link")


def _pieces(packed: zipfile.ZipFile, info: zipfile.ZipInfo) -> Iterator[bytes]:
    with packed.open(info) as file:
        while piece := file.read(PIECE_BYTES):
            yield piece
