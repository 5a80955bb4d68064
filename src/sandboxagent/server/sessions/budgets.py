"""Limit the bytes that the server keeps in memory for each agent process.

Code that keeps something for a process takes its size from the process's budget, and gives it back when it drops it.
Pure.
"""

KEPT_COST_BYTES = 2048
"""Bytes that one kept envelope takes in addition to its line."""


class Budgets:
    """The budgets of all agent processes, by process key."""

    def __init__(self, most: int = 256 << 20) -> None:
        """`most` is the maximum number of bytes for one process."""
        self.most = most
        self._used: dict[str, int] = {}

    def take(self, process: str, size: int) -> bool:
        """Take bytes from a process's budget; return False, and take nothing, if too few are left."""
        used = self._used.get(process, 0) + size
        if used > self.most:
            return False
        self._used[process] = used
        return True

    def release_bytes(self, process: str, size: int) -> None:
        left = self._used.get(process, 0) - size
        if left > 0:
            self._used[process] = left
        else:
            self._used.pop(process, None)

    def used(self, process: str) -> int:
        return self._used.get(process, 0)

    def end(self, process: str) -> None:
        """Forget the budget of a process that has exited."""
        self._used.pop(process, None)

    def refusal(self) -> str:
        """Return the error text for a full budget, with advice."""
        return (
            f"the server keeps {self.most} bytes for this agent process already; answer its requests, "
            "or start the server with a higher --agent-memory"
        )


class Share:
    """The part of a process's budget that one growing and shrinking object takes."""

    def __init__(self, budgets: Budgets, process: str) -> None:
        self.size = 0
        self._budgets = budgets
        self._process = process

    def resize(self, size: int) -> bool:
        """Take more bytes or give some back; return False, and change nothing, if too few are left."""
        if size < self.size:
            self._budgets.release_bytes(self._process, self.size - size)
        elif not self._budgets.take(self._process, size - self.size):
            return False
        self.size = size
        return True
