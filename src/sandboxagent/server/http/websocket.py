"""Run a WebSocket on a socket that began with HTTP: messages in, frames out, and how it ends.

The `websockets` library parses and writes frames. This module moves their bytes, a few frames in each turn of the event
loop. It knows nothing of envelopes.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from websockets.datastructures import Headers
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import SEND_EOF, State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from sandboxagent.protocol.errors import BadRequest
from sandboxagent.protocol.headers import PLAIN, WITH_IDS
from sandboxagent.server.http.asgi import Scope
from sandboxagent.server.http.sockets import Wait
from sandboxagent.server.http.transport import BufferedTransport, FlowControl

MAX_UNREAD_BYTES = 64 << 10
"""Maximum bytes of messages that wait to be taken before the server stops reading the socket."""
MESSAGE_COST_BYTES = 128
"""Bytes that a waiting message costs besides its content."""
MAX_FRAMES = 64
"""Maximum number of frames taken in one turn of the event loop, of any kind. The rest waits while other sockets are
served."""
_MAX_HEAD_BYTES = 10
"""Maximum bytes of a frame that tell its size."""
CLOSE_TIMEOUT = 2.0
"""Seconds that a client has to answer a close frame."""
MAX_REASON_BYTES = 120
"""Maximum bytes of a close frame's reason: a control frame has 125 at most, two of them for its code."""

_GOODBYE = (CloseCode.NORMAL_CLOSURE, CloseCode.NO_STATUS_RCVD)

# Connections are logged elsewhere.
_frames_logger = logging.getLogger(f"{__name__}.frames")
_frames_logger.setLevel(logging.WARNING)


def _select(_: ServerProtocol, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    """Return the first known subprotocol. A token in the offer is no subprotocol, and is never sent back."""
    return next((name for name in offered if name in (WITH_IDS, PLAIN)), None)


class _Cut:
    """A search for the ends of frames in the bytes of a socket."""

    def __init__(self) -> None:
        self._head = b""
        """The beginning of a frame whose size is not known yet."""
        self._rest = 0
        """Bytes of the last frame that are still to come."""

    def find(self, data: bytes, start: int, frames: int) -> int:
        """Return the end of the next `frames` frames, or of the part of them that is there."""
        while start < len(data):
            if not self._rest:
                if not frames:
                    return start
                head = self._head + data[start : start + _MAX_HEAD_BYTES]
                size = _size_at(head)
                if size is None:
                    self._head = head
                    return len(data)
                self._rest, self._head, frames = size - len(self._head), b"", frames - 1
            there = min(self._rest, len(data) - start)
            start += there
            self._rest -= there
        return start


def _size_at(head: bytes) -> int | None:
    """Return the size of a frame, its head included, from its first bytes; None when these are too few."""
    if len(head) < 2:
        return None
    length = head[1] & 0x7F
    long = {126: 2, 127: 8}.get(length, 0)
    if len(head) < 2 + long:
        return None
    return 2 + long + (4 if head[1] & 0x80 else 0) + (int.from_bytes(head[2 : 2 + long]) if long else length)


class WebSocket:
    """A WebSocket, from its handshake to its end. Methods that the socket's protocol calls must not raise."""

    def __init__(
        self,
        transport: BufferedTransport,
        flow: FlowControl,
        max_size: int,
        on_accepted: Callable[["WebSocket"], None],
    ) -> None:
        self._transport = transport
        self._on_accepted = on_accepted
        self._flow = flow
        self._protocol = ServerProtocol(state=State.OPEN, max_size=max_size, logger=_frames_logger)
        self._subprotocol: Subprotocol | None = None
        self._messages: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._cut = _Cut()
        self._unparsed = b""
        """Received bytes, and the number of them that are taken: there may be too many frames for one turn."""
        self._parsed = 0
        self._next: asyncio.Handle | None = None
        """Handle of the turn of the event loop that takes further frames."""
        self._partial = bytearray()
        """The fragments of an incomplete message."""
        self._partial_is_text = False
        self._pong: bytes | None = None
        """The answer to the newest ping, while nothing can be written."""
        self._wake: asyncio.Future[None] | None = None
        self._over = False
        self._closing: asyncio.TimerHandle | None = None
        self.awaits_pong = False
        """Whether a ping was sent, and nothing has come since."""
        self.greeted = False
        """Whether the client has completed its required first step."""

    # The handshake

    def accept(self, scope: Scope, headers: list[tuple[str, str]]) -> None:
        """Answer 101, with these headers. Raises BadRequest for an invalid handshake."""
        offered = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        # The server's protocol removes this header, so that the request is routed like any other.
        request = Request(scope["path"], Headers([*offered, ("Upgrade", "websocket")]))
        handshake = ServerProtocol(select_subprotocol=_select, logger=_frames_logger)
        response = handshake.accept(request)
        if response.status_code != 101:
            raise BadRequest(f"this is no handshake of a WebSocket: {handshake.handshake_exc}")
        self._subprotocol = handshake.subprotocol
        for name, value in headers:
            response.headers[name] = value
        self._transport.write(response.serialize())
        self._on_accepted(self)

    @property
    def numbered(self) -> bool:
        """Whether frames to the client begin with the event's id."""
        return self._subprotocol == WITH_IDS

    # Called by the transport

    async def receive(self) -> bytes | None:
        """Return the next message; None when there are no more."""
        while not self._messages:
            if self._over:
                return None
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        message = self._messages.popleft()
        self._waiting_bytes -= len(message) + MESSAGE_COST_BYTES
        self._read_if_wanted()
        return message

    async def send(self, data: bytes) -> None:
        """Write frames, once the socket takes more."""
        if self._flow.write_paused and not self._over:
            await self._flow.drain()
        if self._protocol.state is State.OPEN and not self._over:
            self._transport.write(data)

    async def send_text(self, text: bytes) -> None:
        """Write one text frame."""
        await self.send(Frame(Opcode.TEXT, text).serialize(mask=False))

    def cut_off(self, code: int, reason: str) -> None:
        """Close the WebSocket, and discard the messages that its client has sent. The client still reads the reason."""
        self._messages.clear()
        self._waiting_bytes = 0
        self.close(code, reason)
        self._read_if_wanted()

    def close(self, code: int, reason: str) -> None:
        """Send a close frame, and give the client CLOSE_TIMEOUT to answer."""
        if self._over or self._protocol.state is not State.OPEN:
            return
        self._protocol.send_close(code, reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore"))
        self._flush()
        self._end()
        self._closing = asyncio.get_running_loop().call_later(CLOSE_TIMEOUT, self._transport.close)

    def expect_pong(self) -> None:
        """Note that a ping is on its way."""
        self.awaits_pong = True

    # Called by the socket's protocol

    def data_received(self, data: bytes) -> None:
        self.awaits_pong = False
        self._unparsed = self._unparsed[self._parsed :] + data if self._unparsed else data
        self._parsed = 0
        if self._next is None:
            self._parse()

    def _parse(self) -> None:
        """Take frames: at most MAX_FRAMES in one turn, and none while too many messages wait."""
        self._next = None
        data, start = self._unparsed, self._parsed
        if self._protocol.state not in (State.OPEN, State.CLOSING):
            self._parsed = len(data)
        elif self._waiting_bytes <= MAX_UNREAD_BYTES:
            self._parsed = self._cut.find(data, start, MAX_FRAMES)
            self._protocol.receive_data(data[start : self._parsed])
            for event in self._protocol.events_received():
                if isinstance(event, Frame):
                    self._take(event)
            self._flush()
        if self._parsed == len(data):
            self._unparsed, self._parsed = b"", 0
        self._read_if_wanted()

    def waits_for(self) -> Wait:
        """Return what kind of event the socket waits for."""
        if self._over:
            return Wait.CLOSING
        if self._unparsed or self._waiting_bytes > MAX_UNREAD_BYTES:
            # The server does not read the client, and may have missed its pong.
            return Wait.SERVER
        if not self.greeted:
            return Wait.MESSAGE
        return Wait.PONG if self.awaits_pong else Wait.SERVER

    def writable_again(self) -> None:
        """Write the newest pong, because the client reads again."""
        if self._pong is not None and not self._over:
            self._transport.write(self._pong)
        self._pong = None

    def lost(self) -> None:
        """End the WebSocket, because its socket is closed."""
        if self._closing is not None:
            self._closing.cancel()
        if self._next is not None:
            self._next.cancel()
        self._unparsed, self._parsed = b"", 0
        self._end()

    @property
    def left(self) -> bool:
        """Whether the client has closed the WebSocket for good.

        After a cut, or when a page goes away, it may come back.
        """
        close = self._protocol.close_rcvd
        return close is not None and close.code in _GOODBYE and bool(self._protocol.close_rcvd_then_sent)

    @property
    def over(self) -> bool:
        """Whether no message comes any more, and none can be sent."""
        return self._over

    def _take(self, frame: Frame) -> None:
        match frame.opcode:
            case Opcode.TEXT | Opcode.BINARY:
                self._partial_is_text = frame.opcode is Opcode.TEXT
            case Opcode.CONT:
                pass
            case _:
                return
        if self._partial_is_text and not self._over:
            if frame.fin and not self._partial:
                self._arrived(bytes(frame.data))
                return
            self._partial += frame.data
        if frame.fin:
            message, self._partial = bytes(self._partial), bytearray()
            if self._partial_is_text:
                self._arrived(message)

    def _arrived(self, message: bytes) -> None:
        if self._over:
            return
        self._messages.append(message)
        self._waiting_bytes += len(message) + MESSAGE_COST_BYTES
        self._notify()

    def _flush(self) -> None:
        """Write the library's output: pongs, close frames, the end."""
        writes = self._protocol.data_to_send()
        ends = SEND_EOF in writes
        written = [data for data in writes if data != SEND_EOF]
        if self._flow.write_paused and not ends and self._protocol.state is State.OPEN:
            # A client that pings and does not read must not fill the memory. The newest pong answers all pings.
            self._pong = written[-1] if written else self._pong
            return
        if written and not self._transport.is_closing():
            self._transport.write(b"".join(written))
        if ends:
            # A client that still sends reads the reason first.
            self._transport.unread = self._protocol.parser_exc is not None
            self._transport.close()
            self._end()

    def _end(self) -> None:
        # Messages that came whole are still taken.
        self._over = True
        self._partial = bytearray()
        self._notify()

    def _notify(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _read_if_wanted(self) -> None:
        is_full = self._waiting_bytes > MAX_UNREAD_BYTES
        if self._unparsed and not is_full and self._next is None:
            self._next = asyncio.get_running_loop().call_soon(self._parse)
        self._transport.set_backlogged(is_full or bool(self._unparsed))
