"""Carry pieces between a gateway and a node in order and once, within a window, or end with a reason.

Each side may send a limited number of pieces that the other side has not finished with. So a slow reader uses a bounded
amount of memory. Every message has the number of pieces that its sender has sent and has finished with. So the next
message, at the latest a keep-alive, reveals a lost one. The module knows nothing of HTTP.
"""

import asyncio
import struct
import time
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Protocol

from sandboxagent.core.tasks import Tasks
from sandboxagent.fleet.bus.interface import Bus, BusError

MAX_PIECE_BYTES = 128 << 10
"""Maximum number of bytes of a piece."""
WINDOW = 8
"""Window of a flow: the maximum number of pieces that are on their way or wait to be taken."""
SIGN_INTERVAL = 3.0
"""Seconds after which a side without data sends a keep-alive. While the other side is silent, it does so at every tick,
because its messages may have got lost."""
SILENCE_TIMEOUT = 10.0
"""Seconds after which a silent side counts as gone."""
TICK_INTERVAL = 1.0
MAX_TICK_INTERVAL = 2 * TICK_INTERVAL
"""Maximum number of seconds that the clock advances with one tick. If this process was suspended, the other side does
not count as silent."""

_HEAD = struct.Struct(">BQQ")
"""Head of a message: its kind, and the number of pieces that its sender has sent and has finished with."""


class FlowKind(IntEnum):
    """The kind of a message. The first four kinds are pieces, which are counted and taken in order."""

    OPENING = 1
    """The request of a gateway."""
    HEAD = 2
    """Status and headers of the node's answer."""
    BODY = 3
    LAST = 4
    """The end of a body, with its last bytes, if any."""
    SIGN = 5
    """A keep-alive, which has nothing but the counts."""
    BREAK = 6
    """The early end of the flow, with its reason."""


_FIRST = _HEAD.pack(FlowKind.OPENING, 1, 0)


class Reason(StrEnum):
    """The reason why a flow has ended."""

    ABSENT = "absent"
    """No node subscribes to the subject."""
    SILENT = "silent"
    """No message came for too long."""
    LOST = "lost"
    """A piece is missing, or came twice."""
    ILL_BEHAVED = "ill-behaved"
    """The other side sent more than it may, or an invalid message."""
    FULL = "full"
    """The node has its maximum number of flows."""
    STOPPED = "stopped"
    """The side that ended the flow is stopping."""
    ABORTED = "aborted"
    """The side that ended the flow does not need it any more: its client has left, or the app cannot continue."""
    CUT_OFF = "cut-off"
    """The bus cannot be reached at the moment."""
    FINISHED = "finished"
    """The flow came to its regular end."""


class FlowBroken(Exception):
    """The flow has ended early."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.value)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a flow."""

    kind: FlowKind
    body: bytes


class FlowSender(Protocol):
    """Sends messages to the other side."""

    async def send(self, message: bytes) -> None:
        """Send a message. Raises BusError."""
        ...


@dataclass(frozen=True, slots=True)
class BusSender:
    """Sends messages on the bus, to the subject that the other side subscribes to."""

    bus: Bus
    subject: str
    back: str = ""
    """Subject on which the bus reports that nobody subscribes."""

    async def send(self, message: bytes) -> None:
        await self.bus.publish(self.subject, message, self.back)


class Flow:
    """One side of a flow. Both sides work alike. One task may send, and one may take."""

    def __init__(self, sender: FlowSender, table: "FlowTable", *, ends_with_them: bool, sign: bytes = b"") -> None:
        """Create one side of a flow.

        With `ends_with_them`, the other side need not stay after it has sent its last piece. Each keep-alive carries
        `sign`, for a receiver that does not know the flow.
        """
        self.broken: Reason | None = None
        """The reason why the flow has ended; None while it is open."""
        self._sender = sender
        self._table = table
        self._ends_with_them = ends_with_them
        self._sign = sign
        self._is_heard = False
        self._whole = False
        """Whether the last piece of the other side has come."""
        self._sent = 0
        self._finished = 0
        """Number of our pieces that the other side has finished with."""
        self._received = 0
        self._taken = 0
        """Number of the other side's pieces that this side has finished with."""
        self._granted = 0
        """The value of `_taken` that the other side was told last."""
        self._waiting: deque[Piece] = deque()
        self._in_hand = False
        self._changed: asyncio.Event = asyncio.Event()
        self._room: asyncio.Event = asyncio.Event()
        self._heard_at = self._spoke_at = table.clock

    @property
    def unfinished(self) -> int:
        """Number of our pieces that the other side has not finished with."""
        return self._sent - self._finished

    async def put(self, kind: FlowKind, body: bytes) -> None:
        """Send a piece when the window has room for it. Raises FlowBroken."""
        while self.broken is None and self.unfinished >= WINDOW:
            self._room.clear()
            await self._room.wait()
        self._check()
        self._sent += 1
        try:
            await self._sender.send(self._message(kind, body))
        except BusError:
            self._end(Reason.CUT_OFF)
        except asyncio.CancelledError:
            # The piece may have been sent or not.
            self.break_off(Reason.ABORTED)
            raise
        self._check()

    async def take(self) -> Piece:
        """Return the next piece of the other side. This finishes the previous piece, so that another one may be sent.

        Raises:
            FlowBroken: the flow has ended, and all pieces before its end were taken.
        """
        self.finish_piece()
        while not self._waiting:
            self._check()
            self._changed.clear()
            await self._changed.wait()
        self._in_hand = True
        return self._waiting.popleft()

    def finish_piece(self) -> None:
        """Finish the piece that was taken last."""
        if not self._in_hand:
            return
        self._in_hand = False
        self._taken += 1
        if self._taken - self._granted >= WINDOW // 2:
            self.send_keep_alive()

    def break_off(self, reason: Reason) -> None:
        """End the flow and tell the other side. Do nothing if the flow has ended already."""
        if self.broken is None:
            self._tell(FlowKind.BREAK, reason.encode())
            self._end(reason)

    def finish(self) -> None:
        """End the flow regularly, after everything was sent and taken."""
        self._end(Reason.FINISHED)

    def send_keep_alive(self) -> None:
        """Send a keep-alive, with the number of pieces that this side has finished with."""
        self._tell(FlowKind.SIGN, self._sign)

    def accept(self, message: bytes) -> None:
        """Handle a message of the other side. An invalid message ends the flow."""
        if self.broken is not None:
            return
        self._heard_at = self._table.clock
        self._is_heard = True
        if not message:
            self._end(Reason.ABSENT)
            return
        try:
            number, sent, finished = _HEAD.unpack_from(message)
            kind = FlowKind(number)
        except (struct.error, ValueError):
            self.break_off(Reason.ILL_BEHAVED)
            return
        if finished > self._sent:
            self.break_off(Reason.ILL_BEHAVED)
            return
        if finished > self._finished:
            self._finished = finished
            self._room.set()
        self._accept(kind, sent, message[_HEAD.size :])

    def _accept(self, kind: FlowKind, sent: int, body: bytes) -> None:
        if kind is FlowKind.BREAK:
            try:
                self._end(Reason(body[:20].decode("ascii", "replace")))
            except ValueError:
                self._end(Reason.ABORTED)
        elif kind is FlowKind.SIGN:
            # A piece may overtake a keep-alive, which then has a lower count. A higher count means that a piece is
            # lost.
            if sent > self._received:
                self.break_off(Reason.LOST)
        elif sent != self._received + 1:
            self.break_off(Reason.LOST)
        elif self._whole or len(body) > MAX_PIECE_BYTES or sent - self._granted > WINDOW:
            self.break_off(Reason.ILL_BEHAVED)
        else:
            self._received = sent
            self._whole = kind is FlowKind.LAST
            self._waiting.append(Piece(kind, body))
            self._changed.set()

    def tick(self) -> None:
        """Check for silence, and send a keep-alive if one is due."""
        if self.broken is None:
            silence = self._table.clock - self._heard_at
            is_heard = self._is_heard and silence <= SIGN_INTERVAL + TICK_INTERVAL
            if silence > SILENCE_TIMEOUT and not (self._whole and self._ends_with_them):
                self.break_off(Reason.SILENT)
            elif self._table.clock - self._spoke_at >= (SIGN_INTERVAL if is_heard else TICK_INTERVAL):
                self.send_keep_alive()

    def _message(self, kind: FlowKind, body: bytes) -> bytes:
        self._spoke_at = self._table.clock
        self._granted = self._taken
        return _HEAD.pack(kind, self._sent, self._taken) + body

    def _tell(self, kind: FlowKind, body: bytes) -> None:
        self._table.spawn(self._try_to_send(self._message(kind, body)))

    async def _try_to_send(self, message: bytes) -> None:
        try:
            await self._sender.send(message)
        except BusError:
            self._end(Reason.CUT_OFF)

    def _end(self, reason: Reason) -> None:
        if self.broken is None:
            self.broken = reason
            self._changed.set()
            self._room.set()
            self._table.forget(self)

    def _check(self) -> None:
        if self.broken is not None:
            raise FlowBroken(self.broken)


def read_opening(message: bytes) -> bytes | None:
    """Return the content of a message that opens a flow; None for any other message."""
    return message[_HEAD.size :] if message.startswith(_FIRST) else None


def read_sign(message: bytes) -> bytes | None:
    """Return the content of a keep-alive; None for any other message."""
    return message[_HEAD.size :] if message[:1] == bytes((FlowKind.SIGN,)) else None


class FlowTable:
    """The open flows of one process, with their clock and their background tasks."""

    def __init__(self) -> None:
        self.clock = 0.0
        self._looked_at = time.monotonic()
        self._flows: set[Flow] = set()
        self._tasks = Tasks()

    def open(self, sender: FlowSender, *, ends_with_them: bool, sign: bytes = b"") -> Flow:
        """Open a flow, which stays in the table until it ends."""
        flow = Flow(sender, self, ends_with_them=ends_with_them, sign=sign)
        self._flows.add(flow)
        return flow

    def forget(self, flow: Flow) -> None:
        self._flows.discard(flow)

    def break_all(self, reason: Reason) -> None:
        for flow in list(self._flows):
            flow.break_off(reason)

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Run a background task to its end."""
        self._tasks.run(work, "flow")

    async def settle(self) -> None:
        """Wait until all background tasks have ended."""
        await self._tasks.settle()

    def tick(self, seconds: float) -> None:
        """Advance the clock."""
        self.clock += seconds
        for flow in list(self._flows):
            flow.tick()

    async def run(self) -> None:
        """Advance the clock forever."""
        while True:
            await asyncio.sleep(TICK_INTERVAL)
            now = time.monotonic()
            self.tick(min(now - self._looked_at, MAX_TICK_INTERVAL))
            self._looked_at = now
