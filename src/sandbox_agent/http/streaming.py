"""Streaming responses: they end when their reader leaves or stops reading."""

import asyncio
from collections.abc import AsyncIterable, Mapping

from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from sandbox_agent.http.asgi import transport

STALLED = 300.0
"""Seconds that a reader may read nothing before the stream is closed."""


class Streamed(StreamingResponse):
    """A stream. Subclasses release their resources when `__call__` ends."""

    def __init__(
        self, pieces: AsyncIterable[bytes], type: str, headers: Mapping[str, str], stalled: float = STALLED
    ) -> None:
        self._stalled = stalled
        super().__init__(pieces, media_type=type, headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def patient(message: Message) -> None:
            try:
                async with asyncio.timeout(self._stalled):
                    await send(message)
            except TimeoutError:
                # Then `receive` says that the client has left.
                transport(scope).abort()

        await super().__call__(scope, receive, patient)
