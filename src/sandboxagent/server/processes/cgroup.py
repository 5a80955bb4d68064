"""Keep all processes of a server in a cgroup of its own, if the kernel lets it make one."""

import fcntl
import logging
import os
import time
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger(__name__)


PREFIX = "sandbox-agent-"
EMPTY_TIMEOUT, EMPTY_INTERVAL = 1.0, 0.005


class Cgroup:
    """The cgroup of all processes that one owner's servers start. It can be killed without searching for the processes.

    It needs cgroups of version 2 with `cgroup.kill` (Linux 5.14), and the right to make one below the server's own: as
    root, or if the group is delegated to the server's user. The forks of a process stay in its cgroup, unless the
    process moves itself out, which needs the same right.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # Locked, so that no other server removes the empty cgroup as a leftover.
        self._lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_SH)
        self._members = os.open(path / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)

    def enter(self) -> None:
        """Put this process into the cgroup, in a child between fork and exec.

        A failure is ignored: the reaper still works.
        """
        with suppress(OSError):
            os.write(self._members, b"0")

    def kill(self) -> int:
        """Kill all processes in the cgroup and below it. Returns how many there were."""
        found = len(self._pids())
        if found:
            (self._path / "cgroup.kill").write_text("1")
            deadline = time.monotonic() + EMPTY_TIMEOUT
            while self._pids() and time.monotonic() < deadline:
                time.sleep(EMPTY_INTERVAL)
        return found

    def close(self) -> None:
        """Remove the cgroup if it is empty. Otherwise the owner's next server finds its processes."""
        os.close(self._members)
        os.close(self._lock)
        with suppress(OSError):
            self._path.rmdir()

    def _pids(self) -> list[str]:
        with suppress(OSError):
            return (self._path / "cgroup.procs").read_text().split()
        return []


def open_cgroup(owner: str) -> Cgroup | None:
    """Open the cgroup of an owner, and make it if it does not exist. Returns None if that is not possible."""
    parent = _find_own_cgroup()
    if parent is None:
        return None
    # Killed servers whose owner never started another one have left their cgroups behind.
    for old in parent.glob(f"{PREFIX}*"):
        _remove_unused(old)
    path = parent / f"{PREFIX}{owner}"
    try:
        path.mkdir(exist_ok=True)
        if not (path / "cgroup.kill").exists():
            path.rmdir()
            return None
        return Cgroup(path)
    except OSError as error:
        logger.debug("no cgroup of our own path=%s reason=%s", path, error.strerror)
        return None


def _remove_unused(path: Path) -> None:
    with suppress(OSError):
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.rmdir()
        finally:
            os.close(lock)


def _find_own_cgroup() -> Path | None:
    """Return the directory of the cgroup of this process."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return None
    ours = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), None)
    mount = next((fields[1] for fields in mounts if len(fields) > 2 and fields[2] == "cgroup2"), None)
    return None if ours is None or mount is None else Path(mount) / ours
