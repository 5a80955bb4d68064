"""The process ids of a test: what it started must be gone when it says so, and is killed when it ends."""

import os
import signal
from contextlib import suppress

from tests.support.running import alive, eventually


class Pids(list[int]):
    """Processes that a test made; none of them may outlive it."""

    def gone(self) -> None:
        assert self
        eventually(lambda: not any(map(alive, self)), f"the end of {self}")

    def kill(self) -> None:
        for pid in self:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
