"""Requests of agents whose node is gone, or was started anew: no answer reaches them; gateways withdraw them, once."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec
from msgspec import Raw

from sandbox_agent.bus import subjects
from sandbox_agent.bus.ports import Unreachable
from sandbox_agent.envelope import META, notification
from sandbox_agent.errors import LogUnavailable
from sandbox_agent.gateway.claims import asker, run_of
from sandbox_agent.gateway.connection import FleetConnection, requested, withdrawn
from sandbox_agent.gateway.feed import Feed
from sandbox_agent.gateway.own_events import OwnEvents
from sandbox_agent.log.event import Chunk
from sandbox_agent.wire import methods
from sandbox_agent.wire.fleet import Answered

logger = logging.getLogger(__name__)

PAUSE = 0.5
"""Seconds until a stream that could not be read is read again."""
_OUTCOME = {META: {"outcome": "cancelled", "answeredBy": None}}


class Withdrawals:
    """What clients learn of requests that they can no longer answer."""

    def __init__(self, feed: Feed, own: OwnEvents, fetch_run: Callable[[str], Awaitable[str | None]]) -> None:
        """`fetch_run` says which run of a node has its lease. Raises LogUnavailable."""
        self._feed = feed
        self._own = own
        self._fetch_run = fetch_run

    def note_answered(self, connection: FleetConnection, id: bytes) -> None:
        """Its client has answered a request; all gateways learn of it."""
        connection.note_settled([id])
        self._own.announce(connection.tag, msgspec.json.encode(Answered(id.decode())))

    def may_have(self, connection: FleetConnection, node: str) -> bool:
        """Whether its client may have been asked by agents of a node, and not have answered yet."""
        return node in connection.unread or any(asker(id) == node for id in connection.requests)

    async def withdraw(self, connection: FleetConnection, node: str) -> None:
        """Runs of a node may be over: withdraw what their agents have asked this client."""
        while not connection.closed:
            try:
                run = await self._fetch_run(node)
                await self._read(connection, node)
            except LogUnavailable as error:
                logger.info("requests not withdrawn yet connection=%s reason=%s", connection.tag, error)
                await asyncio.sleep(PAUSE)
                continue
            void = {id: of for id, of in connection.requests.items() if asker(id) == node and run_of(id) != run}
            for id, session_id in void.items():
                connection.note_settled([id])
                params = {"requestId": Raw(id), "_meta": _OUTCOME}
                unless = partial(self._is_withdrawn, connection, id)
                line = notification(methods.CANCEL_REQUEST, params)
                self._own.tell(connection.tag, line, session_id, unless=unless)
            if void and run is None:
                connection.given_up |= {node}
            return

    async def _read(self, connection: FleetConnection, node: str) -> None:
        """Find out what its client was asked before the connection came to this gateway. Raises LogUnavailable."""
        if node not in connection.unread:
            return
        asked: dict[bytes, str | None] = {}

        def note(chunk: Chunk) -> bool:
            asked.update(requested(chunk))
            connection.note_settled(withdrawn(chunk))
            return False

        for source in (node, subjects.GATEWAY):
            channel = subjects.connection_events(connection.tag, source)
            await self._feed.catch_up(channel)
            await self._feed.last_meant(channel, connection.opened_at, note)
        connection.unread -= {node}
        connection.note_requests(asked)

    async def _is_withdrawn(self, connection: FleetConnection, id: bytes) -> bool:
        """Whether another gateway has withdrawn a request. Raises Unreachable."""
        channel = subjects.connection_events(connection.tag, subjects.GATEWAY)
        try:
            await self._feed.catch_up(channel)
            told = await self._feed.last_meant(channel, connection.opened_at, lambda chunk: id in withdrawn(chunk))
        except LogUnavailable as error:
            raise Unreachable(str(error)) from error
        return connection.closed or told > 0
