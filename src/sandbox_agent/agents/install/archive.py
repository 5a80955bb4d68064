"""Archives: fetching one to a file, and unpacking it by what it is.

Knows nothing of agents.
"""

import asyncio
import errno
import hashlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal
from urllib.parse import urlsplit

from sandbox_agent.agents.install.download import Download, NotFetched, download, redact_url
from sandbox_agent.archives.packing import Packing, detect_packing, unpack_stream
from sandbox_agent.archives.tree import PIECE, Damaged, Folder, Tree
from sandbox_agent.errors import DiskFull
from sandbox_agent.install_errors import ChecksumMismatch, DownloadFailed, InstallFailed, UnsafeArchive

Progress = Callable[[int, int | None], None]
"""Bytes so far, and all of them when that is known."""

Format = Literal["zip", "tar", "program"]

SILENCE = 30.0
LONGEST = 3600.0
"""Seconds in which nothing may come, and in which all must have come."""

_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".tbz2", ".xz", ".txz", ".zst")
# ELF, a script, Mach-O for one processor or several, and Windows.
_PROGRAMS = (b"\x7fELF", b"#!", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe", b"MZ")


async def fetch(
    url: str, target: Path, *, sha256: str | None, max_bytes: int, progress: Progress, silence: float = SILENCE
) -> str:
    """Fetch an address into a file; gives its SHA-256. When it fails, there is no file.

    Raises:
        DownloadFailed: it did not come, or not whole.
        ChecksumMismatch: it is not what `sha256` says.
        UnsafeArchive: it is larger than `max_bytes`.
        DiskFull: there is no room for it.
    """
    with _no_file_unless_whole(target):
        try:
            async with asyncio.timeout(LONGEST), download(url, silence=silence) as found:
                digest = await _save(found, target, redact_url(url), max_bytes, progress)
        except NotFetched as error:
            raise _failed(url, str(error), error.status) from error
        except TimeoutError as error:
            raise _failed(url, f"it did not come whole within {LONGEST:g} s", None) from error
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
    # Not `status`: a problem document has its own.
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
    """Unpack an archive into a new folder; a plain program is copied there under the last part of `name`.

    Blocks for as long as it takes. What a failure leaves behind is inside `into`.

    Raises:
        UnsafeArchive: an entry breaks a rule; both are named.
        InstallFailed: it is damaged, or of a kind that cannot be unpacked.
        DiskFull: there is no room for it.
    """
    last = urlsplit(name).path.rpartition("/")[2] or "the archive"
    try:
        tree = Tree(Folder(into), last, max_bytes=max_bytes, max_entries=max_entries)
        with archive.open("rb") as file:
            format, packed = _format(file, last)
            file.seek(0)
            match format:
                case "program":
                    tree.file(last, 0o755, iter(lambda: file.read(PIECE), b""))
                case "zip":
                    from sandbox_agent.agents.install import zipped

                    zipped.unpack(archive, tree, max_entries=max_entries)
                case "tar":
                    from sandbox_agent.archives import tarball

                    tarball.unpack(unpack_stream(file, packed), tree, max_bytes=max_bytes, max_entries=max_entries)
        tree.finish()
    except (Damaged, OSError) as error:
        raise InstallFailed(f"{last} cannot be unpacked: {error}", archive=last) from error


def _format(file: BinaryIO, name: str) -> tuple[Format, Packing]:
    """What a file is, by its content first."""
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
