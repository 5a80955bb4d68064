"""Limit what a gateway accepts from a node, in size and in what it may say to one client.

Pure: it uses no event loop, no clock and no files.

A node sends under its own name, and only about its own sessions. A flooding node does not affect the other nodes.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from sandboxagent.fleet import messages
from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import Kind, param, parse
from sandboxagent.protocol.errors import NotAnEnvelope
from sandboxagent.protocol.request_ids import asker

MAX_ID_BYTES = 256
"""Maximum number of bytes of a request's id. Ids of nodes have at most about 80."""
MAX_SESSION_ID = 1024
BURST_INTERVAL = 2.0
"""Seconds of the allowed rate that a node may use at once."""
MIN_COST_BYTES = 1024
"""Minimum number of bytes that a request counts."""
MAX_OPEN = 16
"""Maximum number of simultaneous requests of one node. An honest node has three."""
MAX_REQUESTS = {messages.LOG: 1000.0, messages.BEAT: 5.0, messages.FACTS: 100.0}
"""Maximum number of requests per second of one node, by verb. An honest node waits for each answer."""
REQUEST_BURST_INTERVAL = 5.0
"""Seconds of the allowed number of requests that a node may use at once."""
MAX_INVALID = 100.0
"""Maximum number of invalid messages, or messages in spite of a wait, that a node may send at once."""
MAX_INVALID_PER_SECOND = 10.0
"""Maximum number of such messages that a node may send per second. With more, it is flooding."""
MAX_UNKNOWN_PIECES_PER_SECOND = 200.0
"""Maximum number of pieces per second that a node may send into flows that do not exist."""
IGNORE_TIMEOUT = 30.0
"""Seconds for which a flooding node is set aside."""
MAX_NODES = 10_000
"""Maximum number of nodes that are remembered."""
_ASCII_ESCAPE = re.compile(rb"\\u00[0-7]")
"""Matches an escape that may stand for a letter of a name that is searched for."""


class Forged(Exception):
    """The node sends a message that only another node may send, or that no honest node sends."""


def sessions_named(node: str, lines: Iterable[bytes]) -> set[str]:
    """Return the sessions that lines are about, all of which must belong to the node. Raises Forged."""
    named: set[str] = set()
    for line in lines:
        try:
            envelope = parse(line)
        except NotAnEnvelope as error:
            raise Forged(f"not an envelope: {error}") from error
        asked = envelope.id if envelope.kind is Kind.REQUEST else None
        if envelope.method == methods.CANCEL_REQUEST:
            asked = param(line, "requestId") or b"null"
        if asked is not None and len(asked) > MAX_ID_BYTES:
            raise Forged("the id of a request is too long")
        if asked is not None and asker(asked) != node:
            raise Forged("the id of a request names another node")
        if envelope.session_id is not None:
            if len(envelope.session_id) > MAX_SESSION_ID:
                raise Forged("the id of a session is too long")
            named.add(envelope.session_id)
    return named


def may_be_read_by_all(lines: Iterable[bytes]) -> bool:
    """Return whether lines may be on the channel of a session. Only notifications may.

    A request, an answer or a withdrawal comes to each client separately, and is checked on its way into the stream.
    Otherwise a node could use a request id that belongs to another node.
    """
    for line in lines:
        # A fast check, because it runs for every update. Hardly any line needs to be parsed.
        names = b'"id"' in line or b"cancel_request" in line or (b"\\u00" in line and _ASCII_ESCAPE.search(line))
        if names and not _is_plain(line):
            return False
    return True


def _is_plain(line: bytes) -> bool:
    try:
        envelope = parse(line)
    except NotAnEnvelope:
        return False
    return envelope.kind is Kind.NOTIFICATION and envelope.method != methods.CANCEL_REQUEST


class _Bucket:
    """A token bucket: a rate per second, and a maximum that can be used at once after a rest."""

    __slots__ = ("at", "left", "most", "rate")

    def __init__(self, rate: float, most: float, now: float) -> None:
        self.rate = rate
        self.most = most
        self.left = most
        self.at = now

    def fill(self, now: float) -> float:
        """Refill the bucket, and return its content."""
        self.left = min(self.most, self.left + (now - self.at) * self.rate)
        self.at = now
        return self.left

    def take(self, now: float, cost: float = 1.0) -> bool:
        """Take from the bucket if it is not empty. Return whether it was not."""
        is_there = self.fill(now) > 0
        self.left -= cost if is_there else 0
        return is_there


class _Account:
    __slots__ = ("aside_until", "blame", "bytes", "open", "requests", "strays")

    def __init__(self, rate: float, now: float) -> None:
        self.bytes = _Bucket(rate, rate * BURST_INTERVAL, now)
        self.requests = {verb: _Bucket(each, each * REQUEST_BURST_INTERVAL, now) for verb, each in MAX_REQUESTS.items()}
        self.blame = _Bucket(MAX_INVALID_PER_SECOND, MAX_INVALID, now)
        self.strays = _Bucket(
            MAX_UNKNOWN_PIECES_PER_SECOND, MAX_UNKNOWN_PIECES_PER_SECOND * REQUEST_BURST_INTERVAL, now
        )
        self.open = 0
        self.aside_until = now


def _tell_nobody(node: str, reason: str) -> None:
    pass


@dataclass(slots=True)
class Quotas:
    """Token buckets for each node, all with the same rate. A node that ignores its limits is set aside."""

    rate: int
    """Number of bytes per second."""
    clock: Callable[[], float]
    set_aside: Callable[[str, str], None] = _tell_nobody
    """Called for a flooding node, with the reason."""
    _accounts: dict[str, _Account] = field(default_factory=dict[str, _Account])

    def begin(self, node: str, size: int, verb: str = messages.LOG) -> str | None:
        """Count a request. Return why it has to wait, or None; then the caller must call `end` afterwards."""
        account, now = self._account(node), self.clock()
        why = self._refuse(node, account, verb, now)
        if why is not None:
            self.blame(node, "it continues to send although it has to wait")
            return why
        account.bytes.left -= max(size, MIN_COST_BYTES)
        account.open += 1
        return None

    def _refuse(self, node: str, account: _Account, verb: str, now: float) -> str | None:
        if account.open >= MAX_OPEN:
            return f"{node} has {account.open} requests under way at this gateway; it sends one after another"
        if account.bytes.fill(now) <= 0:
            return f"{node} publishes more than {self.rate} bytes a second, which is what this gateway takes of a node"
        if not account.requests[verb].take(now):
            return f"{node} asks this gateway more than {MAX_REQUESTS[verb]:g} times a second for the same ({verb})"
        return None

    def end(self, node: str) -> None:
        """Note that a counted request was answered."""
        self._accounts[node].open -= 1

    def blame(self, node: str, reason: str) -> None:
        """Count a message that an honest node sends rarely or never."""
        account, now = self._account(node), self.clock()
        if now >= account.aside_until and not account.blame.take(now):
            account.aside_until = now + IGNORE_TIMEOUT
            account.blame = _Bucket(MAX_INVALID_PER_SECOND, MAX_INVALID, account.aside_until)
            self.set_aside(node, reason)

    def stray(self, node: str) -> None:
        """Count a piece for a flow that does not exist.

        An honest node sends some after a client has given up a request.
        """
        if not self._account(node).strays.take(self.clock()):
            self.blame(node, "it sends into flows that are not there")

    def is_aside(self, node: str) -> bool:
        """Return whether a node is set aside."""
        account = self._accounts.get(node)
        return account is not None and self.clock() < account.aside_until

    def _account(self, node: str) -> _Account:
        account = self._accounts.get(node)
        if account is None:
            now = self.clock()
            if len(self._accounts) >= MAX_NODES:
                kept = {name: each for name, each in self._accounts.items() if each.open or now < each.aside_until}
                self._accounts = kept
            account = self._accounts[node] = _Account(self.rate, now)
        return account
