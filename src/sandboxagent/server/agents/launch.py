"""Describe how to start an agent's program on this machine, and lock its folder while it runs."""

import errno
import fcntl
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct, field

from sandboxagent.core.archives.remove import discard

IN_USE, REMOVED = ".in-use", ".removed-"


class Launch(Struct, frozen=True):
    """A command, and variables to add to the agent's environment. `folder` must stay while the program runs."""

    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    folder: Path | None = None

    def __repr__(self) -> str:
        return f"Launch({self.command})"

    def program(self, path: str | None) -> str | None:
        """Return the program that would run, searched for on `path`; None when there is none."""
        return shutil.which(self.command[0], path=path)

    def lock_folder(self) -> "FolderLock":
        """Lock the folder against removal until released. Raises FolderGone when it is already being removed."""
        return FolderLock(self.folder)


class FolderGone(Exception):
    """The folder of the program is being removed: another installation has taken its place."""


class FolderLock:
    """A shared lock on a folder.

    A program whose folder cannot be locked may still be run, for example in a folder that only root may write.
    """

    def __init__(self, folder: Path | None) -> None:
        self._descriptor: int | None = None
        if folder is None:
            return
        mark = folder / IN_USE
        try:
            self._descriptor = os.open(mark, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            # The folder may have been removed in between.
            gone = not os.path.samestat(os.fstat(self._descriptor), mark.stat())
        except (BlockingIOError, FileNotFoundError):
            gone = True
        except OSError:
            gone = False
        if gone:
            self.release()
            raise FolderGone(folder)

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def remove_unused(folder: Path) -> None:
    """Delete a folder with everything in it, unless it is locked."""
    try:
        descriptor = os.open(folder / IN_USE, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):  # The file never existed, so nobody locks it.
            discard(folder)
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Move it away first: an agent must never start from a half-deleted folder.
        gone = folder.rename(folder.with_name(f"{REMOVED}{folder.name}"))
    except OSError:
        return
    else:
        discard(gone)
    finally:
        os.close(descriptor)
