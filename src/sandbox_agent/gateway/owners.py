"""Whose each session is: a table of the fleet, kept apart from the events.

Events are dropped when they are old, or many. That a session belongs to a node holds until its node deletes it: no
other node gets it because nothing is left of it.
"""

import asyncio

import msgspec
from msgspec import Struct

from sandbox_agent.bus import subjects
from sandbox_agent.bus.ports import BusStream, Conflict, Table

TABLE = "owners"
GONE_FOR = 3600.0
"""Seconds for which the table remembers that a session was deleted."""


class Owner(Struct, frozen=True, omit_defaults=True):
    """The node that a session was granted to."""

    node: str
    epoch: int = 1
    since: int = 0
    """Where the stream ended then: all events of the session came after it."""
    dropped: int = 0
    """The sequence of the session's last event, when it was dropped with all before it."""
    last: int = 0
    """The node's own position of that one."""


class Owners:
    """The table, as one gateway reads and writes it. All methods raise BusError."""

    def __init__(self, table: Table, events: BusStream) -> None:
        self._table = table
        self._events = events

    async def find(self, subject: str) -> Owner | None:
        """Whose a session is, by the subject of its events."""
        entry = await self._table.get(subjects.session_token(subject))
        return None if entry is None or entry.value is None else msgspec.json.decode(entry.value, type=Owner)

    async def claim(self, subject: str, node: str) -> Owner:
        """Grant a session to a node, unless it belongs to one; returns to which one it does."""
        key = subjects.session_token(subject)
        _, since = await self._events.ends()
        owner = Owner(node, since=since)
        expected = 0
        while True:
            try:
                await self._table.put(key, msgspec.json.encode(owner), expected=expected)
            except Conflict:
                found = await self.find(subject)
                if found is not None:
                    return found
                # It was deleted, which the table remembers.
                expected = await self._table.revision(key)
            else:
                return owner

    async def note_dropped(self, subject: str, sequence: int, last: int) -> None:
        """All events of a session up to a sequence, which was its last one, are about to be dropped."""
        key = subjects.session_token(subject)
        while True:
            entry = await self._table.get(key)
            if entry is None or entry.value is None:
                return
            owner = msgspec.json.decode(entry.value, type=Owner)
            if owner.dropped >= sequence:
                return
            noted = msgspec.structs.replace(owner, dropped=sequence, last=last)
            try:
                await self._table.put(key, msgspec.json.encode(noted), expected=entry.revision)
            except Conflict:
                continue
            return

    async def forget(self, subject: str) -> None:
        """A session was deleted by its node: another one may have its id."""
        await self._table.delete(subjects.session_token(subject), ttl=GONE_FOR)

    async def dropped(self, subject: str) -> int:
        """The sequence up to which events of a session were dropped that has none; 0 when it never had one."""
        owner, (first, _) = await asyncio.gather(self.find(subject), self._events.ends())
        return 0 if owner is None else self.dropped_of(owner, first)

    @staticmethod
    def dropped_of(owner: Owner, first: int) -> int:
        """The same; `first` is the first sequence that the stream has."""
        return max(owner.dropped, first - 1 if owner.since < first - 1 else 0)
