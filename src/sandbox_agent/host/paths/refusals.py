"""Errors of the file system as problems for clients: the path, and the meaning of its errno."""

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager

from sandbox_agent.file_errors import (
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
from sandbox_agent.host.paths.confined import Outside, Replaced
from sandbox_agent.host.paths.names import encode_name
from sandbox_agent.host.paths.nodes import NotAFile

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
