"""Map files into memory that others may delete, replace or shorten meanwhile.

A page of a file that was made shorter is no memory any more: a program that writes there gets a signal, and ends. A
system call that writes there fails. So what goes into such a file is copied by the kernel, from a file that is nothing
but memory: no disk can hold that up, as far as the pages are ready. Knows nothing of what is written.
"""

import ctypes
import errno
import mmap
import os
import struct
from pathlib import Path

# Python's own `preadv` would give the interpreter away, and `madvise` would keep it.
_preadv = ctypes.PyDLL(None).preadv
_preadv.restype = ctypes.c_ssize_t
_madvise = ctypes.CDLL(None, use_errno=True).madvise
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

_POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE, which Python does not name."""
_TWO_PLACES = struct.Struct("@PNPN")
"""Address and length of two pieces of memory, as system calls have them."""


class MappedFile:
    """An open file of a fixed size, and where in memory it is."""

    def __init__(self, path: Path, size: int) -> None:
        """What the file has stays there. Raises OSError where it cannot be mapped, or the disk has no room for it."""
        self._path = path
        self._size = size
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            # Now, so that a full disk is an error here.
            os.posix_fallocate(self.descriptor, 0, size)
            self._map = mmap.mmap(self.descriptor, size)
        except BaseException:
            os.close(self.descriptor)
            raise
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def check(self) -> None:
        """Raises OSError when the file is not what was opened: a start would not find what is written there."""
        now = os.lstat(self._path)
        ours = os.fstat(self.descriptor)
        if (now.st_dev, now.st_ino) != (ours.st_dev, ours.st_ino):
            raise OSError(errno.ESTALE, f"{self._path.name} was replaced while the server runs")
        if ours.st_size < self._size:
            raise OSError(errno.ESTALE, f"{self._path.name} was made shorter while the server runs")

    def populate(self, at: int, length: int) -> None:
        """Have the kernel make a part of it writable, which may take as long as the disk likes. Raises OSError."""
        if _madvise(self.address + at, length, _POPULATE_WRITE):
            code = ctypes.get_errno()
            # Linux before 5.14 does not know it: then what is written waits for its page.
            if code != errno.EINVAL:
                raise OSError(code, os.strerror(code))

    def close(self) -> None:
        self._map.close()
        os.close(self.descriptor)


class Stage:
    """A file in memory, from which the kernel copies to mapped files."""

    def __init__(self, size: int) -> None:
        """Raises OSError."""
        self._file = os.memfd_create("stage", os.MFD_CLOEXEC)
        try:
            os.truncate(self._file, size)
            self._map = mmap.mmap(self._file, size)
        except BaseException:
            os.close(self._file)
            raise
        self._places = bytearray(_TWO_PLACES.size)
        at = ctypes.addressof(ctypes.c_char.from_buffer(self._places))
        # As the call takes them: making these from numbers takes half as long as the call.
        self._source = ctypes.c_int(self._file), ctypes.c_void_p(at), ctypes.c_int(2), ctypes.c_long(0)

    def copy(self, first: bytes, to: int, second: bytes, then_to: int) -> None:
        """Copy to one address, and then to another. Raises OSError when the file there has no such page any more."""
        both, length = first + second, len(first)
        whole = len(both)
        self._map[:whole] = both
        _TWO_PLACES.pack_into(self._places, 0, to, length, then_to, whole - length)
        if _preadv(*self._source) != whole:
            raise OSError(errno.EFAULT, "a file that is mapped was made shorter, or its disk is full")

    def close(self) -> None:
        self._map.close()
        os.close(self._file)
