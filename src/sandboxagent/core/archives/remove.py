"""Delete trees of any depth, even while other processes change them.

It uses descriptors and follows no link. All functions block.
"""

import errno
import logging
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from sandboxagent.protocol.errors import ShuttingDown

MAX_DEPTH = 32
"""Maximum number of levels that are open at once. Deeper directories are first moved up, so that no tree is too
deep."""
MAX_ROUNDS = 16
"""Maximum number of attempts to empty a directory into which other processes write."""
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

logger = logging.getLogger(__name__)


def remove(directory: int, name: bytes, stopped: Callable[[], bool]) -> None:
    """Delete an entry with everything in it. Raises OSError, and ShuttingDown if `stopped` returns true."""
    if not _unlink(directory, name):
        _Removal(stopped).tree(directory, name, 0)


def discard(path: Path) -> None:
    """Delete as much as possible of the tree at a path. Never raises, but logs why a part remains."""
    removal = _Removal(lambda: False, go_on=True)
    try:
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if not _unlink(directory, os.fsencode(path.name)):
                removal.tree(directory, os.fsencode(path.name), 0)
        finally:
            os.close(directory)
    except OSError as error:
        removal.failure = removal.failure or error
    if removal.failure is not None:
        logger.warning("not deleted path=%s reason=%s", path, removal.failure.strerror)


class _Removal:
    def __init__(self, stopped: Callable[[], bool], *, go_on: bool = False) -> None:
        self.failure: OSError | None = None
        """The reason why a part remains, if the deletion continues after failures."""
        self._stopped = stopped
        self._go_on = go_on
        self._top = -1
        self._lifted = False

    def tree(self, directory: int, name: bytes, depth: int) -> None:
        try:
            node = os.open(name, _OPEN, dir_fd=directory)
        except FileNotFoundError:
            return
        except NotADirectoryError:
            # It was a directory when its parent was listed.
            _unlink(directory, name)
            return
        try:
            if depth == 0:
                self._top = node
            self._empty_and_remove(directory, name, node, depth)
        finally:
            os.close(node)

    def _empty_and_remove(self, directory: int, name: bytes, node: int, depth: int) -> None:
        rounds = 0
        while rounds < MAX_ROUNDS:
            self._lifted = self._lifted and depth > 0
            self._empty(node, depth)
            try:
                os.rmdir(name, dir_fd=directory)
            except FileNotFoundError:
                return
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                # Either directories were moved up to here, or other processes wrote here, or an entry could not be
                # deleted.
                if self._lifted and depth == 0:
                    continue
                if self.failure is not None:
                    return
                rounds += 1
            else:
                return
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))

    def _empty(self, node: int, depth: int) -> None:
        with os.scandir(node) as entries:
            for entry in entries:
                if self._stopped():
                    raise ShuttingDown
                try:
                    self._remove_entry(node, os.fsencode(entry.name), depth)
                except OSError as error:
                    if not self._go_on:
                        raise
                    self.failure = error

    def _remove_entry(self, node: int, name: bytes, depth: int) -> None:
        if _unlink(node, name):
            return
        if depth < MAX_DEPTH:
            self.tree(node, name, depth + 1)
        else:
            self._lift(node, name)

    def _lift(self, node: int, name: bytes) -> None:
        lifted = b".sandbox-agent-%b" % secrets.token_hex(8).encode()
        with suppress(FileNotFoundError):
            os.rename(name, lifted, src_dir_fd=node, dst_dir_fd=self._top)
            self._lifted = True


def _unlink(directory: int, name: bytes) -> bool:
    """Unlink a name that may be gone already. Returns False for a directory."""
    try:
        os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        return True
    except IsADirectoryError:
        return False
    return True
