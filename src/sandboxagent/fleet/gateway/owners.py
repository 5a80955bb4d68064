"""Keep which node owns each session and each alias, in a table of the fleet.

Events are dropped when they are old, or many. That a session belongs to a node holds until its node deletes it: no
other node gets it because nothing is left of it. Ids and aliases are keys of the same table, so that no node can call a
session by what clients call another one.
"""

import asyncio
from contextlib import suppress

import msgspec
from msgspec import Struct

from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.bus.interface import BusStream, Conflict, Table

TABLE = "owners"
GONE_TIMEOUT = 3600.0
"""Seconds for which the table remembers that a session was deleted."""


class Owner(Struct, frozen=True, omit_defaults=True):
    """The node that a session, or an alias, was granted to."""

    node: str
    session: str = ""
    """The session that an alias means, by the token of its id; empty for a session."""
    alias: str = ""
    """The only alias that a session may have: the first that its node has named."""
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
        _, since = await self._events.ends()
        return await self._put_first(subjects.session_token(subject), Owner(node, since=since))

    async def claim_alias(self, subject: str, node: str, alias: str) -> bool:
        """Grant an alias to a session of a node; returns whether that session has it.

        Not when another session has it as its alias or its id, nor when it has another alias.
        """
        key, wanted = subjects.session_token(subject), subjects.token(alias)
        while True:
            entry = await self._table.get(key)
            owner = None if entry is None or entry.value is None else msgspec.json.decode(entry.value, type=Owner)
            if entry is None or owner is None or owner.node != node or owner.session:
                return False
            if owner.alias == alias:
                break
            if owner.alias:
                return False
            # First, so that no node holds more aliases than it has sessions.
            named = msgspec.structs.replace(owner, alias=alias)
            with suppress(Conflict):
                await self._table.put(key, msgspec.json.encode(named), expected=entry.revision)
                break
        if wanted == key:
            return True
        holder = await self._put_first(wanted, Owner(node, session=key))
        return (holder.node, holder.session) == (node, key)

    async def _put_first(self, key: str, owner: Owner) -> Owner:
        """Put an owner where there is none; returns the one that is there then."""
        expected = 0
        while True:
            try:
                await self._table.put(key, msgspec.json.encode(owner), expected=expected)
            except Conflict:
                # Taken before the look: one that is put in between is not replaced.
                expected = await self._table.revision(key)
                entry = await self._table.get(key)
                if entry is not None and entry.value is not None:
                    return msgspec.json.decode(entry.value, type=Owner)
                # It was deleted, which the table remembers.
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
        """A session was deleted by its node: another one may have its id, and its alias."""
        owner, key = await self.find(subject), subjects.session_token(subject)
        if owner is not None and owner.alias:
            await self._forget_alias(owner, key)
        await self._table.delete(key, ttl=GONE_TIMEOUT)

    async def _forget_alias(self, owner: Owner, key: str) -> None:
        wanted = subjects.token(owner.alias)
        entry = await self._table.get(wanted)
        if entry is None or entry.value is None:
            return
        holder = msgspec.json.decode(entry.value, type=Owner)
        if (holder.node, holder.session) == (owner.node, key):
            # Another session that has it by now keeps it.
            with suppress(Conflict):
                await self._table.delete(wanted, expected=entry.revision, ttl=GONE_TIMEOUT)

    async def dropped(self, subject: str) -> int:
        """The sequence up to which events of a session were dropped that has none; 0 when it never had one."""
        owner, (first, _) = await asyncio.gather(self.find(subject), self._events.ends())
        return 0 if owner is None else self.dropped_of(owner, first)

    @staticmethod
    def dropped_of(owner: Owner, first: int) -> int:
        """The same; `first` is the first sequence that the stream has."""
        return max(owner.dropped, first - 1 if owner.since < first - 1 else 0)
