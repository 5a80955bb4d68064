"""Find the last event that was meant for a connection, so that its answer can wait for it."""

import asyncio

from sandboxagent.core.tasks import Tasks
from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.gateway.connection import FleetConnection
from sandboxagent.fleet.gateway.feed import Feed
from sandboxagent.protocol.errors import LogUnavailable
from sandboxagent.server.log.event import session_channel

ORDER_TIMEOUT = 10.0
"""Seconds that an answer waits for the events before it."""


class Ordering:
    """The searches for the last event of each connection."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._searches: dict[FleetConnection, Tasks] = {}
        """Only for connections with a search under way."""

    def begin(self, connection: FleetConnection, channel: str, after: int) -> None:
        """Search a channel for the last event that was meant for a connection, among events that are not in memory."""

        async def find() -> None:
            try:
                last = await self._feed.last_meant(channel, after, connection.sees)
                connection.last_event = max(connection.last_event, last)
            finally:
                if len(searches) == 1 and self._searches.get(connection) is searches:
                    del self._searches[connection]

        searches = self._searches.setdefault(connection, Tasks())
        searches.run(find(), "find a connection's last event")

    def drop(self, connection: FleetConnection) -> None:
        """Cancel the searches for a connection that is closed here."""
        if (searches := self._searches.pop(connection, None)) is not None:
            searches.cancel()

    async def settled(self, connection: FleetConnection) -> None:
        """Wait until the last event that was meant for a connection is known. Raises LogUnavailable."""
        while searches := self._searches.get(connection):
            await searches.join()

    async def wait_sent(self, connection: FleetConnection, node: str, position: int, session_id: str | None) -> None:
        """Wait until a node's events for a connection, up to one of the node's positions, have arrived here.

        With a session, its events count as well. Raises LogUnavailable.
        """
        try:
            async with asyncio.timeout(ORDER_TIMEOUT):
                await self._feed.progress.kept(node, position)
                if not self._feed.progress.has_come(node, position):
                    await self._catch_up(connection, node, session_id)
                await self.settled(connection)
        except TimeoutError:
            raise LogUnavailable.of_fleet(f"events of {node} have not come by in time") from None

    async def _catch_up(self, connection: FleetConnection, node: str, session_id: str | None) -> None:
        """Wait until the channels are complete here. The stream has all events, but its reader may be behind."""
        await self._feed.catch_up(subjects.attachments(connection.tag, node))
        await self._feed.catch_up(subjects.connection_events(connection.tag, node))
        if session_id is not None:
            await self._feed.catch_up(session_channel(session_id))
