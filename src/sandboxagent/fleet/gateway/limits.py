"""Limit how much a gateway takes of one node, and note what it did not take.

Pure.

A node that comes to a limit hurts itself alone: what goes beyond is left out, its operators are told, and all else goes
on.
"""

import logging
from collections import Counter
from collections.abc import Callable

from msgspec import Struct

from sandboxagent.fleet.bus.interface import MAX_BODY_BYTES

logger = logging.getLogger(__name__)

KEEP_TIMEOUT = 60.0
"""Seconds for which a node is marked after the last thing that was not taken of it, and between two reports of one."""
MAX_MARKED = 1_000
"""Nodes that are marked at once."""
MAX_DESCRIPTION = 16 << 10
"""Bytes in which a node describes itself: its version, labels and agents."""


class NodeLimits(Struct, frozen=True):
    """What one node may have, at most."""

    sessions: int = 20_000
    """In the list."""
    views: int = 32 << 20
    """Bytes of what the list shows of all of them."""
    view: int = 256 << 10
    """Bytes of what it shows of one."""
    line: int = 64 << 20
    """Bytes of one line."""

    @property
    def parts(self) -> int:
        """Parts that such a line has; one more, because ids in it may have become longer."""
        return self.line // MAX_BODY_BYTES + 2


class Usage:
    """What a node has in the list."""

    __slots__ = ("sessions", "views")

    def __init__(self) -> None:
        self.sessions = 0
        self.views = 0
        """Bytes."""


class Unfinished:
    """Lines of which the last part has not come, by name.

    An honest node writes one line after another. Of one that begins many, those that it began last are kept.
    """

    def __init__(self, most: int) -> None:
        """`most` is how many bytes are kept of one node."""
        self._most = most
        self._sizes: dict[str, dict[str, int]] = {}
        self._totals: Counter[str] = Counter()
        self._nodes: dict[str, str] = {}
        """Whose a line is."""

    def note(self, node: str, line: str, size: int) -> list[str]:
        """Of a line so many bytes wait for the rest; returns those that have to be given up for it."""
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
        """It is complete, or nobody wants it."""
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
        """Since the last report."""
        self.noted_at = 0.0
        self.reported_at: float | None = None


class Marks:
    """What was not taken of nodes lately: counted, shown with the node, and reported once a minute for each."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._marks: dict[str, _Mark] = {}

    def note(self, node: str, reason: str) -> None:
        """Something of a node is not taken."""
        now = self._clock()
        mark = self._marks.get(node)
        if mark is None:
            if len(self._marks) >= MAX_MARKED:
                del self._marks[next(iter(self._marks))]
            mark = self._marks[node] = _Mark()
        mark.reason, mark.noted_at = reason, now
        mark.count += 1
        if mark.reported_at is None or now - mark.reported_at >= KEEP_TIMEOUT:
            logger.warning("not taken of a node node=%s count=%d reason=%s", node, mark.count, reason)
            mark.reported_at, mark.count = now, 0

    def of(self, node: str) -> str:
        """Why something of a node was not taken in the last minute; empty when all was."""
        mark = self._marks.get(node)
        return mark.reason if mark is not None and self._clock() - mark.noted_at < KEEP_TIMEOUT else ""
