"""Archives that clients send: unpacked beside their target and moved in as a whole, or not at all."""

from dataclasses import dataclass
from itertools import islice

from msgspec import Struct

from sandbox_agent.archives import tarball
from sandbox_agent.archives.packing import packing, unpacked
from sandbox_agent.archives.tree import DEEPEST, Damaged, Tree
from sandbox_agent.errors import ArchiveTooLarge, BadArchive, DiskFull, NoRoom, UnsafeArchive
from sandbox_agent.host.paths.confined import Confined
from sandbox_agent.host.paths.names import shown
from sandbox_agent.host.paths.refusals import file_problems
from sandbox_agent.host.transfer.flow import Inflow
from sandbox_agent.host.transfer.staging import Staging

PATHS = 1024
"""Paths that are told."""
SLACK = 64 << 20
"""Bytes that any archive may unfold into, however small it is."""

_HEAD = 6


@dataclass(frozen=True, slots=True)
class UploadLimits:
    """What an archive may unfold into.

    Bytes of files, files and folders, bytes for each byte that was sent, and levels of a path.
    """

    bytes: int
    entries: int
    ratio: int
    depth: int = DEEPEST


class Uploaded(Struct):
    """What an archive has put where; `truncated` when there is more than `paths` tells."""

    paths: list[str]
    """The first 1024 files and links that were written, absolute."""
    truncated: bool
    """There were more."""


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
        paths = [shown(each) for each in islice(staging.paths(), PATHS + 1)]
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
    packed = packing(stream.peek(_HEAD))
    if packed in ("bz2", "xz"):
        raise BadArchive("a tar archive may be packed with gzip or zstd, or not at all", entry="", rule=packed)
    try:
        tarball.unpack(
            unpacked(stream, packed),
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
