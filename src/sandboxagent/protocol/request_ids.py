"""Make the ids under which clients know what agents ask, one for each request for good.

To clients they are opaque. Each is for one request, for good: a run has random letters of its own, so that no later
run gives out the same id, also when its log begins anew. Gateways read the node in them, and the run of that node.
"""

import secrets

import msgspec

from sandboxagent.protocol.envelope import same_id

_PREFIX = "rq_"
_MAX_POSITION = 20
"""Digits of a position."""


class RequestIds:
    """Those of one run of a server."""

    __slots__ = ("_head", "node", "run")

    def __init__(self, node: str = "", run: str = "") -> None:
        """`node` is its name in a fleet, if it is in one; `run` is new and random unless a test says otherwise."""
        self.node = node
        self.run = run or secrets.token_urlsafe(12)
        parts = (node, self.run) if node else (self.run,)
        self._head = b'"%b%b.' % (_PREFIX.encode(), ".".join(parts).encode())

    def make(self, position: int) -> bytes:
        """The id of the request at a position of the log, as JSON."""
        return b'%b%d"' % (self._head, position)

    def position(self, id: bytes) -> int | None:
        """Where in the log the request is that this run has given an id; None for any other id."""
        name = same_id(id)
        digits = name[len(self._head) : -1]
        if not (name.startswith(self._head) and digits.isdigit() and len(digits) <= _MAX_POSITION):
            return None
        position = int(digits)
        return position if self.make(position) == name else None


def asker(id: bytes) -> str | None:
    """The node whose agent asked under an id; None for the id of a server that is in no fleet, and for any other."""
    return _parts(id)[0]


def run_of(id: bytes) -> str | None:
    """The run of that node."""
    return _parts(id)[1]


def _parts(id: bytes) -> tuple[str | None, str | None]:
    try:
        text = msgspec.json.decode(id)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None, None
    if not isinstance(text, str) or not text.startswith(_PREFIX):
        return None, None
    parts = text.removeprefix(_PREFIX).split(".")
    return (parts[0], parts[1]) if len(parts) == 3 and all(parts) else (None, None)
