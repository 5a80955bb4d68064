"""What is on its way to the server: what the stream may still answer, and what goes by WebSocket, in order.

Knows nothing of HTTP.
"""

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from sandbox_agent.client.errors import ConnectionLost, ServerProblem
from sandbox_agent.envelope import Object, object_at, text_at
from sandbox_agent.errors import ShuttingDown


class SocketReply(NamedTuple):
    """What the server says to an envelope."""

    envelope: Object | None
    """None when there is no more to say than that it has it."""
    size: int
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
    """A POST of it was silent for too long."""
    answered: asyncio.Future[SocketReply] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """What the stream brings: the answer to a request, or the receipt of another envelope."""


class Expected:
    """What the stream may bring an answer to."""

    def __init__(self) -> None:
        self._outgoing: dict[int | str, Outgoing] = {}
        self._promises: set[asyncio.Future[None]] = set()
        """Waits for answers that the server has promised to send on the stream."""

    @contextmanager
    def expecting(self, outgoing: Outgoing, id: int | str) -> Generator[None]:
        """While this lasts, the stream may bring the answer under this id."""
        self._outgoing[id] = outgoing
        try:
            yield
        finally:
            del self._outgoing[id]
            if outgoing.answered.done() and not outgoing.answered.cancelled():
                outgoing.answered.exception()

    def bring(self, envelope: Object, size: int, position: int) -> bool:
        """Take an answer or a receipt. True for what is of no interest to others."""
        id = envelope.get("id")
        outgoing = self._outgoing.get(id) if "method" not in envelope and isinstance(id, int | str) else None
        # A server that stops says so to all; the outcome is known when it is back.
        stopping = text_at(envelope, "error", "data", "type") == ShuttingDown.slug
        if outgoing is None:
            return False
        if not outgoing.answered.done() and not stopping:
            if outgoing.receipt is not None and "error" in envelope:
                outgoing.answered.set_exception(_refusal(object_at(envelope, "error")))
            else:
                outgoing.answered.set_result(SocketReply(envelope, size, position, on_stream=True))
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
        """With what ends the wait otherwise: a failure, or that it is to be sent by POST."""
        self._timers: dict[Outgoing, asyncio.TimerHandle] = {}
        self._write: Callable[[bytes], None] | None = None
        self._generation = 0

    async def send(self, outgoing: Outgoing) -> SocketReply | None:
        """The answer; None when it is to be sent by POST. Raises ConnectionLost."""
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
