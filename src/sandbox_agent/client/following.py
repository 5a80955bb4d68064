"""A session's log as it is written: what is there, then each event as it comes, with its id.

The stream only says that there is something new; what it is comes from the log, so that nothing is missing: prompts,
answers and what agents ask are in it, too.
"""

from collections import deque
from collections.abc import AsyncIterator

from sandbox_agent.client.connection import Connection
from sandbox_agent.client.session_log import LogEvent, log_page
from sandbox_agent.client.updates import TERMINATED, Gap, gap_of
from sandbox_agent.envelope import text_at
from sandbox_agent.wire import methods


class Following(AsyncIterator[LogEvent | Gap]):
    """All events of a session's log after an id, for as long as it is not ended for good and we are attached."""

    def __init__(self, connection: Connection, session_id: str, after: int) -> None:
        self._connection = connection
        self._session_id = session_id
        self._after = after
        self._page: deque[LogEvent | Gap] = deque()
        self._alarm = connection.alarm(session_id)
        self._alarm.set()
        self._over = False

    async def __anext__(self) -> LogEvent | Gap:
        while not self._page:
            if self._over:
                raise StopAsyncIteration
            await self._alarm.wait()
            await self._read()
        event = self._page.popleft()
        self._after = event.id if isinstance(event, LogEvent) else max(self._after, event.resumes_at - 1)
        return event

    async def _read(self) -> None:
        self._alarm.clear()
        if self._connection.is_closed:
            self._over = True
            return
        # Before the log is read: what is written after this is announced anew.
        gone = not self._connection.is_attached(self._session_id)
        try:
            page = await log_page(self._connection.request, self._session_id, self._after)
        except BaseException:
            self._alarm.set()
            raise
        if page.gap is not None:
            self._page.append(gap_of(page.gap))
        self._page += page.events
        if page.next is not None:
            self._alarm.set()
        elif gone or any(_is_final(event) for event in page.events):
            self._over = True


def _is_final(event: LogEvent) -> bool:
    return event.envelope.get("method") == methods.ENDED and text_at(event.envelope, "params", "reason") == TERMINATED
