"""Answers that go on."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from sandboxagent.server.http.downloads import Streamed
from tests.support.client import run
from tests.support.running import BOUND


class Transport:
    """A socket whose other side reads nothing."""

    def __init__(self) -> None:
        self.aborted = asyncio.Event()

    def abort(self) -> None:
        self.aborted.set()


async def endless() -> AsyncGenerator[bytes]:
    while True:
        yield b"x"


def test_a_reader_that_takes_nothing_is_given_up() -> None:
    async def main() -> None:
        transport, sent = Transport(), 0

        async def send(message: Any) -> None:
            nonlocal sent
            sent += 1
            if sent > 3:
                await asyncio.Event().wait()

        async def receive() -> Any:
            await transport.aborted.wait()
            return {"type": "http.disconnect"}

        scope = {"type": "http", "asgi": {}, "extensions": {"sandboxagent.transport": transport}}
        async with asyncio.timeout(BOUND):
            await Streamed(endless(), "text/plain", {}, stalled=0.05)(scope, receive, send)
        assert transport.aborted.is_set()

    run(main())
