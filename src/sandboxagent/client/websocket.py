"""Run one WebSocket of the SDK, and keep the envelopes that have no answer yet.

It writes frames in order, yields events, and reports how the socket ended. The module needs the extra `websocket`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from sandboxagent.client.errors import ConnectionLost, InvalidCall, ServerProblem
from sandboxagent.protocol.envelope import Object, object_at, text_at
from sandboxagent.protocol.errors import ShuttingDown
from sandboxagent.protocol.headers import WITH_IDS

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

HANDSHAKE_TIMEOUT = 10.0
"""Seconds for the handshake, and for the first frame after it."""
CLOSE_TIMEOUT = 2.0
"""Seconds that the server has to answer a close frame."""
IN_ONE_TURN = 64
"""Number of frames that are read in a row before other tasks of the event loop run."""
TOO_LARGE, GOODBYE, LEAVING = 1009, 1000, 3000
REFUSED = 4400
"""Lowest close code of a refusal. Such a code is 4000 plus the HTTP status of the refusal."""


def require_websockets() -> None:
    """Raise InvalidCall if the package `websockets` is not installed."""
    from importlib.util import find_spec

    if find_spec("websockets") is None:
        raise InvalidCall(
            "transport='websocket' needs the package websockets; run: pip install 'sandboxagent[websocket]'"
        )


class ClientSocket:
    """An open WebSocket that the server has accepted."""

    def __init__(self, socket: "ClientConnection") -> None:
        self._socket = socket
        self._frames: asyncio.Queue[bytes] = asyncio.Queue()
        self._writing = asyncio.create_task(self._write_all(), name="sandbox-agent socket")

    def write(self, frame: bytes) -> None:
        """Send a frame after all frames written before."""
        self._frames.put_nowait(frame)

    async def events(self) -> AsyncIterator[tuple[int, str] | None]:
        """Yield events with their positions, and None for frames that only show that the server is alive.

        Raises:
            ServerProblem: the server refuses the connection.
            ConnectionLost: the socket was closed.
        """
        from websockets.exceptions import ConnectionClosed

        try:
            for number in count(1):
                frame = await self._socket.recv()
                if number % IN_ONE_TURN == 0:
                    # Frames that have arrived already are read without giving other tasks a turn.
                    await asyncio.sleep(0)
                position, found, data = frame.partition("\n") if isinstance(frame, str) else ("", "", "")
                yield (int(position), data) if found and position.isdecimal() else None
        except ConnectionClosed:
            raise _failure(self._socket) from None

    @property
    def was_too_large(self) -> bool:
        """Whether the server closed the socket because a message was too large."""
        return self._socket.close_code == TOO_LARGE

    async def close(self, *, goodbye: bool) -> None:
        """Close the socket. With `goodbye`, send all written frames first, and close the connection, too."""
        if goodbye:
            written = asyncio.create_task(self._frames.join())
            await asyncio.wait((written, self._writing), timeout=CLOSE_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
            written.cancel()
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
                self._frames.task_done()


async def _connect(url: str, headers: Mapping[str, str], silence: float, *, direct: bool) -> "ClientConnection":
    """Open a WebSocket with the server's subprotocol. It closes itself after `silence` seconds without data.

    Raises the errors of `websockets`.
    """
    from websockets.asyncio.client import connect
    from websockets.typing import Subprotocol

    class Connect(connect):
        def process_redirect(self, exc: Exception) -> Exception | str:
            # A redirect is not followed, because the token is for this server alone.
            return exc

    return await Connect(
        url,
        additional_headers=headers,
        subprotocols=[Subprotocol(WITH_IDS)],
        compression=None,
        max_size=None,
        proxy=None if direct else True,
        open_timeout=HANDSHAKE_TIMEOUT,
        ping_interval=silence / 3,
        ping_timeout=silence / 3,
        close_timeout=CLOSE_TIMEOUT,
    )


async def open_socket(url: str, headers: Mapping[str, str], silence: float, *, direct: bool) -> ClientSocket | None:
    """Open a WebSocket that the server accepts. Return None if no WebSocket can be opened.

    Raises:
        ServerProblem: the server refuses the connection.
    """
    from websockets.exceptions import ConnectionClosed, InvalidHandshake

    try:
        async with asyncio.timeout(HANDSHAKE_TIMEOUT):
            socket = await _connect(url, headers, silence, direct=direct)
            try:
                # The first frame, which may be empty, shows that the server accepts the socket.
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


class SocketReply(NamedTuple):
    """The server's response to an envelope."""

    envelope: Object | None
    """The response; None if the server only acknowledged the envelope."""
    data: str | bytes
    """The response as the server wrote it."""
    last_event: int
    """Position of the last event of the stream before the response."""
    on_stream: bool
    """Whether the response is itself an event of the stream."""


@dataclass(slots=True, eq=False)
class Outgoing:
    """An envelope that waits for its answer."""

    body: bytes
    key: str | None = None
    """Idempotency key. The server answers a repetition under the same key with the first outcome."""
    ack_id: str | None = None
    """For an envelope that no response answers: the id under which a WebSocket acknowledges it."""
    repeatable_elsewhere: bool = True
    """Whether the envelope has the same meaning on another connection."""
    only_on: int | None = None
    """Number of the only connection that may carry the envelope; None if any may."""
    sent_on: int = 0
    """Number of the last connection that may have received the envelope; 0 if none."""
    by_post: bool = False
    """Whether the envelope is too large for a WebSocket."""
    silent: bool = False
    """Whether the answer must come on the stream, even after a POST. This is so after an attempt without data for too
    long, or if waiting for the response would delay the next envelope."""
    in_order: bool = False
    """Whether a POST of the envelope waits until the server has accepted the envelopes before it."""
    answered: asyncio.Future[SocketReply] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """The answer from the stream: the response to a request, or the acknowledgement of another envelope."""


class Expected:
    """The envelopes whose answers may come on the stream."""

    def __init__(self) -> None:
        self._outgoing: dict[bytes, Outgoing] = {}
        """Envelopes by the JSON of their ids."""
        self._promises: set[asyncio.Future[None]] = set()
        """Futures that fail if the server cannot send answers that it promised to send on the stream."""

    @contextmanager
    def expecting(self, outgoing: Outgoing, id: object) -> Generator[None]:
        """Accept the answer of an envelope from the stream, under this id, during the block."""
        text = msgspec.json.encode(id)
        self._outgoing[text] = outgoing
        try:
            yield
        finally:
            if self._outgoing.get(text) is outgoing:
                del self._outgoing[text]
            if outgoing.answered.done() and not outgoing.answered.cancelled():
                outgoing.answered.exception()

    def bring(self, envelope: Object, data: str, position: int) -> bool:
        """Take an answer or an acknowledgement from the stream. Return True if nobody else needs it."""
        if "method" in envelope:
            return False
        outgoing = self._outgoing.get(msgspec.json.encode(envelope.get("id")))
        # A server that stops sends this error for every request. The real outcome is known after its restart.
        stopping = text_at(envelope, "error", "data", "type") == ShuttingDown.slug
        if outgoing is None:
            return False
        if not outgoing.answered.done() and not stopping:
            if outgoing.ack_id is not None and "error" in envelope:
                outgoing.answered.set_exception(_refusal(object_at(envelope, "error")))
            else:
                outgoing.answered.set_result(SocketReply(envelope, data, position, on_stream=True))
        return outgoing.ack_id is not None

    async def promised(self, outgoing: Outgoing) -> SocketReply:
        """Wait for the answer that the server sends on the stream. Raises ConnectionLost if it cannot come any more."""
        lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._promises.add(lost)
        try:
            await asyncio.wait((outgoing.answered, lost), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._promises.discard(lost)
            if lost.done() and not lost.cancelled():
                lost.exception()
        if not outgoing.answered.done():
            lost.result()
        return outgoing.answered.result()

    def fail(self, failure: ConnectionLost) -> None:
        """Fail all waits for answers that the stream cannot bring any more."""
        for lost in self._promises:
            _end(lost, failure)


class Outbox:
    """The envelopes for a WebSocket that have no answer yet."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._entries: dict[Outgoing, asyncio.Future[None]] = {}
        """Envelopes, each with a future that ends the wait without an answer: with a failure, or with None to use
        POST."""
        self._timers: dict[Outgoing, asyncio.TimerHandle] = {}
        self._write: Callable[[bytes], None] | None = None
        self._generation = 0

    async def send(self, outgoing: Outgoing) -> SocketReply | None:
        """Send an envelope and return its answer, or None if the caller must send it by POST. Raises ConnectionLost."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._entries[outgoing] = ended
        if self._write is None:
            self._wait(outgoing)
        else:
            self._put(outgoing, self._write)
        try:
            await asyncio.wait((outgoing.answered, ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            del self._entries[outgoing]
            self._stop_waiting(outgoing)
            if ended.done() and not ended.cancelled():
                ended.exception()
        return outgoing.answered.result() if outgoing.answered.done() else ended.result()

    def opened(self, write: Callable[[bytes], None], generation: int) -> None:
        """Use a new socket: send all envelopes without an answer, in the order in which they were first sent."""
        self._write, self._generation = write, generation
        for outgoing in list(self._entries):
            self._stop_waiting(outgoing)
            self._put(outgoing, write)

    def gone(self, *, too_large: bool) -> None:
        """Handle the end of the socket. If a message was too large, the largest one is sent by POST."""
        self._write = None
        for outgoing in self._entries:
            self._wait(outgoing)
        sent = [outgoing for outgoing in self._entries if outgoing.sent_on == self._generation]
        if too_large and sent:
            largest = max(sent, key=lambda outgoing: len(outgoing.body))
            largest.by_post = True
            _end(self._entries[largest])

    def hand_over(self) -> None:
        """Let all envelopes be sent by POST."""
        for ended in self._entries.values():
            _end(ended)

    def close(self, failure: ConnectionLost) -> None:
        """Fail all envelopes."""
        for ended in self._entries.values():
            _end(ended, failure)

    def _put(self, outgoing: Outgoing, write: Callable[[bytes], None]) -> None:
        failure = find_obstacle(outgoing, self._generation)
        if failure is not None:
            _end(self._entries[outgoing], failure)
            return
        outgoing.sent_on = self._generation
        key = outgoing.key or outgoing.ack_id
        write(outgoing.body if key is None else b"%b\n%b" % (key.encode(), outgoing.body))

    def _wait(self, outgoing: Outgoing) -> None:
        if outgoing not in self._timers:
            loop = asyncio.get_running_loop()
            self._timers[outgoing] = loop.call_later(self._timeout, self._give_up, outgoing)

    def _give_up(self, outgoing: Outgoing) -> None:
        lost = ConnectionLost("the server cannot be reached", outcome_unknown=bool(outgoing.sent_on))
        _end(self._entries[outgoing], lost)

    def _stop_waiting(self, outgoing: Outgoing) -> None:
        timer = self._timers.pop(outgoing, None)
        if timer is not None:
            timer.cancel()


def find_obstacle(outgoing: Outgoing, generation: int) -> ConnectionLost | None:
    """Return why an envelope may not be sent on a connection of this number; None if it may."""
    if outgoing.only_on not in (None, generation):
        return ConnectionLost(
            "the connection that got the request is gone; an open request comes again on the next one"
        )
    if outgoing.sent_on not in (0, generation) and not outgoing.repeatable_elsewhere:
        return ConnectionLost("the server went away before it had answered", outcome_unknown=True)
    return None


def _end(ended: asyncio.Future[None], failure: ConnectionLost | None = None) -> None:
    if ended.done():
        return
    if failure is None:
        ended.set_result(None)
    else:
        ended.set_exception(failure)


def _refusal(error: Object) -> ServerProblem:
    """Return the error for a refused answer, with the same content as the problem that a POST would get."""
    data = object_at(error, "data")
    status, fields = data.get("status"), {name: data[name] for name in data if name not in ("type", "title", "status")}
    return ServerProblem(
        text_at(data, "type") or "",
        text_at(data, "title") or "",
        status if isinstance(status, int) else 0,
        text_at(error, "message") or "",
        fields,
    )
