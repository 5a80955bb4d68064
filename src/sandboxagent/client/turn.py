"""Follow a prompt under way: its updates as they come, and its end."""

import asyncio
from collections.abc import AsyncIterator, Generator
from typing import cast

from msgspec import ValidationError

from sandboxagent.client.connection import ClientConnection, SentPrompt
from sandboxagent.client.incoming import Notification, as_notification
from sandboxagent.client.updates import Gap, TurnEnded, TurnItem, TurnStarted, read_item, text_of
from sandboxagent.protocol import methods
from sandboxagent.protocol.acp import PromptResponse
from sandboxagent.protocol.decode import read
from sandboxagent.protocol.envelope import Object, text_at

FIRST_CHECK_INTERVAL, MAX_CHECK_INTERVAL = 0.05, 1.6
"""Seconds between two checks whether a turn to be cancelled has started or was withdrawn: the first pause, and the
longest."""


class Turn(AsyncIterator[TurnItem]):
    """A turn of a session, which runs from its creation on, whether you read it or not.

    Iterate over its updates, of which the last is `TurnEnded`, or await only the `TurnEnded`. If you leave the
    iteration early, the turn continues; `cancel` ends it. If the turn fails, `RequestError` is raised, whose `data` has
    the state of the agent. If the server cannot be reached for too long, `ConnectionLost` is raised.
    """

    def __init__(self, connection: ClientConnection, session_id: str, prompt: SentPrompt, params: Object) -> None:
        self._connection = connection
        self._session_id = session_id
        self._prompt = prompt
        self._turn_id: str | None = None
        self._running = False
        self._over = False
        self._feed = connection.open_feed(session_id, connection.open_log(session_id))
        self._response = asyncio.create_task(self._send(params), name="sandbox-agent turn")
        self._response.add_done_callback(_retrieve_failure)
        self._cancelling: asyncio.Task[None] | None = None

    async def cancel(self) -> None:
        """Cancel this turn, and wait until that is done.

        A turn that waits is withdrawn. A turn that runs is cancelled at the agent, after it has started. If you stop
        waiting, the turn is cancelled all the same. It ends with the stop reason `cancelled`. `session.cancel` also
        cancels the turns of other clients.
        """
        if self._cancelling is None or self._cancelling.done():
            self._cancelling = asyncio.create_task(self._cancel(), name="sandbox-agent cancelling")
            self._cancelling.add_done_callback(_retrieve_failure)
        await asyncio.shield(self._cancelling)

    async def _cancel(self) -> None:
        await asyncio.sleep(0)  # A new turn may not have sent its prompt yet.
        pause = FIRST_CHECK_INTERVAL
        # The server ignores a cancel that arrives before its prompt, or while the agent is started for the prompt.
        while not self._known:
            await self._connection.cancel_queued(self._prompt)
            await self._look(pause)
            if pause >= MAX_CHECK_INTERVAL and not self._known:
                # A delayed stream may not have reported the start yet.
                await self._connection.notify(methods.CANCEL, {"sessionId": self._session_id})
            pause = min(2 * pause, MAX_CHECK_INTERVAL)
        if not self._response.done():
            await self._connection.notify(methods.CANCEL, {"sessionId": self._session_id})

    @property
    def _known(self) -> bool:
        """Whether the turn is known to have started or ended."""
        return self._prompt.started.done() or self._response.done()

    async def _look(self, seconds: float) -> None:
        waiting: list[asyncio.Future[None] | asyncio.Task[Object]] = [self._prompt.started, self._response]
        await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    async def text(self) -> str:
        """Wait until the turn ends, and return the text of all the agent's messages in it."""
        return "".join([text_of(item) async for item in self])

    def __await__(self) -> Generator[object, None, TurnEnded]:
        return self._end().__await__()

    def __aiter__(self) -> "Turn":
        return self

    async def __anext__(self) -> TurnItem:
        if self._over:
            raise StopAsyncIteration
        while (item := await self._feed.next()) is not None:
            selected = self._select(as_notification(item))
            if selected is not None:
                return selected
        # The iteration ends only after this wait, so a cancelled caller can still get the end of the turn.
        await asyncio.wait([self._response])
        self._over = True
        return await self._end()

    async def _end(self) -> TurnEnded:
        result = await asyncio.shield(self._response)
        return TurnEnded(text_at(result, "stopReason"), self._turn_id, None, _response(result))

    async def _send(self, params: Object) -> Object:
        try:
            return await self._connection.request(methods.PROMPT, params)
        finally:
            # The connection returns the answer after all events before it, so the feed is complete.
            self._feed.close()

    def _select(self, notification: Notification) -> TurnItem | None:
        """Return an item of this turn, or None. While this turn waits, other turns of the session may run."""
        item = read_item(notification.method, notification.params)
        match item:
            case TurnStarted(turn_id=turn_id, prompt_id=prompt_id):
                if prompt_id == self._prompt.id:
                    self._turn_id, self._running = turn_id, True
                return None
            case TurnEnded(turn_id=turn_id):
                self._running = self._running and turn_id != self._turn_id
                return None
            case Gap():
                return item
            case _:
                return cast("TurnItem | None", item) if self._running else None


def _retrieve_failure(task: "asyncio.Task[Object] | asyncio.Task[None]") -> None:
    """Retrieve the failure of a task that may never be awaited, so that asyncio does not complain."""
    if not task.cancelled():
        task.exception()


def _response(result: Object) -> PromptResponse | None:
    try:
        return read(result, PromptResponse)
    except ValidationError:
        # The response may be from a newer protocol, or an agent's own. The turn has ended in any case.
        return None
