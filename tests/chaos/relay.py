"""The wires of a fleet: TCP relays that can be cut, and mended as if nothing had been said meanwhile."""

import asyncio
import re
from contextlib import suppress

_NAMED = re.compile(rb'"server_name":"([^"]+)"')
PIECE = 1 << 16


class Wire:
    """Passes bytes on to one port. While one of its ends is cut off, it holds them back, as a network does that loses
    packets: both sides stay connected, and hear nothing."""

    def __init__(self, to: str, origin: str = "") -> None:
        self.port = 0
        self._to = to
        """The part at its far end."""
        self._origin = origin
        """The part at its near end; of wires between servers it is found in what they say first."""
        self._target = 0
        self._off: set[str] = set()
        self._changed = asyncio.Condition()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, target: int) -> int:
        self._target = target
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self.port

    async def cut(self, part: str) -> None:
        self._off.add(part)

    async def mend(self, part: str) -> None:
        async with self._changed:
            self._off.discard(part)
            self._changed.notify_all()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        there: asyncio.StreamWriter | None = None
        try:
            far, there = await asyncio.open_connection("127.0.0.1", self._target)
            origin = [self._origin]
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass(reader, there, origin))
                group.create_task(self._pass(far, writer, origin))
        except (OSError, ExceptionGroup, asyncio.CancelledError):
            pass
        finally:
            for each in (writer, there):
                if each is not None:
                    each.transport.abort()
                    with suppress(OSError):
                        await each.wait_closed()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, origin: list[str]) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(PIECE):
                if not origin[0] and (found := _NAMED.search(data)) and found[1].decode() != self._to:
                    origin[0] = found[1].decode()
                async with self._changed:
                    await self._changed.wait_for(lambda: not self._off & {self._to, origin[0]})
                writer.write(data)
                await writer.drain()
        raise ConnectionError
