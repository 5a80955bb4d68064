"""The kernel's inotify: directories by their descriptors, events as they come. Linux only."""

import ctypes
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

IN_MODIFY, IN_ATTRIB, IN_CLOSE_WRITE = 0x2, 0x4, 0x8
IN_MOVED_FROM, IN_MOVED_TO = 0x40, 0x80
IN_CREATE, IN_DELETE, IN_DELETE_SELF, IN_MOVE_SELF = 0x100, 0x200, 0x400, 0x800
IN_UNMOUNT, IN_Q_OVERFLOW, IN_IGNORED = 0x2000, 0x4000, 0x8000
IN_ONLYDIR, IN_ISDIR = 0x01000000, 0x40000000

_CONTENT = IN_MODIFY | IN_ATTRIB | IN_CLOSE_WRITE | IN_MOVED_FROM | IN_MOVED_TO | IN_CREATE | IN_DELETE
_MASK = _CONTENT | IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR
_HEADER = struct.Struct("iIII")
_BUFFER = 1 << 18

_libc = ctypes.CDLL(None, use_errno=True)
_libc.inotify_add_watch.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32]
_libc.inotify_rm_watch.argtypes = [ctypes.c_int, ctypes.c_int]


@dataclass(frozen=True, slots=True)
class Event:
    """Something happened to a watched directory, or to `name` in it."""

    watch: int
    mask: int
    name: str


class Inotify:
    """One instance. Raises OSError: EMFILE when there are too many, ENOSPC when there are too many watches."""

    def __init__(self) -> None:
        self.descriptor: int = _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))

    def close(self) -> None:
        os.close(self.descriptor)

    def add(self, directory: int) -> int:
        """Watch an open directory; the same number when it is watched already."""
        return _checked(_libc.inotify_add_watch(self.descriptor, b"/proc/self/fd/%d" % directory, _MASK))

    def remove(self, watch: int) -> None:
        _libc.inotify_rm_watch(self.descriptor, watch)

    def read(self) -> Iterator[Event]:
        """What has happened; does not wait."""
        try:
            data = os.read(self.descriptor, _BUFFER)
        except BlockingIOError:
            return
        at = 0
        while at < len(data):
            watch, mask, _, length = _HEADER.unpack_from(data, at)
            at += _HEADER.size
            yield Event(watch, mask, os.fsdecode(data[at : at + length].rstrip(b"\0")))
            at += length


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
