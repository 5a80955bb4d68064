"""What a gateway takes of a node: how much, and what it may say to one client alone. Pure.

A node asks under its own name, and speaks of its own sessions. One that floods costs no other one anything.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from sandbox_agent.envelope import Kind, param, parse
from sandbox_agent.errors import NotAnEnvelope
from sandbox_agent.wire import methods
from sandbox_agent.wire.request_ids import asker

LONGEST_ID = 256
"""Bytes of a request's id; those that nodes make have at most some 80."""
LONGEST_SESSION_ID = 1024
BURST = 2.0
"""Seconds' worth that a node may send at once."""
LEAST = 1024
"""Bytes that the smallest request counts as."""
MOST_OPEN = 16
"""Requests of one node that are under way at once; an honest one has three."""
MOST_NODES = 10_000
"""Nodes that are remembered."""


class Forged(Exception):
    """A node says what only another one could, or what no honest one would."""


def sessions_named(node: str, lines: Iterable[bytes]) -> set[str]:
    """The sessions that lines are about: the node must have all of them. Raises Forged for what no node may say."""
    named: set[str] = set()
    for line in lines:
        try:
            envelope = parse(line)
        except NotAnEnvelope as error:
            raise Forged(f"not an envelope: {error}") from error
        asked = envelope.id if envelope.kind is Kind.REQUEST else None
        if envelope.method == methods.CANCEL_REQUEST:
            asked = param(line, "requestId") or b"null"
        if asked is not None and len(asked) > LONGEST_ID:
            raise Forged("the id of a request is too long")
        if asked is not None and asker(asked) != node:
            raise Forged("the id of a request names another node")
        if envelope.session_id is not None:
            if len(envelope.session_id) > LONGEST_SESSION_ID:
                raise Forged("the id of a session is too long")
            named.add(envelope.session_id)
    return named


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
