"""An HTTP server on a loopback address that plays what it is given, and remembers what it was asked."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from tests.support.running import BOUND


@dataclass(frozen=True)
class Asked:
    """One request that came; header names in lower case."""

    path: str
    headers: dict[str, str]


Play = Callable[[Asked, asyncio.StreamWriter], Awaitable[None]]


def answer(body: bytes = b"", status: str = "200 OK", **headers: str | None) -> bytes:
    """The bytes of a response; an underscore in a name stands for a dash, and None leaves a header out."""
    lines = {"Content-Length": str(len(body)), **{name.replace("_", "-"): value for name, value in headers.items()}}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value is not None)
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode("latin-1") + body


def redirect(location: str) -> bytes:
    return answer(status="302 Found", Location=location)


@dataclass
class Loopback:
    """Serves `routes`: bytes are sent as they are; a coroutine writes for itself. Then the socket is closed."""

    routes: dict[str, bytes | Play] = field(default_factory=dict[str, bytes | Play])
    tls: ssl.SSLContext | None = None
    host: str = "127.0.0.1"
    """How its address names this machine."""
    asked: list[Asked] = field(default_factory=list[Asked])
    _serving: list["asyncio.Task[None]"] = field(default_factory=list["asyncio.Task[None]"])

    async def __aenter__(self) -> "Loopback":
        # Connections beyond the backlog are tried again after ever longer waits, a minute in all.
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self.tls, backlog=1024)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()
        async with asyncio.timeout(BOUND):
            await asyncio.gather(*self._serving)

    def url(self, path: str) -> str:
        return f"{'http' if self.tls is None else 'https'}://{self.host}:{self.port}{path}"

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serving.append(asyncio.create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            async with asyncio.timeout(BOUND):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").splitlines()
            pairs = [line.partition(":") for line in head[1:] if line]
            asked = Asked(head[0].split()[1], {name.lower(): value.strip() for name, _, value in pairs})
            self.asked.append(asked)
            play = self.routes.get(asked.path.partition("?")[0], answer(status="404 Not Found"))
            if isinstance(play, bytes):
                writer.write(play)
            else:
                await play(asked, writer)
            await writer.drain()
        writer.close()
        with suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()
