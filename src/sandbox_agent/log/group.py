"""Groups: what is written to the log in one transaction. Pure: knows nothing of SQL or of files."""

from dataclasses import dataclass, field, replace

from sandbox_agent.log.cards import Card
from sandbox_agent.log.event import Chunk

Outcome = tuple[bytes, bytes | None]
"""Of a request under an idempotency key: a digest of its body, and the response, once there is one."""


@dataclass(slots=True)
class Group:
    """What is written in one transaction."""

    chunks: list[Chunk] = field(default_factory=list)
    sessions: dict[str, bytes] = field(default_factory=dict)
    """Session id → its record."""
    cards: dict[str, Card] = field(default_factory=dict)
    """Session id → its card, when that has changed."""
    deleted: dict[str, int] = field(default_factory=dict)
    """Session id → the position up to which its events go, with it."""
    outcomes: dict[tuple[str, str], Outcome | None] = field(default_factory=dict)
    """Scope and idempotency key → digest and response; None forgets the key."""
    forgotten_channels: list[str] = field(default_factory=list)
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
                self.sessions, self.deleted, self.outcomes, self.forgotten_channels = {}, {}, {}, []
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
        self.outcomes |= later.outcomes
        self.forgotten_channels += later.forgotten_channels
        self.reserve = max(self.reserve, later.reserve)
