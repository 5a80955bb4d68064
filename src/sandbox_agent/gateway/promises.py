"""Which node each request of a client went to: that one alone may answer, and for a lost one a gateway does."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import msgspec

from sandbox_agent.bus import subjects
from sandbox_agent.bus.ports import Unreachable
from sandbox_agent.envelope import failure, same_id
from sandbox_agent.errors import LogUnavailable, NodeLost
from sandbox_agent.gateway.connection import FleetConnection, Promise, answered
from sandbox_agent.gateway.feed import Feed
from sandbox_agent.gateway.own_events import OwnEvents
from sandbox_agent.log.event import Chunk
from sandbox_agent.wire.fleet import SentTo

logger = logging.getLogger(__name__)

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

    def note_asked(self, connection: FleetConnection, id: bytes, node: str, promised_by: str | None = None) -> None:
        """A request of its client goes to a node: no other node may answer it. All gateways learn of it.

        Where a single node can speak to it, they know already; but for a response that is promised on the stream, by
        that run of the node: when it is lost, any of them says so.
        """
        sent = SentTo(same_id(id).decode(), node, promised_by, self._feed.position)
        connection.note_asked(id, node, promised_by, sent.after)
        if promised_by is not None or len(connection.guests) > 1:
            self._own.announce(connection.tag, msgspec.json.encode(sent))

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
                    # It is there: this gateway has not heard of it yet.
                    connection.unanswered.setdefault(id, promise)
                elif known.get(id, 0) <= promise.after:
                    unless = partial(self._is_answered, connection, node, id, promise.after)
                    self._own.tell(connection.tag, failure(id, NodeLost(node)), None, unless=unless)
            return

    async def _is_answered(self, connection: FleetConnection, node: str, id: bytes, after: int) -> bool:
        try:
            return connection.closed or (await self._answered(connection, node)).get(id, 0) > after
        except LogUnavailable as error:
            raise Unreachable(str(error)) from error

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
