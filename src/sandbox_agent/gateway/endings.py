"""The end of sessions that their node no longer has, as gateways tell it to the clients that follow them: once."""

from functools import partial

import msgspec

from sandbox_agent.bus import subjects
from sandbox_agent.bus.ports import Unreachable
from sandbox_agent.envelope import notification, parse, text_at
from sandbox_agent.errors import LogUnavailable, NotAnEnvelope
from sandbox_agent.gateway.connection import FleetConnection
from sandbox_agent.gateway.feed import Feed
from sandbox_agent.gateway.own_events import OwnEvents
from sandbox_agent.log.event import Chunk
from sandbox_agent.wire import methods
from sandbox_agent.wire.fleet import Gone


class Endings:
    """What clients learn of sessions that a node lost with its disk."""

    def __init__(self, feed: Feed, own: OwnEvents) -> None:
        self._feed = feed
        self._own = own

    async def catch_up(self, connection: FleetConnection, node: str) -> int:
        """Learn what a node has said of its attachments so far, and up to which position. Raises LogUnavailable."""
        await self._feed.catch_up(subjects.attachments(connection.tag, node))
        return self._feed.position

    def tell_gone(self, connection: FleetConnection, session_id: str, known_at: int) -> None:
        """Tell a client that a session cannot go on; of several gateways that find out, the first does.

        `known_at` is what `catch_up` gave before the node said so: what the node attaches later is another session.
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
        # First what its client hears: if this gateway ends in between, another one says the rest.
        self._own.tell(
            connection.tag,
            notification(methods.ENDED, ended),
            session_id,
            unless=partial(self._knows, connection, session_id, begun, known_at),
        )
        self._own.announce(connection.tag, gone, unless=partial(self._is_gone, connection, session_id, begun))

    async def _knows(self, connection: FleetConnection, session_id: str, after: int, known_at: int) -> bool:
        """Whether its client has been told since it was attached, or has another session of this id by now.

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
        """Whether gateways know it since a position. Raises Unreachable."""
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
