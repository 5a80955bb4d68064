"""Drafts: sessions that a program has made and nothing was said in yet.

Only the first prompt tells which agent is meant, so a draft has none. It is in memory, and a restart forgets it; with
the first prompt it becomes a session, which keeps its id.
"""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec import UNSET

from sandbox_agent import __version__
from sandbox_agent.opencode.ids import Ticks, make_id, milliseconds
from sandbox_agent.opencode.naming import Facts, default_title, make_slug, project_id
from sandbox_agent.opencode.objects import Cache, ModelRef, SessionInfo, SessionTime, Tokens

MOST = 1000
"""Drafts that are kept; then the oldest is forgotten."""
_LAST_TICK = (1 << 48) - 1


@dataclass(slots=True)
class Draft:
    """What is known of a session before its first prompt."""

    id: str
    directory: str
    created_at: float
    updated_at: float
    title: str | None = None
    agent: str | None = None
    """The mode that is wished for, or the name of an agent."""
    model: ModelRef | None = None
    facts: Facts = field(default_factory=Facts)
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while its session is opened."""

    def describe(self) -> SessionInfo:
        time = SessionTime(created=milliseconds(self.created_at), updated=milliseconds(self.updated_at))
        time.archived = UNSET if self.facts.archived is None else self.facts.archived
        return SessionInfo(
            id=self.id,
            slug=make_slug(self.id),
            project_id=project_id(self.directory),
            directory=self.directory,
            title=self.title or default_title(self.created_at),
            version=__version__,
            time=time,
            parent_id=self.facts.parent_id or UNSET,
            agent=self.agent or UNSET,
            model=self.model or UNSET,
            cost=0,
            tokens=Tokens(cache=Cache()),
            permission=list(self.facts.permission) or UNSET,
            metadata=UNSET if self.facts.metadata is None else self.facts.metadata,
        )


class Drafts:
    """All drafts, by id."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._drafts: dict[str, Draft] = {}
        self._ticks = Ticks()

    def add(self, directory: str) -> Draft:
        now = self._clock()
        # Ids of sessions descend: the later one is the smaller number.
        tick = _LAST_TICK - self._ticks.next(milliseconds(now))
        draft = Draft(make_id("ses", tick, secrets.token_hex(8)), directory, now, now)
        self._drafts[draft.id] = draft
        if len(self._drafts) > MOST:
            del self._drafts[next(iter(self._drafts))]
        return draft

    def find(self, id: str) -> Draft | None:
        return self._drafts.get(id)

    def remove(self, id: str) -> None:
        self._drafts.pop(id, None)

    def all(self) -> list[Draft]:
        """From the newest on."""
        return list(reversed(self._drafts.values()))
