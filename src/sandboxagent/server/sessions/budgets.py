"""Count the bytes that each agent process pins in the server's memory, within one budget each.

Pure.

Whoever keeps something for a process takes its size from the budget, and gives it back when it is let go.
"""

KEPT_COST = 2048
"""What keeping one envelope takes beside its line."""


class Budgets:
    """By process, which never shares its name with another."""

    def __init__(self, most: int = 256 << 20) -> None:
        """`most` is how many bytes one process may pin."""
        self.most = most
        self._used: dict[str, int] = {}

    def take(self, process: str, size: int) -> bool:
        """Keep this much more; False when there is no room for it."""
        used = self._used.get(process, 0) + size
        if used > self.most:
            return False
        self._used[process] = used
        return True

    def give_back(self, process: str, size: int) -> None:
        left = self._used.get(process, 0) - size
        if left > 0:
            self._used[process] = left
        else:
            self._used.pop(process, None)

    def used(self, process: str) -> int:
        return self._used.get(process, 0)

    def end(self, process: str) -> None:
        """The process has exited."""
        self._used.pop(process, None)

    def refusal(self) -> str:
        """Why nothing more is kept, and what to do about it."""
        return (
            f"the server keeps {self.most} bytes for this agent process already; answer what waits, "
            "or start the server with a higher --agent-memory"
        )
