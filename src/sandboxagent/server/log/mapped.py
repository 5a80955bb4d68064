"""Map files into memory that others may delete, replace or shorten meanwhile.

A program that writes to a mapped page of a file that was shortened gets a signal, and ends. A system call that writes
there only fails. So the kernel copies all data into such a file, from a file that is only in memory. No disk can delay
the copy, as long as the pages are ready. This module knows nothing of the data.
"""

import ctypes
import errno
import mmap
import os
import struct
from pathlib import Path

# Python's own `preadv` would release the interpreter, and `madvise` would not.
_preadv = ctypes.PyDLL(None).preadv
_preadv.restype = ctypes.c_ssize_t
_madvise = ctypes.CDLL(None, use_errno=True).madvise
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

_POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE, which Python does not name."""
_TWO_PLACES = struct.Struct("@PNPN")
"""Address and length of two memory areas, as system calls take them."""


class MappedFile:
    """An open file of a fixed size, mapped into memory."""

    def __init__(self, path: Path, size: int) -> None:
        """Open the file, and keep its content.

        Raises OSError if it cannot be mapped, or the disk has no room for it.
        """
        self._path = path
        self._size = size
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            # Allocate the file now, so that a full disk is an error here.
            os.posix_fallocate(self.descriptor, 0, size)
            self._map = mmap.mmap(self.descriptor, size)
        except BaseException:
            os.close(self.descriptor)
            raise
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def check(self) -> None:
        """Raise OSError if the file was replaced or shortened: a start would not find new data."""
        now = os.lstat(self._path)
        ours = os.fstat(self.descriptor)
        if (now.st_dev, now.st_ino) != (ours.st_dev, ours.st_ino):
            raise OSError(errno.ESTALE, f"{self._path.name} was replaced while the server runs")
        if ours.st_size < self._size:
            raise OSError(errno.ESTALE, f"{self._path.name} was made shorter while the server runs")

    def populate(self, at: int, length: int) -> None:
        """Have the kernel make a part of the file writable. This may wait long for the disk. Raises OSError."""
        if _madvise(self.address + at, length, _POPULATE_WRITE):
            code = ctypes.get_errno()
            # Linux before 5.14 does not know the advice: there, a write waits for its page.
            if code != errno.EINVAL:
                raise OSError(code, os.strerror(code))

    def close(self) -> None:
        self._map.close()
        os.close(self.descriptor)


class Stage:
    """A file in memory, from which the kernel copies to mapped files."""

    def __init__(self, size: int) -> None:
        """Create the file. Raises OSError."""
        self._file = os.memfd_create("stage", os.MFD_CLOEXEC)
        try:
            os.truncate(self._file, size)
            self._map = mmap.mmap(self._file, size)
        except BaseException:
            os.close(self._file)
            raise
        self._places = bytearray(_TWO_PLACES.size)
        at = ctypes.addressof(ctypes.c_char.from_buffer(self._places))
        # The arguments as the call takes them: converting them from numbers takes half as long as the call.
        self._source = ctypes.c_int(self._file), ctypes.c_void_p(at), ctypes.c_int(2), ctypes.c_long(0)

    def copy(self, first: bytes, to: int, second: bytes, then_to: int) -> None:
        """Copy each part to an address. Raises OSError when a mapped file was shortened."""
        both, length = first + second, len(first)
        whole = len(both)
        self._map[:whole] = both
        _TWO_PLACES.pack_into(self._places, 0, to, length, then_to, whole - length)
        if _preadv(*self._source) != whole:
            raise OSError(errno.EFAULT, "a file that is mapped was made shorter, or its disk is full")

    def close(self) -> None:
        self._map.close()
        os.close(self._file)
