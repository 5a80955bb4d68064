"""Every process this server started and everything those forked: whose it is, how it ends, who waits for it.

A process belongs to a child of ours when it descends from it, is in its session or group, or has its marker in the
environment it was started with. What escaped all of that (a daemon that cleared its environment) comes back to us
because we are a subreaper, but does not say whose it was: such an orphan is killed as soon as no child is alive that
could have started it.

Knows nothing of pipes, event loops or agents. All of it is synchronous; a walk through /proc takes a few milliseconds.
Linux only.
"""

import ctypes
import logging
import os
import signal
import time
import uuid
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import ClassVar

OWNER = "SANDBOX_AGENT_OWNER"
PROCESS = "SANDBOX_AGENT_PROCESS"

# A tree that forks faster than we freeze it must not hold up the event loop; the caller comes back.
FREEZE_SECONDS, KILL_SECONDS, KILL_ROUNDS = 0.1, 0.2, 5

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
SYS_CLOSE_RANGE, CLOSE_RANGE_CLOEXEC = 436, 4

logger = logging.getLogger(__name__)

# Bound here and not in the child: between fork and exec as little as possible should run. PyDLL keeps the GIL.
_libc = ctypes.PyDLL(None, use_errno=True)
_prctl = _libc.prctl
_prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong]
_syscall = _libc.syscall
_syscall.argtypes = [ctypes.c_long, ctypes.c_uint, ctypes.c_uint, ctypes.c_uint]


@dataclass(frozen=True, slots=True)
class Process:
    """What /proc says of a process. A pid is reused; a pid with its start, in clock ticks since boot, is not."""

    pid: int
    start: int
    parent: int = field(compare=False)
    group: int = field(compare=False)
    session: int = field(compare=False)
    state: str = field(compare=False)
    threads: int = field(compare=False)

    @property
    def alive(self) -> bool:
        # A process whose first thread has ended looks like a zombie and is none.
        return self.state not in "ZX" or self.threads > 1

    @property
    def still(self) -> bool:
        """Stopped, or in the kernel until something happens: not about to fork."""
        return self.state in "TtDZX"


Table = dict[int, Process]
Find = Callable[[Table], set[Process]]


@dataclass(frozen=True, slots=True)
class Child:
    """A process we started ourselves, until the event loop has its exit status."""

    pid: int
    start: int
    marker: bytes


class Children:
    """The processes of one server.

    Whatever this process starts in a session of its own must be announced (`spawning`, `register`, `ended`), or it is
    taken for an orphan. What it starts in its own session is left alone. As pid 1 of a container we are also given the
    orphans of strangers, and treat them alike.
    """

    # The kernel has one list of children for a process, however many servers run in it.
    _registered: ClassVar[dict[int, Child]] = {}
    _spawning: ClassVar[int] = 0

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._instance = uuid.uuid4().hex
        self._pid = os.getpid()
        self._orphans_left = False
        # An entry point may have started daemons before it became this server.
        self._strangers = {process for process in _walk().values() if process.parent == self._pid}
        if _prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            logger.warning("daemons of agents cannot be adopted errno=%d", ctypes.get_errno())

    def environment(self, key: str) -> dict[str, str]:
        """What a child's environment must have, above all else in it, so that we know it and its descendants."""
        return {OWNER: self._owner, PROCESS: f"{self._owner}:{self._instance}:{key}"}

    def preexec(self) -> None:
        """In the child, before exec: die with the server, and take none of its descriptors along but 0, 1 and 2.

        uvloop leaves the child second copies of its pipes; nobody would notice when it closes the first ones.
        """
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != self._pid:  # It died before we asked.
            os.kill(os.getpid(), signal.SIGKILL)
        if _syscall(SYS_CLOSE_RANGE, 3, 2**32 - 1, CLOSE_RANGE_CLOEXEC) != 0:  # A kernel before 5.11.
            for descriptor in range(3, 1024):
                with suppress(OSError):
                    os.set_inheritable(descriptor, False)

    @contextmanager
    def spawning(self, key: str) -> Generator[None]:
        """Around starting a child and registering it: a child we do not know yet is not an orphan.

        Raises:
            ValueError: a child with this key is alive.
        """
        if any(child.marker == self._marker(key) for child in self._registered.values()):
            raise ValueError(f"a child is registered under the key {key!r}; end it first or take another key")
        Children._spawning += 1
        try:
            yield
        finally:
            Children._spawning -= 1
            if self._orphans_left:
                self.reap()

    def register(self, key: str, pid: int) -> None:
        """Remember a child, at once after it was started: only the event loop may wait for it."""
        process = _read(pid)
        # Gone already: it cannot have started later than now.
        start = _ticks() if process is None else process.start
        self._registered[pid] = Child(pid, start, self._marker(key))

    def ended(self, key: str) -> None:
        """The child has been waited for: kill what it left, and the orphans that nobody alive can have started."""
        child = self._find(key)
        if child is None:
            return
        del self._registered[child.pid]
        self._destroy(lambda table: self._tree(child.marker, child, table) | self._orphans(table), child.pid)
        self.reap()

    def descendants(self, key: str) -> set[Process]:
        """The child itself and all that is known to come from it, zombies included."""
        return self._tree(self._marker(key), self._find(key), _walk())

    def terminate(self, key: str) -> None:
        """Ask the whole tree to end (SIGTERM)."""
        table, child = _walk(), self._find(key)
        tree = {process for process in self._tree(self._marker(key), child, table) if process.alive}
        _signal(tree, signal.SIGTERM, table, child and child.pid)

    def kill(self, key: str) -> int:
        """Kill the whole tree, whatever it forks meanwhile. Returns how many were alive: call again until it is 0."""
        marker, child = self._marker(key), self._find(key)
        return self._destroy(lambda table: self._tree(marker, child, table), child and child.pid)

    def sweep(self) -> int:
        """Kill what a killed server left behind; returns how many. To be called before the first child is started.

        It takes everything that has our owner's marker, so the caller must hold the lock on the data directory: there
        is one server at a time for an owner.
        """
        marker = b"\0%s=%s\0" % (OWNER.encode(), os.fsencode(self._owner))
        return self._destroy(
            lambda table: _closure({process for process in table.values() if _carries(process.pid, marker)}, table),
            None,
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
            self._destroy(self._orphans, None)
        try:
            if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return 0
        except ChildProcessError:
            return 0
        zombies = [process.pid for process in self._adopted(_walk()) if not process.alive]
        for pid in zombies:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        return len(zombies)

    def _marker(self, key: str) -> bytes:
        return b"\0%s=%s\0" % (PROCESS.encode(), os.fsencode(self.environment(key)[PROCESS]))

    def _find(self, key: str) -> Child | None:
        marker = self._marker(key)
        return next((child for child in self._registered.values() if child.marker == marker), None)

    def _tree(self, marker: bytes, child: Child | None, table: Table) -> set[Process]:
        oldest = child.start if child else 0
        leader = child.pid if child else 0
        if child and leader in table and table[leader].start != child.start:
            leader = 0  # Somebody else's pid by now, so nothing is left of that group and session.
        roots = {
            process
            for process in table.values()
            if process.start >= oldest
            and ((leader and leader in (process.pid, process.session, process.group)) or _carries(process.pid, marker))
        }
        return _closure(roots, table)

    def _started(self, table: Table) -> set[Process]:
        """Those of our children that we started and that are still there, if only as zombies."""
        return {
            process
            for child in self._registered.values()
            if (process := table.get(child.pid)) is not None and process.start == child.start
        }

    def _adopted(self, table: Table) -> set[Process]:
        """Our children that we did not start: agents run in sessions of their own, so nothing of theirs is in ours."""
        session = os.getsid(0)
        ours = {process for process in table.values() if process.parent == self._pid and process.session != session}
        return ours - self._strangers - self._started(table)

    def _orphans(self, table: Table) -> set[Process]:
        """Adopted ones that no child alive can have started, and what they started."""
        if self._spawning:
            self._orphans_left = True
            return set()
        # A child of the same clock tick may have been first.
        oldest = min((child.start for child in self._started(table) if child.alive), default=None)
        return _closure(
            {process for process in self._adopted(table) if oldest is None or process.start < oldest}, table
        )

    def _destroy(self, find: Find, group: int | None) -> int:
        deadline = time.monotonic() + KILL_SECONDS
        killed: set[Process] = set()
        for _ in range(KILL_ROUNDS):
            frozen, table = _freeze(find, killed, group)
            _signal(frozen, signal.SIGKILL, table, group)
            killed |= frozen
            if not frozen or time.monotonic() > deadline:
                break
        return len(killed)


def _freeze(find: Find, killed: set[Process], group: int | None) -> tuple[set[Process], Table]:
    """Stop all of a tree that is not killed yet, before any of it is.

    Were a parent killed first, what it forked last would come to us without saying whose it was.
    """
    deadline = time.monotonic() + FREEZE_SECONDS
    frozen: set[Process] = set()
    while True:
        table = _walk()
        found = {process for process in find(table) if process.alive} - killed
        known = found <= frozen
        frozen = found | frozen
        if (known and all(process.still for process in found)) or time.monotonic() > deadline:
            return frozen, table
        _signal(found, signal.SIGSTOP, table, group)
        if known:
            time.sleep(0.001)  # Stopping needs a moment on the processor.


def _signal(processes: set[Process], number: int, table: Table, group: int | None = None) -> None:
    """Signal groups as a whole where all of a group is meant (no fork escapes that), the others one by one."""
    mixed = {process.group for process in table.values() if process.alive and process not in processes}
    groups = {process.group for process in processes} | {group or 0}
    for whole in groups - mixed - {0, 1}:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(whole, number)
    for process in processes:
        if process.group in mixed or process.group <= 1:
            _signal_one(process, number)


def _signal_one(process: Process, number: int) -> None:
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    except OSError:  # An old kernel, a filter on system calls, or no descriptor left.
        if _read(process.pid) == process:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, number)
        return
    try:
        if _read(process.pid) == process:
            signal.pidfd_send_signal(descriptor, number)
    except (ProcessLookupError, PermissionError):
        pass
    finally:
        os.close(descriptor)


def _closure(roots: set[Process], table: Table) -> set[Process]:
    """The roots and all their descendants, but never ourselves, our ancestors or pid 1, whatever they carry."""
    untouchable, pid = {1}, os.getpid()
    while pid and pid not in untouchable:
        untouchable.add(pid)
        pid = table[pid].parent if pid in table else 0
    forked: dict[int, list[Process]] = {}
    for process in table.values():
        forked.setdefault(process.parent, []).append(process)
    found: set[Process] = set()
    waiting = list(roots)
    while waiting:
        process = waiting.pop()
        if process not in found and process.pid not in untouchable:
            found.add(process)
            waiting += forked.get(process.pid, [])
    return found


def _walk() -> Table:
    try:
        with os.scandir("/proc") as entries:
            pids = [int(entry.name) for entry in entries if entry.name.isdigit()]
    except OSError as error:  # No descriptor left. Groups can be signalled without looking.
        logger.warning("cannot list processes error=%s", error)
        return {}
    return {pid: process for pid in pids if (process := _read(pid)) is not None}


def _read(pid: int) -> Process | None:
    try:
        line = _content(f"/proc/{pid}/stat")
    except OSError:
        return None
    # The name in parentheses may have anything in it, parentheses too.
    values = line[line.rfind(b")") + 2 :].split()
    if len(values) < 20:
        return None
    return Process(
        pid=pid,
        start=int(values[19]),
        parent=int(values[1]),
        group=int(values[2]),
        session=int(values[3]),
        state=values[0].decode(),
        threads=int(values[17]),
    )


def _carries(pid: int, marker: bytes) -> bool:
    try:
        return marker in b"\0%s\0" % _content(f"/proc/{pid}/environ")
    except OSError:
        return False


def _content(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = b""
        while more := os.read(descriptor, 65536):
            content += more
        return content
    finally:
        os.close(descriptor)


def _ticks() -> int:
    """Now, on the clock of process starts."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
