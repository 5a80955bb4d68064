"""Files on their way in: written in threads, a block behind what is received, however large they are."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

from sandbox_agent.errors import BadRequest
from sandbox_agent.host.transfer.changes import IncomingFile
from sandbox_agent.pools import Pool
from sandbox_agent.wire.files import Written

BLOCK = 1 << 20
SILENCE = 60.0
"""Seconds that a client may send nothing before it is given up."""


async def receive_file(
    incoming: IncomingFile, body: AsyncIterator[bytes], pool: Pool, silence: float = SILENCE
) -> Written:
    """Take a body to its end, then let the file take its place.

    Raises what the file or the body raises, and BadRequest when the body falls silent.
    """
    writing: asyncio.Future[None] | None = None
    try:
        async for parts in _blocks(body, silence):
            if writing is not None:
                await writing
            writing = pool.start(incoming.write, parts)
        if writing is not None:
            await writing
        return await pool.run(incoming.finish)
    finally:
        # It must not be closed under a thread that writes it.
        if writing is not None:
            await asyncio.gather(writing, return_exceptions=True)
        await pool.run(incoming.close)


async def _blocks(body: AsyncIterator[bytes], silence: float) -> AsyncGenerator[list[bytes]]:
    """The parts of a body, gathered: to go into a thread with each of them would take longer than to write it."""
    parts: list[bytes] = []
    size = 0
    while (part := await _next(body, silence)) is not None:
        parts.append(part)
        size += len(part)
        if size >= BLOCK:
            yield parts
            parts, size = [], 0
    yield parts


async def _next(body: AsyncIterator[bytes], silence: float) -> bytes | None:
    try:
        async with asyncio.timeout(silence):
            return await anext(body, None)
    except TimeoutError:
        raise BadRequest(f"nothing of the file came for {silence:g} s; nothing was changed") from None
