"""Find the last event that was meant for a connection, so that its answer can wait for it."""

import asyncio

from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.gateway.connection import FleetConnection
from sandboxagent.fleet.gateway.feed import Feed
from sandboxagent.protocol.errors import LogUnavailable
from sandboxagent.server.log.event import session_channel

ORDER_TIMEOUT = 10.0
"""Seconds that an answer waits for the events before it."""


class Ordering:
    """Connections whose last event is looked for."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._tasks: dict[FleetConnection, set[asyncio.Task[None]]] = {}

    def begin(self, connection: FleetConnection, channel: str, after: int) -> None:
        """Find out which event of a channel is the last that was meant for it, of those that are not in memory."""

        async def find() -> None:
            last = await self._feed.last_meant(channel, after, connection.sees)
            connection.last_event = max(connection.last_event, last)

        task = asyncio.create_task(find())
        self._tasks.setdefault(connection, set()).add(task)
        task.add_done_callback(lambda done: self._note_done(connection, done))

    def _note_done(self, connection: FleetConnection, task: "asyncio.Task[None]") -> None:
        tasks = self._tasks.get(connection)
        if tasks is not None:
            tasks.discard(task)
            if not tasks:
                del self._tasks[connection]

    def drop(self, connection: FleetConnection) -> None:
        """It is closed here."""
        for task in self._tasks.pop(connection, ()):
            task.cancel()

    async def settled(self, connection: FleetConnection) -> None:
        """Wait until it is known which event is the last one that was meant for it. Raises LogUnavailable."""
        while tasks := self._tasks.get(connection):
            await asyncio.gather(*tasks)

    async def wait_sent(self, connection: FleetConnection, node: str, position: int, session_id: str | None) -> None:
        """Wait until what a node has said to it up to a position of its own, or in a session, has come by here.

        Raises LogUnavailable.
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
        """The stream has it all, as the end of a channel shows that is new here; the reader may be behind that."""
        await self._feed.catch_up(subjects.attachments(connection.tag, node))
        await self._feed.catch_up(subjects.connection_events(connection.tag, node))
        if session_id is not None:
            await self._feed.catch_up(session_channel(session_id))
