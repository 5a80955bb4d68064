"""Run one WebSocket of the SDK: frames out in order, events in, and how it ends.

Needs the extra `websocket`.

And what is on its way to the server: what the stream may still answer, and what goes by WebSocket, in order.
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
"""Seconds for a handshake, and for the first frame after it."""
CLOSE_TIMEOUT = 2.0
"""Seconds that the server has to answer a close frame."""
IN_ONE_TURN = 64
"""Frames that are taken one after another before the rest of the program has its turn."""
TOO_LARGE, GOODBYE, LEAVING = 1009, 1000, 3000
REFUSED = 4400
"""Close codes from here on are 4000 plus the HTTP status of a refusal."""


def require_websockets() -> None:
    """Raises InvalidCall where the package is missing."""
    from importlib.util import find_spec

    if find_spec("websockets") is None:
        raise InvalidCall(
            "transport='websocket' needs the package websockets; run: pip install 'sandboxagent[websocket]'"
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
            for number in count(1):
                frame = await self._socket.recv()
                if number % IN_ONE_TURN == 0:
                    # Frames that are there already are taken without a pause.
                    await asyncio.sleep(0)
                position, found, data = frame.partition("\n") if isinstance(frame, str) else ("", "", "")
                yield (int(position), data) if found and position.isdecimal() else None
        except ConnectionClosed:
            raise _failure(self._socket) from None

    @property
    def was_too_large(self) -> bool:
        """Whether it was closed because of the size of a message."""
        return self._socket.close_code == TOO_LARGE

    async def close(self, *, goodbye: bool) -> None:
        """Close it, and with `goodbye` the connection, too: what was written before goes first."""
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
        open_timeout=HANDSHAKE_TIMEOUT,
        ping_interval=silence / 3,
        ping_timeout=silence / 3,
        close_timeout=CLOSE_TIMEOUT,
    )


async def open_socket(url: str, headers: Mapping[str, str], silence: float, *, direct: bool) -> ClientSocket | None:
    """A socket that the server serves; None when none gets through.

    Raises ServerProblem when the server refuses.
    """
    from websockets.exceptions import ConnectionClosed, InvalidHandshake

    try:
        async with asyncio.timeout(HANDSHAKE_TIMEOUT):
            socket = await _connect(url, headers, silence, direct=direct)
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


class SocketReply(NamedTuple):
    """What the server says to an envelope."""

    envelope: Object | None
    """None when there is no more to say than that it has it."""
    data: str | bytes
    """The envelope as the server wrote it."""
    last_event: int
    """The last event of the stream before it."""
    on_stream: bool
    """Whether it is an event itself."""


@dataclass(slots=True, eq=False)
class Outgoing:
    """An envelope on its way."""

    body: bytes
    key: str | None = None
    """A repeat under it has the outcome of the first."""
    receipt: str | None = None
    """Of one that is answered by none: what a WebSocket acknowledges it by."""
    repeatable_elsewhere: bool = True
    """Whether it means the same on another connection."""
    only_on: int | None = None
    """The one connection that it may be sent on."""
    sent_on: int = 0
    """The last connection that may have got it."""
    by_post: bool = False
    """It is too large for a socket."""
    silent: bool = False
    """The stream is to bring the answer, also of a POST: one was silent for too long, or would hold up the next."""
    in_order: bool = False
    """A POST of it waits until those before it are taken."""
    answered: asyncio.Future[SocketReply] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """What the stream brings: the answer to a request, or the receipt of another envelope."""


class Expected:
    """What the stream may bring an answer to."""

    def __init__(self) -> None:
        self._outgoing: dict[bytes, Outgoing] = {}
        """By the texts of their ids."""
        self._promises: set[asyncio.Future[None]] = set()
        """Waits for answers that the server has promised to send on the stream."""

    @contextmanager
    def expecting(self, outgoing: Outgoing, id: object) -> Generator[None]:
        """While this lasts, the stream may bring the answer under this id."""
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
        """Take an answer or a receipt. True for what is of no interest to others."""
        if "method" in envelope:
            return False
        outgoing = self._outgoing.get(msgspec.json.encode(envelope.get("id")))
        # A server that stops says so to all; the outcome is known when it is back.
        stopping = text_at(envelope, "error", "data", "type") == ShuttingDown.slug
        if outgoing is None:
            return False
        if not outgoing.answered.done() and not stopping:
            if outgoing.receipt is not None and "error" in envelope:
                outgoing.answered.set_exception(_refusal(object_at(envelope, "error")))
            else:
                outgoing.answered.set_result(SocketReply(envelope, data, position, on_stream=True))
        return outgoing.receipt is not None

    async def promised(self, outgoing: Outgoing) -> SocketReply:
        """The answer that the stream will bring. Raises ConnectionLost when it cannot any more."""
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
        """The stream cannot keep what was promised."""
        for lost in self._promises:
            _end(lost, failure)


class Outbox:
    """Those that have no answer yet."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._entries: dict[Outgoing, asyncio.Future[None]] = {}
        """With what ends the wait otherwise: a failure, or the decision to send it by POST."""
        self._timers: dict[Outgoing, asyncio.TimerHandle] = {}
        self._write: Callable[[bytes], None] | None = None
        self._generation = 0

    async def send(self, outgoing: Outgoing) -> SocketReply | None:
        """The answer; None when you have to send it by POST. Raises ConnectionLost."""
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
        """There is a socket: send what has no answer, in the order in which it was first sent."""
        self._write, self._generation = write, generation
        for outgoing in list(self._entries):
            self._stop_waiting(outgoing)
            self._put(outgoing, write)

    def gone(self, *, too_large: bool) -> None:
        """The socket is gone; perhaps because of a message that was too large: that is the largest."""
        self._write = None
        for outgoing in self._entries:
            self._wait(outgoing)
        sent = [outgoing for outgoing in self._entries if outgoing.sent_on == self._generation]
        if too_large and sent:
            largest = max(sent, key=lambda outgoing: len(outgoing.body))
            largest.by_post = True
            _end(self._entries[largest])

    def hand_over(self) -> None:
        """Let everything be sent by POST."""
        for ended in self._entries.values():
            _end(ended)

    def close(self, failure: ConnectionLost) -> None:
        """Fail everything."""
        for ended in self._entries.values():
            _end(ended, failure)

    def _put(self, outgoing: Outgoing, write: Callable[[bytes], None]) -> None:
        failure = find_obstacle(outgoing, self._generation)
        if failure is not None:
            _end(self._entries[outgoing], failure)
            return
        outgoing.sent_on = self._generation
        key = outgoing.key or outgoing.receipt
        write(outgoing.body if key is None else b"%b\n%b" % (key.encode(), outgoing.body))

    def _wait(self, outgoing: Outgoing) -> None:
        if outgoing not in self._timers:
            loop = asyncio.get_running_loop()
            self._timers[outgoing] = loop.call_later(self._patience, self._give_up, outgoing)

    def _give_up(self, outgoing: Outgoing) -> None:
        lost = ConnectionLost("the server cannot be reached", outcome_unknown=bool(outgoing.sent_on))
        _end(self._entries[outgoing], lost)

    def _stop_waiting(self, outgoing: Outgoing) -> None:
        timer = self._timers.pop(outgoing, None)
        if timer is not None:
            timer.cancel()


def find_obstacle(outgoing: Outgoing, generation: int) -> ConnectionLost | None:
    """Why an envelope may not be sent on a connection, by its number."""
    if outgoing.only_on not in (None, generation):
        return ConnectionLost("the connection that was asked is gone; what is still open is asked anew")
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
    """What is wrong with an answer, as the server says it to a POST as well."""
    data = object_at(error, "data")
    status, fields = data.get("status"), {name: data[name] for name in data if name not in ("type", "title", "status")}
    return ServerProblem(
        text_at(data, "type") or "",
        text_at(data, "title") or "",
        status if isinstance(status, int) else 0,
        text_at(error, "message") or "",
        fields,
    )
