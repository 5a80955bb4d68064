"""Connect to NATS servers by TCP, TLS or WebSocket, and through an HTTP proxy where one is named."""

import asyncio
import logging
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import ParseResult, SplitResult, urlsplit

from nats.aio.client import Client, Server, Srv
from nats.aio.transport import TcpTransport, Transport

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection


logger = logging.getLogger(__name__)

RETRY_INTERVAL = 1.0
"""Seconds before the client connects again to a server that could not be reached."""
MAX_READ_BYTES = 256 << 10
"""Maximum number of bytes of one read. A piece of a file then comes in one read instead of four."""
CLOSE_TIMEOUT = 1.0
"""Seconds to close a WebSocket."""


class ServerOrder:
    """The order in which the client connects to servers. The server that was lost last comes last.

    A frozen server accepts connections and never answers, so the client must not return to it first.
    """

    def __init__(self) -> None:
        self._dialled: dict[str, int] = {}
        """The number of the last connection attempt, by server."""

    def note(self, server: str) -> None:
        """Record a connection attempt."""
        self._dialled[server] = max(self._dialled.values(), default=0) + 1

    def choose(self, servers: list[Server], info: object) -> tuple[Server, float]:
        """Return the next server, and the seconds to wait before connecting."""
        chosen = min(servers, key=lambda server: self._dialled.get(server.uri.netloc, 0))
        return chosen, RETRY_INTERVAL if chosen.reconnects else 0.0


class Dialer(Client):
    """A NATS client that connects by TCP or WebSocket, and through a proxy."""

    def __init__(self, proxy: str | None) -> None:
        super().__init__()
        self._proxy = proxy
        self.server_order = ServerOrder()

    async def _connect_to_server(self, s: Srv) -> None:
        self.server_order.note(s.uri.netloc)
        if not self._transport:  # pyright: ignore[reportGeneralTypeIssues] - it is a bool, without saying so
            is_web = s.uri.scheme in ("ws", "wss")
            self._transport = WebSocketConnection(self._proxy) if is_web else TcpConnection(self._proxy)
        await super()._connect_to_server(s)

    async def _process_headers(self, headers: bytes) -> dict[str, str] | None:
        # An error about unreadable headers would end nats-py's reading loop for good.
        try:
            return await super()._process_headers(headers)  # pyright: ignore[reportUnknownMemberType]
        except (IndexError, ValueError) as error:
            logger.warning("headers of a message ignored reason=%s", error)
            return None


class TcpConnection(TcpTransport):
    """A TCP connection, made with CONNECT if there is a proxy. With `tls://`, it sends nothing before TLS."""

    def __init__(self, proxy: str | None) -> None:
        super().__init__()
        self._proxy = None if proxy is None else urlsplit(proxy)
        self._needs_tls = False

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        self._needs_tls = uri.scheme == "tls"
        if self._proxy is None:
            await super().connect(uri, MAX_READ_BYTES, connect_timeout)
            return
        async with asyncio.timeout(connect_timeout):
            reader, writer = await _tunnel(self._proxy, f"{uri.hostname}:{uri.port}", MAX_READ_BYTES)
        self._bare_io_reader = self._io_reader = reader
        self._bare_io_writer = self._io_writer = writer

    async def connect_tls(
        self, uri: str | ParseResult, ssl_context: ssl.SSLContext, buffer_size: int, connect_timeout: int
    ) -> None:
        await super().connect_tls(uri, ssl_context, MAX_READ_BYTES, connect_timeout)
        self._needs_tls = False

    async def read(self, buffer_size: int) -> bytes:
        return await super().read(MAX_READ_BYTES)

    def write(self, payload: bytes) -> None:
        if self._needs_tls:
            raise ConnectionError("the server does not offer TLS, and its address begins with tls://")
        super().write(payload)

    def __bool__(self) -> bool:
        # The transport can be opened again. nats-py replaces a transport that is false.
        return True


async def _tunnel(
    proxy: SplitResult, target: str, buffer_size: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to a host and port through an HTTP proxy. Raises ConnectionError if the proxy refuses."""
    safe = ssl.create_default_context() if proxy.scheme == "https" else None
    port = proxy.port or (443 if safe else 80)
    reader, writer = await asyncio.open_connection(proxy.hostname, port, limit=buffer_size, ssl=safe)
    where = f"the proxy {proxy.hostname}:{port}"
    try:
        await _ask_for_tunnel(reader, writer, target, where)
    except BaseException:
        writer.close()
        raise
    return reader, writer


async def _ask_for_tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: str, where: str) -> None:
    writer.write(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
    await writer.drain()
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise ConnectionError(f"{where} gives no answer for {target}") from error
    status = head.split(b"\r\n", 1)[0].decode("latin-1")
    if status.split(" ")[1:2] != ["200"]:
        raise ConnectionError(f"{where} does not connect to {target}: {status[:200]}")


class WebSocketConnection(Transport):
    """A WebSocket whose frames carry bytes of the protocol. Without `proxy`, the environment's proxy is used."""

    def __init__(self, proxy: str | None) -> None:
        self._proxy = proxy
        self._socket: ClientConnection | None = None
        self._pending: list[bytes] = []
        self._closing: asyncio.Task[None] | None = None
        self._is_over = False

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        await self._open(uri, None, connect_timeout)

    async def connect_tls(
        self, uri: str | ParseResult, ssl_context: ssl.SSLContext, buffer_size: int, connect_timeout: int
    ) -> None:
        # nats-py calls this again after the first bytes, when TLS is established already.
        if self._socket is None and not isinstance(uri, str):
            await self._open(uri, ssl_context, connect_timeout)

    async def _open(self, uri: ParseResult, safe: ssl.SSLContext | None, connect_timeout: int) -> None:
        from websockets.asyncio.client import connect
        from websockets.exceptions import WebSocketException

        try:
            self._socket = await connect(
                uri.geturl(),
                ssl=safe,
                proxy=True if self._proxy is None else self._proxy,
                compression=None,
                max_size=None,
                open_timeout=connect_timeout,
                close_timeout=CLOSE_TIMEOUT,
                ping_interval=None,
            )
        except WebSocketException as error:
            raise ConnectionError(f"{uri.geturl()}: {error}") from error

    def write(self, payload: bytes) -> None:
        self._pending.append(payload)

    def writelines(self, payload: list[bytes]) -> None:
        self._pending += payload

    async def drain(self) -> None:
        from websockets.exceptions import ConnectionClosed

        data, self._pending = b"".join(self._pending), []
        if not data or self._socket is None:
            return
        try:
            await self._socket.send(data)
        except ConnectionClosed as error:
            raise ConnectionError(str(error)) from error

    async def read(self, buffer_size: int) -> bytes:
        return await self.readline()

    async def readline(self) -> bytes:
        from websockets.exceptions import ConnectionClosed

        if self._socket is None:
            return b""
        try:
            data = await self._socket.recv()
        except ConnectionClosed:
            return b""
        return data.encode() if isinstance(data, str) else data

    def close(self) -> None:
        if self._socket is not None and self._closing is None:
            self._closing = asyncio.create_task(self._socket.close())

    async def wait_closed(self) -> None:
        closing, self._closing = self._closing, None
        if closing is not None:
            with suppress(OSError):
                await closing
        self._socket = None
        self._is_over = True

    def at_eof(self) -> bool:
        return self._socket is None or self._socket.close_code is not None

    def __bool__(self) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride] - it is a bool there, too
        return not self._is_over
