"""Keep all connections at a gateway, from the fleet's table and its stream.

Every gateway serves every connection, because all connections are in the fleet's table.

The stream alone determines a connection's events. Nodes write there the sessions that it is attached to, and its own
events. So a connection can continue at another gateway where it was.
"""

import asyncio
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine

import msgspec

from sandboxagent.core.tasks import Shared, Tasks
from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.bus.interface import BusError, Conflict, StreamFollowing, Table, TableEntry
from sandboxagent.fleet.gateway.connection import AttachmentLog, FleetConnection, restore
from sandboxagent.fleet.gateway.events import GatewayEvents
from sandboxagent.fleet.gateway.feed import EVERYTHING, Feed
from sandboxagent.fleet.gateway.node_loss import LostSessions, ResponsePromises, Withdrawals
from sandboxagent.fleet.gateway.ordering import Ordering
from sandboxagent.fleet.gateway.registry import NodeRegistry
from sandboxagent.fleet.messages import AttachmentChange, ConnectionRecord, StreamOpened
from sandboxagent.protocol.envelope import Envelope
from sandboxagent.protocol.errors import LogUnavailable, SandboxAgentError, UnknownConnection
from sandboxagent.server.http.stream import REPLACED
from sandboxagent.server.log.event import session_channel
from sandboxagent.server.sessions.connection import Connection

logger = logging.getLogger(__name__)

SESSION_TIMEOUT = 10.0
"""Seconds that the report of a new session waits for earlier events."""
MAX_KNOWN_REMOTE = 50_000
"""Maximum number of introductions by other gateways that are remembered, which saves reads of the table."""


class FleetConnections:
    """The connections of this gateway's clients, with the operations that transports need."""

    def __init__(
        self, gateway: str, feed: Feed, registry: NodeRegistry, table: Table, own: GatewayEvents, ttl: float
    ) -> None:
        self.stopping = False
        self._gateway = gateway
        self._feed = feed
        feed.fell_behind = self._begin_anew
        self._registry = registry
        self._table = table
        self._own = own
        self.ordering = Ordering(feed)
        self.promises = ResponsePromises(feed, own, registry.fetch_run)
        self.endings = LostSessions(feed, own)
        self.withdrawals = Withdrawals(feed, own, registry.fetch_run)
        self._ttl = ttl
        self._by_tag: dict[str, FleetConnection] = {}
        self._loading = Shared[str, FleetConnection | None]()
        """Loading connections by id. A wrong id with the right tag must not get in the way of the right id."""
        self._known_remote: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._watchers: list[Callable[[FleetConnection], None]] = []
        self._stream_watchers: list[Callable[[FleetConnection], None]] = []
        self._opened: Callable[[str, str], Awaitable[None]] = _ignore
        self._tasks = Tasks()
        self._watching: StreamFollowing | None = None
        registry.watch(self._take_node)
        for node in registry.leases:
            self._take_node(node)

    async def start(self) -> None:
        """Follow the fleet's table. Another gateway may close a connection, or introduce it to more nodes."""
        self._watching = await self._table.watch(self._take_entry)

    async def close_all(self) -> None:
        if self._watching is not None:
            await self._watching.close()

    def all(self) -> list[FleetConnection]:
        return list(self._by_tag.values())

    # Called by transports

    @property
    def position(self) -> int:
        return self._feed.position

    def monotonic(self) -> float:
        return time.monotonic()

    def make_id(self) -> str:
        return f"g{secrets.token_hex(8)}.{secrets.token_urlsafe(24)}"

    async def has_sent(self, position: int) -> bool:
        return position <= self._feed.position or position <= await self._feed.refresh()

    async def find(self, connection_id: str) -> FleetConnection | None:
        """Return a connection from here or from the fleet's table. Raises LogUnavailable."""
        tag, _, _ = connection_id.partition(".")
        connection = self._by_tag.get(tag)
        if connection is None or connection_id in self._loading:
            # Wait until the connection's channels are known. Otherwise a stream would skip events of its sessions.
            connection = await self._load(tag, connection_id)
        if connection is None or not connection.is_called(connection_id):
            return None
        connection.used_at = time.monotonic()
        return connection

    def look_up(self, connection_id: str) -> FleetConnection | None:
        connection = self._by_tag.get(connection_id.partition(".")[0])
        if connection is None or connection_id in self._loading:
            return None
        if not connection.is_called(connection_id):
            raise UnknownConnection
        connection.used_at = time.monotonic()
        return connection

    async def close(self, connection: Connection, reason: str) -> None:
        """Close a connection in the whole fleet."""
        if not isinstance(connection, FleetConnection) or connection.closed:
            return
        self._drop(connection, reason)
        for watcher in self._watchers:
            watcher(connection)
        try:
            await self._table.delete(connection.tag)
            for source in (subjects.GATEWAY, *connection.remotes):
                await self._own.purge(connection.tag, source)
        except BusError as error:
            # The table forgets the connection after its time to live, and the stream drops old events.
            logger.info("connection not removed connection=%s reason=%s", connection.tag, error)

    async def committed(self, position: int) -> None:
        """Return at once, because everything from a node is stored already."""

    def when_committed(self, position: int, callback: Callable[[Exception | None], None]) -> None:
        """Call back at once, because everything from a node is stored already."""
        callback(None)

    def when_safe(self, connection: Connection, position: int, callback: Callable[[Exception | None], None]) -> None:
        """Call back at once, because everything from a node is stored already."""
        callback(None)

    def tell(self, connection: Connection, line: bytes, session_id: str | None = None) -> None:
        self._own.tell(connection.tag, line, session_id)

    def session_opened(self, connection: FleetConnection, node: str, session_id: str) -> None:
        """Tell a node that the response with its new session has been sent.

        Until then the node holds the session's updates.
        """
        self._spawn(self._tell_opened(connection, node, session_id))

    async def _tell_opened(self, connection: FleetConnection, node: str, session_id: str) -> None:
        # On the stream, the updates must come after the response.
        await self._own.all_kept(connection.tag, SESSION_TIMEOUT)
        await self._opened(node, session_id)

    def find_session(self, name: str) -> str | None:
        seen = self._registry.find(name)
        return None if seen is None else seen.session_id

    # Opening

    async def open(self, connection_id: str, agent: str, envelope: Envelope, home: str | None) -> FleetConnection:
        """Open a new connection, which every gateway knows from then on. Raises LogUnavailable."""
        position = await self._feed.refresh()
        connection = FleetConnection(
            connection_id=connection_id,
            tag=connection_id.partition(".")[0],
            agent=agent,
            used_at=time.monotonic(),
            opened_at=position,
            initialize=envelope.line,
            home=home,
            remotes={} if home is None else {home: ""},
        )
        connection.introduce(envelope.params())
        await self._save(connection)
        self._by_tag[connection.tag] = connection
        try:
            await self._follow(connection, subjects.GATEWAY, *connection.remotes)
        except BaseException:
            self._drop(connection, "it could not be read")
            raise
        return connection

    async def add_node(self, connection: FleetConnection, node: str) -> None:
        """Let a node send events to a connection, and follow them. Raises LogUnavailable."""
        if node in connection.remotes:
            return
        connection.remotes[node] = ""
        try:
            await self._save(connection)
            await self._follow(connection, node)
        except BaseException:
            # Everything is undone, so that the next call starts again.
            self._unfollow(connection, node)
            connection.remotes.pop(node, None)
            raise

    async def _save(self, connection: FleetConnection) -> None:
        """Write a connection's record, and keep additions of other gateways.

        Raises UnknownConnection or LogUnavailable.
        """
        while True:
            value, expected = connection.record(), connection.revision
            try:
                connection.revision = await self._table.put(connection.tag, value, expected=expected, ttl=self._ttl)
                connection.kept_at = time.monotonic()
            except Conflict:
                entry = await self._get(connection.tag)
                if entry is None or entry.value is None:
                    self._drop(connection, "the client closed the connection")
                    raise UnknownConnection from None
                self._take_visit(connection, entry.value, entry.revision)
            except BusError as error:
                raise LogUnavailable.of_fleet(error) from error
            else:
                return

    async def _get(self, tag: str) -> TableEntry | None:
        try:
            return await self._table.get(tag)
        except BusError as error:
            raise LogUnavailable.of_fleet(error) from error

    async def keep(self, connection: FleetConnection) -> bool:
        """Renew a connection's record in the table if it is time, and return whether it was. Raises LogUnavailable."""
        overdue = time.monotonic() - connection.kept_at > self._ttl / 3
        if overdue:
            await self._save(connection)
        return overdue

    def watch_closed(self, watcher: Callable[[FleetConnection], None]) -> None:
        """Call a function for connections that their clients have closed here."""
        self._watchers.append(watcher)

    def watch_opened(self, watcher: Callable[[str, str], Awaitable[None]]) -> None:
        """Call a function when a client has the response with its new session. There can be only one such function."""
        self._opened = watcher

    def watch_streams(self, watcher: Callable[[FleetConnection], None]) -> None:
        """Call a function for connections whose clients open a stream here."""
        self._stream_watchers.append(watcher)

    # Coming from another gateway

    async def _load(self, tag: str, connection_id: str) -> FleetConnection | None:
        return await self._loading.get(connection_id, lambda: self._load_once(tag, connection_id), f"load {tag}")

    async def _load_once(self, tag: str, connection_id: str) -> FleetConnection | None:
        entry = await self._get(tag) if subjects.is_tag(tag) else None
        if entry is None or entry.value is None:
            return None
        connection = restore(connection_id, entry.value, entry.revision, time.monotonic())
        if connection is None:
            return None
        self._by_tag[tag] = connection
        try:
            await self._follow(connection, subjects.GATEWAY, *connection.remotes)
            await self.ordering.settled(connection)
        except BaseException:
            self._drop(connection, "it could not be read")
            raise
        if connection.closed:
            raise LogUnavailable.of_fleet("the connection was closed here while it was read")
        logger.info("connection taken over connection=%s", tag)
        return connection

    async def _follow(self, connection: FleetConnection, *sources: str) -> None:
        """Follow the events of nodes and gateways for a connection, and its attachments, including earlier ones.

        The first source is read before all others. Gateways write which sessions were gone, and when. This decides how
        records of nodes are understood.
        """
        if connection.closed:
            return
        writers = [AttachmentLog(self, connection, source) for source in sources]
        for writer in writers:
            self._feed.follow(writer.own, connection)
            self._feed.follow(writer.attachments, writer)
        # All channels at once, so that the stream's reader changes only once.
        await self._feed.complete(name for writer in writers for name in (writer.own, writer.attachments))
        first, *others = writers
        await self._begin(connection, first)
        await asyncio.gather(*(self._begin(connection, each) for each in others))

    async def _begin(self, connection: FleetConnection, writer: AttachmentLog) -> None:
        """Read the earlier records of one source."""
        after, through = connection.opened_at, self._feed.reach([writer.attachments])
        while after < through and (chunks := await self._feed.page([writer.attachments], after, through)):
            for chunk in chunks:
                writer.take(chunk, old=True)
            after = chunks[-1].last
        if connection.closed:
            return
        writer.begin()
        for session_id in connection.gone:
            connection.apply_gone(session_id, EVERYTHING)
        self.ordering.begin(connection, writer.own, connection.opened_at)
        if connection.stream is not None:
            connection.stream.resync()

    def _unfollow(self, connection: FleetConnection, source: str) -> None:
        self._feed.unfollow(subjects.connection_events(connection.tag, source), connection)
        if self._by_tag.get(connection.tag, connection) is connection:
            # This channel has only one follower. If the client has returned meanwhile, it belongs to the new
            # connection.
            self._feed.drop(subjects.attachments(connection.tag, source))

    async def _join(self, connection: FleetConnection, node: str) -> None:
        try:
            await self._follow(connection, node)
        except BaseException:
            # The client reconnects, and the connection is read again.
            self._drop(connection, "it could not be read")
            raise
        finally:
            connection.joining -= {node}
            if connection.stream is not None:
                connection.stream.resync()

    def is_incomplete(self, connection: Connection) -> bool:
        """Return whether a connection's streams have to wait.

        Otherwise they would skip events of a node that is not followed yet.
        """
        return isinstance(connection, FleetConnection) and bool(connection.joining)

    def take_attachment(self, connection: FleetConnection, node: str, said: AttachmentChange, position: int) -> None:
        """Handle a record of a node that it has attached a connection to a session, or detached it.

        From there on, the session's events are meant for the connection, or not.
        """
        session_id, channel = said.session_id, session_channel(said.session_id)
        owner = self._registry.find(session_id)
        if connection.closed or (owner is not None and owner.node != node):
            return
        connection.apply_gone(session_id, position)
        if not said.attached:
            if said.deleted:
                # The client learns of the deletion now, and must not find the session any more. The table changes
                # later.
                self._registry.drop(session_id)
            if connection.attached(session_id):
                # The session stays followed, because the stream may have to read earlier events. See `release`.
                connection.end_attachment(session_id, position)
        elif connection.attached(session_id):
            connection.note_attached(session_id, node, position)
        elif not connection.is_full(node):
            connection.note_attached(session_id, node, position)
            if connection.is_full(node):
                logger.warning("no more attachments connection=%s node=%s", connection.tag, node)
            self._feed.follow(channel, connection)
            self.ordering.begin(connection, channel, position)
            if connection.stream is not None:
                # Events since the attachment may have passed the stream already. It reads them from pages.
                connection.stream.resync()

    def take_stream(self, connection: FleetConnection, said: StreamOpened) -> None:
        """Close a connection's stream here if the client has opened one at another gateway.

        The stream stays if its own announcement is still to come. Then this gateway is behind, and the client has come
        here since.
        """
        if said.id == connection.announced:
            connection.announced = ""
        if said.gateway != self._gateway and connection.stream is not None and not connection.announced:
            connection.stream.close(REPLACED)

    def announce_stream(self, connection: Connection) -> None:
        """Announce a connection's stream here.

        It may start anywhere, even before the connection was detached from a session.
        """
        assert isinstance(connection, FleetConnection)
        stream, id = connection.stream, secrets.token_hex(8)

        async def has_left() -> bool:
            return connection.stream is not stream

        kept = self._own.announce(connection.tag, msgspec.json.encode(StreamOpened(self._gateway, id)), unless=has_left)
        connection.announced = "" if kept.done() else id
        for session_id, windows in connection.windows.items():
            end = windows[-1].end
            if end is None or not connection.has_read(end):
                self._feed.follow(session_channel(session_id), connection)
        for watcher in self._stream_watchers:
            watcher(connection)

    def release(self, connection: FleetConnection) -> None:
        """Stop following sessions that a connection was detached from, after its stream has passed that position."""
        for session_id, windows in connection.windows.items():
            end = windows[-1].end
            if end is not None and connection.has_read(end):
                self._feed.unfollow(session_channel(session_id), connection)

    def handed_over(self, session_id: str) -> int:
        """Return the position up to which a session's events have come to its followers here."""
        return self._feed.handed_over(session_channel(session_id))

    # Remote connections

    async def is_remote(self, node: str, tag: str) -> bool:
        """Return whether a connection was introduced to a node. Raises BusError."""
        connection = self._by_tag.get(tag)
        if (node, tag) in self._known_remote or (connection is not None and node in connection.remotes):
            return True
        entry = await self._table.get(tag)
        if (
            entry is None
            or entry.value is None
            or node not in msgspec.json.decode(entry.value, type=ConnectionRecord).nodes
        ):
            return False
        self._known_remote[node, tag] = None
        while len(self._known_remote) > MAX_KNOWN_REMOTE:
            self._known_remote.popitem(last=False)
        return True

    # Closing

    def close_unused(self) -> None:
        """Forget connections that no client uses here. The table keeps them for another gateway, for a while."""
        now = time.monotonic()
        for connection in self.all():
            if connection.stream is None and not connection.busy and now - connection.used_at > self._ttl:
                self._drop(connection, "it was not used")
            else:
                self.release(connection)

    def _take_entry(self, entry: TableEntry) -> None:
        """Handle a change of the fleet's table.

        Another gateway may have closed a connection, or introduced it to another node.
        """
        connection = self._by_tag.get(entry.key)
        if connection is None or entry.revision <= connection.revision:
            return
        if entry.value is None:
            self._drop(connection, "the client closed the connection")
            return
        self._take_visit(connection, entry.value, entry.revision)

    def _take_visit(self, connection: FleetConnection, value: bytes, revision: int) -> None:
        """Follow the nodes that other gateways have introduced a connection to."""
        connection.revision = revision
        for node in msgspec.json.decode(value, type=ConnectionRecord).nodes:
            if node not in connection.remotes:
                connection.remotes[node] = ""
                connection.joining |= {node}
                connection.unread |= {node}
                if connection.stream is not None:
                    connection.stream.resync()
                self._spawn(self._join(connection, node))

    def _take_node(self, node: str) -> None:
        lease = self._registry.leases.get(node)
        if lease is not None:
            self._feed.progress.begin_run(node, lease.nonce)

    def _drop(self, connection: FleetConnection, reason: str) -> None:
        if self._by_tag.get(connection.tag) is not connection:
            return
        del self._by_tag[connection.tag]
        logger.info("connection closed connection=%s reason=%s", connection.tag, reason)
        connection.closed = True
        self.ordering.drop(connection)
        for channel in connection.channels():
            self._feed.unfollow(channel, connection)
        for source in (subjects.GATEWAY, *connection.remotes):
            self._unfollow(connection, source)
        if connection.stream is not None:
            connection.stream.close(reason)

    def _begin_anew(self) -> None:
        """Drop all connections, because the feed has missed events. Clients return by id, and are read again."""
        for connection in self.all():
            self._drop(connection, "the gateway fell behind")

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        self._tasks.run(_tolerate(work), "follow a connection")


async def _tolerate(work: Coroutine[None, None, None]) -> None:
    try:
        await work
    except (SandboxAgentError, BusError) as error:
        logger.warning("connection not followed reason=%s", error)


async def _ignore(node: str, session_id: str) -> None:
    """Do nothing, until `watch_opened` is called."""
