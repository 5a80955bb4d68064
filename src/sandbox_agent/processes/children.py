"""Every process this server started and everything those forked: whose it is, how it ends, who waits for it.

A process belongs to a child of ours when it descends from it, is in its session or group, has its name in the
environment it was started with, or has its mark, which nothing short of intent removes. What escaped all of that comes
back to us, because we are a subreaper, but does not say whose it was: such an orphan is killed as soon as no child is
alive that could have started it.

Knows nothing of pipes, event loops or agents, and nothing of how a tree is killed. Synchronous, and Linux only.
"""

import ctypes
import hashlib
import itertools
import logging
import os
import secrets
import signal
import uuid
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import ClassVar

from sandbox_agent.processes.table import (
    Process,
    Table,
    destroy,
    environment,
    get_mark,
    read,
    send,
    set_mark,
    ticks,
    walk,
    with_descendants,
)

OWNER = "SANDBOX_AGENT_OWNER"
PROCESS = "SANDBOX_AGENT_PROCESS"

# A mark: one bit that makes it large, 39 for the owner, the rest for the child.
MARK, NUMBER_BITS = 1 << 61, 22

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
SYS_CLOSE_RANGE, CLOSE_RANGE_CLOEXEC = 436, 4

logger = logging.getLogger(__name__)

# Bound here and not in the child: between fork and exec as little as possible should run. PyDLL keeps the GIL.
_libc = ctypes.PyDLL(None, use_errno=True)
prctl = _libc.prctl
prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong]
_syscall = _libc.syscall
_syscall.argtypes = [ctypes.c_long, ctypes.c_uint, ctypes.c_uint, ctypes.c_uint]


@dataclass(frozen=True, slots=True)
class Name:
    """What a child and all that comes from it carry: a variable, and a mark for those that threw it away."""

    variable: bytes
    mark: int

    def is_on(self, pid: int) -> bool:
        return get_mark(pid) == self.mark or self.variable in environment(pid)


@dataclass(frozen=True, slots=True)
class Child:
    """A process we started ourselves, until the event loop has its exit status."""

    pid: int
    start: int
    name: Name


class Children:
    """The processes of one server.

    Whatever this process starts in a session of its own must be announced (`spawning`, `register`, `ended`), or it is
    taken for an orphan. What it starts in its own session is left alone.
    """

    # The kernel has one list of children for a process, however many servers run in it.
    _registered: ClassVar[dict[int, Child]] = {}
    _spawning: ClassVar[int] = 0

    def __init__(self, owner: str) -> None:
        self._owner = owner
        digest = hashlib.blake2b(os.fsencode(owner), digest_size=8).digest()
        self._owner_mark = MARK | int.from_bytes(digest) >> 25 << NUMBER_BITS
        self._instance = uuid.uuid4().hex
        self._numbers = itertools.count(secrets.randbits(NUMBER_BITS))
        self._names: dict[str, Name] = {}
        self._marks_hold = False
        self._pid = os.getpid()
        self._orphans_left = False
        # An entry point may have started daemons before it became this server.
        self._strangers = {process for process in walk().values() if process.parent == self._pid}
        if prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            logger.warning("daemons cannot be adopted errno=%d", ctypes.get_errno())

    def environment(self, key: str) -> dict[str, str]:
        """What a child's environment must have, above all else in it, so that we know it and its descendants."""
        return {OWNER: self._owner, PROCESS: f"{self._owner}:{self._instance}:{key}"}

    def preexec(self, key: str) -> Callable[[], None]:
        """What the child has to run before exec: mark it, let it die with the server, and keep our descriptors.

        uvloop leaves the child second copies of its pipes; nobody would notice when it closes the first ones.
        """
        mark, server = self._name(key).mark, self._pid

        def prepare() -> None:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != server:  # It died before we asked.
                os.kill(os.getpid(), signal.SIGKILL)
            set_mark(mark)
            if _syscall(SYS_CLOSE_RANGE, 3, 2**32 - 1, CLOSE_RANGE_CLOEXEC) != 0:  # A kernel before 5.11.
                for descriptor in range(3, 1024):
                    with suppress(OSError):
                        os.set_inheritable(descriptor, False)

        return prepare

    @contextmanager
    def spawning(self, key: str) -> Generator[None]:
        """Around starting a child and registering it: a child we do not know yet is not an orphan.

        Raises:
            ValueError: a child with this key is alive.
        """
        if self._find(key) is not None:
            raise ValueError(f"a child is registered under the key {key!r}; end it first or take another key")
        Children._spawning += 1
        try:
            yield
        finally:
            Children._spawning -= 1
            if self._find(key) is None:
                # It could not be started, or has ended already.
                self._names.pop(key, None)
            if self._orphans_left:
                self.reap()

    def register(self, key: str, pid: int) -> None:
        """Remember a child, at once after it was started: only the event loop may wait for it."""
        process, name = read(pid), self._name(key)
        # Gone already: it cannot have started later than now.
        start = ticks() if process is None else process.start
        self._registered[pid] = Child(pid, start, name)
        self._marks_hold = self._marks_hold or get_mark(pid) == name.mark

    def ended(self, key: str) -> None:
        """The child has been waited for: kill what it left, and the orphans that nobody alive can have started."""
        child = self._find(key)
        if child is None:
            return
        del self._registered[child.pid], self._names[key]
        destroy(lambda table: self._tree(child.name, child, table) | self._orphans(table), child.pid)
        self.reap()

    def descendants(self, key: str) -> set[Process]:
        """The child itself and all that is known to come from it, zombies included."""
        return self._tree(self._name(key), self._find(key), walk())

    def terminate(self, key: str) -> None:
        """Ask the whole tree to end (SIGTERM)."""
        table, child = walk(), self._find(key)
        tree = {process for process in self._tree(self._name(key), child, table) if process.alive}
        send(signal.SIGTERM, tree, table, child and child.pid)

    def kill(self, key: str) -> int:
        """Kill the whole tree, whatever it forks meanwhile. Returns how many were alive: call again until it is 0."""
        name, child = self._name(key), self._find(key)
        return destroy(lambda table: self._tree(name, child, table), child and child.pid)

    def sweep(self) -> int:
        """Kill what a killed server left behind; returns how many. To be called before the first child is started.

        It takes everything that is marked as our owner's, so the caller must hold the lock on the data directory: there
        is one server at a time for an owner.
        """
        variable = b"\0%s=%s\0" % (OWNER.encode(), os.fsencode(self._owner))
        return destroy(
            lambda table: with_descendants(
                {p for p in table.values() if self._marked(get_mark(p.pid)) or variable in environment(p.pid)}, table
            )
        )

    def reap(self) -> int:
        """Wait for orphans that have ended, without ever taking a status that somebody else waits for.

        To be called every now and then: one system call when there is nothing to do.
        """
        if self._spawning:
            self._orphans_left = True
            return 0
        if self._orphans_left:
            self._orphans_left = False
            destroy(self._orphans)
        try:
            if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return 0
        except ChildProcessError:
            return 0
        zombies = [process.pid for process in self._adopted(walk()) if not process.alive]
        for pid in zombies:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        return len(zombies)

    def _name(self, key: str) -> Name:
        if key not in self._names:
            variable = b"\0%s=%s\0" % (PROCESS.encode(), os.fsencode(self.environment(key)[PROCESS]))
            number = next(self._numbers) % (1 << NUMBER_BITS)
            self._names[key] = Name(variable, self._owner_mark | number)
        return self._names[key]

    def _marked(self, mark: int) -> bool:
        """Whether a mark is one of our owner's."""
        return mark >> NUMBER_BITS == self._owner_mark >> NUMBER_BITS

    def _find(self, key: str) -> Child | None:
        name = self._names.get(key)
        return next((child for child in self._registered.values() if child.name == name), None)

    def _tree(self, name: Name, child: Child | None, table: Table) -> set[Process]:
        oldest = child.start if child else 0
        leader = child.pid if child else 0
        if child and leader in table and table[leader].start != child.start:
            leader = 0  # Somebody else's pid by now, so nothing is left of that group and session.
        roots = {
            process
            for process in table.values()
            if process.start >= oldest
            and ((leader and leader in (process.pid, process.session, process.group)) or name.is_on(process.pid))
        }
        return with_descendants(roots, table)

    def _started(self, table: Table) -> dict[Process, Child]:
        """Those of our children that we started and that are still there, if only as zombies."""
        return {
            process: child
            for child in self._registered.values()
            if (process := table.get(child.pid)) is not None and process.start == child.start
        }

    def _adopted(self, table: Table) -> set[Process]:
        """Our children that we did not start: all run in sessions of their own, so nothing of theirs is in ours."""
        session = os.getsid(0)
        ours = {process for process in table.values() if process.parent == self._pid and process.session != session}
        return ours - self._strangers - self._started(table).keys()

    def _orphans(self, table: Table) -> set[Process]:
        """Adopted ones that no child alive can have started, and what they started."""
        if self._spawning:
            self._orphans_left = True
            return set()
        living = {process: child for process, child in self._started(table).items() if process.alive}
        marks = {child.name.mark for child in living.values()}
        # A child of the same clock tick may have been first.
        oldest = min((process.start for process in living), default=ticks() + 1)
        # Pid 1 is given the orphans of strangers too; where marks hold, theirs have none.
        guess = self._pid != 1 or not self._marks_hold
        orphans: set[Process] = set()
        for process in self._adopted(table):
            mark = get_mark(process.pid)
            if mark not in marks if self._marked(mark) else guess and process.start < oldest:
                orphans.add(process)
        return with_descendants(orphans, table)
