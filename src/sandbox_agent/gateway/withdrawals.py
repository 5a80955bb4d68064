"""Requests of agents whose node was started anew or forgotten: no answer reaches them; gateways withdraw them, once.

A node that is merely lost may come back in the same run, and takes the answers then: what it has asked stays.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial

import msgspec
from msgspec import Raw

from sandbox_agent.bus import subjects
from sandbox_agent.bus.ports import Unreachable
from sandbox_agent.envelope import META, notification, same_id
from sandbox_agent.errors import LogUnavailable
from sandbox_agent.gateway.attachments import Own
from sandbox_agent.gateway.connection import MOST_PENDING, FleetConnection, drop_oldest, requested, withdrawn
from sandbox_agent.gateway.feed import Feed
from sandbox_agent.gateway.own_events import OwnEvents
from sandbox_agent.gateway.trust import run_of
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
        """`fetch_run` says which run of a node has its lease, None while one may come back. Raises LogUnavailable."""
        self._feed = feed
        self._own = own
        self._fetch_run = fetch_run

    def note_answered(self, connection: FleetConnection, id: bytes) -> None:
        """Its client has answered a request; all gateways learn of it."""
        connection.note_settled([id])
        self._own.announce(connection.tag, msgspec.json.encode(Answered(id.decode())))

    def may_have(self, connection: FleetConnection, node: str) -> bool:
        """Whether its client may have been asked by agents of a node, and not have answered yet."""
        return node in connection.unread or bool(connection.requests.get(node))

    async def withdraw(self, connection: FleetConnection, node: str) -> None:
        """Another run of a node may have its lease, or none ever: withdraw what others have asked this client."""
        while not connection.closed:
            try:
                await self._read(connection, node)
                asked = dict(connection.requests.get(node, {}))
                # In this order: what comes in meanwhile may have been asked by a later run.
                run = await self._fetch_run(node)
            except LogUnavailable as error:
                logger.info("requests not withdrawn yet connection=%s reason=%s", connection.tag, error)
                await asyncio.sleep(PAUSE)
                continue
            for id, session_id in asked.items() if run is not None else ():
                if run_of(id) != run:
                    self._withdraw_one(connection, node, id, session_id)
            return

    def _withdraw_one(self, connection: FleetConnection, node: str, id: bytes, session_id: str | None) -> None:
        """It counts as withdrawn when the stream has brought that, from here or from another gateway."""
        line = notification(methods.CANCEL_REQUEST, {"requestId": Raw(id), "_meta": _OUTCOME})
        unless = partial(self._is_settled, connection, node, id)
        self._own.tell(connection.tag, line, session_id, unless=unless)

    async def _read(self, connection: FleetConnection, node: str) -> None:
        """Find out what its client was asked before the connection came to this gateway. Raises LogUnavailable."""
        if node not in connection.unread:
            return
        answers = subjects.attachments(connection.tag, subjects.GATEWAY)
        own = [subjects.connection_events(connection.tag, source) for source in (node, subjects.GATEWAY)]
        channels = [*own, answers]
        for channel in channels:
            await self._feed.catch_up(channel)
        asked: dict[bytes, str | None] = {}
        after, through = connection.opened_at, max(map(self._feed.handed_over, channels))
        while after < through and (chunks := await self._feed.page(channels, after, through)):
            for chunk in chunks:
                if chunk.channel != answers:
                    asked.update(requested(chunk))
                for id in _answered(chunk) if chunk.channel == answers else withdrawn(chunk):
                    asked.pop(id, None)
                drop_oldest(asked, MOST_PENDING)
            after = chunks[-1].last
        connection.unread -= {node}
        connection.note_requests(asked)

    async def _is_settled(self, connection: FleetConnection, node: str, id: bytes) -> bool:
        """Whether another gateway has withdrawn a request. Raises Unreachable."""
        try:
            await self._feed.catch_up(subjects.connection_events(connection.tag, subjects.GATEWAY))
        except LogUnavailable as error:
            raise Unreachable(str(error)) from error
        return connection.closed or id not in connection.requests.get(node, {})


def _answered(chunk: Chunk) -> Iterator[bytes]:
    """The ids of requests that a client has answered, of what gateways tell each other."""
    for line in chunk.lines:
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            said = msgspec.json.decode(line, type=Own)
            if isinstance(said, Answered):
                yield same_id(said.id.encode())
