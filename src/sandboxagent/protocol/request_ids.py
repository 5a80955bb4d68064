"""Make the ids under which clients know the requests of agents.

The ids are opaque to clients. No two requests ever get the same id: each run of a server has a random part of its own,
so a later run cannot repeat an id, even if its log starts again from nothing. A gateway reads the node and its run from
an id.
"""

import secrets

import msgspec

from sandboxagent.protocol.envelope import same_id

_PREFIX = "rq_"
_MAX_POSITION = 20
"""Maximum number of digits of a position."""


class RequestIds:
    """Makes and reads the request ids of one run of a server."""

    __slots__ = ("_head", "node", "run")

    def __init__(self, node: str = "", run: str = "") -> None:
        """Take the server's name in a fleet, empty outside of one, and a run.

        Tests set the run; it is random otherwise.
        """
        self.node = node
        self.run = run or secrets.token_urlsafe(12)
        parts = (node, self.run) if node else (self.run,)
        self._head = b'"%b%b.' % (_PREFIX.encode(), ".".join(parts).encode())

    def make(self, position: int) -> bytes:
        """Return the id, as JSON, of the request at a position of the log."""
        return b'%b%d"' % (self._head, position)

    def position(self, id: bytes) -> int | None:
        """Return the log position of a request of this run by its id; None for any other id."""
        name = same_id(id)
        digits = name[len(self._head) : -1]
        if not (name.startswith(self._head) and digits.isdigit() and len(digits) <= _MAX_POSITION):
            return None
        position = int(digits)
        return position if self.make(position) == name else None


def asker(id: bytes) -> str | None:
    """Return the node whose agent sent a request, by its id; None if the id names no node."""
    return _parts(id)[0]


def run_of(id: bytes) -> str | None:
    """Return the node's run that gave out a request id; None if the id names no node."""
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
