"""A TCP proxy that can be told to cut: what a network does to a client, on purpose and at a known moment."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TypeVar
from urllib.parse import urlsplit

from tests.support.running import BOUND


class Proxy:
    """Passes bytes on between clients and one server; `url` is where clients go."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.url = ""
        self.refusing = False
        """Whether new connections are cut at once."""
        self.connections = 0
        self.paused = asyncio.Event()
        self.paused.set()
        self._sockets: set[asyncio.StreamWriter] = set()
        self._mute: set[asyncio.StreamWriter] = set()
        self._arrived = asyncio.Condition()

    def cut(self) -> None:
        """Break every connection there is, without a goodbye."""
        for writer in self._sockets:
            transport = writer.transport
            transport.abort()

    def silence(self) -> None:
        """Keep every connection there is open, and pass nothing on any more."""
        self._mute |= self._sockets

    def passes(self, data: bytes) -> bool:
        """Whether these bytes may pass; if not, their connection breaks."""
        return True

    async def reconnected(self, before: int) -> None:
        """Wait until there have been more than `before` connections."""
        async with asyncio.timeout(BOUND), self._arrived:
            await self._arrived.wait_for(lambda: self.connections > before)

    async def over(self) -> None:
        """Wait until every connection has ended."""
        async with asyncio.timeout(BOUND), self._arrived:
            await self._arrived.wait_for(lambda: not self._sockets)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        async with self._arrived:
            self._arrived.notify_all()
        if self.refusing:
            writer.transport.abort()
            return
        address = urlsplit(self.target)
        ends = {writer}
        self._sockets |= ends
        try:
            upstream, downstream = await asyncio.open_connection(address.hostname, address.port)
            ends.add(downstream)
            self._sockets |= ends
            if not writer.transport.is_closing():
                await asyncio.gather(self._pass(reader, downstream), self._pass(upstream, writer))
        except OSError:
            # There is no server.
            return
        finally:
            self._sockets -= ends
            self._mute -= ends
            for each in ends:
                each.transport.abort()
            async with self._arrived:
                self._arrived.notify_all()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                await self.paused.wait()
                if writer in self._mute:
                    continue
                if not self.passes(data):
                    writer.transport.abort()
                    return
                writer.write(data)
                await writer.drain()
            if writer.can_write_eof():
                writer.write_eof()
        except OSError:
            # A reset goes on to the other side, which would wait on an open socket for ever.
            writer.transport.abort()


P = TypeVar("P", bound=Proxy)


@asynccontextmanager
async def proxy(target: str, kind: type[P] = Proxy) -> AsyncGenerator[P]:
    """A proxy in front of a server."""
    cutting = kind(target)
    server = await asyncio.start_server(cutting.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    cutting.url = f"http://{host}:{port}"
    try:
        yield cutting
    finally:
        server.close()
        cutting.cut()
        await cutting.over()
