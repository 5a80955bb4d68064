"""Which node each request of a client went to: that one alone may answer, and for a lost one a gateway does."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import msgspec

from sandbox_agent.bus import subjects
from sandbox_agent.bus.ports import Unreachable
from sandbox_agent.envelope import failure, same_id
from sandbox_agent.errors import LogUnavailable
from sandbox_agent.fleet_errors import NodeLost
from sandbox_agent.gateway.connection import FleetConnection, Promise, answered
from sandbox_agent.gateway.feed import EVERYTHING, Feed
from sandbox_agent.gateway.own_events import OwnEvents
from sandbox_agent.log.event import Chunk
from sandbox_agent.wire.fleet import Attaches, SentTo

logger = logging.getLogger(__name__)

PATIENCE = 10.0
"""Seconds that the word of an accepted request waits until all gateways can know of it."""
PAUSE = 0.5
"""Seconds until a stream that could not be read is read again."""


class Promises:
    """What gateways tell each other about requests, by the stream."""

    def __init__(self, feed: Feed, own: OwnEvents, fetch_run: Callable[[str], Awaitable[str | None]]) -> None:
        """`fetch_run` says which run of a node has its lease. Raises LogUnavailable."""
        self._feed = feed
        self._own = own
        self._fetch_run = fetch_run
        self._tasks: set[asyncio.Task[None]] = set()

    def note_asked(self, connection: FleetConnection, id: bytes, node: str) -> None:
        """A request of its client goes to a node: no other node may answer it. All gateways learn of it.

        Where a single node can speak to it, they know already.
        """
        connection.note_asked(id, node)
        if connection.guests.keys() - {node}:
            self._own.announce(connection.tag, msgspec.json.encode(SentTo(same_id(id).decode(), node)))

    async def note_attaching(self, connection: FleetConnection, id: bytes) -> None:
        """The response to a request of its client names a position: all gateways know that before it comes.

        Raises LogUnavailable.
        """
        await self._announce(connection, Attaches(same_id(id).decode()))

    async def note_accepted(self, connection: FleetConnection, id: bytes, promise: Promise) -> None:
        """A run of a node has promised a response on the stream. When it is lost, any gateway says so.

        All of them can know that before the client learns that its request is accepted. Raises LogUnavailable.
        """
        if self._has_come(connection, same_id(id), promise):
            return
        connection.note_asked(id, promise.node, promise.run, promise.after)
        await self._announce(connection, SentTo(same_id(id).decode(), promise.node, promise.run, promise.after))

    async def _announce(self, connection: FleetConnection, said: SentTo | Attaches) -> None:
        kept = self._own.announce(connection.tag, msgspec.json.encode(said))
        await asyncio.wait([kept], timeout=PATIENCE)
        if not (kept.done() and kept.result()):
            raise LogUnavailable.of_fleet("the fleet's stream does not take the word that this request was accepted")

    def _has_come(self, connection: FleetConnection, id: bytes, promise: Promise) -> bool:
        """Whether the response was quicker than the word that it is promised."""
        channel = subjects.connection_events(connection.tag, promise.node)
        chunks, _ = self._feed.in_memory([channel], promise.after, EVERYTHING) or ((), False)
        return any(id in answered(chunk) for chunk in chunks)

    def tell_lost(self, connection: FleetConnection, lost: Mapping[bytes, Promise], node: str) -> None:
        """Answer in the place of a node that is lost; of several gateways that do, the first."""
        task = asyncio.create_task(self._tell_lost(connection, lost, node))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell_lost(self, connection: FleetConnection, lost: Mapping[bytes, Promise], node: str) -> None:
        while not connection.closed:
            try:
                run, known = await self._fetch_run(node), await self._answered(connection, node)
            except LogUnavailable as error:
                logger.info("lost responses wait connection=%s reason=%s", connection.tag, error)
                await asyncio.sleep(PAUSE)
                continue
            for id, promise in lost.items():
                if promise.run == run:
                    # It is there: this gateway does not know it yet.
                    connection.unanswered.setdefault(id, promise)
                elif known.get(id, 0) <= promise.after:
                    unless = partial(self._is_answered, connection, node, id, promise.after)
                    self._own.tell(connection.tag, failure(id, NodeLost(node)), None, unless=unless)
            return

    async def _is_answered(self, connection: FleetConnection, node: str, id: bytes, after: int) -> bool:
        try:
            known = await self._answered(connection, node)
        except LogUnavailable as error:
            raise Unreachable(str(error)) from error
        # What was closed meanwhile could not be read.
        return connection.closed or known.get(id, 0) > after

    async def _answered(self, connection: FleetConnection, node: str) -> dict[bytes, int]:
        """Requests of its client that a node has answered on the stream, or a gateway in its place; and where, last."""
        found: dict[bytes, int] = {}

        def note(chunk: Chunk) -> bool:
            for id in answered(chunk):
                found[id] = max(found.get(id, 0), chunk.last)
            return False

        for source in (subjects.GATEWAY, node):
            channel = subjects.connection_events(connection.tag, source)
            await self._feed.catch_up(channel)
            await self._feed.last_meant(channel, connection.opened_at, note)
        return found
