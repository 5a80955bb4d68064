"""Define the trees in which files may be used, the meaning of paths there, and errors of files.

Names of files are bytes. Bytes that are not UTF-8 are shown as characters of the private use area: U+EF80 to U+EFFF for
the bytes 80 to FF, one each. If a name really contains such characters, their bytes are shown in the same way. So each
name has exactly one spelling, and a client that sends it back means the same file. Errors of the file system become
problems for clients, with the path and the meaning of the errno.
"""

import errno
import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

from sandboxagent.protocol.errors import (
    BadPath,
    FileConflict,
    FileForbidden,
    FileNotFound,
    FileProblem,
    FileTooLarge,
    NoRoom,
    OutsideRoots,
    RootReplaced,
)
from sandboxagent.server.files.confined import Confined, Outside, Replaced
from sandboxagent.server.files.descriptors import NotAFile

_BYTES = range(0x80, 0x100)
_PRIVATE, _ESCAPED = 0xEF00, 0xDC00
_SHOWN: dict[int, str] = {_ESCAPED + byte: chr(_PRIVATE + byte) for byte in _BYTES} | {
    _PRIVATE + byte: "".join(chr(_PRIVATE + each) for each in chr(_PRIVATE + byte).encode()) for byte in _BYTES
}
_MEANT = {_PRIVATE + byte: _ESCAPED + byte for byte in _BYTES}


def encode_name(name: str) -> str:
    """Convert a name or path of the host, as Python has it, to the spelling for clients."""
    return name if name.isascii() else name.translate(_SHOWN)


def decode_name(text: str) -> str:
    """Convert a client's spelling to a name or path as Python has it. A text that cannot be a name stays as it is."""
    if text.isascii():
        return text
    try:
        return os.fsdecode(os.fsencode(text.translate(_MEANT)))
    except UnicodeEncodeError:
        return text


_KINDS: dict[type[FileProblem], tuple[int, ...]] = {
    BadPath: (errno.EINVAL, errno.ENAMETOOLONG, errno.ELOOP),
    FileForbidden: (errno.EACCES, errno.EPERM, errno.EROFS),
    FileNotFound: (errno.ENOENT, errno.ENXIO, errno.ESRCH, errno.ESTALE),
    FileConflict: (
        *(errno.EEXIST, errno.ENOTEMPTY, errno.EISDIR, errno.ENOTDIR, errno.EBUSY, errno.ETXTBSY),
        *(errno.EXDEV, errno.EMLINK, errno.EOPNOTSUPP, errno.EAGAIN),
    ),
    FileTooLarge: (errno.EFBIG, errno.EOVERFLOW),
    NoRoom: (errno.ENOSPC, errno.EDQUOT),
}
_BY_ERRNO = {number: kind for kind, numbers in _KINDS.items() for number in numbers}


@contextmanager
def file_problems(path: str) -> Generator[None]:
    """Convert every OSError of the block to a FileProblem about this path."""
    try:
        yield
    except OSError as error:
        raise file_problem(error, path) from error


def file_problem(error: OSError, path: str) -> FileProblem:
    """Make the problem that clients get for an error."""
    name = encode_name(path)
    if isinstance(error, Outside):
        return OutsideRoots(name, "leads out of the directories given by --fs-root")
    if isinstance(error, Replaced):
        return RootReplaced(name, f"{error.strerror}; put it back where --fs-root says, or restart the server")
    code = errno.errorcode.get(error.errno or 0, "EIO")
    meaning = error.strerror or os.strerror(errno.EIO)
    if isinstance(error, NotAFile):
        return FileConflict(name, meaning)
    return _BY_ERRNO.get(error.errno or 0, FileProblem)(name, meaning, errno=code)


class Roots:
    """The trees in which files may be used: `directories`, or the whole host if there are none.

    `working` is the directory where the server was started. The trees are pinned from the start: a directory that takes
    the place of one is not entered. Raises OSError if a tree does not exist.
    """

    def __init__(self, directories: Sequence[str], working: str) -> None:
        self.directories = tuple(directories) or ("/",)
        self.base = directories[0] if directories else working
        """The directory for relative paths, unless the request names a session."""
        self.confined = Confined(self.directories, pinned=True)
        self._real = [os.path.realpath(each) for each in self.directories]
        self.turn = Lock()
        """Locked while a file is put in its place. Of two writers that expect the same old file, the later one sees the
        change."""
        self.closed = False

    def close(self) -> None:
        """Make `stopped` return true, because the server waits for its threads and nothing long may go on."""
        self.closed = True

    def stopped(self) -> bool:
        return self.closed

    def absolute(self, path: str, directory: str | None = None) -> str:
        """Return the absolute path for a client's path, relative to `directory`.

        The walk resolves `..` and links later.
        """
        path = decode_name(path)
        path = path if path.startswith("/") else f"{directory or self.base}/{path}"
        names = [name for name in path.split("/") if name not in ("", ".")]
        ending = "/" if names and path.endswith("/") else ""
        return "/" + "/".join(names) + ending

    def within(self, directories: Iterable[str]) -> Confined:
        """Confine access to those parts of the trees that are in these directories."""
        given = tuple(directories)
        if self.directories == ("/",):
            return Confined(given)
        both = [deeper for each in given for root in self._real if (deeper := _deeper(os.path.realpath(each), root))]
        return Confined([*(each for each in given if os.path.realpath(each) in both), *both], self.confined)

    def protects(self, node: int) -> bool:
        """Return whether clients may neither move nor delete a directory: a root, the base, or a parent of one."""
        facts = os.fstat(node)
        return any((facts.st_dev, facts.st_ino) == kept for kept in self._kept())

    def _kept(self) -> Iterator[tuple[int, int]]:
        for directory in (*self.directories, self.base):
            path = Path(directory).resolve()
            for each in (path, *path.parents):
                with suppress(OSError):
                    facts = each.stat()
                    yield facts.st_dev, facts.st_ino


def _deeper(one: str, other: str) -> str | None:
    """Return the one of two directories that is inside the other, or None."""
    longer, shorter = (one, other) if len(one) >= len(other) else (other, one)
    return longer if longer == shorter or longer.startswith(shorter.rstrip("/") + "/") else None


def find_working_directory() -> str:
    """Return the directory where the server was started; the root of the host if it was deleted."""
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return "/"
