"""GET /v1/rpc on a bare socket: every byte as it came, and a reader that can stop reading."""

import asyncio
import re
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from tests.support import sse
from tests.support.client import Client
from tests.support.running import BOUND

_NUMBERED = re.compile(rb'id: (\d+)\ndata: [^\n]*?"text":"(\d+) ')


class RawStream:
    """An open stream. What was read of its body, without the chunked encoding, is in `body`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: str) -> None:
        self.head = head
        self.body = bytearray()
        self.cut_off = False
        self._reader = reader
        self._writer = writer

    async def more(self, bound: float = BOUND) -> bool:
        """Read one piece; False when the stream is over, and then `cut_off` says whether it just broke."""
        try:
            async with asyncio.timeout(bound):
                size = int(await self._reader.readline(), 16)
                piece = await self._reader.readexactly(size + 2)
        except (ValueError, ConnectionError, asyncio.IncompleteReadError) as broken:
            if isinstance(broken, asyncio.IncompleteReadError):
                self.body += broken.partial
            self.cut_off = True
            return False
        self.body += piece[:-2]
        return size > 0

    async def until_abandoned(self, bound: float = BOUND) -> None:
        """Wait until the server has closed its side. Without reading: its word waits behind what was not read."""
        mine, theirs = (self._writer.get_extra_info(name)[1] for name in ("sockname", "peername"))
        async with asyncio.timeout(bound):
            while _is_open(theirs, mine):  # noqa: ASYNC110 - the kernel tells no one
                await asyncio.sleep(0.05)

    async def until(self, wanted: bytes, bound: float = BOUND) -> None:
        """Read until these bytes came."""
        searched = 0
        async with asyncio.timeout(bound):
            while self.body.find(wanted, searched) < 0:
                searched = max(0, len(self.body) - len(wanted))
                assert await self.more(bound), f"the stream ended before {wanted!r}"

    async def to_the_end(self, bound: float = BOUND) -> None:
        """Read until the server ends the stream or cuts it off."""
        async with asyncio.timeout(bound):
            while await self.more(bound):
                pass

    def frames(self) -> list[sse.Frame]:
        return sse.parse(bytes(self.body))[0]

    def comments(self) -> list[str]:
        return sse.parse(bytes(self.body))[1]

    def numbered(self) -> list[tuple[int, int]]:
        """Id and number of the updates of a flood, as far as their frames are whole."""
        whole = bytes(self.body[: self.body.rfind(b"\n\n") + 2])
        return [(int(id), int(number)) for id, number in _NUMBERED.findall(whole)]


def _is_open(local: int, remote: int) -> bool:
    """Whether the socket between these ports is, by the kernel's table, at the end that has the first."""
    ends = f":{local:04X} ", f":{remote:04X} 01 "
    return any(ends[0] in line and ends[1] in line for line in Path("/proc/net/tcp").read_text().splitlines())


@asynccontextmanager
async def raw_stream(client: Client, receive_buffer: int | None = None, **headers: str) -> AsyncGenerator[RawStream]:
    """Open one; with a small receive buffer the kernel takes little of what stays unread."""
    address = urlsplit(client.server.url)
    connecting = socket.socket()
    if receive_buffer is not None:
        connecting.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connecting.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connecting, (address.hostname, address.port))
    reader, writer = await asyncio.open_connection(sock=connecting, limit=1 << 16)
    try:
        lines = {
            "Host": address.netloc,
            "Accept": "text/event-stream",
            "Authorization": f"Bearer {client.server.token}",
            **client.headers(**headers),
        }
        request = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        writer.write(f"GET /v1/rpc HTTP/1.1\r\n{request}\r\n".encode("latin-1"))
        async with asyncio.timeout(BOUND):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        assert head.startswith("HTTP/1.1 200 "), head
        yield RawStream(reader, writer, head)
    finally:
        writer.transport.abort()
        with suppress(ConnectionError):
            await writer.wait_closed()


def resident(pid: int) -> int:
    """Bytes of memory that a process has."""
    with open(f"/proc/{pid}/status") as status:
        (line,) = [line for line in status if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024
