"""A place in a stream where it waits until the test says go."""

import asyncio

BOUND = 60.0
"""Seconds after which a wait has failed: real agents take their time."""


class Gate:
    """Lives on the model server's loop; its methods are for the test's. Made by `ModelServer.gate()`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._reached = asyncio.Event()
        self._opened = asyncio.Event()

    async def reached(self) -> None:
        """Wait until a stream is held here."""
        waiting = asyncio.run_coroutine_threadsafe(self._reached.wait(), self._loop)
        await asyncio.wait_for(asyncio.wrap_future(waiting), BOUND)

    def open(self) -> None:
        """Let this stream go on, and every later one pass."""
        self._loop.call_soon_threadsafe(self._opened.set)

    async def hold(self) -> None:
        """For the server: wait here."""
        self._reached.set()
        await asyncio.wait_for(self._opened.wait(), BOUND)
