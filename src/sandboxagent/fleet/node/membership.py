"""Join a node to a fleet: choose a gateway, keep the lease, publish, and list the sessions.

All connections are outgoing: a node needs no port that others can reach.
"""

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

import msgspec
from msgspec import Struct

from sandboxagent import __version__
from sandboxagent.core.threads import Pool
from sandboxagent.fleet import messages
from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.bus.interface import MAX_BODY_BYTES, Bus, BusError, NoSubscriber, Unreachable
from sandboxagent.fleet.messages import BeatReply, BeatRequest, FactsReply, FactsRequest, LogReply, LogRequest
from sandboxagent.fleet.node.publisher import NodePublisher
from sandboxagent.fleet.node.tunnels import NodeTunnels
from sandboxagent.protocol.errors import LogUnavailable
from sandboxagent.protocol.json_bounds import read
from sandboxagent.protocol.views import SessionView
from sandboxagent.server.log.journal import Group
from sandboxagent.server.log.log import Log
from sandboxagent.server.sessions.session import iso

logger = logging.getLogger(__name__)

BEAT_INTERVAL = 2.0
GATEWAY_TIMEOUT = 1.0
"""Seconds that a gateway has for an answer before another one is asked."""
SILENCE_TIMEOUT = 3.0
"""Seconds without an announcement after which a gateway is not asked any more."""
RETRY_INTERVAL = 1.0
"""Seconds before a failed operation is repeated."""
FACTS_INTERVAL = 0.25
SAVE_INTERVAL = 1.0
SAVE_TIMEOUT = 2.0
"""Maximum number of seconds that a stopping node waits until its memory is on disk."""
MIN_COST_BYTES = 2 << 10
"""Minimum number of bytes that a session counts in a request. It limits the number of sessions in one request."""
MAX_DELETED = 10_000
"""Maximum number of deleted sessions, still in the fleet's list, that a node remembers between runs."""
FILE = "fleet.json"


class NodeMemory(Struct, rename="camel"):
    """The facts about its fleet that a node remembers between runs."""

    node: str
    published: int = 0
    revision: int = 0
    deleted: list[str] = msgspec.field(default_factory=list[str])


class Memory:
    """The node's memory in a file. It may be a little behind, because the stream has the exact state."""

    def __init__(self, path: Path | None, node: str) -> None:
        self._path = path
        self.deleted: dict[str, None] = {}
        """Sessions that were deleted, and are still in the fleet's list."""
        self._kept = NodeMemory(node)
        self._saved_at = 0.0
        self._pool = Pool("fleet", 1)
        self._unwritten: bytes | None = None
        """The newest content, which is written when the thread is free."""
        self._writing: asyncio.Future[None] | None = None
        """Set while a thread writes."""
        if path is None:
            return
        try:
            kept = read(path.read_bytes(), NodeMemory)
        except FileNotFoundError:
            return
        except (msgspec.DecodeError, OSError, UnicodeDecodeError) as error:
            logger.warning("state of the fleet cannot be read reason=%s", error)
            return
        if kept.node == node:
            self._kept = kept
            self.deleted = dict.fromkeys(kept.deleted)

    @property
    def position(self) -> int:
        return self._kept.published

    @property
    def revision(self) -> int:
        return self._kept.revision

    def save(self, position: int) -> None:
        self._kept.published = position
        if time.monotonic() - self._saved_at > SAVE_INTERVAL:
            self.write()

    def save_revision(self, revision: int) -> None:
        self._kept.revision = revision
        self.write()

    def note_deleted(self, session_ids: Iterable[str]) -> None:
        self.deleted |= dict.fromkeys(session_ids)
        self.write()

    def note_unlisted(self, session_ids: Iterable[str]) -> None:
        for session_id in session_ids:
            self.deleted.pop(session_id, None)
        self.write()

    def write(self) -> None:
        self._saved_at = time.monotonic()
        if self._path is None:
            return
        self._kept.deleted = list(islice(self.deleted, MAX_DELETED))
        self._unwritten = msgspec.json.encode(self._kept)
        if self._writing is None:
            self._write_on(self._path)

    def _write_on(self, path: Path) -> None:
        """Let a thread write the newest content. Earlier content need not be written."""
        content, self._unwritten = self._unwritten, None
        if content is None:
            self._writing = None
            return
        self._writing = writing = self._pool.start(_replace, path, content)
        writing.add_done_callback(lambda _: self._write_on(path))

    async def written(self) -> None:
        """Wait until everything is on disk, for a limited time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SAVE_TIMEOUT):
                while self._writing is not None:
                    await asyncio.wait({self._writing})


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f"{path.name}.new")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as error:
        logger.warning("state of the fleet cannot be saved reason=%s", error)


@dataclass(slots=True)
class Gateways:
    """The gateways that announce themselves, and the one that this node uses."""

    clock: Callable[[], float]
    heard: dict[str, float] = field(default_factory=dict[str, float])
    current: str | None = None

    def take_announcement(self, announcement: messages.GatewayAnnouncement) -> bool:
        """Note a gateway. Return whether it speaks this node's protocol."""
        if not announcement.oldest <= messages.PROTOCOL <= announcement.newest or not subjects.is_name(
            announcement.gateway
        ):
            return False
        self.heard[announcement.gateway] = self.clock()
        return True

    def choose(self) -> str | None:
        """Return the gateway used last if it still announces itself, or else any other one."""
        now = self.clock()
        self.heard = {name: at for name, at in self.heard.items() if now - at < SILENCE_TIMEOUT}
        if self.current not in self.heard:
            self.current = secrets.choice(sorted(self.heard)) if self.heard else None
        return self.current

    def leave(self, name: str) -> None:
        """Stop using a gateway that did not answer."""
        self.heard.pop(name, None)
        if self.current == name:
            self.current = None


@dataclass(frozen=True, slots=True)
class Identity:
    """The name of a node, and its description of itself."""

    node: str
    labels: dict[str, str]
    agents: Callable[[], list[str]]
    running: Callable[[], int]
    started: Callable[[], list[str]] = list
    run: str = field(default_factory=partial(secrets.token_urlsafe, 12))
    """Unique id of this run of the node. The ids of its agents' requests contain it."""


class Membership:
    """The membership of a node in a fleet. It implements `Log.publisher`."""

    def __init__(
        self,
        identity: Identity,
        connect: Callable[[], Awaitable[Bus]],
        log: Log,
        view: Callable[[str], SessionView | None],
        sessions: Callable[[], Iterable[str]],
        memory: Memory,
        backlog: int,
        retry: float = RETRY_INTERVAL,
        flows: NodeTunnels | None = None,
    ) -> None:
        self.clash: str | None = None
        """Why this node has no lease."""
        self._identity = identity
        self._connect = connect
        self._log = log
        self._view = view
        self._sessions = sessions
        self._memory = memory
        self._most_waiting = backlog
        self._retry = retry
        self._flows = flows
        self._nonce = identity.run
        self._since = iso(time.time())
        self._gateways = Gateways(time.monotonic)
        self._bus: Bus | None = None
        self._heard = asyncio.Event()
        self._leased = asyncio.Event()
        self._changed: dict[str, None] = {}
        self._facts_wanted = asyncio.Event()
        self._unpublished: deque[tuple[int, int]] = deque()
        self._waiting = 0
        self._counted = 0
        self._outbox = NodePublisher(identity.node, log, memory, self._publish)
        self._connecting: str | None = "not connected yet"
        self._unheard: str | None = None
        """Why the last lease renewal got no answer."""
        self._failed: str | None = None

    # Called by the log

    @property
    def published(self) -> int:
        return self._outbox.published

    @property
    def is_idle(self) -> bool:
        return self._outbox.is_idle

    @property
    def full(self) -> bool:
        return self._waiting > self._most_waiting

    def committed(self, group: Group) -> None:
        """Note events to publish, and sessions whose facts may have changed."""
        for chunk in group.chunks:
            if chunk.last <= self._counted:
                continue
            self._counted = chunk.last
            self._unpublished.append((chunk.last, chunk.size))
            self._waiting += chunk.size
            if chunk.session_id is not None:
                self._changed[chunk.session_id] = None
        for session_id in group.sessions:
            self._changed[session_id] = None
        if group.deleted:
            self._changed |= dict.fromkeys(group.deleted)
            self._memory.note_deleted(group.deleted)
        self._outbox.notify()
        if self._changed:
            self._facts_wanted.set()

    async def drained(self, position: int) -> None:
        """Wait until all events up to a position are in the stream."""
        await self._outbox.drained(position)

    @property
    def failure_reason(self) -> str | None:
        """Why the fleet does not get this node's events."""
        return self._failed or self.clash or self._connecting or self._unheard or self._outbox.failure

    # Lifetime

    async def run(self) -> None:
        """Take part in the fleet until cancelled. Start again after a failure: the stream shows which events it has."""
        try:
            while True:
                await self._try_to_take_part()
                _end_if_cancelled()
                await asyncio.sleep(self._retry)
        finally:
            # Even a node that was never connected must remember deleted sessions, which are still in the fleet's list.
            await self._memory.written()

    async def _try_to_take_part(self) -> None:
        try:
            await self._take_part()
        except LogUnavailable as error:
            self._failed = str(error)
            logger.warning("fleet waits for the log reason=%s", error)
        except BusError as error:
            self._failed = str(error)
            logger.warning("fleet lost reason=%s", error)
        except Exception:
            self._failed = "it failed; see the server's log"
            logger.exception("taking part in the fleet failed")

    async def _take_part(self) -> None:
        self._changed |= dict.fromkeys(self._sessions()) | self._memory.deleted
        self._facts_wanted.set()
        self._failed = None
        bus = self._bus = await self._reach()
        await bus.serve(subjects.run_of_node(self._identity.node, self._nonce), self._answer_probe)
        running = [self._beat(), self._outbox.run(), self._list(), self._count_down(), _until_lost(bus)]
        if self._flows is not None:
            await self._flows.start(bus, self._nonce)
            running.append(self._flows.run())
        # Subscribe to announcements last. When the servers have this subscription, they have the earlier ones, too.
        await bus.serve(subjects.GATEWAY_ANNOUNCEMENTS, self._take_announcement)
        tasks = [asyncio.create_task(each) for each in running]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            self._memory.write()
            await self._memory.written()
            await bus.close()

    async def _reach(self) -> Bus:
        while True:
            try:
                bus = await self._connect()
            except BusError as error:
                if self._connecting != str(error):
                    logger.warning("fleet not reached reason=%s", error)
                self._connecting = str(error)
                _end_if_cancelled()
                await asyncio.sleep(self._retry)
            else:
                self._connecting = "no gateway is there; start one with: sandbox-agent gateway"
                return bus

    async def _take_announcement(self, subject: str, body: bytes) -> None:
        try:
            announcement = msgspec.msgpack.decode(body, type=messages.GatewayAnnouncement)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return
        if self._gateways.take_announcement(announcement):
            self._connecting = None
            self._heard.set()
        elif not self._gateways.heard:
            self._connecting = (
                f"gateway {announcement.gateway} speaks protocol {announcement.oldest} to {announcement.newest}, "
                f"this node {messages.PROTOCOL}; upgrade the older of them"
            )

    async def _answer_probe(self, subject: str, body: bytes) -> None:
        probe = msgspec.msgpack.decode(body, type=messages.Probe)
        if self._bus is not None:
            await self._bus.publish(subjects.flow_to_gateway(self._identity.node, probe.gateway, probe.id), b"here")

    async def _ask(self, verb: str, body: bytes) -> bytes:
        gateway = self._gateways.choose()
        if gateway is None or self._bus is None:
            raise Unreachable("no gateway is there")
        try:
            return await self._bus.request(
                subjects.request_to_gateway(self._identity.node, verb, gateway), body, GATEWAY_TIMEOUT
            )
        except (NoSubscriber, Unreachable):
            self._gateways.leave(gateway)
            raise

    async def _beat(self) -> None:
        while True:
            if self._gateways.choose() is None:
                self._heard.clear()
                await self._heard.wait()
            try:
                self._unheard = await self._beat_once()
            except BusError as error:
                self._unheard = str(error)
            if self._unheard is not None:
                logger.info("no beat reason=%s", self._unheard)
            if self._gateways.current is not None:
                await asyncio.sleep(BEAT_INTERVAL)
            # Without a gateway, ask another one at once. At the next regular time, other requests may have left that
            # one, too.

    async def _beat_once(self) -> str | None:
        """Renew the lease once. Return why it could not be renewed, or None."""
        identity = self._identity
        request = BeatRequest(
            self._nonce,
            self._memory.revision,
            __version__,
            identity.labels,
            identity.agents(),
            identity.running(),
            self._since,
            self._waiting,
            identity.started(),
        )
        answer = await self._ask(messages.BEAT, msgspec.msgpack.encode(request))
        reply = msgspec.msgpack.decode(answer, type=BeatReply)
        if reply.failed is not None:
            return reply.failed
        if reply.clash is not None:
            if self.clash is None:
                logger.error("no lease reason=%s", reply.clash)
            self._leased.clear()
        else:
            self._memory.save_revision(reply.revision)
            if not self._leased.is_set():
                logger.info("joined the fleet node=%s gateway=%s", identity.node, self._gateways.current)
            self._leased.set()
        self.clash = reply.clash
        return None

    async def _publish(self, request: LogRequest) -> LogReply:
        await self._leased.wait()
        request.nonce = self._nonce
        answer = await self._ask(messages.LOG, msgspec.msgpack.encode(request))
        return msgspec.msgpack.decode(answer, type=LogReply)

    async def _count_down(self) -> None:
        """Note published events, and let producers continue."""
        while True:
            await self._outbox.moved()
            while self._unpublished and self._unpublished[0][0] <= self._outbox.published:
                self._waiting -= self._unpublished.popleft()[1]
            self._log.resume_producers()

    async def _list(self) -> None:
        """Keep the fleet's list up to date: shortly after a change, when its events are published."""
        listed_at = 0.0
        while True:
            await self._facts_wanted.wait()
            await self._leased.wait()
            await asyncio.sleep(max(0.0, listed_at + FACTS_INTERVAL - time.monotonic()))
            self._facts_wanted.clear()
            # Taken before the wait: facts that change during it have unpublished events, and would be refused.
            changed, self._changed = list(self._changed), {}
            await self._outbox.drained(min(self._log.position, self._last_committed()))
            for batch in self._describe(changed):
                await self._send_facts(batch)
            listed_at = time.monotonic()

    def _last_committed(self) -> int:
        return self._unpublished[-1][0] if self._unpublished else 0

    def _describe(self, session_ids: Iterable[str]) -> Iterable[dict[str, bytes | None]]:
        batch: dict[str, bytes | None] = {}
        size = 0
        for session_id in session_ids:
            view = self._view(session_id)
            if view is None and session_id not in self._memory.deleted:
                continue
            if view is not None:
                # If a session of this id was deleted, this is a new one.
                self._memory.deleted.pop(session_id, None)
            fact = None if view is None else msgspec.json.encode(view)
            if fact is not None and len(fact) > MAX_BODY_BYTES // 2:
                logger.warning("session not listed session=%s reason=its metadata is too large", session_id)
                continue
            batch[session_id] = fact
            # A gateway needs time for each session, and must answer before the node repeats the request.
            size += max(MIN_COST_BYTES, 0 if fact is None else len(fact))
            if size > MAX_BODY_BYTES // 2:
                yield batch
                batch, size = {}, 0
        if batch:
            yield batch

    async def _send_facts(self, batch: dict[str, bytes | None]) -> None:
        body = msgspec.msgpack.encode(FactsRequest(batch))
        while True:
            await self._leased.wait()
            try:
                reply = msgspec.msgpack.decode(await self._ask(messages.FACTS, body), type=FactsReply)
            except BusError:
                await asyncio.sleep(self._retry)
                continue
            if reply.failed is not None:
                await asyncio.sleep(self._retry)
                continue
            for session_id, reason in reply.refused.items():
                logger.info("session not listed session=%s reason=%s", session_id, reason)
            if gone := [session_id for session_id, fact in batch.items() if fact is None]:
                self._memory.note_unlisted(gone)
            return


async def _until_lost(bus: Bus) -> None:
    """Wait until the bus does not reconnect by itself, and raise Unreachable, so that a new connection is made."""
    raise Unreachable(await bus.lost())


def _end_if_cancelled() -> None:
    """Raise CancelledError if the task was cancelled, and the cancelled operation failed instead of ending."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
