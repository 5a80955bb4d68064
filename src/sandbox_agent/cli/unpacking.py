"""Archives from a server as directories of this machine.

Whatever an archive says, nothing is written outside of its directory: its files are put aside first, links last. It is
as careful as the server is, and takes all of an archive or nothing; the SDK writes as it reads.
"""

import os
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path

from sandbox_agent.archives import tarball
from sandbox_agent.archives.folder import Folder
from sandbox_agent.archives.removal import discard
from sandbox_agent.archives.tree import Damaged, Tree
from sandbox_agent.cli.remote import Refused
from sandbox_agent.client.trees import LeaveOut, leads_out

BESIDE = ".sandbox-agent-"
"""How names of what waits to be whole begin."""

_MOST = 1 << 62


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
        tree = Tree(Folder(files), "what the server sends", max_bytes=_MOST, max_entries=_MOST, backslashes=True)
        _fill(tree, _Stream(pieces), leave_out)
        tree.finish()
        if there:
            _merge(files, target)
        else:
            files.rename(target)
    finally:
        discard(staging)


def _fill(tree: Tree, stream: "_Stream", leave_out: LeaveOut) -> None:
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

    try:
        tarball.unpack(stream, tree, max_bytes=_MOST, max_entries=_MOST, put=put)
    except Damaged as error:
        raise Refused(f"what the server sends is no archive: {error}") from error


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
