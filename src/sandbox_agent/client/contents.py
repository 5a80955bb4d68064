"""What is sent as a file: bytes, text, a file of this machine, or whatever gives bytes. Read as it is sent."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Generator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import BinaryIO, TypeAlias

Data: TypeAlias = bytes | bytearray | memoryview | str | Path | BinaryIO | AsyncIterable[bytes]
"""A `str` is the content, as UTF-8; a `Path` is a file of this machine; a binary file is read from where it is."""

BLOCK = 1 << 18


@asynccontextmanager
async def sending(data: Data) -> AsyncGenerator[bytes | AsyncIterable[bytes]]:
    """What httpx sends; a file that was opened for it is closed, however it ends."""
    match data:
        case bytes():
            yield data
        case bytearray() | memoryview():
            yield bytes(data)
        case str():
            yield data.encode()
        case AsyncIterable():
            yield data
        case _:
            async with aclosing(in_thread(_blocks_at(data) if isinstance(data, Path) else _blocks(data))) as blocks:
                yield blocks


async def in_thread(blocks: Generator[bytes]) -> AsyncGenerator[bytes]:
    """Blocks that are made in threads, one after another, as they are wanted."""
    making: asyncio.Future[bytes | None] | None = None
    try:
        while True:
            making = asyncio.ensure_future(asyncio.to_thread(next, blocks, None))
            block = await asyncio.shield(making)
            if block is None:
                return
            yield block
    finally:
        # It must not be closed under a thread.
        if making is not None:
            await asyncio.wait({making})
        await asyncio.to_thread(blocks.close)


def _blocks_at(path: Path) -> Generator[bytes]:
    with path.open("rb") as file:
        yield from _blocks(file)


def _blocks(file: BinaryIO) -> Generator[bytes]:
    while block := file.read(BLOCK):
        yield block
