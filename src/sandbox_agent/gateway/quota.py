"""Quotas: how much each node may ask of a gateway, so that one that floods costs no other one anything. Pure."""

from collections.abc import Callable
from dataclasses import dataclass, field

BURST = 2.0
"""Seconds' worth that a node may send at once."""
LEAST = 1024
"""Bytes that the smallest request counts as."""
MOST_OPEN = 16
"""Requests of one node that are under way at once; an honest one has three."""
MOST_NODES = 10_000
"""Nodes that are remembered."""


@dataclass(slots=True)
class _Account:
    left: float
    at: float
    open: int = 0


@dataclass(slots=True)
class Quotas:
    """A bucket for each node, filled at one rate."""

    rate: int
    """Bytes a second."""
    clock: Callable[[], float]
    _accounts: dict[str, _Account] = field(default_factory=dict[str, _Account])

    def begin(self, node: str, size: int) -> str | None:
        """Count a request; returns why it has to wait, or None, and then `end` has to follow."""
        account = self._account(node)
        if account.open >= MOST_OPEN:
            return f"{node} has {account.open} requests under way at this gateway; it sends one after another"
        if account.left <= 0:
            return f"{node} publishes more than {self.rate} bytes a second, which is what this gateway takes of a node"
        account.left -= max(size, LEAST)
        account.open += 1
        return None

    def end(self, node: str) -> None:
        """A request that was counted is answered."""
        self._accounts[node].open -= 1

    def _account(self, node: str) -> _Account:
        now, most = self.clock(), self.rate * BURST
        account = self._accounts.get(node)
        if account is None:
            if len(self._accounts) >= MOST_NODES:
                self._accounts = {name: each for name, each in self._accounts.items() if each.open}
            account = self._accounts[node] = _Account(most, now)
        account.left = min(most, account.left + (now - account.at) * self.rate)
        account.at = now
        return account
