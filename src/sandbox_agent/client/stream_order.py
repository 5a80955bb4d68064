"""Answers after what came before them: an answer and the stream travel on different sockets, and either may win."""

import asyncio
import logging

logger = logging.getLogger(__name__)

HOLD = 10.0
"""Seconds that an answer waits for the stream to bring what came before it."""


class StreamOrder:
    """How far the stream of a connection is, and who waits for it to be further."""

    def __init__(self, patience: float) -> None:
        self._hold = min(HOLD, patience)
        self.position = 0
        """The newest position that the server has told this connection of."""
        self._brought = 0
        """Up to where the stream has nothing more to bring."""
        self._stalled = False
        """The stream has been silent for too long: do not wait for it until it brings something."""
        self._waiting: dict[asyncio.Future[None], int] = {}

    def brought(self, position: int) -> None:
        """The stream is that far."""
        self._stalled = False
        self._brought = max(self._brought, position)
        self.position = max(self.position, position)
        for future in [future for future, wanted in self._waiting.items() if wanted <= position]:
            _wake(future)

    async def after(self, last: int) -> bool:
        """Wait until the stream has brought this event; False when it stays away."""
        self.position = max(self.position, last)
        if self._brought >= last:
            return True
        if self._stalled:
            return False
        brought: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[brought] = last
        try:
            async with asyncio.timeout(self._hold):
                await brought
        except TimeoutError:
            logger.warning("the stream stays away; going by the log")
            self._stalled = True
        finally:
            self._waiting.pop(brought, None)
        return not self._stalled

    def begin(self) -> None:
        """There is another connection, with a stream of its own."""
        self.position, self._brought, self._stalled = 0, 0, False

    def release(self) -> None:
        """The stream is gone: release everything that waits for it."""
        for future in self._waiting:
            _wake(future)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
