"""Write a stream's events as server-sent events or as text frames of a WebSocket."""

from collections.abc import Callable
from functools import cache
from typing import Protocol

from sandboxagent.server.log.event import Chunk, frames
from sandboxagent.server.sessions.connection import Connection


class Encoding(Protocol):
    """The format in which a stream writes to its transport."""

    opening: bytes
    """Bytes before the first event; may be empty."""

    def heartbeat(self) -> bytes:
        """Return the bytes to write after a while without any."""
        ...

    def last_bytes(self, reason: str) -> bytes:
        """Return the last bytes of a stream; may be empty."""
        ...

    def events(self, connection: Connection, chunk: Chunk) -> bytes:
        """Return a chunk in the form for a connection."""
        ...

    def event(self, position: int, line: bytes) -> bytes:
        """Return an envelope of the stream itself, which the log does not have."""
        ...


class ServerSentEvents:
    """Server-sent events: each envelope is the data of an event, and its position is the event's id."""

    opening = b": open\n\n"

    def heartbeat(self) -> bytes:
        return b": \n\n"

    def last_bytes(self, reason: str) -> bytes:
        return b": closed: %b\n\n" % reason.encode()

    def events(self, connection: Connection, chunk: Chunk) -> bytes:
        return connection.frames(chunk)

    def event(self, position: int, line: bytes) -> bytes:
        return frames(position, [line])


class TextFrames:
    """Text frames: each envelope is one, after its position and a line break if `numbered`."""

    def __init__(self, on_ping: Callable[[], None], *, numbered: bool) -> None:
        # Clients with ids wait for this frame: only then is their connection known not to be refused.
        self.opening = _empty() if numbered else b""
        self._on_ping = on_ping
        self._numbered = numbered

    def heartbeat(self) -> bytes:
        self._on_ping()
        # Browsers do not show pings to a page, which must learn that the server is still there.
        return _ping() + _empty() if self._numbered else _ping()

    def last_bytes(self, reason: str) -> bytes:
        # A WebSocket ends with a close frame instead.
        return b""

    def events(self, connection: Connection, chunk: Chunk) -> bytes:
        lines = connection.lines(chunk)
        return b"".join(self.event(position, line) for position, line in enumerate(lines, chunk.first))

    def event(self, position: int, line: bytes) -> bytes:
        from websockets.frames import Frame, Opcode

        payload = b"%d\n%b" % (position, line) if self._numbered else line
        return Frame(Opcode.TEXT, payload).serialize(mask=False)


SSE = ServerSentEvents()


@cache
def _ping() -> bytes:
    from websockets.frames import Frame, Opcode

    return Frame(Opcode.PING, b"").serialize(mask=False)


@cache
def _empty() -> bytes:
    from websockets.frames import Frame, Opcode

    return Frame(Opcode.TEXT, b"").serialize(mask=False)
