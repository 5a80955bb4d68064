"""Write a stream's events as server-sent events or as text frames of a WebSocket."""

from collections.abc import Callable
from functools import cache
from typing import Protocol

from sandboxagent.server.log.event import Chunk, frames
from sandboxagent.server.sessions.connection import Connection


class Encoding(Protocol):
    """What a stream needs to know of its transport."""

    opening: bytes
    """Written before the first event; may be empty."""

    def heartbeat(self) -> bytes:
        """Written when nothing else was for a while."""
        ...

    def farewell(self, reason: str) -> bytes:
        """Written last; may be empty."""
        ...

    def events(self, connection: Connection, chunk: Chunk) -> bytes:
        """A chunk as a connection should read it."""
        ...

    def event(self, position: int, line: bytes) -> bytes:
        """An envelope of the stream's own."""
        ...


class ServerSentEvents:
    """Each envelope is the data of an event; its position is the event's id."""

    opening = b": open\n\n"

    def heartbeat(self) -> bytes:
        return b": \n\n"

    def farewell(self, reason: str) -> bytes:
        return b": closed: %b\n\n" % reason.encode()

    def events(self, connection: Connection, chunk: Chunk) -> bytes:
        return connection.frames(chunk)

    def event(self, position: int, line: bytes) -> bytes:
        return frames(position, [line])


class TextFrames:
    """Each envelope is a text frame; with `numbered`, its position and a line break come before it."""

    def __init__(self, on_ping: Callable[[], None], *, numbered: bool) -> None:
        # Such a client waits for it: only then is its connection known not to be refused.
        self.opening = _empty() if numbered else b""
        self._on_ping = on_ping
        self._numbered = numbered

    def heartbeat(self) -> bytes:
        self._on_ping()
        # Browsers do not show pings to a page, which must learn that the server is still there.
        return _ping() + _empty() if self._numbered else _ping()

    def farewell(self, reason: str) -> bytes:
        # A WebSocket says goodbye with a close frame of its own.
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
