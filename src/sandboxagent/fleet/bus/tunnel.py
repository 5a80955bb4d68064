"""Carry pieces between a gateway and a node in order and once, within a window, or end with a reason.

Each side may have so many pieces on their way that the other side has not finished with; a slow reader costs that
much, and nothing else. Every message says how many pieces its sender has sent and finished with, so that one that was
lost is noticed by the next, if only a sign of life. Knows nothing of HTTP.
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

PIECE = 128 << 10
"""Bytes of a piece, at most."""
WINDOW = 8
"""Pieces that may be on their way, or wait to be taken."""
SIGN_INTERVAL = 3.0
"""Seconds after which a side that has nothing to send gives a sign of life; while the other side is not heard, which
may have lost what was sent, it does so at every tick."""
SILENCE_TIMEOUT = 10.0
"""Seconds after which a silent side counts as gone."""
TICK_INTERVAL = 1.0
MAX_STEP = 2 * TICK_INTERVAL
"""Seconds that the clock advances for a tick, at most: while this process itself was stopped, no other is silent."""

_HEAD = struct.Struct(">BQQ")
"""Of a message: its kind, and how many pieces its sender has sent and is done with."""


class FlowKind(IntEnum):
    """What a message is. The first four are pieces: counted, and taken in order."""

    OPENING = 1
    """What a gateway asks."""
    HEAD = 2
    """Status and headers of the node's answer."""
    BODY = 3
    LAST = 4
    """The end of a body, with its last bytes if there are any."""
    SIGN = 5
    """Of life: nothing new but the counts."""
    BREAK = 6
    """It is over before its end, and why."""


_FIRST = _HEAD.pack(FlowKind.OPENING, 1, 0)


class Reason(StrEnum):
    """Why a flow ended before its end."""

    ABSENT = "absent"
    """No node hears it."""
    SILENT = "silent"
    """Nothing came for too long."""
    LOST = "lost"
    """A piece is missing, or came twice."""
    ILL_BEHAVED = "ill-behaved"
    """The other side sent more than it may, or what makes no sense."""
    FULL = "full"
    """The node has as many flows as it takes."""
    STOPPED = "stopped"
    """That side stops."""
    ABORTED = "aborted"
    """That side wants no more of it: its client has left, or the app cannot go on."""
    CUT_OFF = "cut-off"
    """The bus takes nothing at the moment."""
    FINISHED = "finished"
    """Nothing: it came to its end."""


class FlowBroken(Exception):
    """The flow is over, and was not at its end."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.value)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Piece:
    """One of them, in order."""

    kind: FlowKind
    body: bytes


class FlowWay(Protocol):
    """How messages reach the other side."""

    async def send(self, message: bytes) -> None:
        """Raises BusError."""
        ...


@dataclass(frozen=True, slots=True)
class BusWay:
    """The way by the bus: the subject that the other side hears."""

    bus: Bus
    subject: str
    back: str = ""
    """Where the bus says that nothing hears it."""

    async def send(self, message: bytes) -> None:
        await self.bus.publish(self.subject, message, self.back)


class Flow:
    """One side of a flow; both sides are alike. One task sends, and one takes."""

    def __init__(self, way: FlowWay, table: "FlowTable", *, ends_with_them: bool, sign: bytes = b"") -> None:
        """`ends_with_them`: when the other side has sent its last piece, it need not be there any longer.

        `sign` goes with each sign of life, for those who do not know the flow.
        """
        self.broken: Reason | None = None
        """Why nothing goes on."""
        self._way = way
        self._table = table
        self._ends_with_them = ends_with_them
        self._sign = sign
        self._is_heard = False
        self._whole = False
        """Their last piece has come."""
        self._sent = 0
        self._finished = 0
        """Pieces of ours that the other side is done with."""
        self._received = 0
        self._taken = 0
        """Pieces of theirs that we are done with."""
        self._granted = 0
        """… as far as we have told them."""
        self._waiting: deque[Piece] = deque()
        self._in_hand = False
        self._changed: asyncio.Event = asyncio.Event()
        self._room: asyncio.Event = asyncio.Event()
        self._heard_at = self._spoke_at = table.clock

    @property
    def unfinished(self) -> int:
        """Pieces of ours that the other side is not done with."""
        return self._sent - self._finished

    async def put(self, kind: FlowKind, body: bytes) -> None:
        """Send a piece when there is room for it. Raises FlowBroken."""
        while self.broken is None and self.unfinished >= WINDOW:
            self._room.clear()
            await self._room.wait()
        self._check()
        self._sent += 1
        try:
            await self._way.send(self._message(kind, body))
        except BusError:
            self._end(Reason.CUT_OFF)
        except asyncio.CancelledError:
            # It may have gone out or not.
            self.break_off(Reason.ABORTED)
            raise
        self._check()

    async def take(self) -> Piece:
        """The next piece of the other side, which may send another one for it when this is called again.

        Raises FlowBroken, after what came before.
        """
        self.finish_piece()
        while not self._waiting:
            self._check()
            self._changed.clear()
            await self._changed.wait()
        self._in_hand = True
        return self._waiting.popleft()

    def finish_piece(self) -> None:
        """Be done with the piece that was taken last."""
        if not self._in_hand:
            return
        self._in_hand = False
        self._taken += 1
        if self._taken - self._granted >= WINDOW // 2:
            self.give_sign()

    def break_off(self, reason: Reason) -> None:
        """End it, and tell the other side; it does not matter when it is over already."""
        if self.broken is None:
            self._tell(FlowKind.BREAK, reason.encode())
            self._end(reason)

    def finish(self) -> None:
        """It came to its end: all that matters was sent and taken."""
        self._end(Reason.FINISHED)

    def give_sign(self) -> None:
        """Tell the other side that this one is there, and what it is done with."""
        self._tell(FlowKind.SIGN, self._sign)

    def accept(self, message: bytes) -> None:
        """A message of the other side. What makes no sense ends the flow."""
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
            # It may be overtaken by a piece, and knows nothing of that one then; it never knows of more.
            if sent > self._received:
                self.break_off(Reason.LOST)
        elif sent != self._received + 1:
            self.break_off(Reason.LOST)
        elif self._whole or len(body) > PIECE or sent - self._granted > WINDOW:
            self.break_off(Reason.ILL_BEHAVED)
        else:
            self._received = sent
            self._whole = kind is FlowKind.LAST
            self._waiting.append(Piece(kind, body))
            self._changed.set()

    def tick(self) -> None:
        """Some time has passed."""
        if self.broken is None:
            silence = self._table.clock - self._heard_at
            is_heard = self._is_heard and silence <= SIGN_INTERVAL + TICK_INTERVAL
            if silence > SILENCE_TIMEOUT and not (self._whole and self._ends_with_them):
                self.break_off(Reason.SILENT)
            elif self._table.clock - self._spoke_at >= (SIGN_INTERVAL if is_heard else TICK_INTERVAL):
                self.give_sign()

    def _message(self, kind: FlowKind, body: bytes) -> bytes:
        self._spoke_at = self._table.clock
        self._granted = self._taken
        return _HEAD.pack(kind, self._sent, self._taken) + body

    def _tell(self, kind: FlowKind, body: bytes) -> None:
        self._table.spawn(self._try_to_send(self._message(kind, body)))

    async def _try_to_send(self, message: bytes) -> None:
        try:
            await self._way.send(message)
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
    """What a message opens; None when it is not the first one of a flow."""
    return message[_HEAD.size :] if message.startswith(_FIRST) else None


def read_sign(message: bytes) -> bytes | None:
    """What goes with a sign of life; None when the message is none."""
    return message[_HEAD.size :] if message[:1] == bytes((FlowKind.SIGN,)) else None


class FlowTable:
    """The flows of one process that are under way: their clock, and what they send on the side."""

    def __init__(self) -> None:
        self.clock = 0.0
        self._looked_at = time.monotonic()
        self._flows: set[Flow] = set()
        self._tasks = Tasks()

    def open(self, way: FlowWay, *, ends_with_them: bool, sign: bytes = b"") -> Flow:
        """A flow; it is in the table until it breaks or finishes."""
        flow = Flow(way, self, ends_with_them=ends_with_them, sign=sign)
        self._flows.add(flow)
        return flow

    def forget(self, flow: Flow) -> None:
        self._flows.discard(flow)

    def break_all(self, reason: Reason) -> None:
        for flow in list(self._flows):
            flow.break_off(reason)

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Do something on the side, to its end."""
        self._tasks.run(work, "flow")

    async def settle(self) -> None:
        """Wait until everything on the side is done."""
        await self._tasks.settle()

    def tick(self, seconds: float) -> None:
        """Let time pass."""
        self.clock += seconds
        for flow in list(self._flows):
            flow.tick()

    async def run(self) -> None:
        """Tick for ever."""
        while True:
            await asyncio.sleep(TICK_INTERVAL)
            now = time.monotonic()
            self.tick(min(now - self._looked_at, MAX_STEP))
            self._looked_at = now
