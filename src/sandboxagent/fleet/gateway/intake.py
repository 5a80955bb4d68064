"""Subscribe to each node separately, and set aside nodes that send too much.

What waits of a node is bounded in bytes. One that floods is set aside: its subscriptions end, so that its messages do
not even come here, and all gateways learn of it by its lease. A node that nobody knows is heard by its first beat, of
which so many are taken between two beacons; a flood of these keeps no node out that is known.
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
from sandboxagent.fleet.bus.interface import Bus, BusError, Conflict, Handler, StopHearing, Table
from sandboxagent.fleet.gateway.registry import NodeRegistry
from sandboxagent.fleet.gateway.validate import ASIDE, Quotas

logger = logging.getLogger(__name__)

WAITING = 4 << 20
"""Bytes of one node that may wait here; an honest one has three requests under way."""
AT_ONCE = 32
"""Requests of one node that are looked at at the same time."""
GREETINGS = 1024
"""First beats that are taken between two beacons."""
TOGETHER = 64
"""Nodes that begin to be heard at the same time."""
UNKNOWN_TIMEOUT = 60.0
"""Seconds for which a node without a lease is heard."""
REPORT_INTERVAL = 60.0
"""Seconds between two reports of floods of first beats."""
RENEW_TIMEOUT = 1.0
"""Seconds that a beacon waits for nodes to be heard."""


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
        """`take` gets the requests. A lease that is given back to a node that was set aside lasts `lease` seconds."""
        self.silenced: Callable[[str], None] = lambda node: None
        """Called for a node that is not heard any more for a while."""
        self._gateway = gateway
        self._bus = bus
        self._take = take
        self._quotas = quotas
        self._registry = registry
        self._leases = leases
        self._clock = clock
        self._lease = lease
        self._heard: dict[str, asyncio.Task[StopHearing]] = {}
        """By node."""
        self._known_at: dict[str, float] = {}
        """When a node had a lease last, or was heard first."""
        self._greeting: StopHearing | None = None
        self._greeted = 0
        self._floods, self._report_at = 0, clock()
        self._aside: dict[str, str] = {}
        """Nodes that this gateway has set aside, and why."""
        self._renewing: asyncio.Task[None] | None = None
        self._tasks = Tasks()
        quotas.set_aside = self._set_aside

    async def start(self) -> None:
        """Hear all nodes that are there, and whoever comes. Raises BusError."""
        self._registry.watch(self._note_change)
        await self._renew()

    async def renew(self) -> None:
        """Before each beacon: hear new nodes again, and those that are no longer set aside."""
        if self._renewing is None or self._renewing.done():
            self._renewing = self._tasks.run(self._renew(), "hearing nodes")
        await asyncio.wait({self._renewing}, timeout=RENEW_TIMEOUT)

    async def close(self) -> None:
        await self._tasks.close()

    async def _renew(self) -> None:
        now = self._clock()
        for node in [each for each in self._aside if not self._quotas.is_aside(each)]:
            reason = self._aside.pop(node)
            logger.info("node heard again node=%s reason=%s", node, reason)
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
                    subject, self._greet, answers=_inbox_of_sender, waiting=WAITING, lost=_ignore
                )

    async def _greet(self, subject: str, body: bytes) -> bytes | None:
        self._greeted += 1
        greeting = self._greeting
        if self._greeted > GREETINGS and greeting is not None:
            self._greeting = None
            self._floods += 1
            if self._clock() >= self._report_at:
                logger.warning("first beats come in floods, and are not taken for a second count=%d", self._floods)
                self._floods, self._report_at = 0, self._clock() + REPORT_INTERVAL
            await greeting()
            return None
        node, _ = subjects.sender(subject)
        hearing = self._heard.get(node)
        if not subjects.is_name(node) or (hearing is not None and hearing.done()):
            # The last one is taken where it is heard by itself.
            return None
        if not self._is_aside(node):
            await self._hear(node)
        return await self._take(subject, body)

    async def _hear(self, node: str) -> None:
        """Hear what a node asks, from now on. Raises BusError."""
        hearing = self._heard.get(node)
        if hearing is None:
            self._known_at.setdefault(node, self._clock())
            serving = self._bus.serve(
                subjects.requests_of_node(node, self._gateway),
                self._take,
                answers=_inbox_of_sender,
                waiting=WAITING,
                at_once=AT_ONCE,
                lost=lambda subject: self._quotas.blame(node, "it sends more than can be looked at"),
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
        # If it fails, it is tried again before the next beacon.
        with suppress(BusError):
            await self._hear(node)

    def _set_aside(self, node: str, reason: str) -> None:
        self._aside[node] = reason
        logger.warning("node set aside node=%s seconds=%d reason=%s", node, ASIDE, reason)
        self._tasks.run(self._silence(node, reason), "setting a node aside")

    async def _silence(self, node: str, reason: str) -> None:
        await self._stop(node)
        self.silenced(node)
        with suppress(BusError):
            await self._write_lease(node, f"{reason}; it is heard again {ASIDE:.0f} s after {self._gateway} said so")

    async def _write_lease(self, node: str, why: str) -> None:
        """Tell all gateways that a node is set aside, or no longer. It keeps its lease meanwhile. Raises BusError."""
        while True:
            entry = await self._leases.get(node)
            if entry is None or entry.value is None:
                return
            lease = replace(msgspec.json.decode(entry.value, type=messages.Lease), set_aside=why)
            ttl = self._lease + (ASIDE if why else 0.0)
            try:
                await self._leases.put(node, msgspec.json.encode(lease), expected=entry.revision, ttl=ttl)
            except Conflict:
                continue
            return


def _inbox_of_sender(subject: str) -> str:
    return subjects.inbox_of_node(subjects.sender(subject)[0])


def _ignore(subject: str) -> None:
    """A first beat that found no room is sent again at the next beacon."""
