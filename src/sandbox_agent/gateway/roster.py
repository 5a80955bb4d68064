"""What a gateway knows of nodes and sessions: two tables of the fleet, kept by watching them."""

import base64
import binascii
import logging
from collections import Counter
from collections.abc import Iterable

import msgspec
from msgspec import Raw, Struct

from sandbox_agent.bus import subjects
from sandbox_agent.bus.ports import Entry, Following, Table
from sandbox_agent.errors import InvalidParams, UnknownSession
from sandbox_agent.wire import fleet

logger = logging.getLogger(__name__)

PAGE = 200


class _Sortable(Struct, rename="camel"):
    session_id: str
    created_at: str
    cwd: str
    alias: str | None = None


class Seen(Struct, frozen=True):
    """A session of the fleet."""

    session_id: str
    node: str
    cwd: str
    order: tuple[str, str]
    """By which the list is sorted, newest first."""
    view: Raw
    """As its node shows it, with the node's name."""
    alias: str | None = None


class NodeView(Struct, rename="camel"):
    """A node that is there."""

    node: str
    version: str
    """Of sandbox-agent."""
    labels: dict[str, str]
    agents: list[str]
    """That are installed there."""
    running: int
    """Turns that run."""
    sessions: int
    """That belong to it."""
    since: str
    """When it was started, by its own clock: UTC, ISO 8601 with milliseconds."""
    draining: bool = False
    """It gets no new sessions."""


class NodesView(Struct):
    """All nodes that are there."""

    nodes: list[NodeView]


class Roster:
    """The two lists."""

    def __init__(self) -> None:
        self.leases: dict[str, fleet.Lease] = {}
        """Nodes that are there, by name."""
        self._sessions: dict[str, Seen] = {}
        self._aliases: dict[str, set[str]] = {}
        """Alias → keys of the sessions that have it: nodes do not ask each other before they give one."""
        self._sorted: list[Seen] | None = []
        self._watching: list[Following] = []

    async def start(self, leases: Table, listed: Table) -> None:
        """Read both tables, and follow them from then on."""
        self._watching = [await leases.watch(self._take_lease), await listed.watch(self._take_session)]

    async def close(self) -> None:
        for each in self._watching:
            await each.close()

    @property
    def count(self) -> int:
        """How many sessions there are."""
        return len(self._sessions)

    def nodes(self) -> list[NodeView]:
        """By name."""
        counts = Counter(seen.node for seen in self._sessions.values())
        return [
            NodeView(
                name,
                lease.version,
                lease.labels,
                lease.agents,
                lease.running,
                counts[name],
                lease.since,
                lease.draining,
            )
            for name, lease in sorted(self.leases.items())
        ]

    def owners(self, cwd: str) -> set[str]:
        """Nodes that have sessions in a directory."""
        return {seen.node for seen in self._sessions.values() if seen.cwd == cwd}

    def session(self, session_id: str | None) -> Seen:
        """By id, or by an alias that one session has. Raises UnknownSession."""
        seen = self._sessions.get(subjects.token(session_id or ""))
        if seen is not None and seen.session_id == session_id:
            return seen
        named = self._aliases.get(session_id or "", ())
        if len(named) != 1:
            raise UnknownSession(session_id or "")
        return self._sessions[next(iter(named))]

    def page(self, cursor: str | None, cwd: str | None) -> tuple[list[Seen], str | None]:
        """Newest first, a page at a time; raises InvalidParams for a cursor that is none."""
        before = None if cursor is None else _decode_cursor(cursor)
        fitting = (each for each in self._in_order() if cwd is None or each.cwd == cwd)
        page: list[Seen] = []
        for each in fitting:
            if before is not None and each.order >= before:
                continue
            if len(page) == PAGE:
                return page, _encode_cursor(page[-1])
            page.append(each)
        return page, None

    def _in_order(self) -> Iterable[Seen]:
        if self._sorted is None:
            self._sorted = sorted(self._sessions.values(), key=lambda each: each.order, reverse=True)
        return self._sorted

    def _take_lease(self, entry: Entry) -> None:
        if entry.value is None:
            if self.leases.pop(entry.key, None) is not None:
                logger.warning("node lost node=%s", entry.key)
            return
        lease = msgspec.json.decode(entry.value, type=fleet.Lease)
        if entry.key not in self.leases:
            logger.info("node joined node=%s version=%s", entry.key, lease.version)
        self.leases[entry.key] = lease

    def _take_session(self, entry: Entry) -> None:
        self._sorted = None
        if entry.value is None:
            self._forget(entry.key)
            return
        try:
            listed = msgspec.json.decode(entry.value, type=fleet.Listed)
            facts = msgspec.json.decode(listed.session, type=_Sortable)
            whole = msgspec.json.decode(listed.session, type=dict[str, Raw])
        except msgspec.DecodeError as error:
            logger.warning("session not listed key=%s reason=%s", entry.key, error)
            return
        view = Raw(msgspec.json.encode({**whole, "node": listed.node}))
        order = (facts.created_at, facts.session_id)
        self._forget(entry.key)
        self._sessions[entry.key] = Seen(facts.session_id, listed.node, facts.cwd, order, view, facts.alias)
        if facts.alias is not None:
            self._aliases.setdefault(facts.alias, set()).add(entry.key)

    def _forget(self, key: str) -> None:
        old = self._sessions.pop(key, None)
        if old is not None and old.alias is not None:
            self._aliases[old.alias].discard(key)
            if not self._aliases[old.alias]:
                del self._aliases[old.alias]


def _encode_cursor(seen: Seen) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(seen.order)).decode()


def _decode_cursor(cursor: str) -> tuple[str, str]:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(cursor), type=tuple[str, str])
    except (binascii.Error, ValueError, msgspec.DecodeError) as error:
        message = "cursor is not one that session/list gave out; leave it out to start at the newest session"
        raise InvalidParams(message, cursor=cursor) from error
