"""Start child processes, track which child each process belongs to, and end whole trees.

Each child runs below a **reaper** of its own (`spawn.py`), a subreaper: every descendant of the child stays below it.
The server is a subreaper too. A process that is reparented to the server belongs to a child that is gone, and is killed
at once. At its start, a server kills the processes that earlier servers left behind, if they carry its owner's mark or
variable, or are in its cgroup.

The module knows nothing of children's output, of agents, and of how a tree is killed. Linux only.
"""

import asyncio
import ctypes
import errno
import hashlib
import logging
import os
import signal
import subprocess
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import ClassVar, TypeVar

from msgspec import Struct

from sandboxagent.core.process_id import ProcessId, read_process
from sandboxagent.server.processes.cgroup import Cgroup
from sandboxagent.server.processes.proc import (
    Table,
    children_of,
    destroy,
    get_mark,
    read_environment,
    read_table,
    read_ticks,
    send_one,
    send_signal,
    with_descendants,
)
from sandboxagent.server.processes.spawn import PR_SET_CHILD_SUBREAPER, StartingChild, prctl
from sandboxagent.server.processes.watch import Watch

logger = logging.getLogger(__name__)


OWNER = "SANDBOX_AGENT_OWNER"
MARK = 1 << 61
"""The bit that all marks have, so that they are large. The bits below it identify the owner."""


class Child(Struct, frozen=True):
    """A process that the server started, until the event loop has its exit status: a program, or its reaper."""

    pid: int
    start: int
    program: int
    """The process id of the program."""

    @property
    def has_reaper(self) -> bool:
        return self.program != self.pid


class ProcessTrees:
    """The processes of one server.

    Announce every process that you start in a session of its own (`spawning`, `register`, `forget`). Otherwise it
    counts as an orphan. Processes in the server's own session are left alone.
    """

    # The kernel has one list of children for a process, however many servers run in the process.
    _registered: ClassVar[dict[int, Child]] = {}
    _spawning: ClassVar[int] = 0

    def __init__(self, owner: str, cgroup: Cgroup | None = None) -> None:
        self._variable = b"\0%s=%s\0" % (OWNER.encode(), os.fsencode(owner))
        self._owner = owner
        self._cgroup = cgroup
        self._mark = MARK | int.from_bytes(hashlib.blake2b(os.fsencode(owner), digest_size=7).digest())
        self._children: dict[str, Child] = {}
        self._keepings: dict[str, StartingChild] = {}
        self._pid = os.getpid()
        self._orphans_left = False
        self._is_hunting = self._hunts_again = False
        """Whether a thread is killing orphans, and whether it must check again afterwards."""
        # An entry point may have started daemons before it became this server.
        self._strangers = {process for process in read_table().values() if process.parent == self._pid}
        if prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            logger.warning("daemons cannot be adopted errno=%d", ctypes.get_errno())

    def environment(self) -> dict[str, str]:
        """Return the variables that every child must get, so that a later server recognizes it."""
        return {OWNER: self._owner}

    def preexec(self, key: str, linger: float | None = 0) -> Callable[[], None]:
        """Return a function for the child to run before exec. Call this within `spawning`.

        `linger` are the seconds that processes get which a program leaves running, before they are killed. With None
        the program needs no reaper, because it starts nothing.
        """
        prepare = self._keepings[key].preexec(self._mark, self.environment(), linger)
        cgroup = self._cgroup
        if cgroup is None:
            return prepare

        def enter_and_prepare() -> None:
            cgroup.enter()
            prepare()

        return enter_and_prepare

    @contextmanager
    def spawning(self, key: str) -> Generator[None]:
        """Enclose the start and the registration of a child, so that the new child does not count as an orphan.

        Raises:
            ValueError: a child with this key is alive.
        """
        if key in self._keepings or key in self._children:
            raise ValueError(f"a child is registered under the key {key!r}; end it first or take another key")
        self._keepings[key] = StartingChild()
        ProcessTrees._spawning += 1
        try:
            yield
        finally:
            ProcessTrees._spawning -= 1
            self._keepings.pop(key).close()
            if self._orphans_left:
                self.reap()

    def register(self, key: str, pid: int) -> int:
        """Remember a child right after its start, because only the event loop may wait for it.

        Returns the process id of its program; `pid` is the process id of its reaper.
        """
        process, program = read_process(pid), self._keepings[key].program() or pid
        # If it is gone already, it cannot have started later than now.
        start = read_ticks() if process is None else process.start
        self._registered[pid] = self._children[key] = Child(pid, start, program)
        return program

    def forget(self, key: str) -> None:
        """Forget a child that was waited for. If its reaper was killed, kill the processes reparented to the server."""
        child = self._children.pop(key, None)
        if child is None:
            return
        del self._registered[child.pid]
        self.reap()

    def descendants(self, key: str) -> set[ProcessId]:
        """Return the program and all its descendants, zombies included."""
        return self._tree(self._children.get(key), read_table())

    def terminate(self, key: str) -> None:
        """Ask the whole tree to end (SIGTERM), including stopped processes."""
        table = read_table()
        tree = {each for each in self._tree(self._children.get(key), table) if each.alive}
        send_signal(signal.SIGTERM, tree, table)
        send_signal(signal.SIGCONT, tree, table)
        if (reaper := self._reaper(key)) is not None:
            send_one(signal.SIGCONT, reaper)

    def end_linger(self, key: str) -> None:
        """Kill the processes that the program leaves running without further delay."""
        if (reaper := self._reaper(key)) is not None:
            send_one(signal.SIGUSR1, reaper)

    def get(self, key: str) -> Child | None:
        """Return the child with this key, until it is forgotten."""
        return self._children.get(key)

    def wake(self, key: str) -> bool:
        """Continue a reaper that was stopped. Returns whether it was."""
        reaper = self._reaper(key)
        if reaper is None or not reaper.stopped:
            return False
        send_one(signal.SIGCONT, reaper)
        return True

    def kill(self, key: str) -> int:
        """Kill the whole tree, including new forks. Returns how many were alive: call it again until it returns 0."""
        child = self._children.get(key)
        killed = destroy(lambda table: self._tree(child, table))
        if killed or child is None:
            return killed
        # The reaper ends by itself, unless a signal has stopped it.
        return destroy(lambda table: {each for each in self._started(table) if each.pid == child.pid})

    def kill_leftovers(self) -> int:
        """Kill the processes that a killed server left behind. Returns how many there were.

        Call it before the first child is started. It kills everything with the owner's mark or in its cgroup. So the
        caller must hold the lock on the data directory, which allows one server of an owner at a time.
        """
        contained = self._cgroup.kill() if self._cgroup is not None else 0
        return contained + destroy(
            lambda table: with_descendants({each for each in table.values() if self._is_ours(each)}, table)
        )

    def close(self) -> None:
        """Kill the processes in the cgroup and clean up, because there are no children any more."""
        if self._cgroup is not None:
            self._cgroup.kill()
            self._cgroup.close()

    def reap(self) -> int:
        """Kill orphans, and wait for ended ones, without taking an exit status that other code waits for.

        Call it regularly, and when a child has ended. It reads one file if there is nothing to do. A reaper that ended
        by itself has left no processes.
        """
        if self._spawning:
            self._orphans_left = True
            return 0
        self._orphans_left = False
        adopted = self._adopted(self._read_unknown())
        if any(each.alive and (self._pid != 1 or self._is_ours(each)) for each in adopted):
            self._hunt()
        return _wait_for(adopted)

    def _read_unknown(self) -> Table:
        """Return the server's children that it may not have started.

        Returns all processes if the kernel has no list of children.
        """
        there = children_of(self._pid)
        if there is None:
            return read_table()
        unknown = there - self._registered.keys() - {stranger.pid for stranger in self._strangers}
        return {pid: process for pid in unknown if (process := read_process(pid)) is not None}

    def _hunt(self) -> None:
        """Kill orphans in a thread, because the time depends on the number of processes.

        A call while the thread runs makes it run once more.
        """
        if self._is_hunting:
            self._hunts_again = True
            return
        try:
            hunting = asyncio.get_running_loop().run_in_executor(None, destroy, self._orphans)
        except RuntimeError:  # No event loop runs, or it ends and has no threads any more.
            destroy(self._orphans)
            return
        self._is_hunting, self._hunts_again = True, False
        hunting.add_done_callback(self._on_hunted)

    def _on_hunted(self, hunted: "asyncio.Future[int]") -> None:
        self._is_hunting = False
        if not hunted.cancelled() and (error := hunted.exception()) is not None:
            logger.error("orphans not killed", exc_info=error)
        elif self._hunts_again:
            self.reap()
        elif not self._spawning:
            _wait_for(self._adopted(self._read_unknown()))

    def _is_ours(self, process: ProcessId) -> bool:
        """Return whether a process carries the mark or the variable of the owner."""
        return get_mark(process.pid) == self._mark or self._variable in read_environment(process.pid)

    def _reaper(self, key: str) -> ProcessId | None:
        """Return the reaper of a child; None if it has none or the reaper has ended."""
        child = self._children.get(key)
        reaper = read_process(child.pid) if child is not None and child.has_reaper else None
        return reaper if reaper is not None and child is not None and reaper.start == child.start else None

    def _tree(self, child: Child | None, table: Table) -> set[ProcessId]:
        """Return all processes below a reaper. A program without a reaper is part of its own tree."""
        roots = {process for process, each in self._started(table).items() if each is child}
        return with_descendants(roots, table) - (roots if child is not None and child.has_reaper else set())

    def _started(self, table: Table) -> dict[ProcessId, Child]:
        """Return the children that the server started and that still exist, also as zombies."""
        return {
            process: child
            for child in list(self._registered.values())
            if (process := table.get(child.pid)) is not None and process.start == child.start
        }

    def _adopted(self, table: Table) -> set[ProcessId]:
        """Return the server's children that it did not start.

        Programs run in sessions of their own, so none of their processes is in the server's session.
        """
        session = os.getsid(0)
        ours = {process for process in table.values() if process.parent == self._pid and process.session != session}
        return ours - self._strangers - self._started(table).keys()

    def _orphans(self, table: Table) -> set[ProcessId]:
        """Return the adopted processes and their descendants.

        A living child keeps its own, so these belong to dead ones.
        """
        if self._spawning:
            self._orphans_left = True
            return set()
        adopted = self._adopted(table)
        if self._pid == 1:
            # Pid 1 also adopts the orphans of other programs.
            adopted = {process for process in adopted if self._is_ours(process)}
        return with_descendants(adopted, table)


def _wait_for(processes: set[ProcessId]) -> int:
    """Wait for the processes that have ended. Returns how many there were."""
    zombies = [process.pid for process in processes if not process.alive]
    for pid in zombies:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return len(zombies)


T = TypeVar("T")

KILL_TIMEOUT = 0.2
"""Seconds to die after SIGKILL. A process that still exists then is blocked in the kernel, perhaps for ever."""
KILL_INTERVAL = 0.02
EXIT_NEWS_TIMEOUT = 0.5
"""Seconds for the event loop to learn of a death."""


async def start_child(
    children: ProcessTrees,
    key: str,
    protocol: asyncio.SubprocessProtocol,
    command: Sequence[str],
    environment: Mapping[str, str],
    directory: str | None,
    pipes: tuple[int, int, int],
    linger: float | None = 0,
) -> None:
    """Start a program. It gets only the variables in `environment` and the server's markers. The protocol registers it.

    `pipes` are its stdin, stdout and stderr: `PIPE`, `STDOUT` or `DEVNULL` of asyncio.subprocess. `linger` are the
    seconds that processes get which it leaves running, before they are killed. With None it needs no reaper, because it
    starts nothing.

    Raises:
        OSError: the program or the directory does not exist, or the program may not be run.
    """
    stdin, stdout, stderr = pipes
    with children.spawning(key):
        try:
            await asyncio.get_running_loop().subprocess_exec(
                lambda: protocol,
                *command,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                env={**environment, **children.environment()},
                cwd=directory,
                start_new_session=True,
                preexec_fn=children.preexec(key, linger),
            )
            if linger is not None:
                Watch(children, key)
        except subprocess.SubprocessError as error:  # There are too many processes.
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from error


async def end_tree(children: ProcessTrees, key: str, dead: asyncio.Future[None], grace: float) -> None:
    """End a child with its whole tree: SIGTERM, a pause of `grace`, SIGKILL. `dead` is done when the child is dead.

    Returns in any case, because a process that is blocked in the kernel cannot be waited for.
    """
    loop = asyncio.get_running_loop()
    # In threads, because the time depends on the number of processes on the machine.
    await loop.run_in_executor(None, children.terminate, key)
    if await wait_until(grace, dead):
        return
    deadline = loop.time() + KILL_TIMEOUT
    while not dead.done() and loop.time() < deadline:
        if await loop.run_in_executor(None, children.kill, key) == 0:
            # The event loop is about to learn of the death.
            await wait_until(EXIT_NEWS_TIMEOUT, dead)
            return
        await wait_until(KILL_INTERVAL, dead)


async def wait_until(seconds: float, future: asyncio.Future[T]) -> bool:
    """Wait for a future for at most `seconds`. Returns whether it is done."""
    await asyncio.wait({future}, timeout=seconds)
    return future.done()


def read_exit_status(returncode: int | None) -> tuple[int | None, str | None]:
    """Return the exit code of a process, or the name of its signal. SIGKILL if the end was never observed."""
    if returncode is None:
        return None, "SIGKILL"
    if returncode >= 0:
        return returncode, None
    try:
        return None, signal.Signals(-returncode).name
    except ValueError:  # A real-time signal.
        return None, f"SIG{-returncode}"
