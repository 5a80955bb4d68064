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
"""Sessions that are gone of which the revision is remembered. Listing one again takes a node two requests, else."""
NO_RUN = "."
"""In the place of a run: its node was forgotten, and none of its runs comes back. No nonce in an id has this form."""
ORDERS = "fleet"
"""The table that has an operator's orders, each under one key."""
_DRAIN, _FORGET, _PIN = "drain.", "forget.", "pin."


def drain_key(node: str) -> str:
    """The key that is there while a node drains."""
    return f"{_DRAIN}{node}"


def forget_key(node: str) -> str:
    """The key that is there once a node was forgotten."""
    return f"{_FORGET}{node}"


def pin_key(node: str) -> str:
    """The key that has what an operator says of a node, in the place of its own word."""
    return f"{_PIN}{node}"


class Orders:
    """What an operator has said of nodes: one that drains gets no new sessions, one that was forgotten gets nothing.

    A pinned one has the labels and agents that the operator gives it.
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
        """Call back for each node that is forgotten."""
        self._watchers.append(watcher)

    def watch_pins(self, watcher: Callable[[str], None]) -> None:
        """Call back for each node that is pinned, or no longer."""
        self._pin_watchers.append(watcher)

    def describe(self, lease: messages.Lease) -> messages.Lease:
        """A node that is there, with what counts of what it says of itself."""
        pin = self.pins.get(lease.node)
        if pin is None:
            return lease
        allowed = pin.agents
        agents = lease.agents if allowed is None else [agent for agent in lease.agents if agent in allowed]
        return replace(lease, labels=pin.labels, agents=agents, pinned=True, allowed=allowed)

    async def fetch_forgotten(self, node: str) -> bool:
        """Whether a node is forgotten, as the table says now: it may have been invited again. Raises BusError."""
        if self._table is None:
            return node in self.forgotten
        return await self._table.get(forget_key(node)) is not None

    def take(self, entry: TableEntry) -> None:
        """Note an order that was given or taken back."""
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
    pending: int = 0
    """Requests of its agent that wait for people."""
    size: int = 0
    """Bytes that its entry has in the table."""


class NodeRegistry:
    """The two lists."""

    def __init__(self, orders: Orders | None = None, *, require_pins: bool = False, most: int | None = None) -> None:
        """With `require_pins`, a node that no operator has pinned gets no new sessions.

        `most` is how many sessions of a node are listed, None for any number.
        """
        self._most = most
        self.orders = orders or Orders()
        self.orders.watch_forgotten(self._forget_node)
        self.orders.watch_pins(self._apply_pin)
        self._require_pins = require_pins
        self.leases: dict[str, messages.Lease] = {}
        """Nodes that are there, by name; with an operator's word in the place of their own."""
        self._announced: dict[str, messages.Lease] = {}
        """The same, as they describe themselves."""
        self.revisions: dict[str, int] = {}
        """Of the entries of sessions in their table, also of the newest that are gone, by key."""
        self.changes = Changes()
        """Of sessions, in the order in which this gateway learned of them."""
        self.sessions: dict[str, Seen] = {}
        """Those that are listed, by key."""
        self.usage: dict[str, Usage] = {}
        """What nodes have in the list, by name."""
        self._aliases: dict[str, set[str]] = {}
        """Alias → keys of the sessions that have it: nodes do not ask each other before they give one."""
        self._gone: dict[str, None] = {}
        """Keys of sessions that are gone, of which the revision is known; oldest first."""
        self._dropped: dict[str, tuple[str, str]] = {}
        """Key → the order of a session that was deleted, while the table may still say otherwise."""
        self._watchers: list[Callable[[str], None]] = []
        self._waiting: dict[asyncio.Future[None], Callable[[], bool]] = {}
        self._sorted: list[Seen] | None = []
        self._watching: list[StreamFollowing] = []
        self._table: Table | None = None

    async def start(self, leases: Table, listed: Table) -> None:
        """Read both tables, and follow them from then on."""
        self._table = leases
        self._watching = [await leases.watch(self._take_lease), await listed.watch(self._take_session)]

    async def close(self) -> None:
        self.changes.close()
        for each in self._watching:
            await each.close()

    async def fetch_run(self, node: str) -> str | None:
        """The run of a node that has its lease, by its nonce, as the tables say now. Raises LogUnavailable.

        NO_RUN for a node that was forgotten. What this gateway has heard may be old, when it was away itself.
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
        """How many sessions there are."""
        return len(self.sessions)

    def nodes(self) -> list[NodeView]:
        """By name."""
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
        """Nodes that get no new sessions, with the reason."""
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
        """Nodes that have sessions in a directory."""
        return {seen.node for seen in self.sessions.values() if seen.cwd == cwd}

    def nodes_with_pending(self) -> set[str]:
        """Those where an agent waits for people."""
        return {seen.node for seen in self.sessions.values() if seen.pending}

    def find(self, name: str) -> Seen | None:
        """A session by its id, or by an alias that one session has."""
        seen = self.sessions.get(subjects.token(name))
        if seen is not None and seen.session_id == name:
            return seen
        named = self._aliases.get(name, ())
        return self.sessions[next(iter(named))] if len(named) == 1 else None

    def session(self, name: str | None) -> Seen:
        """The same. Raises UnknownSession."""
        seen = None if name is None else self.find(name)
        if seen is None:
            raise UnknownSession(name or "")
        return seen

    def view(self, name: str) -> dict[str, object]:
        """What the list shows of a session; nothing of one that it does not have."""
        seen = self.find(name)
        return {} if seen is None else msgspec.json.decode(seen.view, type=dict[str, object])

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

    def list_sessions(self, cursor: str | None, cwd: str | None, changed_after: str | None) -> dict[str, object]:
        """A page of sessions; what has changed since a moment instead, if this gateway named it and still knows."""
        now = self.changes.cursor
        changed = None if changed_after is None or cursor is not None else self.changes.after(changed_after)
        if changed is None:
            page, following = self.page(cursor, cwd)
            more = {} if following is None else {"nextCursor": following}
            return {"sessions": [seen.view for seen in page], "changes": now, **more}
        found = [seen for each in changed.sessions if (seen := self.find(each)) is not None]
        views = [seen.view for seen in found if cwd is None or seen.cwd == cwd]
        return {"sessions": views, "changes": now, "gone": changed.gone}

    def _in_order(self) -> Iterable[Seen]:
        if self._sorted is None:
            self._sorted = sorted(self.sessions.values(), key=lambda each: each.order, reverse=True)
        return self._sorted

    def drop(self, session_id: str) -> None:
        """Its node has deleted a session, and is about to say so in the table."""
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
        """Call back for each node that comes, goes, starts again, or is forgotten."""
        self._watchers.append(watcher)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something is true of nodes or sessions."""
        if condition():
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = condition
        try:
            await future
        finally:
            del self._waiting[future]

    def _forget_node(self, node: str) -> None:
        """It may be away already, and clients may still have what its agents have asked."""
        self.leases.pop(node, None)
        self._announced.pop(node, None)
        self._tell(node)

    def _apply_pin(self, node: str) -> None:
        announced = self._announced.get(node)
        if announced is not None:
            self.leases[node] = self.orders.describe(announced)

    def _take_lease(self, entry: TableEntry) -> None:
        before = self.leases.get(entry.key)
        # A gateway that has not heard yet that a node was forgotten may renew its lease.
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
        self.sessions[key] = Seen(
            *(facts.session_id, node, facts.cwd, order, view, facts.alias, facts.pending),
            len(value),
        )
        usage = self.usage.setdefault(node, Usage())
        usage.sessions += 1
        usage.views += len(value)
        if facts.alias is not None:
            self._aliases.setdefault(facts.alias, set()).add(key)
        self.changes.note(facts.session_id)

    def _forget(self, key: str) -> Seen | None:
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
    """The node of a listed session, and its facts: without those that an earlier gateway let in, and are too deep."""
    if excess_of_answer(value) is None:
        listed = msgspec.json.decode(value, type=messages.Listed)
        return listed.node, msgspec.json.decode(listed.session, type=dict[str, Raw])
    members, left_out = shallow(value, messages.Listed, lambda listed: bytes(listed.session))
    node = msgspec.json.decode(shallow(value, Raw, bytes)[0]["node"], type=str)
    return node, {**members, "leftOut": Raw(msgspec.json.encode(left_out))}


def _encode_cursor(seen: Seen) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(seen.order)).decode()


def _decode_cursor(cursor: str) -> tuple[str, str]:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(cursor), type=tuple[str, str])
    except (binascii.Error, ValueError, msgspec.DecodeError) as error:
        message = "cursor is not one that session/list gave out; leave it out to start at the newest session"
        raise InvalidParams(message, cursor=cursor) from error
