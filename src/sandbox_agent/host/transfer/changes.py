"""Directories made, and whatever is in a file system moved and deleted. Links are never followed at the end of a path.

Everything here blocks, and raises FileProblem; ShuttingDown when the server ends before a long work does.
"""

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress

from sandbox_agent.archives.removal import remove
from sandbox_agent.errors import FileConflict, FileForbidden
from sandbox_agent.host.paths.names import shown
from sandbox_agent.host.paths.nodes import Place, error_of
from sandbox_agent.host.paths.refusals import file_problems
from sandbox_agent.host.paths.renaming import rename
from sandbox_agent.host.paths.roots import Roots
from sandbox_agent.host.transfer.carrying import carry

Stopped = Callable[[], bool]
"""Whether the server ends: what takes long is given up then."""


def make_directory(roots: Roots, path: str) -> None:
    """Make a directory, with those on its way; it may be there already."""
    with file_problems(path), roots.confined.reach(path.rstrip("/") or "/", parents=True) as place:
        if place.node is not None:
            if not stat.S_ISDIR(os.fstat(place.node).st_mode):
                raise error_of(errno.EEXIST)
            return
        try:
            os.mkdir(place.name, dir_fd=place.directory)
        except FileExistsError:
            # Somebody was faster; with what, the system says.
            os.close(os.open(place.name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=place.directory))


def delete(roots: Roots, path: str, *, recursive: bool, stopped: Stopped) -> None:
    """Delete a file, a link or an empty directory; with `recursive` also one that is not empty. Never a root."""
    with file_problems(path), roots.confined.reach(_bare(path), follow=False) as place:
        _let_go(roots, place, path)
        if recursive:
            remove(place.directory, place.name, stopped)
        elif stat.S_ISDIR(os.fstat(place.existing()).st_mode):
            os.rmdir(place.name, dir_fd=place.directory)
        else:
            os.unlink(place.name, dir_fd=place.directory)


def move(roots: Roots, source: str, target: str, *, overwrite: bool, stopped: Stopped) -> None:
    """Give something another name, also on another file system. Never a root.

    With `overwrite` a file may take the place of a file, and a directory that of an empty one.
    """
    with file_problems(source), roots.confined.reach(_bare(source), follow=False) as old:
        _let_go(roots, old, source)
        with file_problems(target), roots.confined.reach(_bare(target), follow=False) as new:
            if _same(old, new):
                return
            if new.node is not None:
                _let_go(roots, new, target)
            _move(old, new, target, overwrite=overwrite, stopped=stopped)


def _move(old: Place, new: Place, target: str, *, overwrite: bool, stopped: Stopped) -> None:
    try:
        rename(old.directory, old.name, new.directory, new.name, replace=overwrite)
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise FileConflict(shown(target), "is inside of what is to be moved there", errno="EINVAL") from error
        if error.errno != errno.EXDEV:
            raise
        carry(old, new, replace=overwrite, stopped=stopped)
    else:
        # Of two names of one file, rename(2) leaves both.
        if overwrite and new.node is not None and os.path.samestat(os.fstat(old.existing()), os.fstat(new.node)):
            with suppress(FileNotFoundError):
                os.unlink(old.name, dir_fd=old.directory)


def _bare(path: str) -> str:
    """Without slashes at the end, which would follow a link."""
    return path.rstrip("/") or "/"


def _let_go(roots: Roots, place: Place, path: str) -> None:
    """Raises when it must stay."""
    if roots.protects(place.existing()):
        raise FileForbidden(shown(path), "is a root of the file API, or has one inside, and stays")
    _named(place)


def _named(place: Place) -> None:
    if place.name == b".":
        raise OSError(errno.EINVAL, "ends in . or .., and so has no name of its own")


def _same(one: Place, other: Place) -> bool:
    return one.name == other.name and os.path.samestat(os.fstat(one.directory), os.fstat(other.directory))
