"""Define the streams, tables and calls that a fleet needs of a message bus, and how they fail.

Pure.

`memory.py` and `nats.py` are two of these; one suite holds both to the same promises (`tests/fleet/bus`).
"""

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

MAX_BODY_BYTES = 512 << 10
"""Of one message's body. Every server takes 1 MiB, headers included."""
MAX_MESSAGES = 64
"""In one append."""


MAX_WAITING_BYTES = 32 << 20
"""Bytes of messages that have arrived on one subscription and wait; more than that are dropped, and asked for again."""
MAX_AT_ONCE = 256
"""Requests of one subscription that are answered at a time."""


class BusError(Exception):
    """A call of the bus failed; nothing is known of its effect unless the subclass says so."""


class Unreachable(BusError):
    """No answer in time: the append, or the put, may have happened or not."""


class Nowhere(BusError):
    """Nothing serves the subject: the request had no effect."""


class Conflict(BusError):
    """Another append, or put, came first: this one had no effect."""

    def __init__(self, subject: str) -> None:
        super().__init__(f"{subject} has moved on")
        self.subject = subject


class BusRefused(BusError):
    """The bus does not take this, now or later: a right that is missing, a message that is too large, a full stream."""


@dataclass(frozen=True, slots=True)
class StreamMessage:
    """One message to append."""

    subject: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Append:
    """Messages that are appended all or none, in order, one sequence after the other.

    `expected` has the last sequence of every subject in it before this append; 0 for one that has no message.
    """

    messages: Sequence[StreamMessage]
    expected: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """A message that was appended."""

    sequence: int
    subject: str
    body: bytes
    headers: Mapping[str, str]
    predecessor: int
    """Sequence of the message before it on its subject; 0 for the first one."""


@dataclass(frozen=True, slots=True)
class TableEntry:
    """The value of a key. `revision` rises with every change of the table; a key without a value has one, too."""

    key: str
    value: bytes | None
    revision: int


class StreamFollowing(Protocol):
    """A reader of new messages. Each arrives once, in order; after a disturbance it goes on where it was."""

    async def change(self, subjects: Iterable[str]) -> None:
        """Follow these subjects from now on. Messages of a new one that were there before do not come."""
        ...

    async def close(self) -> None: ...


class BusStream(Protocol):
    """Messages in one order, each on a subject."""

    async def append(self, append: Append) -> int:
        """Append, all or nothing; returns the sequence of the first message. Raises Conflict."""
        ...

    async def last(self, subject: str) -> StreamRecord | None:
        """The newest message of a subject, as the stream's leader has it."""
        ...

    async def next(self, subject: str, after: int) -> StreamRecord | None:
        """The first message of a subject after a sequence, as the stream's leader has it."""
        ...

    async def page(self, subject: str, after: int, through: int, limit: int) -> list[StreamRecord]:
        """Messages of a subject after one sequence and up to another, in order: about `limit` bytes, at least one."""
        ...

    async def ends(self) -> tuple[int, int]:
        """The first sequence that is kept, and the last one."""
        ...

    async def size(self) -> int:
        """Bytes that are kept, with what the stream itself needs for them."""
        ...

    async def follow(
        self, subjects: Iterable[str], after: int, deliver: Callable[[StreamRecord], None]
    ) -> StreamFollowing:
        """Deliver messages after a sequence as they come."""
        ...

    async def purge(self, subject: str, through: int | None = None) -> None:
        """Drop all messages of a subject; those up to a sequence, if there is one."""
        ...


class Table(Protocol):
    """Values by key; one that was put with a time to live goes by itself when that has passed."""

    async def get(self, key: str) -> TableEntry | None: ...

    async def revision(self, key: str) -> int:
        """Of a key's newest change, as the table's leader has it; 0 for none."""
        ...

    async def put(self, key: str, value: bytes, *, expected: int | None = None, ttl: float | None = None) -> int:
        """Set a value; returns its revision. `expected` is the revision it replaces, 0 for none. Raises Conflict."""
        ...

    async def delete(self, key: str, *, expected: int | None = None, ttl: float | None = None) -> None:
        """Take a value away. Raises Conflict, as above. That there was one may be forgotten after `ttl` seconds."""
        ...

    async def watch(self, changed: Callable[[TableEntry], None]) -> StreamFollowing:
        """Deliver every value that there is, then every change. Returns when those that there are were delivered."""
        ...


Handler = Callable[[str, bytes], Coroutine[object, None, bytes | None]]
"""Takes a request's subject and body; returns the answer, or None for none."""

Hearer = Callable[[str, bytes], None]
"""Takes a message's subject and body."""
StopHearing = Callable[[], Awaitable[None]]
"""Ends the hearing."""


class Bus(Protocol):
    """One machine's way to the others."""

    async def request(self, subject: str, body: bytes, patience: float) -> bytes:
        """Ask; raises Nowhere when nothing serves the subject, Unreachable when no answer comes in time."""
        ...

    async def publish(self, subject: str, body: bytes, reply: str = "") -> None:
        """Send, and wait for no answer. When nothing hears the subject, `reply` gets an empty message."""
        ...

    async def hear(self, subject: str, take: Hearer) -> StopHearing:
        """Take every message on a subject, which may have wildcards, in order: within the call, so it must not wait.

        Returns what ends that.
        """
        ...

    async def serve(
        self,
        subject: str,
        handler: Handler,
        *,
        answers: Callable[[str], str] | None = None,
        waiting: int = MAX_WAITING_BYTES,
        at_once: int = MAX_AT_ONCE,
        lost: Callable[[str], None] | None = None,
    ) -> StopHearing:
        """Answer requests on a subject, which may have wildcards, each in a task of its own; returns what ends that.

        `answers` gives the prefix below which the sender of a request may get its answer; to other places none goes.
        Requests of `waiting` bytes may wait, and `at_once` are answered at the same time. `lost` learns the subject of
        each that was not handled, because there was no room or its answer is wanted elsewhere; else it is logged.
        """
        ...

    async def stream(self, name: str, subjects: Sequence[str], *, max_bytes: int, max_age: float) -> BusStream:
        """A stream, made if it is not there."""
        ...

    async def table(self, name: str) -> Table:
        """A table, made if it is not there."""
        ...

    async def lost(self) -> str:
        """Wait until the connection is gone and does not come back by itself; returns why."""
        ...

    async def close(self) -> None: ...
