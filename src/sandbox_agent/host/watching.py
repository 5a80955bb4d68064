"""Directories that clients watch: inotify's events as changes of paths, which wait in a bounded buffer.

A watch follows no link. A reader that is too slow gets a notice. Only inotify's watches hold a directory: a descriptor
would keep it from being gone.
"""

import asyncio
import ctypes
import errno
import os
import re
import stat
import struct
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Literal

from msgspec import Struct

from sandbox_agent.errors import TooMany, WatchesExhausted
from sandbox_agent.host.paths.confined import Confined
from sandbox_agent.host.paths.nodes import enter_directory, ignore_gone, is_kernel_directory
from sandbox_agent.host.paths.roots import encode_name, file_problem
from sandbox_agent.pools import Pool
from sandbox_agent.wire.files import Change, ChangeKind

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

Parts = tuple[str, ...]
DEEPEST = 256
"""Levels below the directory that are watched: each way there is gone name by name, and is kept."""
_ADDED, _DELETED = IN_CREATE | IN_MOVED_TO, IN_DELETE | IN_MOVED_FROM
_MODIFIED = IN_MODIFY | IN_ATTRIB | IN_CLOSE_WRITE
_OVER = IN_DELETE_SELF | IN_MOVE_SELF | IN_UNMOUNT | IN_IGNORED
_NAMELESS = r"#\d+"
"""What the kernel calls a file that has no name (`O_TMPFILE`), by its inode; as PUT writes one."""


class InotifyEvent(Struct, frozen=True):
    """Something happened to a watched directory, or to `name` in it."""

    watch: int
    mask: int
    name: str


class Inotify:
    """One instance. Raises OSError: EMFILE when there are too many, ENOSPC when there are too many watches."""

    def __init__(self) -> None:
        self.descriptor: int = _check_result(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))

    def close(self) -> None:
        os.close(self.descriptor)

    def add(self, directory: int) -> int:
        """Watch an open directory; the same number when it is watched already."""
        return _check_result(_libc.inotify_add_watch(self.descriptor, b"/proc/self/fd/%d" % directory, _MASK))

    def remove(self, watch: int) -> None:
        _libc.inotify_rm_watch(self.descriptor, watch)

    def read(self) -> Iterator[InotifyEvent]:
        """What has happened; does not wait."""
        try:
            data = os.read(self.descriptor, _BUFFER)
        except BlockingIOError:
            return
        at = 0
        while at < len(data):
            watch, mask, _, length = _HEADER.unpack_from(data, at)
            at += _HEADER.size
            yield InotifyEvent(watch, mask, os.fsdecode(data[at : at + length].rstrip(b"\0")))
            at += length


def _check_result(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


class Gone(Exception):
    """The directory is no longer there."""


class EventsDropped(Exception):
    """The kernel dropped events."""


class Watched:
    """Raises OSError when the directory cannot be watched, as `Inotify` does. To be closed."""

    def __init__(self, confined: Confined, path: str, *, recursive: bool) -> None:
        self._confined = confined
        self._path = path
        self._recursive = recursive
        self._parts: dict[int, Parts] = {}
        self._inotify = Inotify()
        self.descriptor = self._inotify.descriptor
        """Readable when something has happened."""
        try:
            for _ in self._watch(()):
                pass
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._inotify.close()

    def changes(self) -> Iterator[tuple[ChangeKind, Parts]]:
        """What has happened since, by names below the directory.

        Raises Gone, or Missed: then everything there is is watched again, and what happened meanwhile is not known; or
        OSError, when there is more to be watched than can be.
        """
        for event in self._inotify.read():
            if event.mask & IN_Q_OVERFLOW:
                with ignore_gone():
                    for _ in self._watch(()):
                        pass
                raise EventsDropped
            folder = self._parts.get(event.watch)
            if folder is None:
                continue
            if event.mask & _OVER:
                self._ended(event, folder)
            else:
                yield from self._change(event, (*folder, event.name))

    def _ended(self, event: InotifyEvent, folder: Parts) -> None:
        if not folder:
            raise Gone
        # Of one below, the directory above it tells.
        if event.mask & IN_IGNORED:
            self._parts.pop(event.watch, None)

    def _change(self, event: InotifyEvent, parts: Parts) -> Iterator[tuple[ChangeKind, Parts]]:
        is_folder = bool(event.mask & IN_ISDIR)
        if event.mask & _DELETED:
            if is_folder:
                self._forget(parts)
            yield "deleted", parts
        elif event.mask & _ADDED:
            yield "added", parts
            if is_folder and self._recursive and len(parts) <= DEEPEST:
                # Something may have been put there before it was watched.
                with ignore_gone():
                    for below in self._watch(parts):
                        yield "added", below
        elif event.mask & _MODIFIED and not (re.fullmatch(_NAMELESS, event.name) and not self._is_there(parts)):
            yield "modified", parts

    def _is_there(self, parts: Parts) -> bool:
        with ignore_gone():
            root = self._confined.open_directory(self._path)
            try:
                with enter_directory(root, parts[:-1]) as here:
                    os.lstat(parts[-1], dir_fd=here)
                    return True
            finally:
                os.close(root)
        return False

    def _forget(self, parts: Parts) -> None:
        for watch, folder in list(self._parts.items()):
            if folder[: len(parts)] == parts:
                del self._parts[watch]
                self._inotify.remove(watch)

    def _watch(self, parts: Parts) -> Iterator[Parts]:
        """Watch a directory and, if wanted, all below it that can be read; gives what is in them."""
        root = self._confined.open_directory(self._path)
        try:
            left = [parts]
            while left:
                folder = left.pop()
                with _ignore_unreadable(below=folder != parts), enter_directory(root, folder) as here:
                    if folder and is_kernel_directory(here):
                        continue
                    self._parts[self._inotify.add(here)] = folder
                    if self._recursive:
                        for name, is_folder in _read_content(here):
                            yield (*folder, name)
                            if is_folder and len(folder) < DEEPEST:
                                left.append((*folder, name))
        finally:
            os.close(root)


@contextmanager
def _ignore_unreadable(*, below: bool) -> Generator[None]:
    """Pass over a directory further down that is gone, or may not be read."""
    if not below:
        yield
        return
    with ignore_gone(), suppress(PermissionError):
        yield


def _read_content(directory: int) -> Iterator[tuple[str, bool]]:
    with os.scandir(directory) as entries:
        for entry in entries:
            with ignore_gone():
                yield entry.name, stat.S_ISDIR(os.lstat(entry.name, dir_fd=directory).st_mode)


GATHER = 0.05
"""Seconds in which changes are gathered: one saved file makes several events."""

_OVERHEAD = 64
_SETTINGS = {errno.EMFILE: "fs.inotify.max_user_instances", errno.ENOSPC: "fs.inotify.max_user_watches"}


Ending = Literal["gone", "exhausted", "stopping"]
"""The directory is no longer there, or has more in it than the kernel watches; or the server stops."""


class Watch:
    """One watch, from the moment it is made. `take` what has changed, until it is over; then close it."""

    def __init__(self, watched: Watched, path: str, buffer: int, pool: Pool) -> None:
        self.ended: Ending | None = None
        """Why no more changes come."""
        self._pool = pool
        self._watched = watched
        self._path = path.rstrip("/")
        self._buffer = buffer
        self._pending: dict[Parts, ChangeKind] = {}
        self._size = 0
        self._missed = False
        self._loop = asyncio.get_running_loop()
        self._readable = asyncio.Event()
        self._some = asyncio.Event()
        self._loop.add_reader(watched.descriptor, self._readable.set)
        self._task = asyncio.create_task(self._follow())

    async def take(self, seconds: float) -> tuple[list[Change], bool]:
        """Changes since the last time, and whether there were more than the buffer holds; waits for some, so long."""
        if not self._pending and not self._missed and self.ended is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._some.wait()
        changes = [Change(kind, encode_name("/".join((self._path, *parts)))) for parts, kind in self._pending.items()]
        missed = self._missed
        self._pending.clear()
        self._size, self._missed = 0, False
        self._some.clear()
        return changes, missed

    def end(self, why: Ending) -> None:
        """Let its reader go."""
        self.ended = self.ended or why
        self._some.set()

    async def close(self) -> None:
        self._loop.remove_reader(self._watched.descriptor)
        self._task.cancel()
        # A thread may be reading: the descriptor is closed after that.
        await asyncio.wait({self._task})
        self._watched.close()

    async def _follow(self) -> None:
        while self.ended is None:
            await self._readable.wait()
            await asyncio.sleep(GATHER)
            self._readable.clear()
            work = self._pool.start(self._read)
            try:
                await asyncio.shield(work)
            finally:
                await asyncio.wait({work})

    def _read(self) -> None:
        """In a thread."""
        found: list[tuple[ChangeKind, Parts]] = []
        missed, ended = False, None
        try:
            for change in self._watched.changes():
                found.append(change)  # noqa: PERF402 - those before an error count
        except EventsDropped:
            missed = True
        except Gone:
            ended = "gone"
        except OSError:
            ended = "exhausted"
        self._loop.call_soon_threadsafe(self._add, found, missed, ended)

    def _add(self, found: list[tuple[ChangeKind, Parts]], missed: bool, ended: Ending | None) -> None:
        self.ended = self.ended or ended
        for kind, parts in found:
            before = self._pending.get(parts)
            if before is None:
                self._size += _OVERHEAD + len(self._path) + sum(map(len, parts))
            self._pending[parts] = _combine_kinds(before, kind)
        if missed or self._size > self._buffer:
            # Part of the truth would pass for all of it.
            self._pending.clear()
            self._size, self._missed = 0, True
        self._some.set()


class Watches:
    """All watches of a server, at most `most`, each with a buffer of so many bytes."""

    def __init__(self, most: int, buffer: int, pool: Pool) -> None:
        self._pool = pool
        self._most = most
        self._buffer = buffer
        self._places = 0
        self._watches: set[Watch] = set()

    @asynccontextmanager
    async def open(self, confined: Confined, path: str, *, recursive: bool) -> AsyncGenerator[Watch]:
        """A watch, for the time of the block. Raises TooMany, WatchesExhausted or a FileProblem."""
        if self._places >= self._most:
            raise TooMany("watches", self._most, "--watches")
        self._places += 1
        try:
            watch = Watch(await self._watched(confined, path, recursive), path, self._buffer, self._pool)
            self._watches.add(watch)
            try:
                yield watch
            finally:
                self._watches.discard(watch)
                await watch.close()
        finally:
            self._places -= 1

    def close(self) -> None:
        """End all of them."""
        for watch in self._watches:
            watch.end("stopping")

    async def _watched(self, confined: Confined, path: str, recursive: bool) -> Watched:
        try:
            return await self._pool.run(Watched, confined, path, recursive=recursive)
        except OSError as error:
            setting = _SETTINGS.get(error.errno or 0)
            raise (
                file_problem(error, path) if setting is None else WatchesExhausted(encode_name(path), setting)
            ) from error


def _combine_kinds(before: ChangeKind | None, now: ChangeKind) -> ChangeKind:
    """Two changes of a path as the one change that a reader of neither needs."""
    if before == "added" and now == "modified":
        return "added"
    if before == "deleted" and now == "added":
        return "modified"
    return now
