"""Subscribe to each node separately, and set aside nodes that send too much.

The number of bytes that wait from one node is limited. A flooding node is set aside. Its subscriptions end, so its
messages do not even reach this gateway, and all gateways learn of it from its lease. An unknown node is noticed by its
first lease renewal (*beat*). Between two announcements, a limited number of these is accepted. A flood of them does not
affect known nodes.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from sandboxagent.core.tasks import Tasks
from sandboxagent.fleet import messages
from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.bus.interface import Bus, BusError, Conflict, Handler, Table, Unsubscribe
from sandboxagent.fleet.gateway.registry import NodeRegistry
from sandboxagent.fleet.gateway.validate import IGNORE_TIMEOUT, Quotas

logger = logging.getLogger(__name__)

MAX_WAITING_BYTES = 4 << 20
"""Maximum number of bytes of one node that wait here. An honest node has three requests under way."""
MAX_AT_ONCE = 32
"""Maximum number of requests of one node that are handled at the same time."""
MAX_FIRST_BEATS = 1024
"""Maximum number of first beats that are accepted between two announcements."""
TOGETHER = 64
"""Number of nodes that the gateway subscribes to at the same time."""
UNKNOWN_TIMEOUT = 60.0
"""Seconds for which the gateway stays subscribed to a node without a lease."""
REPORT_INTERVAL = 60.0
"""Seconds between two log reports of floods of first beats."""
RENEW_TIMEOUT = 1.0
"""Seconds that an announcement waits for new subscriptions."""


class Intake:
    """The subscriptions of one gateway."""

    def __init__(
        self,
        gateway: str,
        bus: Bus,
        take: Handler,
        quotas: Quotas,
        registry: NodeRegistry,
        leases: Table,
        clock: Callable[[], float],
        lease: float,
    ) -> None:
        """Create the subscriptions.

        `take` gets the requests. When a node is accepted again after it was set aside, its lease lasts `lease` seconds.
        """
        self.silenced: Callable[[str], None] = lambda node: None
        """Called for a node whose messages are ignored for a while."""
        self._gateway = gateway
        self._bus = bus
        self._take = take
        self._quotas = quotas
        self._registry = registry
        self._leases = leases
        self._clock = clock
        self._lease = lease
        self._heard: dict[str, asyncio.Task[Unsubscribe]] = {}
        """Subscriptions by node."""
        self._known_at: dict[str, float] = {}
        """Time when a node last had a lease, or when the gateway subscribed to it first."""
        self._greeting: Unsubscribe | None = None
        self._greeted = 0
        self._floods, self._report_at = 0, clock()
        self._aside: dict[str, str] = {}
        """Reasons why this gateway has set nodes aside, by node."""
        self._renewing: asyncio.Task[None] | None = None
        self._tasks = Tasks()
        quotas.set_aside = self._set_aside

    async def start(self) -> None:
        """Subscribe to all connected nodes, and to the first beats of new ones. Raises BusError."""
        self._registry.watch(self._note_change)
        await self._renew()

    async def renew(self) -> None:
        """Subscribe to new nodes, and again to nodes that are not set aside any more.

        Called before each announcement.
        """
        if self._renewing is None or self._renewing.done():
            self._renewing = self._tasks.run(self._renew(), "hearing nodes")
        await asyncio.wait({self._renewing}, timeout=RENEW_TIMEOUT)

    async def close(self) -> None:
        await self._tasks.close()

    async def _renew(self) -> None:
        now = self._clock()
        for node in [each for each in self._aside if not self._quotas.is_aside(each)]:
            reason = self._aside.pop(node)
            logger.info("node accepted again node=%s reason=%s", node, reason)
            with suppress(BusError):
                await self._write_lease(node, "")
        leases = dict(self._registry.leases)
        for node, lease in leases.items():
            self._known_at[node] = now
            if self._is_aside(node) or lease.set_aside:
                await self._stop(node)
        missing = [node for node in leases if node not in self._heard and not self._is_aside(node)]
        for place in range(0, len(missing), TOGETHER):
            with suppress(BusError):
                await asyncio.gather(*(self._hear(node) for node in missing[place : place + TOGETHER]))
        for node in [each for each in self._heard if now - self._known_at.get(each, now) > UNKNOWN_TIMEOUT]:
            await self._stop(node)
            del self._known_at[node]
        self._greeted = 0
        if self._greeting is None:
            with suppress(BusError):
                subject = subjects.first_beats(self._gateway)
                self._greeting = await self._bus.serve(
                    subject, self._greet, answers=_inbox_of_sender, waiting=MAX_WAITING_BYTES, lost=_ignore
                )

    async def _greet(self, subject: str, body: bytes) -> bytes | None:
        self._greeted += 1
        greeting = self._greeting
        if self._greeted > MAX_FIRST_BEATS and greeting is not None:
            self._greeting = None
            self._floods += 1
            if self._clock() >= self._report_at:
                logger.warning("too many first beats, ignored for a second count=%d", self._floods)
                self._floods, self._report_at = 0, self._clock() + REPORT_INTERVAL
            await greeting()
            return None
        node, _ = subjects.sender(subject)
        hearing = self._heard.get(node)
        if not subjects.is_name(node) or (hearing is not None and hearing.done()):
            # A node with a subscription of its own is handled there.
            return None
        if not self._is_aside(node):
            await self._hear(node)
        return await self._take(subject, body)

    async def _hear(self, node: str) -> None:
        """Subscribe to a node's requests. Raises BusError."""
        # Not a `Shared`: the task is kept after its end, as the subscription.
        hearing = self._heard.get(node)
        if hearing is None:
            self._known_at.setdefault(node, self._clock())
            serving = self._bus.serve(
                subjects.requests_of_node(node, self._gateway),
                self._take,
                answers=_inbox_of_sender,
                waiting=MAX_WAITING_BYTES,
                at_once=MAX_AT_ONCE,
                lost=lambda subject: self._quotas.blame(node, "it sends more than a gateway can read"),
            )
            hearing = self._heard[node] = asyncio.create_task(serving)
        try:
            await asyncio.shield(hearing)
        except BusError:
            if self._heard.get(node) is hearing:
                del self._heard[node]
            raise

    async def _stop(self, node: str) -> None:
        hearing = self._heard.pop(node, None)
        if hearing is not None:
            with suppress(BusError):
                await (await hearing)()

    def _is_aside(self, node: str) -> bool:
        lease = self._registry.leases.get(node)
        return self._quotas.is_aside(node) or bool(lease is not None and lease.set_aside)

    def _note_change(self, node: str) -> None:
        if node in self._registry.leases and node not in self._heard and not self._is_aside(node):
            self._tasks.run(self._hear_quietly(node), "hearing a node")

    async def _hear_quietly(self, node: str) -> None:
        # If this fails, it is repeated before the next announcement.
        with suppress(BusError):
            await self._hear(node)

    def _set_aside(self, node: str, reason: str) -> None:
        self._aside[node] = reason
        logger.warning("node set aside node=%s seconds=%d reason=%s", node, IGNORE_TIMEOUT, reason)
        self._tasks.run(self._silence(node, reason), "setting a node aside")

    async def _silence(self, node: str, reason: str) -> None:
        await self._stop(node)
        self.silenced(node)
        with suppress(BusError):
            await self._write_lease(
                node, f"{reason}; it is accepted again {IGNORE_TIMEOUT:.0f} s after {self._gateway} noticed"
            )

    async def _write_lease(self, node: str, why: str) -> None:
        """Tell all gateways that a node is set aside, or not any more.

        The node keeps its lease meanwhile. Raises BusError.
        """
        while True:
            entry = await self._leases.get(node)
            if entry is None or entry.value is None:
                return
            lease = replace(msgspec.json.decode(entry.value, type=messages.Lease), set_aside=why)
            ttl = self._lease + (IGNORE_TIMEOUT if why else 0.0)
            try:
                await self._leases.put(node, msgspec.json.encode(lease), expected=entry.revision, ttl=ttl)
            except Conflict:
                continue
            return


def _inbox_of_sender(subject: str) -> str:
    return subjects.inbox_of_node(subjects.sender(subject)[0])


def _ignore(subject: str) -> None:
    """Do nothing: a dropped first beat is sent again after the next announcement."""
