"""Groups: what is written to the log in one transaction, and what carries them on. Pure: knows no SQL and no files."""

from typing import Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from sandbox_agent.log.cards import Card
from sandbox_agent.log.event import Chunk

KeptOutcome = tuple[bytes, bytes | None]
"""Of a request under an idempotency key: a digest of its body, and the response, once there is one."""

EVERYTHING = 1 << 62
"""After every position."""


class Group(Struct):
    """What is written in one transaction."""

    chunks: list[Chunk] = field(default_factory=list)
    sessions: dict[str, bytes] = field(default_factory=dict)
    """Session id → its record."""
    cards: dict[str, Card] = field(default_factory=dict)
    """Session id → its card, when that has changed."""
    deleted: dict[str, int] = field(default_factory=dict)
    """Session id → the position up to which its events go, with it."""
    unpublished_after: int = EVERYTHING
    """What was delivered to one client after this position outlives its session: it has still to be published."""
    outcomes: dict[tuple[str, str], KeptOutcome | None] = field(default_factory=dict)
    """Scope and idempotency key → digest and response; None forgets the key."""
    forgotten_channels: dict[str, int] = field(default_factory=dict)
    """Channel → the position up to which its deliveries go."""
    reserve: int = 0

    def __bool__(self) -> bool:
        return bool(
            self.chunks or self.sessions or self.outcomes or self.deleted or self.forgotten_channels or self.reserve
        )

    def split(self, size: int) -> "Group | None":
        """Keep about so many bytes of it; gives the rest, which goes into the next transaction."""
        for count, chunk in enumerate(self.chunks, 1):
            size -= chunk.size
            if size <= 0 and count < len(self.chunks):
                # What is not an event stays with the last of the events it came with.
                rest = replace(self, chunks=self.chunks[count:])
                self.chunks = self.chunks[:count]
                self.sessions, self.deleted, self.outcomes, self.forgotten_channels = {}, {}, {}, {}
                self.cards = {}
                return rest
        return None

    def merge(self, later: "Group") -> None:
        """Take in what came after this group."""
        self.chunks += later.chunks
        for session_id in later.deleted:
            self.sessions.pop(session_id, None)
            self.cards.pop(session_id, None)
        self.sessions |= later.sessions
        self.cards |= later.cards
        self.deleted |= later.deleted
        self.unpublished_after = min(self.unpublished_after, later.unpublished_after)
        self.outcomes |= later.outcomes
        self.forgotten_channels |= later.forgotten_channels
        self.reserve = max(self.reserve, later.reserve)


class Publisher(Protocol):
    """What carries the log elsewhere, after it is on disk."""

    @property
    def published(self) -> int:
        """Everything up to here is elsewhere, and may be trimmed."""
        ...

    @property
    def is_idle(self) -> bool:
        """It has published all that is safe: what comes next should be safe soon."""
        ...

    @property
    def full(self) -> bool:
        """Too much waits to be published: producers should pause."""
        ...

    @property
    def trouble(self) -> str | None:
        """Why nothing is published at the moment."""
        ...

    def committed(self, group: Group) -> None:
        """A group is safe. It may hold what another held before."""
        ...

    async def drained(self, position: int) -> None:
        """Wait until everything up to a position is elsewhere."""
        ...
