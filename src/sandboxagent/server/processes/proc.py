"""Read processes and marks from `/proc`, and signal exactly the intended processes.

The module does not know the owner of a process, nor the reason to end it. All functions are synchronous; reading all
processes takes a few milliseconds. Linux only.
"""

import logging
import os
import resource
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from sandboxagent.core.process_id import ProcessId, read_proc_file, read_process

# A tree may fork faster than it is frozen. The limits keep the event loop free, and the caller tries again.
FREEZE_TIMEOUT, KILL_TIMEOUT, KILL_ROUNDS = 0.1, 0.2, 5

logger = logging.getLogger(__name__)


Table = dict[int, ProcessId]
Find = Callable[[Table], set[ProcessId]]


def read_table() -> Table:
    """Return all processes by pid; none if no file descriptor is left for reading them."""
    try:
        with os.scandir("/proc") as entries:
            pids = [int(entry.name) for entry in entries if entry.name.isdigit()]
    except OSError as error:
        logger.warning("cannot list processes error=%s", error)
        return {}
    return {pid: process for pid in pids if (process := read_process(pid)) is not None}


def children_of(pid: int) -> set[int] | None:
    """Return the process ids of the children of a process's first thread, to which orphans are reparented.

    None if the kernel has no such list.
    """
    path = f"/proc/{pid}/task/{pid}/children"
    return {int(word) for word in read_proc_file(path).split()} if os.access(path, os.R_OK) else None


def read_environment(pid: int) -> bytes:
    """Return the environment at a process's start, with a zero byte around each variable.

    Empty if it is not readable.
    """
    return b"\0%s\0" % read_proc_file(f"/proc/{pid}/environ")


def set_mark(mark: int) -> None:
    """Mark this process and all its forks for good: the mark survives exec, setsid and a new parent.

    The mark is a resource limit that nothing else uses: the microseconds that a process with real-time priority may run
    without a pause. Marks are so large that the limit is never reached.
    """
    # A sandbox may not support the limit, or a parent process may have set it lower.
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_RTTIME, (mark, mark))


def get_mark(pid: int) -> int:
    """Return the mark of a process, or another number if it has none."""
    try:
        return resource.prlimit(pid, resource.RLIMIT_RTTIME)[1]
    except OSError:
        return 0


def read_ticks() -> int:
    """Return the present time on the clock of process starts."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def with_descendants(roots: set[ProcessId], table: Table) -> set[ProcessId]:
    """Return the roots and all their descendants, without this process, its ancestors and pid 1."""
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
    """Signal whole groups if every process of the group is a target (no fork escapes that), else single processes.

    `group` is signalled too if it is empty or contains only target processes.
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
    """Kill all processes that `find` returns, including new forks.

    Returns how many were alive: call it again until it returns 0.
    """
    deadline = time.monotonic() + KILL_TIMEOUT
    killed: set[ProcessId] = set()
    for _ in range(KILL_ROUNDS):
        frozen, table = _freeze(find, killed, group)
        send_signal(signal.SIGKILL, frozen, table, group)
        killed |= frozen
        if not frozen or time.monotonic() > deadline:
            break
    return len(killed)


def _freeze(find: Find, killed: set[ProcessId], group: int | None) -> tuple[set[ProcessId], Table]:
    """Stop all processes of a tree that are not killed yet, before any of them is killed.

    If a parent were killed first, its last fork could not be traced back to it.
    """
    deadline = time.monotonic() + FREEZE_TIMEOUT
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
            time.sleep(0.001)  # A process needs a moment on a processor to stop.


def send_one(number: int, process: ProcessId) -> None:
    """Signal this process, and no later one with the same pid."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    except OSError:  # An old kernel, a filter on system calls, or no file descriptor left.
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
