"""Settle the requests, sessions and questions of a lost node, and tell each client once.

A gateway answers each request that the node had accepted, in its place. A session that the node lost with its disk has
ended. Requests of its agents are withdrawn after the node was restarted or forgotten. Until then they stay, because a
node that is only cut off may return in the same run and accept answers.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial

import msgspec
from msgspec import Raw

from sandboxagent.core.tasks import Tasks
from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.bus.interface import Unreachable
from sandboxagent.fleet.gateway.connection import (
    MAX_PENDING,
    FleetConnection,
    Own,
    ResponsePromise,
    answered,
    drop_oldest,
    requested,
    withdrawn,
)
from sandboxagent.fleet.gateway.events import GatewayEvents
from sandboxagent.fleet.gateway.feed import EVERYTHING, Feed
from sandboxagent.fleet.messages import Answered, Attaches, Gone, SentTo
from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import META, failure, notification, parse, same_id, text_at
from sandboxagent.protocol.errors import LogUnavailable, NodeLost, NotAnEnvelope
from sandboxagent.protocol.request_ids import run_of
from sandboxagent.server.log.event import Chunk

logger = logging.getLogger(__name__)

ACCEPT_TIMEOUT = 10.0
"""Seconds to store in the stream that a request was accepted."""
RETRY_INTERVAL = 0.5
"""Seconds before the stream is read again after a failure."""
_OUTCOME = {META: {"outcome": "cancelled", "answeredBy": None}}


class ResponsePromises:
    """The records in the stream by which gateways tell each other about requests."""

    def __init__(self, feed: Feed, own: GatewayEvents, fetch_run: Callable[[str], Awaitable[str | None]]) -> None:
        """Create the records. `fetch_run` returns the run of a node that has its lease, or raises LogUnavailable."""
        self._feed = feed
        self._own = own
        self._fetch_run = fetch_run
        self._tasks = Tasks()

    def note_asked(self, connection: FleetConnection, id: bytes, node: str) -> None:
        """Note that a client's request goes to a node, so that no other node may answer it. All gateways learn of it.

        If the connection has only one node, nothing has to be told.
        """
        connection.note_asked(id, node)
        if connection.remotes.keys() - {node}:
            self._own.announce(connection.tag, msgspec.json.encode(SentTo(same_id(id).decode(), node)))

    async def note_attaching(self, connection: FleetConnection, id: bytes) -> None:
        """Tell all gateways, before the response comes, that the response to a request contains a position.

        Raises LogUnavailable.
        """
        await self._announce(connection, Attaches(same_id(id).decode()))

    async def note_accepted(self, connection: FleetConnection, id: bytes, promise: ResponsePromise) -> None:
        """Note that a run of a node has promised a response on the stream.

        If the run is lost, any gateway responds in its place. All gateways can know this before the client learns that
        its request is accepted. Raises LogUnavailable.
        """
        if self._has_come(connection, same_id(id), promise):
            return
        connection.note_asked(id, promise.node, promise.run, promise.after)
        await self._announce(connection, SentTo(same_id(id).decode(), promise.node, promise.run, promise.after))

    async def _announce(self, connection: FleetConnection, said: SentTo | Attaches) -> None:
        kept = self._own.announce(connection.tag, msgspec.json.encode(said))
        await asyncio.wait([kept], timeout=ACCEPT_TIMEOUT)
        if not (kept.done() and kept.result()):
            raise LogUnavailable.of_fleet("the fleet's stream does not take the word that this request was accepted")

    def _has_come(self, connection: FleetConnection, id: bytes, promise: ResponsePromise) -> bool:
        """Return whether the response came before the promise was noted."""
        channel = subjects.connection_events(connection.tag, promise.node)
        chunks, _ = self._feed.in_memory([channel], promise.after, EVERYTHING) or ((), False)
        return any(id in answered(chunk) for chunk in chunks)

    def tell_lost(self, connection: FleetConnection, lost: Mapping[bytes, ResponsePromise], node: str) -> None:
        """Respond in the place of a lost node. If several gateways do so, the first one counts."""
        self._tasks.run(self._tell_lost(connection, lost, node), f"tell what {node} lost")

    async def _tell_lost(self, connection: FleetConnection, lost: Mapping[bytes, ResponsePromise], node: str) -> None:
        while not connection.closed:
            try:
                run, known = await self._fetch_run(node), await self._answered(connection, node)
            except LogUnavailable as error:
                logger.info("lost responses wait connection=%s reason=%s", connection.tag, error)
                await asyncio.sleep(RETRY_INTERVAL)
                continue
            for id, promise in lost.items():
                if promise.run == run:
                    # The run is alive, although this gateway does not know it yet.
                    connection.note_promise(id, promise)
                elif known.get(id, 0) <= promise.after:
                    unless = partial(self._is_answered, connection, node, id, promise.after)
                    self._own.tell(connection.tag, failure(id, NodeLost(node)), None, unless=unless)
            return

    async def _is_answered(self, connection: FleetConnection, node: str, id: bytes, after: int) -> bool:
        try:
            known = await self._answered(connection, node)
        except LogUnavailable as error:
            raise Unreachable(str(error)) from error
        # If the connection was closed meanwhile, its channels could not be read.
        return connection.closed or known.get(id, 0) > after

    async def _answered(self, connection: FleetConnection, node: str) -> dict[bytes, int]:
        """Return the requests that a node, or a gateway in its place, has answered on the stream.

        The values are the positions of the last answers.
        """
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


class LostSessions:
    """Tells clients about sessions that a node lost with its disk."""

    def __init__(self, feed: Feed, own: GatewayEvents) -> None:
        self._feed = feed
        self._own = own

    async def catch_up(self, connection: FleetConnection, node: str) -> int:
        """Read a node's attachments so far, and return the position of the feed. Raises LogUnavailable."""
        await self._feed.catch_up(subjects.attachments(connection.tag, node))
        return self._feed.position

    def tell_gone(self, connection: FleetConnection, session_id: str, known_at: int) -> None:
        """Tell a client that a session has ended. If several gateways do so, the first one counts.

        `known_at` is the result of `catch_up` before the node said so. A session that the node attaches later is
        another one.
        """
        ended = {
            "sessionId": session_id,
            "reason": "deleted",
            "terminatedBy": "daemon",
            "message": "its node no longer has this session",
        }
        begun = connection.attached_since(session_id)
        if not 0 < begun <= known_at:
            return
        gone = msgspec.json.encode(Gone(session_id, known_at))
        # The client is told first. If this gateway ends before the second record, another gateway writes it.
        self._own.tell(
            connection.tag,
            notification(methods.ENDED, ended),
            session_id,
            unless=partial(self._knows, connection, session_id, begun, known_at),
        )
        self._own.announce(connection.tag, gone, unless=partial(self._is_gone, connection, session_id, begun))

    async def _knows(self, connection: FleetConnection, session_id: str, after: int, known_at: int) -> bool:
        """Return whether the client was told since it was attached, or is attached to another session of this id.

        Raises Unreachable.
        """
        channel = subjects.connection_events(connection.tag, subjects.GATEWAY)
        try:
            await self._feed.catch_up(channel)
            told = await self._feed.last_meant(channel, after, lambda chunk: _ends(chunk, session_id))
        except LogUnavailable as error:
            raise Unreachable(str(error)) from error
        return connection.closed or told > 0 or connection.attached_since(session_id) > known_at

    async def _is_gone(self, connection: FleetConnection, session_id: str, after: int) -> bool:
        """Return whether gateways have noted the end since a position. Raises Unreachable."""
        try:
            await self._feed.catch_up(subjects.attachments(connection.tag, subjects.GATEWAY))
        except LogUnavailable as error:
            raise Unreachable(str(error)) from error
        return connection.closed or any(position > after for _, position in connection.gone.get(session_id, ()))


def _ends(chunk: Chunk, session_id: str) -> bool:
    return chunk.session_id == session_id and any(_is_ending(line) for line in chunk.lines)


def _is_ending(line: bytes) -> bool:
    try:
        envelope = parse(line)
    except NotAnEnvelope:
        return False
    return envelope.method == methods.ENDED and text_at(envelope.params(), "reason") == "deleted"


class Withdrawals:
    """Tells clients about requests that they can not answer any more."""

    def __init__(self, feed: Feed, own: GatewayEvents, fetch_run: Callable[[str], Awaitable[str | None]]) -> None:
        """Create the object.

        `fetch_run` returns the run of a node that has its lease, or None while a run may return. It raises
        LogUnavailable.
        """
        self._feed = feed
        self._own = own
        self._fetch_run = fetch_run
        self._reading = asyncio.Lock()

    def note_answered(self, connection: FleetConnection, id: bytes) -> None:
        """Note that a client has answered a request. All gateways learn of it."""
        connection.note_settled([id])
        self._own.announce(connection.tag, msgspec.json.encode(Answered(id.decode())))

    def may_have(self, connection: FleetConnection, node: str) -> bool:
        """Return whether a node's agents may have open requests at a client."""
        return node in connection.unread or bool(connection.requests.get(node))

    async def withdraw(self, connection: FleetConnection, node: str) -> None:
        """Withdraw the requests that earlier runs of a node have sent to a client.

        Called when another run may have the node's lease, or when no run will ever have it again.
        """
        while not connection.closed:
            try:
                await self._read(connection, node)
                asked = dict(connection.requests.get(node, {}))
                # The requests are read before the run: a request that arrives later may be from a later run.
                run = await self._fetch_run(node)
            except LogUnavailable as error:
                logger.info("requests not withdrawn yet connection=%s reason=%s", connection.tag, error)
                await asyncio.sleep(RETRY_INTERVAL)
                continue
            for id, session_id in asked.items() if run is not None else ():
                if run_of(id) != run:
                    self._withdraw_one(connection, node, id, session_id)
            return

    def _withdraw_one(self, connection: FleetConnection, node: str, id: bytes, session_id: str | None) -> None:
        """Withdraw a request. It counts as withdrawn when the stream delivers the withdrawal, from any gateway."""
        line = notification(methods.CANCEL_REQUEST, {"requestId": Raw(id), "_meta": _OUTCOME})
        unless = partial(self._is_settled, connection, node, id)
        self._own.tell(connection.tag, line, session_id, unless=unless)

    async def _read(self, connection: FleetConnection, node: str) -> None:
        """Read the requests that a client got before its connection came to this gateway. Raises LogUnavailable."""
        if node not in connection.unread:
            return
        # One connection at a time, because each may take many pages, and many clients may come at once.
        async with self._reading:
            if node in connection.unread and not connection.closed:
                await self._read_pages(connection, node)

    async def _read_pages(self, connection: FleetConnection, node: str) -> None:
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
                drop_oldest(asked, MAX_PENDING)
            after = chunks[-1].last
        connection.unread -= {node}
        connection.note_requests(asked)

    async def _is_settled(self, connection: FleetConnection, node: str, id: bytes) -> bool:
        """Return whether another gateway has withdrawn a request. Raises Unreachable."""
        try:
            await self._feed.catch_up(subjects.connection_events(connection.tag, subjects.GATEWAY))
        except LogUnavailable as error:
            raise Unreachable(str(error)) from error
        return connection.closed or id not in connection.requests.get(node, {})


def _answered(chunk: Chunk) -> Iterator[bytes]:
    """Yield the ids of requests that a client has answered, from the records of gateways."""
    for line in chunk.lines:
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            said = msgspec.json.decode(line, type=Own)
            if isinstance(said, Answered):
                yield same_id(said.id.encode())
