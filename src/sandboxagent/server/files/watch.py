"""Watch directories by inotify, and hold the changes of paths in a bounded buffer.

A watch follows no link. A reader that is too slow gets a notice. Only inotify refers to a directory, because an open
descriptor would keep a deleted directory alive. All readers share one instance of inotify. A directory has one watch
there, however many readers watch it, and each of them gets its events.
"""

import asyncio
import ctypes
import errno
import os
import re
import stat
import struct
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Literal

from msgspec import Struct

from sandboxagent.core.tasks import Tasks
from sandboxagent.core.threads import Pool
from sandboxagent.protocol.errors import SandboxAgentError, TooMany, WatchesExhausted
from sandboxagent.protocol.files import Change, ChangeKind
from sandboxagent.server.files.confined import Confined
from sandboxagent.server.files.descriptors import enter_directory, ignore_gone, is_kernel_directory
from sandboxagent.server.files.roots import encode_name, file_problem

IN_MODIFY, IN_ATTRIB, IN_CLOSE_WRITE = 0x2, 0x4, 0x8
IN_MOVED_FROM, IN_MOVED_TO = 0x40, 0x80
IN_CREATE, IN_DELETE, IN_DELETE_SELF, IN_MOVE_SELF = 0x100, 0x200, 0x400, 0x800
IN_UNMOUNT, IN_Q_OVERFLOW, IN_IGNORED = 0x2000, 0x4000, 0x8000
IN_ONLYDIR, IN_ISDIR = 0x01000000, 0x40000000

_CONTENT = IN_MODIFY | IN_ATTRIB | IN_CLOSE_WRITE | IN_MOVED_FROM | IN_MOVED_TO | IN_CREATE | IN_DELETE
_MASK = _CONTENT | IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR
_HEADER = struct.Struct("iIII")
_BUFFER_BYTES = 1 << 18

_libc = ctypes.CDLL(None, use_errno=True)
_libc.inotify_add_watch.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32]
_libc.inotify_rm_watch.argtypes = [ctypes.c_int, ctypes.c_int]

Parts = tuple[str, ...]
MAX_DEPTH = 256
"""Maximum number of levels below the directory that are watched. Each path there is walked name by name, and kept."""
_ADDED, _DELETED = IN_CREATE | IN_MOVED_TO, IN_DELETE | IN_MOVED_FROM
_MODIFIED = IN_MODIFY | IN_ATTRIB | IN_CLOSE_WRITE
_OVER = IN_DELETE_SELF | IN_MOVE_SELF | IN_UNMOUNT | IN_IGNORED
_OVERHEAD = 64
MAX_WAITING_BYTES = 2 << 20
"""Maximum number of bytes of events that may wait for one tree, approximately."""
_NAMELESS = r"#\d+"
"""The kernel's name for a file without a name (`O_TMPFILE`), made of its inode. PUT writes such files."""


class InotifyEvent(Struct, frozen=True):
    """An event of a watched directory, or of `name` in it."""

    watch: int
    mask: int
    name: str


class Inotify:
    """One instance of inotify.

    Raises OSError: EMFILE if there are too many instances, ENOSPC if there are too many watches.
    """

    def __init__(self) -> None:
        self.descriptor: int = _check_result(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))

    def close(self) -> None:
        os.close(self.descriptor)

    def add(self, directory: int) -> int:
        """Watch an open directory. Returns the same number if it is watched already."""
        return _check_result(_libc.inotify_add_watch(self.descriptor, b"/proc/self/fd/%d" % directory, _MASK))

    def remove(self, watch: int) -> None:
        _libc.inotify_rm_watch(self.descriptor, watch)

    def read(self) -> Iterator[InotifyEvent]:
        """Yield the events that have happened, without waiting."""
        try:
            data = os.read(self.descriptor, _BUFFER_BYTES)
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
    """The watched directory was deleted or moved."""


class EventsDropped(Exception):
    """The kernel dropped events."""


class Directories:
    """All watched directories, each once, at most `most`. Several threads use it.

    Raises OSError if there can be no more: EDQUOT for `most`, else as `Inotify` does.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.lock = threading.Lock()
        self._inotify = Inotify()
        self.descriptor = self._inotify.descriptor
        """A descriptor that is readable when there are events."""
        self._trees: dict[int, tuple[Watched, ...]] = {}
        """For each watch, the trees that contain its directory."""

    def __len__(self) -> int:
        return len(self._trees)

    def close(self) -> None:
        with self.lock:
            self._trees.clear()
            self._inotify.close()

    def add(self, directory: int, tree: "Watched") -> int:
        """Watch an open directory for a tree. Returns the same number for all trees that contain the directory."""
        with self.lock:
            watch = self._inotify.add(directory)
            trees = self._trees.get(watch, ())
            if not trees and len(self._trees) >= self.most:
                self._inotify.remove(watch)
                raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
            if tree not in trees:
                self._trees[watch] = (*trees, tree)
            return watch

    def remove(self, watches: Iterable[int], tree: "Watched") -> None:
        """Remove watches from a tree. A directory that is in no other tree is not watched any more."""
        with self.lock:
            for watch in watches:
                trees = self._trees.get(watch, ())
                left = tuple(each for each in trees if each is not tree)
                if left:
                    self._trees[watch] = left
                elif trees:
                    del self._trees[watch]
                    self._inotify.remove(watch)

    def read(self) -> None:
        """Pass the events that have happened to the trees, without waiting."""
        with self.lock:
            told: set[Watched] = set()
            for event in self._inotify.read():
                if event.mask & IN_Q_OVERFLOW:
                    trees = {tree for trees in self._trees.values() for tree in trees}
                    for tree in trees:
                        tree.drop_events()
                elif event.mask & IN_IGNORED:
                    trees = self._trees.pop(event.watch, ())
                else:
                    trees = self._trees.get(event.watch, ())
                for tree in trees:
                    tree.tell(event)
                told.update(trees)
            for tree in told:
                tree.wake()


class Watched:
    """A watched tree. Raises OSError like `Directories` if it cannot be watched. The caller closes it."""

    def __init__(self, directories: Directories, confined: Confined, path: str, *, recursive: bool) -> None:
        self.wake: Callable[[], None] = lambda: None
        """Called in any thread when there are events."""
        self._directories = directories
        self._confined = confined
        self._path = path
        self._recursive = recursive
        self._parts: dict[int, Parts] = {}
        self._events: list[InotifyEvent] = []
        """Events that were not examined yet."""
        self._size = 0
        self._dropped = False
        # Earlier events belong to other trees.
        directories.read()
        try:
            for _ in self._watch(()):
                pass
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._directories.remove(self._parts, self)

    def tell(self, event: InotifyEvent) -> None:
        """Take an event of one of the tree's directories."""
        self._size += _OVERHEAD + len(event.name)
        if self._size > MAX_WAITING_BYTES:
            self.drop_events()
        else:
            self._events.append(event)

    def drop_events(self) -> None:
        """Drop all events, and note that some are missing."""
        self._events, self._size, self._dropped = [], 0, True

    def changes(self) -> Iterator[tuple[ChangeKind, Parts]]:
        """Yield the changes since the last call, by names below the directory.

        Raises Gone; OSError if there are more directories than can be watched; or EventsDropped. In that case the whole
        tree is watched again, and the changes in between are unknown.
        """
        events, dropped = self._take_events()
        if dropped:
            with ignore_gone():
                for _ in self._watch(()):
                    pass
            raise EventsDropped
        for event in events:
            folder = self._parts.get(event.watch)
            if folder is None:
                continue
            if event.mask & _OVER:
                self._ended(event, folder)
            else:
                yield from self._change(event, (*folder, event.name))

    def _take_events(self) -> tuple[list[InotifyEvent], bool]:
        with self._directories.lock:
            taken = self._events, self._dropped
            self._events, self._size, self._dropped = [], 0, False
            return taken

    def _ended(self, event: InotifyEvent, folder: Parts) -> None:
        if not folder:
            raise Gone
        # For a directory below, its parent reports the end.
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
            if is_folder and self._recursive and len(parts) <= MAX_DEPTH:
                # Entries may have been made there before it was watched.
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
        gone = [watch for watch, folder in self._parts.items() if folder[: len(parts)] == parts]
        for watch in gone:
            del self._parts[watch]
        self._directories.remove(gone, self)

    def _watch(self, parts: Parts) -> Iterator[Parts]:
        """Watch a directory and, if wanted, all readable directories below it. Yields the entries in them."""
        root = self._confined.open_directory(self._path)
        try:
            left = [parts]
            while left:
                folder = left.pop()
                with _ignore_unreadable(below=folder != parts), enter_directory(root, folder) as here:
                    if folder and is_kernel_directory(here):
                        continue
                    self._parts[self._directories.add(here, self)] = folder
                    if self._recursive:
                        for name, is_folder in _read_content(here):
                            yield (*folder, name)
                            if is_folder and len(folder) < MAX_DEPTH:
                                left.append((*folder, name))
        finally:
            os.close(root)


@contextmanager
def _ignore_unreadable(*, below: bool) -> Generator[None]:
    """Skip a directory below that was deleted or may not be read."""
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


GATHER_INTERVAL = 0.05
"""Seconds in which changes are collected, because one saved file causes several events."""

_SETTINGS = {
    errno.EMFILE: "fs.inotify.max_user_instances",
    errno.ENOSPC: "fs.inotify.max_user_watches",
    errno.EDQUOT: "--watched-directories",
}


Ending = Literal["gone", "exhausted", "stopping"]
"""The reason why a watch ends: the directory is gone, has more directories than can be watched, or the server stops."""


class Watch:
    """One watch, from its creation on. Call `take` for the changes until `ended` is set, then close the watch."""

    def __init__(self, watched: Watched, path: str, buffer: int, pool: Pool) -> None:
        self.ended: Ending | None = None
        """The reason why no more changes come."""
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
        watched.wake = self._wake
        # Events may have happened since the tree is watched.
        self._readable.set()
        self._task = asyncio.create_task(self._follow())

    async def take(self, seconds: float) -> tuple[list[Change], bool]:
        """Return the changes since the last call, and whether more happened than the buffer holds.

        Waits at most `seconds` for a change.
        """
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
        """Release the reader."""
        self.ended = self.ended or why
        self._some.set()

    async def close(self) -> None:
        self._task.cancel()
        # A thread may be using its directories.
        await asyncio.wait({self._task})
        await asyncio.wait({self._pool.start(self._watched.close)})

    def _wake(self) -> None:
        self._loop.call_soon_threadsafe(self._readable.set)

    async def _follow(self) -> None:
        while self.ended is None:
            await self._readable.wait()
            await asyncio.sleep(GATHER_INTERVAL)
            self._readable.clear()
            work = self._pool.start(self._read)
            try:
                await asyncio.shield(work)
            finally:
                await asyncio.wait({work})

    def _read(self) -> None:
        """Read the changes, in a thread."""
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
            # A part of the changes would look like all of them.
            self._pending.clear()
            self._size, self._missed = 0, True
        self._some.set()


class _Reading:
    """Reads the events of all directories while at least one is watched."""

    def __init__(self, most: int, pool: Pool) -> None:
        self.directories = Directories(most)
        self.users = 0
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._readable = asyncio.Event()
        self._tasks = Tasks()
        self._tasks.run(self._follow(), "watched directories")

    async def _follow(self) -> None:
        descriptor = self.directories.descriptor
        while True:
            self._loop.add_reader(descriptor, self._readable.set)
            try:
                await self._readable.wait()
            finally:
                self._loop.remove_reader(descriptor)
            await asyncio.sleep(GATHER_INTERVAL / 5)
            self._readable.clear()
            work = self._pool.start(self.directories.read)
            try:
                await asyncio.shield(work)
            finally:
                await asyncio.wait({work})

    async def close(self) -> None:
        # A thread may be reading, so the descriptor is closed afterwards.
        await self._tasks.close()
        self.directories.close()


class Watches:
    """All watches of a server, at most `most`.

    Each has a buffer of `buffer` bytes. Together they watch at most `directories` directories.
    """

    def __init__(self, most: int, buffer: int, directories: int, pool: Pool) -> None:
        self._pool = pool
        self._most = most
        self._buffer = buffer
        self._most_directories = directories
        self._places = 0
        self._watches: set[Watch] = set()
        self._reading: _Reading | None = None

    @property
    def directories(self) -> int:
        """The number of watched directories, each counted once."""
        return 0 if self._reading is None else len(self._reading.directories)

    @asynccontextmanager
    async def open(self, confined: Confined, path: str, *, recursive: bool) -> AsyncGenerator[Watch]:
        """Watch a directory while the block runs. Raises TooMany, WatchesExhausted or a FileProblem."""
        if self._places >= self._most:
            raise TooMany("watches", self._most, "--watches")
        self._places += 1
        try:
            async with self._read(path) as directories:
                watched = await self._watched(directories, confined, path, recursive)
                watch = Watch(watched, path, self._buffer, self._pool)
                self._watches.add(watch)
                try:
                    yield watch
                finally:
                    self._watches.discard(watch)
                    await watch.close()
        finally:
            self._places -= 1

    def close(self) -> None:
        """End all watches."""
        for watch in self._watches:
            watch.end("stopping")

    @asynccontextmanager
    async def _read(self, path: str) -> AsyncGenerator[Directories]:
        """Provide the shared directories, which end with their last user."""
        if self._reading is None:
            try:
                self._reading = _Reading(self._most_directories, self._pool)
            except OSError as error:
                raise self._problem(error, path) from error
        reading = self._reading
        reading.users += 1
        try:
            yield reading.directories
        finally:
            reading.users -= 1
            if not reading.users:
                self._reading = None
                await reading.close()

    async def _watched(self, directories: Directories, confined: Confined, path: str, recursive: bool) -> Watched:
        work = self._pool.start(Watched, directories, confined, path, recursive=recursive)
        try:
            return await asyncio.shield(work)
        except OSError as error:
            raise self._problem(error, path) from error
        except asyncio.CancelledError:
            # The reader has left, so its tree is released.
            await asyncio.wait({work})
            if not work.cancelled() and work.exception() is None:
                await asyncio.wait({self._pool.start(work.result().close)})
            raise

    def _problem(self, error: OSError, path: str) -> SandboxAgentError:
        setting = _SETTINGS.get(error.errno or 0)
        if setting is None:
            return file_problem(error, path)
        most = self._most_directories if error.errno == errno.EDQUOT else None
        return WatchesExhausted(encode_name(path), setting, most)


def _combine_kinds(before: ChangeKind | None, now: ChangeKind) -> ChangeKind:
    """Combine two changes of a path into the one that a reader of neither needs."""
    if before == "added" and now == "modified":
        return "added"
    if before == "deleted" and now == "added":
        return "modified"
    return now
