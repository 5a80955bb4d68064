"""Count each node's share of the stream, and free room at the node that has most.

The stream itself drops its oldest events, whichever node they are from. So one busy node would drop the history of all
others. Gateways drop events before the stream does. A table has the published events of each node, as pieces of limited
size. A piece has its size, its end and its subjects, so that any gateway can drop it.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable

import msgspec
from msgspec import Struct

from sandboxagent.fleet import records
from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.bus.interface import BusError, BusStream, StreamFollowing, StreamMessage, Table, TableEntry
from sandboxagent.fleet.gateway.owners import Owners

logger = logging.getLogger(__name__)

TABLE = "usage"
SHARE_INTERVAL = 1.0
"""Seconds between two checks for changes."""
PIECES = 1024
"""Number of pieces in a full stream."""
MIN_PIECE_BYTES = 64 << 10
"""Minimum number of bytes of a piece."""
MAX_SUBJECTS = 256
"""Maximum number of subjects of one piece."""
SUBJECT_COST_BYTES = 4 << 10
"""Number of bytes that each subject adds to a piece's size, because dropping a subject costs as much as dropping
these."""
MESSAGE_COST_BYTES = 192
"""Number of bytes that a message takes in the stream besides its subject, its body and the fleet's headers."""
KEPT = 7 / 8
"""Share of the stream's room above which the largest node loses its oldest events."""
PRESSING = 15 / 16
"""Share of the stream's room above which the largest node also has to wait."""
SHOWN_AFTER = 10
"""Number of checks after which an incomplete piece is written to the table, if it has not grown by half before."""
GONE_TIMEOUT = 60.0
"""Seconds for which the table remembers that a piece was dropped."""


class Piece(Struct):
    """A piece in the table, as JSON."""

    node: str
    size: int
    through: int
    """Sequence of the last message of the piece."""
    subjects: list[str]


class _Open:
    """A piece that this gateway is publishing."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.through = 0
        self.size = 0
        self.shown = 0
        """Size of the piece in the table."""
        self.waits = 0
        """Number of checks since the piece was written to the table."""
        self.subjects: dict[str, None] = {}

    @property
    def is_due(self) -> bool:
        return self.size > self.shown and (self.size >= 1.5 * self.shown or self.waits >= SHOWN_AFTER)


class _Known(Struct):
    """The facts about a piece that are kept in memory."""

    node: str
    size: int
    through: int


class Shares:
    """All nodes' shares, as one gateway knows them."""

    def __init__(
        self, gateway: str, table: Table, events: BusStream, owners: Owners, *, most: int, max_age: float
    ) -> None:
        """Create the shares. The stream holds `most` bytes, and keeps each event for `max_age` seconds."""
        self._gateway = gateway
        self._table = table
        self._events = events
        self._owners = owners
        self._most = most
        self._max_age = max_age
        self._piece = max(most // PIECES, MIN_PIECE_BYTES)
        self._pieces: dict[str, _Known] = {}
        """Pieces by key, including those that are open here."""
        self._sizes: Counter[str] = Counter()
        """Number of bytes of each node."""
        self._open: dict[str, _Open] = {}
        """Open pieces by node."""
        self._complete: list[tuple[str, _Open]] = []
        """Complete pieces that are not in the table yet."""
        self._number = 0
        self._pressed: str | None = None
        self._wanted = asyncio.Event()
        self._watching: StreamFollowing | None = None

    async def start(self) -> None:
        """Read the table, and follow its changes."""
        self._watching = await self._table.watch(self._take)

    async def close(self) -> None:
        if self._watching is not None:
            await self._watching.close()

    def size_of(self, node: str) -> int:
        """Return the number of bytes that a node has published and that may still be in the stream."""
        return self._sizes[node]

    def wait_reason(self, node: str) -> str | None:
        """Return why a node has to wait, or None."""
        if node != self._pressed:
            return None
        return f"the fleet's stream is full, and {node} has most of it: it goes on when its oldest events are dropped"

    def note(self, node: str, first: int, messages: Iterable[StreamMessage]) -> None:
        """Note a node's messages in the stream, which begin at the sequence `first`."""
        piece = self._open.get(node)
        if piece is None:
            self._number += 1
            piece = self._open[node] = _Open(f"{node}.{self._gateway}.{self._number}")
            self._pieces[piece.key] = _Known(node, 0, 0)
        before = piece.size
        for sequence, message in enumerate(messages, first):
            if message.subject not in piece.subjects:
                piece.subjects[message.subject] = None
                piece.size += SUBJECT_COST_BYTES
            headers = sum(len(name) + len(value) for name, value in message.headers.items())
            piece.size += MESSAGE_COST_BYTES + len(message.subject) + len(message.body) + headers
            piece.through = sequence
        known = self._pieces[piece.key]
        known.size, known.through = piece.size, piece.through
        self._sizes[node] += piece.size - before
        if piece.size >= self._piece or len(piece.subjects) >= MAX_SUBJECTS:
            self._complete.append((node, self._open.pop(node)))
        if self._sizes.total() > KEPT * self._most:
            self._wanted.set()

    async def run(self) -> None:
        """Keep the table up to date, and keep the stream from being full, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(SHARE_INTERVAL):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            self._wanted.clear()
            try:
                await self.look()
            except BusError as error:
                logger.warning("shares of nodes not kept reason=%s", error)
                await asyncio.sleep(SHARE_INTERVAL)

    async def look(self) -> None:
        """Write pieces that have grown, and drop events if the stream is too full. Raises BusError."""
        await self._show_complete()
        for node, piece in list(self._open.items()):
            piece.waits += 1
            if piece.is_due:
                await self._show(node, piece)
        while self._sizes.total() > KEPT * self._most:
            size = await self._events.size()
            self._pressed = None
            if size <= KEPT * self._most:
                # The pieces of deleted sessions count until they are dropped or too old.
                return
            node, _ = self._sizes.most_common(1)[0]
            if size > PRESSING * self._most:
                self._pressed = node
            await self._drop_oldest(node)
        self._pressed = None

    async def _show_complete(self) -> None:
        while self._complete:
            await self._show(*self._complete[0])
            self._complete.pop(0)

    async def _show(self, node: str, piece: _Open) -> None:
        value = msgspec.json.encode(Piece(node, piece.size, piece.through, list(piece.subjects)))
        size = piece.size
        await self._table.put(piece.key, value, ttl=self._max_age)
        piece.shown, piece.waits = size, 0

    async def _drop_oldest(self, node: str) -> None:
        """Drop the oldest piece of a node. The node's other pieces may lose events of the same age."""
        own = self._open.pop(node, None)
        if own is not None:
            self._complete.append((node, own))
            await self._show_complete()
        key, known = min(
            ((key, each) for key, each in self._pieces.items() if each.node == node), key=lambda each: each[1].through
        )
        entry = await self._table.get(key)
        if entry is not None and entry.value is not None:
            piece = msgspec.json.decode(entry.value, type=Piece)
            for subject in piece.subjects:
                await self._drop(subject, piece.through)
            await self._table.delete(key, ttl=GONE_TIMEOUT)
        self._forget(key)
        logger.info("oldest events of a node dropped node=%s bytes=%d through=%d", node, known.size, known.through)

    async def _drop(self, subject: str, through: int) -> None:
        record = await self._events.last(subject)
        if record is None:
            return
        if record.sequence <= through and subjects.is_session(subject):
            await self._owners.note_dropped(subject, record.sequence, records.ownership(record.headers).last)
        await self._events.purge(subject, through)

    def _take(self, entry: TableEntry) -> None:
        if entry.value is None:
            self._forget(entry.key)
            return
        if any(piece.key == entry.key for piece in self._open.values()):
            # The piece here is newer than the entry.
            return
        piece = msgspec.json.decode(entry.value, type=Piece)
        self._forget(entry.key)
        self._pieces[entry.key] = _Known(piece.node, piece.size, piece.through)
        self._sizes[piece.node] += piece.size
        if self._sizes.total() > KEPT * self._most:
            self._wanted.set()

    def _forget(self, key: str) -> None:
        known = self._pieces.pop(key, None)
        if known is None:
            return
        self._sizes[known.node] -= known.size
        if not self._sizes[known.node]:
            del self._sizes[known.node]
        open_here = self._open.get(known.node)
        if open_here is not None and open_here.key == key:
            # Another gateway has dropped the open piece.
            del self._open[known.node]
