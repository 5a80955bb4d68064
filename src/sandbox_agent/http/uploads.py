"""Files on their way in: written in threads, a block behind what is received, however large they are."""

import asyncio
from collections.abc import AsyncIterator

from sandbox_agent.host.incoming import IncomingFile, Written

BLOCK = 1 << 20


async def receive_file(incoming: IncomingFile, body: AsyncIterator[bytes]) -> Written:
    """Take a body to its end, then let the file take its place. Raises what the file or the body raises."""
    parts: list[bytes] = []
    size = 0
    writing: asyncio.Future[None] | None = None
    try:
        async for part in body:
            parts.append(part)
            size += len(part)
            if size >= BLOCK:
                if writing is not None:
                    await writing
                writing = asyncio.ensure_future(asyncio.to_thread(incoming.write, parts))
                parts, size = [], 0
        if writing is not None:
            await writing
        await asyncio.to_thread(incoming.write, parts)
        return await asyncio.to_thread(incoming.finish)
    finally:
        if writing is not None:
            await asyncio.wait({writing})
        await asyncio.to_thread(incoming.close)
