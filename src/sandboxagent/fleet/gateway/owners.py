"""Keep which node owns each session and each alias, in a table of the fleet.

Events are dropped if they are old or too many. The ownership of a session lasts until its node deletes the session, so
no other node can get a session whose events are gone. Ids and aliases are keys of the same table. So no node can give
its session a name by which clients know another session.
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
    """The node that a session or an alias was granted to."""

    node: str
    session: str = ""
    """For an alias: the session that it means, by the token of the session's id. Empty for a session."""
    alias: str = ""
    """For a session: its only alias, which is the first one that its node has named."""
    epoch: int = 1
    since: int = 0
    """The end of the stream at the time of the grant. All events of the session came after it."""
    dropped: int = 0
    """The sequence of the session's last event, if that was dropped with all events before it."""
    last: int = 0
    """The node's own position of the event in `dropped`."""


class Owners:
    """One gateway's access to the table. All methods raise BusError."""

    def __init__(self, table: Table, events: BusStream) -> None:
        self._table = table
        self._events = events

    async def find(self, subject: str) -> Owner | None:
        """Return the owner of a session, by the subject of its events."""
        entry = await self._table.get(subjects.session_token(subject))
        return None if entry is None or entry.value is None else msgspec.json.decode(entry.value, type=Owner)

    async def claim(self, subject: str, node: str) -> Owner:
        """Grant a session to a node unless it has an owner, and return its owner."""
        _, since = await self._events.ends()
        return await self._put_first(subjects.session_token(subject), Owner(node, since=since))

    async def claim_alias(self, subject: str, node: str, alias: str) -> bool:
        """Grant an alias to a session of a node, and return whether the session has it.

        The alias is not granted if it is another session's alias or id, or if the session has another alias.
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
            # The session's entry is written first, so that no node holds more aliases than sessions.
            named = msgspec.structs.replace(owner, alias=alias)
            with suppress(Conflict):
                await self._table.put(key, msgspec.json.encode(named), expected=entry.revision)
                break
        if wanted == key:
            return True
        holder = await self._put_first(wanted, Owner(node, session=key))
        return (holder.node, holder.session) == (node, key)

    async def _put_first(self, key: str, owner: Owner) -> Owner:
        """Store an owner for a key that has none, and return the owner that the key has then."""
        expected = 0
        while True:
            try:
                await self._table.put(key, msgspec.json.encode(owner), expected=expected)
            except Conflict:
                # The revision is read before the entry, so that an entry written in between is not replaced.
                expected = await self._table.revision(key)
                entry = await self._table.get(key)
                if entry is not None and entry.value is not None:
                    return msgspec.json.decode(entry.value, type=Owner)
                # The entry was deleted. The table remembers the revision of that.
            else:
                return owner

    async def note_dropped(self, subject: str, sequence: int, last: int) -> None:
        """Note that all events of a session up to its last one, at `sequence`, are about to be dropped."""
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
        """Forget a session that its node has deleted. Another session may then have its id and its alias."""
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
            # If another session has the alias by now, it keeps it.
            with suppress(Conflict):
                await self._table.delete(wanted, expected=entry.revision, ttl=GONE_TIMEOUT)

    async def dropped(self, subject: str) -> int:
        """Return the sequence up to which a session's events were dropped. Return 0 if it never had events.

        This is for sessions that have no events left.
        """
        owner, (first, _) = await asyncio.gather(self.find(subject), self._events.ends())
        return 0 if owner is None else self.dropped_of(owner, first)

    @staticmethod
    def dropped_of(owner: Owner, first: int) -> int:
        """Return the sequence up to which a session's events were dropped.

        `first` is the first sequence in the stream.
        """
        return max(owner.dropped, first - 1 if owner.since < first - 1 else 0)
