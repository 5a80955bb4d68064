"""Identify a process of this machine, even if its pid is reused later."""

import os
from contextlib import suppress

from msgspec import Struct


class ProcessId(Struct, frozen=True):
    """One process. A pid may be reused, but a pid with its start in clock ticks since boot is unique."""

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
        # A process whose first thread has ended has the state of a zombie, but other threads may run.
        return self.state not in "ZX" or self.threads > 1

    @property
    def stopped(self) -> bool:
        """Whether a signal, or a process that traces it, has stopped the process."""
        return self.state in "Tt"

    @property
    def still(self) -> bool:
        """Whether the process is stopped or blocked in the kernel, so that it is not about to fork."""
        return self.state in "TtDZX"


def read_process(pid: int) -> ProcessId | None:
    """Return the process with a pid; None if there is none."""
    line = read_proc_file(f"/proc/{pid}/stat")
    # The name in parentheses may contain any characters, parentheses included.
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
    """Return the content of a file in /proc. Empty if the process is gone, or if this user may not read the file."""
    content = b""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while more := os.read(descriptor, 65536):
                content += more
        finally:
            os.close(descriptor)
    return content
