"""One WebSocket of the SDK: frames out, in order; events in; how it ends. Needs the extra `websocket`."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from sandbox_agent.client.errors import ConnectionLost, InvalidCall, ServerProblem
from sandbox_agent.wire.headers import WITH_IDS

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

HANDSHAKE = 10.0
"""Seconds for a handshake, and for the first frame after it."""
CLOSING = 2.0
"""Seconds that the server has to answer a close frame."""
TOO_LARGE, GOODBYE, LEAVING = 1009, 1000, 3000
REFUSED = 4400
"""Close codes from here on are 4000 plus the HTTP status of a refusal."""


def require_websockets() -> None:
    """Raises InvalidCall where the package is missing."""
    from importlib.util import find_spec

    if find_spec("websockets") is None:
        raise InvalidCall(
            "transport='websocket' needs the package websockets; run: pip install 'sandbox-agent[websocket]'"
        )


class ClientSocket:
    """One that is open, and that the server serves."""

    def __init__(self, socket: "ClientConnection") -> None:
        self._socket = socket
        self._frames: asyncio.Queue[bytes] = asyncio.Queue()
        self._writing = asyncio.create_task(self._write_all(), name="sandbox-agent socket")

    def write(self, frame: bytes) -> None:
        """Send a frame after those before it."""
        self._frames.put_nowait(frame)

    async def events(self) -> AsyncIterator[tuple[int, str] | None]:
        """Events as they come, and None for signs of life. Raises what the server refuses, or ConnectionLost."""
        from websockets.exceptions import ConnectionClosed

        try:
            while True:
                frame = await self._socket.recv()
                position, found, data = frame.partition("\n") if isinstance(frame, str) else ("", "", "")
                yield (int(position), data) if found and position.isdecimal() else None
        except ConnectionClosed:
            raise _failure(self._socket) from None

    @property
    def was_too_large(self) -> bool:
        """Whether it was closed because of the size of a message."""
        return self._socket.close_code == TOO_LARGE

    async def close(self, *, goodbye: bool) -> None:
        """Close it, and with `goodbye` the connection, too."""
        self._writing.cancel()
        with suppress(asyncio.CancelledError):
            await self._writing
        await self._socket.close(GOODBYE if goodbye else LEAVING)

    async def _write_all(self) -> None:
        from websockets.exceptions import ConnectionClosed

        with suppress(ConnectionClosed):
            while True:
                frame = await self._frames.get()
                await self._socket.send(frame, text=True)


async def connect_socket(url: str, headers: Mapping[str, str], silence: float, *, direct: bool) -> "ClientConnection":
    """A WebSocket with our subprotocol; closed when nothing comes for so many seconds. Raises what `connect` does."""
    from websockets.asyncio.client import connect
    from websockets.typing import Subprotocol

    class Connect(connect):
        def process_redirect(self, exc: Exception) -> Exception | str:
            # The token is for this server alone.
            return exc

    return await Connect(
        url,
        additional_headers=headers,
        subprotocols=[Subprotocol(WITH_IDS)],
        compression=None,
        max_size=None,
        proxy=None if direct else True,
        open_timeout=HANDSHAKE,
        ping_interval=silence / 3,
        ping_timeout=silence / 3,
        close_timeout=CLOSING,
    )


async def open_socket(url: str, headers: Mapping[str, str], silence: float, *, direct: bool) -> ClientSocket | None:
    """A socket that the server serves; None when none gets through.

    Raises ServerProblem when the server refuses.
    """
    from websockets.exceptions import ConnectionClosed, InvalidHandshake

    try:
        async with asyncio.timeout(HANDSHAKE):
            socket = await connect_socket(url, headers, silence, direct=direct)
            try:
                # One that is served begins with a frame, an empty one if need be.
                await socket.recv()
            except ConnectionClosed:
                failure = _failure(socket)
                if isinstance(failure, ServerProblem):
                    raise failure from None
                return None
            except BaseException:
                socket.transport.abort()
                raise
    except (OSError, InvalidHandshake, TimeoutError):
        return None
    return ClientSocket(socket)


def _failure(socket: "ClientConnection") -> ServerProblem | ConnectionLost:
    code, reason = socket.close_code or 0, socket.close_reason or ""
    if code >= REFUSED:
        return ServerProblem(reason, reason, code - 4000, "")
    return ConnectionLost(f"the socket was closed: {reason or code}")
