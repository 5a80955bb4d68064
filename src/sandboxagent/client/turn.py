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

FIRST_LOOK, MAX_LOOK = 0.05, 1.6
"""Seconds between two checks whether a turn you want to cancel has started, or was taken back."""


class Turn(AsyncIterator[TurnItem]):
    """A turn runs from the moment you create it, whether you read it or not.

    Iterate for its updates, of which the last is `TurnEnded`; or await it for that one alone. Leaving early leaves the
    turn running: `cancel` ends it. When it fails, `RequestError` comes in place of the end, with what became of the
    agent in `data`; when the server is gone for too long, `ConnectionLost`.
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
        """End this turn: one that waits is taken back, of one that runs the agent is asked to stop.

        Returns once that is done, which is after the turn has started. It happens even if you stop waiting for it.
        The turn then ends with the stop reason `cancelled`. `session.cancel` also ends what others have begun.
        """
        if self._cancelling is None or self._cancelling.done():
            self._cancelling = asyncio.create_task(self._cancel(), name="sandbox-agent cancelling")
            self._cancelling.add_done_callback(_retrieve_failure)
        await asyncio.shield(self._cancelling)

    async def _cancel(self) -> None:
        await asyncio.sleep(0)  # It may have been made just now, and not be sent yet.
        pause = FIRST_LOOK
        # A cancel that comes before its prompt, or while an agent is started for it, is lost.
        while not self._known:
            await self._connection.cancel_queued(self._prompt)
            await self._look(pause)
            if pause >= MAX_LOOK and not self._known:
                # A stream that is held up says nothing of its start.
                await self._connection.notify(methods.CANCEL, {"sessionId": self._session_id})
            pause = min(2 * pause, MAX_LOOK)
        if not self._response.done():
            await self._connection.notify(methods.CANCEL, {"sessionId": self._session_id})

    @property
    def _known(self) -> bool:
        """Whether it is known to have started, or to be over."""
        return self._prompt.started.done() or self._response.done()

    async def _look(self, seconds: float) -> None:
        waiting: list[asyncio.Future[None] | asyncio.Task[Object]] = [self._prompt.started, self._response]
        await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    async def text(self) -> str:
        """Everything the agent says in this turn, once it has ended."""
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
        # A caller cancelled while waiting here has not received it yet.
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
            # The answer comes after everything that came before it, so the feed has all there is.
            self._feed.close()

    def _select(self, notification: Notification) -> TurnItem | None:
        """What belongs to this turn; others of the session may run before it, while it waits."""
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
        # Of a newer protocol, or of an agent's own making: the turn has ended all the same.
        return None
