"""Read processes and marks from `/proc`, and signal exactly the processes that are meant.

Does not know whose a process is, nor why it is to end. All of it is synchronous; a walk takes a few milliseconds. Linux
only.
"""

import logging
import os
import resource
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from sandboxagent.core.process_id import ProcessId, read_proc_file, read_process

# A tree that forks faster than we freeze it must not hold up the event loop; the caller comes back.
FREEZE_SECONDS, KILL_SECONDS, KILL_ROUNDS = 0.1, 0.2, 5

logger = logging.getLogger(__name__)


Table = dict[int, ProcessId]
Find = Callable[[Table], set[ProcessId]]


def read_table() -> Table:
    """All processes, by pid; none when there is no descriptor left to look with."""
    try:
        with os.scandir("/proc") as entries:
            pids = [int(entry.name) for entry in entries if entry.name.isdigit()]
    except OSError as error:
        logger.warning("cannot list processes error=%s", error)
        return {}
    return {pid: process for pid in pids if (process := read_process(pid)) is not None}


def children_of(pid: int) -> set[int] | None:
    """The process ids of the children of its first thread, to which orphans come; None when the kernel has no list."""
    path = f"/proc/{pid}/task/{pid}/children"
    return {int(word) for word in read_proc_file(path).split()} if os.access(path, os.R_OK) else None


def read_environment(pid: int) -> bytes:
    """The variables a process was started with, each between two zero bytes; none when they are not ours to see."""
    return b"\0%s\0" % read_proc_file(f"/proc/{pid}/environ")


def set_mark(mark: int) -> None:
    """Mark this process for good, and all it will ever fork: the mark stays through exec, setsid and a new parent.

    It is a resource limit that nothing else uses: how many microseconds a process with real-time priority may run
    without a pause. Marks are so large that this is never.
    """
    # A sandbox may not have that limit, or one above us may have set it lower.
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_RTTIME, (mark, mark))


def get_mark(pid: int) -> int:
    """The mark of a process, or something that is none."""
    try:
        return resource.prlimit(pid, resource.RLIMIT_RTTIME)[1]
    except OSError:
        return 0


def read_ticks() -> int:
    """Now, on the clock of process starts."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def with_descendants(roots: set[ProcessId], table: Table) -> set[ProcessId]:
    """The roots and all below them, but never ourselves, our ancestors or pid 1."""
    untouchable, pid = {1}, os.getpid()
    while pid and pid not in untouchable:
        untouchable.add(pid)
        pid = table[pid].parent if pid in table else 0
    forked: dict[int, list[ProcessId]] = {}
    for process in table.values():
        forked.setdefault(process.parent, []).append(process)
    found: set[ProcessId] = set()
    waiting = list(roots)
    while waiting:
        process = waiting.pop()
        if process not in found and process.pid not in untouchable:
            found.add(process)
            waiting += forked.get(process.pid, [])
    return found


def send_signal(number: int, processes: set[ProcessId], table: Table, group: int | None = None) -> None:
    """Signal groups as a whole where all of a group is meant (no fork escapes that), the others one by one.

    `group` is signalled, too, if it is empty or contains only target processes.
    """
    mixed = {process.group for process in table.values() if process.alive and process not in processes}
    groups = {process.group for process in processes} | {group or 0}
    for whole in groups - mixed - {0, 1}:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(whole, number)
    for process in processes:
        if process.group in mixed or process.group <= 1:
            send_one(number, process)


def destroy(find: Find, group: int | None = None) -> int:
    """Kill all that is found, including new forks. Returns how many were alive: call again until it is 0."""
    deadline = time.monotonic() + KILL_SECONDS
    killed: set[ProcessId] = set()
    for _ in range(KILL_ROUNDS):
        frozen, table = _freeze(find, killed, group)
        send_signal(signal.SIGKILL, frozen, table, group)
        killed |= frozen
        if not frozen or time.monotonic() > deadline:
            break
    return len(killed)


def _freeze(find: Find, killed: set[ProcessId], group: int | None) -> tuple[set[ProcessId], Table]:
    """Stop all of a tree that is not killed yet, before any of it is.

    If a parent were killed first, its last fork could no longer be traced back to it.
    """
    deadline = time.monotonic() + FREEZE_SECONDS
    frozen: set[ProcessId] = set()
    while True:
        table = read_table()
        found = {process for process in find(table) if process.alive} - killed
        known = found <= frozen
        frozen = found | frozen
        if (known and all(process.still for process in found)) or time.monotonic() > deadline:
            return frozen, table
        send_signal(signal.SIGSTOP, found, table, group)
        if known:
            time.sleep(0.001)  # Stopping needs a moment on the processor.


def send_one(number: int, process: ProcessId) -> None:
    """Signal this process, and no other that has got its id."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    except OSError:  # An old kernel, a filter on system calls, or no descriptor left.
        if read_process(process.pid) == process:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, number)
        return
    try:
        if read_process(process.pid) == process:
            signal.pidfd_send_signal(descriptor, number)
    except (ProcessLookupError, PermissionError):
        pass
    finally:
        os.close(descriptor)
