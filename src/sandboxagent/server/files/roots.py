"""Say in which trees files may be used and what a path means there, and name errors of files.

A name of a file is bytes. Those that are not UTF-8 are shown as characters of the private use area, U+EF80 to U+EFFF
for the bytes 80 to FF, one each; a name that really has such characters is shown with their bytes. So each name has one
spelling, and a client that sends it back gets that file. Errors of the file system become problems for clients: the
path, and the meaning of its errno.
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
    """A name or path of the host, as Python has it, in the spelling that clients see."""
    return name if name.isascii() else name.translate(_SHOWN)


def decode_name(text: str) -> str:
    """A name or path in a client's spelling, as Python has it. A text that cannot be a name stays as it is."""
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
    """Every OSError of the block as a FileProblem about this path."""
    try:
        yield
    except OSError as error:
        raise file_problem(error, path) from error


def file_problem(error: OSError, path: str) -> FileProblem:
    """The problem that clients get for an error."""
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
    """`directories` are the trees; none means the whole host. `working` is where the server was started.

    The trees are pinned from now on: what takes the place of one is not entered. Raises OSError when one is not there.
    """

    def __init__(self, directories: Sequence[str], working: str) -> None:
        self.directories = tuple(directories) or ("/",)
        self.base = directories[0] if directories else working
        """What a relative path is relative to, unless the request names a session."""
        self.confined = Confined(self.directories, pinned=True)
        self._real = [os.path.realpath(each) for each in self.directories]
        self.turn = Lock()
        """Locked while a file takes its place: of two that expect the same old one, one comes second."""
        self.closed = False

    def close(self) -> None:
        """The server ends: threads are waited for, so that nothing long may go on."""
        self.closed = True

    def stopped(self) -> bool:
        return self.closed

    def absolute(self, path: str, directory: str | None = None) -> str:
        """The path of what a client calls `path`, from `directory` on; `..` and links in it are left for the walk."""
        path = decode_name(path)
        path = path if path.startswith("/") else f"{directory or self.base}/{path}"
        names = [name for name in path.split("/") if name not in ("", ".")]
        ending = "/" if names and path.endswith("/") else ""
        return "/" + "/".join(names) + ending

    def within(self, directories: Iterable[str]) -> Confined:
        """Only what is in the trees and in these directories."""
        given = tuple(directories)
        if self.directories == ("/",):
            return Confined(given)
        both = [deeper for each in given for root in self._real if (deeper := _deeper(os.path.realpath(each), root))]
        return Confined([*(each for each in given if os.path.realpath(each) in both), *both], self.confined)

    def protects(self, node: int) -> bool:
        """Whether this is a root, the base, or has one of them inside: clients may neither move nor delete it."""
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
    """Of two directories the one inside the other, or None."""
    longer, shorter = (one, other) if len(one) >= len(other) else (other, one)
    return longer if longer == shorter or longer.startswith(shorter.rstrip("/") + "/") else None


def find_working_directory() -> str:
    """Where the server was started; the root of the host when that was deleted meanwhile."""
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return "/"
