"""Identify a process of this machine, so that no later one with the same pid is taken for it."""

import os
from contextlib import suppress

from msgspec import Struct


class ProcessId(Struct, frozen=True):
    """One process. A pid is reused; a pid with its start, in clock ticks since boot, is not."""

    pid: int
    start: int
    parent: int
    group: int
    session: int
    state: str
    threads: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProcessId) and (self.pid, self.start) == (other.pid, other.start)

    def __hash__(self) -> int:
        return hash((self.pid, self.start))

    @property
    def alive(self) -> bool:
        # A process whose first thread has ended looks like a zombie and is none.
        return self.state not in "ZX" or self.threads > 1

    @property
    def stopped(self) -> bool:
        """By a signal, or by a process that traces it."""
        return self.state in "Tt"

    @property
    def still(self) -> bool:
        """Stopped, or in the kernel until something happens: not about to fork."""
        return self.state in "TtDZX"


def read_process(pid: int) -> ProcessId | None:
    """One process, if there is such a one."""
    line = read_proc_file(f"/proc/{pid}/stat")
    # The name in parentheses may have anything in it, parentheses too.
    values = line[line.rfind(b")") + 2 :].split()
    if len(values) < 20:
        return None
    return ProcessId(
        pid=pid,
        start=int(values[19]),
        parent=int(values[1]),
        group=int(values[2]),
        session=int(values[3]),
        state=values[0].decode(),
        threads=int(values[17]),
    )


def read_proc_file(path: str) -> bytes:
    """All of a file in /proc; nothing when the process is gone, or is not ours to look at."""
    content = b""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while more := os.read(descriptor, 65536):
                content += more
        finally:
            os.close(descriptor)
    return content
