"""Open paths beneath given directories so that no link and no race leads out of them.

A path is walked name by name. Each name is opened relative to its directory's descriptor, and never followed; links are
read and resolved here. No name is checked and then opened again, so the checked file is the opened one.

The caller chooses the directories, which may be links. A pinned directory is opened at once, and another directory that
takes its place is never entered. A hard link is a file like any other: it does not show its other names. The module is
synchronous, and for Linux only.
"""

import errno
import io
import os
import stat
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress

from sandboxagent.server.files.descriptors import Place, descriptor_path, error_of, require_regular
from sandboxagent.server.files.replace import Replacement

MAX_PATH = 4096
MAX_LINKS = 40
MAX_STEPS = 4096
"""Maximum number of names in one walk, including the names in links."""

_ENTER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Outside(OSError):
    """A path leads out of the directories."""


class Replaced(OSError):
    """The path of a pinned directory leads to another directory than at the start."""

    def __init__(self) -> None:
        super().__init__(errno.ESTALE, "the directory was deleted or replaced since the server started")


class Confined:
    """Access to some directories and everything beneath them.

    Every error is an OSError with its `errno` and the path. The directories' paths are resolved at each use; with
    `outer`, inside of it. With `pinned`, they are opened at once and stay open: later their paths must lead to the same
    ones.
    """

    def __init__(self, directories: Iterable[str], outer: "Confined | None" = None, *, pinned: bool = False) -> None:
        self.directories = tuple(directories)
        self._outer = outer
        # Programs name a directory by the given path, or by its real path.
        given = [_encode_path(each) for each in self.directories]
        spellings = [*given, *map(os.path.realpath, given)]
        self._roots = sorted({_root(each) for each in spellings}, key=len, reverse=True)
        self._pinned: dict[bytes, int] = {}
        for each in given if pinned else ():
            node = os.open(each, _ENTER)
            self._pinned |= {b"/" + b"/".join(_root(spelled)): node for spelled in (each, os.path.realpath(each))}

    def close(self) -> None:
        """Close the pinned directories."""
        for node in set(self._pinned.values()):
            os.close(node)
        self._pinned.clear()

    def open(self, path: str) -> io.FileIO:
        """Open a regular file to read it."""
        with self.reach(path) as place:
            descriptor = os.open(descriptor_path(require_regular(place.existing())), _READ)
            return io.FileIO(descriptor, "rb")

    def open_directory(self, path: str) -> int:
        """Open a directory. The caller closes the descriptor."""
        with self.reach(path) as place:
            node = place.existing()
            if not stat.S_ISDIR(os.fstat(node).st_mode):
                raise error_of(errno.ENOTDIR)
            return os.dup(node)

    @contextmanager
    def replace(self, path: str, *, parents: bool = False) -> Generator[Replacement]:
        """Open a new file that replaces the one at the path when the block ends without an error.

        A link at the path stays, and its target is replaced. Other hard links to the old file keep the old content.
        """
        with self.reach(path, parents=parents) as place:
            file = Replacement(place)
            try:
                yield file
                file.commit()
            finally:
                file.close()

    @contextmanager
    def reach(self, path: str, *, parents: bool = False, follow: bool = True) -> Generator[Place]:
        """Open the place that a path leads to, while the block runs. Errors in the block get the path.

        `parents` makes missing directories of the path. Without `follow`, a link at the end is itself the place.
        """
        walk = _Walk(self._roots, self._enter, parents=parents, follow=follow)
        node = None
        try:
            place = walk.go(_names(_encode_path(path)))
            node = place.node
            yield place
        except OSError as error:
            # The caller knows the whole path, but not the single names.
            error.filename, error.filename2 = path, None
            raise
        finally:
            walk.close()
            if node is not None:
                os.close(node)

    def _enter(self, directory: bytes) -> int:
        if self._outer is not None:
            return self._outer.open_directory(os.fsdecode(directory))
        node = self._pinned.get(directory)
        if node is None:
            return os.open(directory, _ENTER)
        if not _leads_to(directory, node):
            raise Replaced
        return os.dup(node)


class _Walk:
    """The walk along one path. It holds one descriptor: of the directory that it has reached."""

    def __init__(
        self, roots: Iterable[tuple[bytes, ...]], enter: Callable[[bytes], int], *, parents: bool, follow: bool
    ) -> None:
        self._roots = roots
        self._enter = enter
        self._parents = parents
        self._follow_last = follow
        self._root: tuple[bytes, ...] = ()
        self._directory: int | None = None
        self._way: list[bytes] = []
        """Directories that the walk has entered since the root. None of them is a link."""
        self._left: deque[bytes] = deque()
        self._links = 0

    def go(self, names: list[bytes]) -> Place:
        """Walk to the end. The caller closes the node."""
        self._start(names)
        for _ in range(MAX_STEPS):
            if not self._left:
                return Place(self._here, b".", os.dup(self._here))
            name = self._left.popleft()
            if name == b"..":
                self._up()
            elif name != b"." and (place := self._step(name)) is not None:
                return place
        raise error_of(errno.ELOOP)

    def close(self) -> None:
        if self._directory is not None:
            os.close(self._directory)
            self._directory = None

    @property
    def _here(self) -> int:
        assert self._directory is not None
        return self._directory

    def _start(self, names: list[bytes]) -> None:
        """Enter the innermost root on an absolute path."""
        root = next((root for root in self._roots if tuple(names[: len(root)]) == root), None)
        if root is None:
            raise Outside(errno.EXDEV, "leads out of the directories")
        self.close()
        self._root, self._way = root, []
        self._left.extendleft(reversed(names[len(root) :]))
        self._directory = self._enter(b"/" + b"/".join(root))

    def _up(self) -> None:
        """Walk again without the last step, because the directory and its `..` may have moved meanwhile."""
        self._start([*self._root, *self._way][:-1])

    def _step(self, name: bytes) -> Place | None:
        """Take one name. Returns the place if the name was the last one and is no link to follow."""
        last = not self._left
        try:
            node = os.open(name, _LOOK, dir_fd=self._here)
        except FileNotFoundError:
            if last:
                return Place(self._here, name, None)
            if not self._parents:
                raise
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=self._here)
            # Open the name again, because another process may have made another entry first.
            self._left.appendleft(name)
            return None
        mode = os.fstat(node).st_mode
        if stat.S_ISLNK(mode) and (self._follow_last or not last):
            self._follow(node)
        elif last:
            return Place(self._here, name, node)
        elif stat.S_ISDIR(mode):
            self.close()
            self._directory = node
            self._way.append(name)
        else:
            os.close(node)
            raise error_of(errno.ENOTDIR)
        return None

    def _follow(self, link: int) -> None:
        try:
            target = os.readlink(b"", dir_fd=link)
        finally:
            os.close(link)
        self._links += 1
        if self._links > MAX_LINKS:
            raise error_of(errno.ELOOP)
        if target.startswith(b"/"):
            self._start(_names(target))
        else:
            self._left.extendleft(reversed(_names(target)))


def _leads_to(path: bytes, node: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(node))  # noqa: PTH116 - the path is bytes
    except OSError:
        return False


def _encode_path(path: str) -> bytes:
    if not path.startswith("/") or "\0" in path:
        raise OSError(errno.EINVAL, "not an absolute path" if path[:1] != "/" else "a NUL in the path", path)
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError:
        raise OSError(errno.EINVAL, "characters that no file name has", path) from None
    if len(encoded) > MAX_PATH:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path)
    return encoded


def _names(path: bytes) -> list[bytes]:
    """Return the names in a path, with a last `.` if the path must be a directory."""
    names = [name for name in path.split(b"/") if name not in (b"", b".")]
    return [*names, b"."] if path.endswith((b"/", b"/.")) else names


def _root(path: bytes) -> tuple[bytes, ...]:
    return tuple(name for name in _names(path) if name != b".")
