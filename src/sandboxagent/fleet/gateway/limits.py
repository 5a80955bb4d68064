"""Limit how much a gateway takes of one node, and note what it did not take.

Pure: it uses no event loop, no clock and no files.

A node that exceeds a limit affects only itself. The excess is left out, operators are told, and everything else
continues.
"""

import logging
from collections import Counter
from collections.abc import Callable

from msgspec import Struct

from sandboxagent.fleet.bus.interface import MAX_BODY_BYTES

logger = logging.getLogger(__name__)

KEEP_TIMEOUT = 60.0
"""Seconds for which a node is marked after its last excess, and between two log reports of one node."""
MAX_MARKED = 1_000
"""Maximum number of nodes that are marked at the same time."""
MAX_DESCRIPTION_BYTES = 16 << 10
"""Maximum number of bytes in which a node describes itself: its version, labels and agents."""


class NodeLimits(Struct, frozen=True):
    """The limits of one node."""

    sessions: int = 20_000
    """Maximum number of sessions in the list."""
    views: int = 32 << 20
    """Maximum number of bytes of all its sessions' views in the list."""
    view: int = 256 << 10
    """Maximum number of bytes of one session's view in the list."""
    line: int = 64 << 20
    """Maximum number of bytes of one line."""

    @property
    def parts(self) -> int:
        """The maximum number of parts of a line, plus one, because ids in a line may become longer."""
        return self.line // MAX_BODY_BYTES + 2


class Usage:
    """The part of the list that a node uses."""

    __slots__ = ("sessions", "views")

    def __init__(self) -> None:
        self.sessions = 0
        self.views = 0
        """Number of bytes of its sessions' views."""


class Unfinished:
    """Incomplete lines, by name.

    An honest node writes one line after another. If a node begins many lines, only the newest ones are kept.
    """

    def __init__(self, most: int) -> None:
        """Create the table. It keeps up to `most` bytes of each node."""
        self._most = most
        self._sizes: dict[str, dict[str, int]] = {}
        self._totals: Counter[str] = Counter()
        self._nodes: dict[str, str] = {}
        """The node of each line."""

    def note(self, node: str, line: str, size: int) -> list[str]:
        """Note the number of bytes of an incomplete line. Return the lines that have to be given up for it."""
        self.forget(line)
        self._sizes.setdefault(node, {})[line] = size
        self._totals[node] += size
        self._nodes[line] = node
        sizes, given_up = self._sizes[node], list[str]()
        while self._totals[node] > self._most and len(sizes) > 1:
            given_up.append(next(iter(sizes)))
            self.forget(given_up[-1])
        return given_up

    def forget(self, line: str) -> None:
        """Forget a line, because it is complete or nobody needs it."""
        node = self._nodes.pop(line, None)
        if node is None:
            return
        self._totals[node] -= self._sizes[node].pop(line)
        if not self._sizes[node]:
            del self._sizes[node], self._totals[node]


class _Mark:
    __slots__ = ("count", "noted_at", "reason", "reported_at")

    def __init__(self) -> None:
        self.reason = ""
        self.count = 0
        """Number of excesses since the last report."""
        self.noted_at = 0.0
        self.reported_at: float | None = None


class ExcessReports:
    """The recent excesses of nodes: counted, shown with the node, and logged once a minute for each node."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._marks: dict[str, _Mark] = {}

    def note(self, node: str, reason: str) -> None:
        """Note that something from a node was refused."""
        now = self._clock()
        mark = self._marks.get(node)
        if mark is None:
            if len(self._marks) >= MAX_MARKED:
                del self._marks[next(iter(self._marks))]
            mark = self._marks[node] = _Mark()
        mark.reason, mark.noted_at = reason, now
        mark.count += 1
        if mark.reported_at is None or now - mark.reported_at >= KEEP_TIMEOUT:
            logger.warning("refused from a node node=%s count=%d reason=%s", node, mark.count, reason)
            mark.reported_at, mark.count = now, 0

    def of(self, node: str) -> str:
        """Return why something from a node was refused in the last minute; empty if nothing was."""
        mark = self._marks.get(node)
        return mark.reason if mark is not None and self._clock() - mark.noted_at < KEEP_TIMEOUT else ""
