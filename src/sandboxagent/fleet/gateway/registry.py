"""Keep what a gateway knows of nodes, sessions and operators' orders, by watching three tables."""

import asyncio
import base64
import binascii
import logging
from collections.abc import Callable, Iterable

import msgspec
from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from sandboxagent.fleet import messages
from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.bus.interface import BusError, StreamFollowing, Table, TableEntry
from sandboxagent.fleet.gateway.limits import Usage
from sandboxagent.protocol.errors import InvalidParams, LogUnavailable, UnknownSession
from sandboxagent.protocol.json_bounds import excess_of_answer, shallow
from sandboxagent.protocol.views import NodeView
from sandboxagent.server.sessions.activity import Changes

logger = logging.getLogger(__name__)

PAGE = 200
MAX_GONE = 10_000
"""Maximum number of deleted sessions whose revision is remembered. Without it, a node needs two requests to list one
again."""
NO_RUN = "."
"""Stands for the run of a forgotten node, none of whose runs returns. No nonce in an id has this form."""
ORDERS = "fleet"
"""Name of the table of operators' orders, each under one key."""
_DRAIN, _FORGET, _PIN = "drain.", "forget.", "pin."


def drain_key(node: str) -> str:
    """Return the key that exists while a node drains."""
    return f"{_DRAIN}{node}"


def forget_key(node: str) -> str:
    """Return the key that exists after a node was forgotten."""
    return f"{_FORGET}{node}"


def pin_key(node: str) -> str:
    """Return the key of an operator's settings for a node, which override the node's own report."""
    return f"{_PIN}{node}"


class Orders:
    """Operators' orders about nodes: a draining node gets no new sessions, and a forgotten one gets nothing.

    A pinned node has the labels and agents that the operator has set.
    """

    def __init__(self) -> None:
        self.draining: set[str] = set()
        self.forgotten: set[str] = set()
        self.pins: dict[str, messages.Pin] = {}
        self._watching: StreamFollowing | None = None
        self._table: Table | None = None
        self._watchers: list[Callable[[str], None]] = []
        self._pin_watchers: list[Callable[[str], None]] = []

    async def start(self, table: Table) -> None:
        self._table = table
        self._watching = await table.watch(self.take)

    async def close(self) -> None:
        if self._watching is not None:
            await self._watching.close()

    def watch_forgotten(self, watcher: Callable[[str], None]) -> None:
        """Call a function for each node that is forgotten."""
        self._watchers.append(watcher)

    def watch_pins(self, watcher: Callable[[str], None]) -> None:
        """Call a function for each node whose pin is set or removed."""
        self._pin_watchers.append(watcher)

    def describe(self, lease: messages.Lease) -> messages.Lease:
        """Return a node's lease, in which a pin overrides the node's own report."""
        pin = self.pins.get(lease.node)
        if pin is None:
            return lease
        allowed = pin.agents
        agents = lease.agents if allowed is None else [agent for agent in lease.agents if agent in allowed]
        return replace(lease, labels=pin.labels, agents=agents, pinned=True, allowed=allowed)

    async def fetch_forgotten(self, node: str) -> bool:
        """Read from the table whether a node is forgotten, because it may have been invited again. Raises BusError."""
        if self._table is None:
            return node in self.forgotten
        return await self._table.get(forget_key(node)) is not None

    def take(self, entry: TableEntry) -> None:
        """Note an order that was given or withdrawn."""
        for prefix, nodes in ((_DRAIN, self.draining), (_FORGET, self.forgotten)):
            if entry.key.startswith(prefix):
                node = entry.key.removeprefix(prefix)
                if entry.value is None:
                    nodes.discard(node)
                    continue
                nodes.add(node)
                for watcher in self._watchers if prefix == _FORGET else ():
                    watcher(node)
        if entry.key.startswith(_PIN):
            self._take_pin(entry.key.removeprefix(_PIN), entry.value)

    def _take_pin(self, node: str, value: bytes | None) -> None:
        if value is None:
            self.pins.pop(node, None)
        else:
            try:
                self.pins[node] = msgspec.json.decode(value, type=messages.Pin)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                logger.error(
                    "pin not read, the node counts as one without labels and agents node=%s reason=%s", node, error
                )
                self.pins[node] = messages.Pin(agents=[])
        for watcher in self._pin_watchers:
            watcher(node)


class _Facts(Struct, rename="camel"):
    session_id: str
    created_at: str
    cwd: str
    alias: str | None = None
    pending: int = 0


class ListedSession(Struct, frozen=True):
    """A session in the fleet's list."""

    session_id: str
    node: str
    cwd: str
    order: tuple[str, str]
    """Sort key of the list, newest first."""
    view: Raw
    """The session's view from its node, with the node's name."""
    alias: str | None = None
    pending: int = 0
    """Number of its agent's requests that wait for people."""
    size: int = 0
    """Number of bytes of its entry in the table."""


class NodeRegistry:
    """The lists of nodes and sessions."""

    def __init__(self, orders: Orders | None = None, *, require_pins: bool = False, most: int | None = None) -> None:
        """Create the lists.

        With `require_pins`, a node without a pin gets no new sessions. `most` is the maximum number of listed sessions
        of a node; None for no limit.
        """
        self._most = most
        self.orders = orders or Orders()
        self.orders.watch_forgotten(self._forget_node)
        self.orders.watch_pins(self._apply_pin)
        self._require_pins = require_pins
        self.leases: dict[str, messages.Lease] = {}
        """Connected nodes by name. Pins override their own reports."""
        self._announced: dict[str, messages.Lease] = {}
        """Connected nodes by name, as they describe themselves."""
        self.revisions: dict[str, int] = {}
        """Revisions of sessions' entries in the table, by key. The newest deleted entries are included."""
        self.changes = Changes()
        """Changes of sessions, in the order in which this gateway learned of them."""
        self.sessions: dict[str, ListedSession] = {}
        """Listed sessions by key."""
        self.usage: dict[str, Usage] = {}
        """The part of the list that each node uses."""
        self._aliases: dict[str, set[str]] = {}
        """Keys of the sessions that have an alias. There may be several, because nodes choose aliases independently."""
        self._gone: dict[str, None] = {}
        """Keys of deleted sessions whose revision is remembered, oldest first."""
        self._dropped: dict[str, tuple[str, str]] = {}
        """Sort keys of deleted sessions, while the table may still list them."""
        self._watchers: list[Callable[[str], None]] = []
        self._waiting: dict[asyncio.Future[None], Callable[[], bool]] = {}
        self._sorted: list[ListedSession] | None = []
        self._watching: list[StreamFollowing] = []
        self._table: Table | None = None

    async def start(self, leases: Table, listed: Table) -> None:
        """Read both tables, and follow their changes."""
        self._table = leases
        self._watching = [await leases.watch(self._take_lease), await listed.watch(self._take_session)]

    async def close(self) -> None:
        self.changes.close()
        for each in self._watching:
            await each.close()

    async def fetch_run(self, node: str) -> str | None:
        """Read from the tables the nonce of the run that has a node's lease. Raises LogUnavailable.

        Return NO_RUN for a forgotten node. The facts in memory may be old if this gateway was cut off itself.
        """
        try:
            if await self.orders.fetch_forgotten(node):
                return NO_RUN
            if self._table is None:
                return self.leases[node].nonce if node in self.leases else None
            entry = await self._table.get(node)
        except BusError as error:
            raise LogUnavailable.of_fleet(error) from error
        return (
            None
            if entry is None or entry.value is None
            else msgspec.json.decode(entry.value, type=messages.Lease).nonce
        )

    @property
    def count(self) -> int:
        """Number of sessions."""
        return len(self.sessions)

    def nodes(self) -> list[NodeView]:
        """Return the connected nodes, by name."""
        nothing = Usage()
        return [
            NodeView(
                name,
                lease.version,
                lease.labels,
                lease.agents,
                lease.running,
                self.usage.get(name, nothing).sessions,
                lease.since,
                lease.draining,
                lease.pinned,
                lease.limited or UNSET,
                lease.set_aside or UNSET,
            )
            for name, lease in sorted(self.leases.items())
        ]

    def closed(self) -> dict[str, str]:
        """Return the nodes that get no new sessions, with the reasons."""
        nothing, most = Usage(), self._most
        full = [node for node in self.leases if most is not None and self.usage.get(node, nothing).sessions >= most]
        closed = dict.fromkeys(full, f"has {self._most} sessions, as many as gateways list of a node (--node-sessions)")
        closed |= dict.fromkeys(self.orders.draining, "drains")
        closed |= {node: "is set aside, because it floods" for node, each in self.leases.items() if each.set_aside}
        if self._require_pins:
            unpinned = self.leases.keys() - self.orders.pins.keys()
            closed |= dict.fromkeys(unpinned, "is not pinned, as this gateway requires (fleet pin)")
        return closed

    def owners(self, cwd: str) -> set[str]:
        """Return the nodes that have sessions in a directory."""
        return {seen.node for seen in self.sessions.values() if seen.cwd == cwd}

    def nodes_with_pending(self) -> set[str]:
        """Return the nodes where an agent waits for people."""
        return {seen.node for seen in self.sessions.values() if seen.pending}

    def find(self, name: str) -> ListedSession | None:
        """Return a session by its id, or by an alias that only one session has; None if there is none."""
        seen = self.sessions.get(subjects.token(name))
        if seen is not None and seen.session_id == name:
            return seen
        named = self._aliases.get(name, ())
        return self.sessions[next(iter(named))] if len(named) == 1 else None

    def session(self, name: str | None) -> ListedSession:
        """Return a session by its id, or by an alias that only one session has. Raises UnknownSession."""
        seen = None if name is None else self.find(name)
        if seen is None:
            raise UnknownSession(name or "")
        return seen

    def view(self, name: str) -> dict[str, object]:
        """Return a session's view from the list; empty if there is none."""
        seen = self.find(name)
        return {} if seen is None else msgspec.json.decode(seen.view, type=dict[str, object])

    def page(self, cursor: str | None, cwd: str | None) -> tuple[list[ListedSession], str | None]:
        """Return a page of sessions, newest first, and the cursor of the next page.

        Raises InvalidParams for an invalid cursor.
        """
        before = None if cursor is None else _decode_cursor(cursor)
        fitting = (each for each in self._in_order() if cwd is None or each.cwd == cwd)
        page: list[ListedSession] = []
        for each in fitting:
            if before is not None and each.order >= before:
                continue
            if len(page) == PAGE:
                return page, _encode_cursor(page[-1])
            page.append(each)
        return page, None

    def list_sessions(self, cursor: str | None, cwd: str | None, changed_after: str | None) -> dict[str, object]:
        """Return a page of sessions, or the sessions that have changed since a moment.

        The moment must be one that this gateway gave out and still knows. Otherwise the first page is returned.
        """
        now = self.changes.cursor
        changed = None if changed_after is None or cursor is not None else self.changes.after(changed_after)
        if changed is None:
            page, following = self.page(cursor, cwd)
            more = {} if following is None else {"nextCursor": following}
            return {"sessions": [seen.view for seen in page], "changes": now, **more}
        found = [seen for each in changed.sessions if (seen := self.find(each)) is not None]
        views = [seen.view for seen in found if cwd is None or seen.cwd == cwd]
        return {"sessions": views, "changes": now, "gone": changed.gone}

    def _in_order(self) -> Iterable[ListedSession]:
        if self._sorted is None:
            self._sorted = sorted(self.sessions.values(), key=lambda each: each.order, reverse=True)
        return self._sorted

    def drop(self, session_id: str) -> None:
        """Remove a session that its node has deleted, before the table says so."""
        key = subjects.token(session_id)
        gone = self._forget(key)
        if gone is not None:
            self._dropped[key] = gone.order
            if len(self._dropped) > MAX_GONE:
                del self._dropped[next(iter(self._dropped))]
            self._sorted = None
            self.changes.note(session_id, gone=True)
            self._wake()

    def watch(self, watcher: Callable[[str], None]) -> None:
        """Call a function for each node that comes, goes, restarts, or is forgotten."""
        self._watchers.append(watcher)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition about nodes or sessions is true."""
        if condition():
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = condition
        try:
            await future
        finally:
            del self._waiting[future]

    def _forget_node(self, node: str) -> None:
        """Handle a forgotten node. It may be away already, and clients may still have its agents' requests."""
        self.leases.pop(node, None)
        self._announced.pop(node, None)
        self._tell(node)

    def _apply_pin(self, node: str) -> None:
        announced = self._announced.get(node)
        if announced is not None:
            self.leases[node] = self.orders.describe(announced)

    def _take_lease(self, entry: TableEntry) -> None:
        before = self.leases.get(entry.key)
        # A gateway that does not know yet that a node was forgotten may renew its lease.
        if entry.value is None or entry.key in self.orders.forgotten:
            if before is not None:
                del self.leases[entry.key]
                self._announced.pop(entry.key, None)
                logger.warning("node lost node=%s", entry.key)
                self._tell(entry.key)
            return
        lease = msgspec.json.decode(entry.value, type=messages.Lease)
        if before is None:
            logger.info("node joined node=%s version=%s", entry.key, lease.version)
        self._announced[entry.key] = lease
        self.leases[entry.key] = self.orders.describe(lease)
        if before is None or before.nonce != lease.nonce:
            self._tell(entry.key)

    def _tell(self, node: str) -> None:
        for watcher in self._watchers:
            watcher(node)
        self._wake()

    def _wake(self) -> None:
        for future, condition in self._waiting.items():
            if not future.done() and condition():
                future.set_result(None)

    def _take_session(self, entry: TableEntry) -> None:
        self._sorted = None
        self.revisions[entry.key] = entry.revision
        self._gone.pop(entry.key, None)
        if entry.value is None:
            self._gone[entry.key] = None
            if len(self._gone) > MAX_GONE:
                oldest = next(iter(self._gone))
                del self._gone[oldest], self.revisions[oldest]
            self._dropped.pop(entry.key, None)
            gone = self._forget(entry.key)
            if gone is not None:
                self.changes.note(gone.session_id, gone=True)
        else:
            self._list(entry.key, entry.value)
        self._wake()

    def _list(self, key: str, value: bytes) -> None:
        try:
            node, whole = _read_listed(value)
            facts = msgspec.json.decode(msgspec.json.encode(whole), type=_Facts)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            logger.warning("session not listed key=%s reason=%s", key, error)
            return
        view = Raw(msgspec.json.encode({**whole, "node": node}))
        order = (facts.created_at, facts.session_id)
        if self._dropped.get(key) == order:
            return
        self._dropped.pop(key, None)
        self._forget(key)
        self.sessions[key] = ListedSession(
            *(facts.session_id, node, facts.cwd, order, view, facts.alias, facts.pending),
            len(value),
        )
        usage = self.usage.setdefault(node, Usage())
        usage.sessions += 1
        usage.views += len(value)
        if facts.alias is not None:
            self._aliases.setdefault(facts.alias, set()).add(key)
        self.changes.note(facts.session_id)

    def _forget(self, key: str) -> ListedSession | None:
        old = self.sessions.pop(key, None)
        if old is not None:
            usage = self.usage[old.node]
            usage.sessions -= 1
            usage.views -= old.size
            if not usage.sessions:
                del self.usage[old.node]
        if old is not None and old.alias is not None:
            self._aliases[old.alias].discard(key)
            if not self._aliases[old.alias]:
                del self._aliases[old.alias]
        return old


def _read_listed(value: bytes) -> tuple[str, dict[str, Raw]]:
    """Return the node and the facts of a listed session.

    Facts that an earlier gateway accepted and that are too deeply nested are left out.
    """
    if excess_of_answer(value) is None:
        listed = msgspec.json.decode(value, type=messages.Listed)
        return listed.node, msgspec.json.decode(listed.session, type=dict[str, Raw])
    members, left_out = shallow(value, messages.Listed, lambda listed: bytes(listed.session))
    node = msgspec.json.decode(shallow(value, Raw, bytes)[0]["node"], type=str)
    return node, {**members, "leftOut": Raw(msgspec.json.encode(left_out))}


def _encode_cursor(seen: ListedSession) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(seen.order)).decode()


def _decode_cursor(cursor: str) -> tuple[str, str]:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(cursor), type=tuple[str, str])
    except (binascii.Error, ValueError, msgspec.DecodeError) as error:
        message = "cursor is not one that session/list gave out; leave it out to start at the newest session"
        raise InvalidParams(message, cursor=cursor) from error
