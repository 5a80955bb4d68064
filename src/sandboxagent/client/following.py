"""Read a session's log as it is written: its past, then each event as it comes.

The stream tells when there is something new. Every event comes from the log, so nothing is missing: prompts, answers
and agents' requests are in it, too.
"""

from collections.abc import AsyncIterator

from sandboxagent.client.connection import ClientConnection
from sandboxagent.client.errors import InvalidCall, RequestError
from sandboxagent.client.events import SessionEvent, read_event
from sandboxagent.client.incoming import LogEntry, LogEvent
from sandboxagent.client.reducer import SessionReducer
from sandboxagent.client.updates import FINAL, Gap
from sandboxagent.client.view import SessionView
from sandboxagent.core import cursor
from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import text_at
from sandboxagent.protocol.errors import UnknownSession


class SessionLog(AsyncIterator[LogEvent | Gap]):
    """The events of a session's log after a position, and each new event as it comes, or up to another position.

    Without an end, the iteration ends when the session is terminated or deleted, or when you detach.
    """

    def __init__(
        self, connection: ClientConnection, session_id: str, after: int = 0, before: int | None = None
    ) -> None:
        self._cursor = connection.open_follower(session_id, after, before)

    def close(self) -> None:
        """Take no new events. The iteration ends after those that the log has by now."""
        self._cursor.fall_behind()
        self._cursor.close()

    async def __anext__(self) -> LogEvent | Gap:
        event = await self.next()
        if event is None:
            raise StopAsyncIteration
        return event

    async def next(self) -> LogEvent | Gap | None:
        """Return the next event; None at the end."""
        try:
            return self._take(await self._cursor.next())
        except (InvalidCall, RequestError) as error:
            return _end(error)

    async def next_stored(self) -> LogEvent | Gap | None:
        """Return the next event; None if everything that the log has by now was read."""
        try:
            return self._take(await self._cursor.next_stored())
        except (InvalidCall, RequestError) as error:
            return _end(error)

    def _take(self, item: LogEntry | cursor.Gap | None) -> LogEvent | Gap | None:
        if isinstance(item, cursor.Gap):
            return Gap(item.after, item.resumes_at)
        if item is not None and _is_final(item.event):
            self._cursor.close()
        return None if item is None else item.event


def _end(error: InvalidCall | RequestError) -> None:
    """End the log if the client is closed, or the session was deleted with its log. Else raise the error."""
    if isinstance(error, RequestError) and error.slug != UnknownSession.slug:
        raise error


def _is_final(event: LogEvent) -> bool:
    return event.envelope.get("method") == methods.ENDED and text_at(event.envelope, "params", "reason") in FINAL


class Following(AsyncIterator[SessionEvent]):
    """The past and present of a session as typed events, with its state.

    The iteration continues when the connection breaks, and when the session ends and is resumed. It ends when the
    session is terminated or deleted, or when you detach.
    """

    def __init__(self, log: SessionLog, reducer: SessionReducer) -> None:
        self._log = log
        self._reducer = reducer
        self._found: SessionEvent | None = None
        """An event that is in the view, and not yielded yet."""
        self._ahead: tuple[LogEvent | Gap, SessionEvent] | None = None
        """The event after it, which is not in the view."""
        self._is_live = False

    @property
    def view(self) -> SessionView:
        """The session after the last event that was yielded.

        Events without a meaning of their own, which the log has after it, may be in the view as well.
        """
        return self._reducer.view

    @property
    def is_live(self) -> bool:
        """Whether the past is read: the next event is a new one."""
        return self._is_live

    def close(self) -> None:
        """Take no new events. The iteration ends after those that the log has by now."""
        self._log.close()

    async def __anext__(self) -> SessionEvent:
        # Events are kept in attributes until they are yielded, so that no cancelled call loses one.
        if self._found is None:
            self._found = await self._next()
        while self._found is not None and not self._is_live and self._ahead is None:
            # An app that looks at the last event of the past sees that it is the last one.
            event = await self._log.next_stored()
            if event is None:
                self._is_live = True
            else:
                self._look_at(event)
        found, self._found = self._found, None
        if found is None:
            raise StopAsyncIteration
        return found

    async def _next(self) -> SessionEvent | None:
        """Add the next event that means something to the view, and return it; None at the end."""
        while self._ahead is None:
            event = await (self._log.next() if self._is_live else self._log.next_stored())
            if event is not None:
                self._look_at(event)
            elif self._is_live:
                return None
            else:
                self._is_live = True
        (event, typed), self._ahead = self._ahead, None
        self._reducer.add(event)
        return typed

    def _look_at(self, event: LogEvent | Gap) -> None:
        typed = read_event(event)
        if typed is None:
            self._reducer.add(event)
        else:
            self._ahead = event, typed


async def read_history(
    connection: ClientConnection, session_id: str, after: int, before: int | None
) -> AsyncIterator[SessionEvent]:
    """Yield the events between two positions; without an end, up to the end of the log."""
    log = SessionLog(connection, session_id, after, before)
    log.close()
    async for event in log:
        typed = read_event(event)
        if typed is not None:
            yield typed
