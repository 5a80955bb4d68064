"""Define the streams, tables and calls that a fleet needs of a message bus, and how they fail.

Pure: it uses no event loop, no clock and no files.

`memory.py` and `nats.py` implement this interface. One test suite checks both (`tests/fleet/bus`).
"""

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

MAX_BODY_BYTES = 512 << 10
"""Maximum number of bytes of one message's body. Every NATS server accepts 1 MiB, headers included."""
MAX_MESSAGES = 64
"""Maximum number of messages in one append."""


MAX_WAITING_BYTES = 32 << 20
"""Maximum number of bytes of received messages that wait on one subscription. Messages beyond are dropped, and
requested again."""
MAX_AT_ONCE = 256
"""Maximum number of requests of one subscription that are answered at the same time."""


class BusError(Exception):
    """A call of the bus failed. Its effect is unknown unless the subclass defines it."""


class Unreachable(BusError):
    """There was no answer in time. An append or a put may have happened."""


class NoSubscriber(BusError):
    """Nothing serves the subject. The request had no effect."""


class Conflict(BusError):
    """Another append or put came first. This one had no effect."""

    def __init__(self, subject: str) -> None:
        super().__init__(f"{subject} has moved on")
        self.subject = subject


class BusRefused(BusError):
    """The bus will never accept the call: a right is missing, a message is too large, or a stream is full."""


@dataclass(frozen=True, slots=True)
class StreamMessage:
    """A message to append."""

    subject: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Append:
    """Messages to append in order, all or none, with consecutive sequences.

    `expected` has the last sequence of each subject before this append; 0 for a subject without messages.
    """

    messages: Sequence[StreamMessage]
    expected: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """A message in a stream."""

    sequence: int
    subject: str
    body: bytes
    headers: Mapping[str, str]
    predecessor: int
    """Sequence of the message before this one on its subject; 0 for the first one."""


@dataclass(frozen=True, slots=True)
class TableEntry:
    """The value of a key.

    `revision` rises with every change of the table. A key whose value was deleted has a revision, too.
    """

    key: str
    value: bytes | None
    revision: int


class StreamFollowing(Protocol):
    """A reader of new messages. Each arrives once, in order. After a disturbance the reader continues where it was."""

    async def change(self, subjects: Iterable[str]) -> None:
        """Follow these subjects from now on. Earlier messages of a new subject are not delivered."""
        ...

    async def close(self) -> None: ...


class BusStream(Protocol):
    """A sequence of messages, each on a subject."""

    async def append(self, append: Append) -> int:
        """Append messages, all or none, and return the sequence of the first one. Raises Conflict."""
        ...

    async def last(self, subject: str) -> StreamRecord | None:
        """Return the newest message of a subject, according to the stream's leader."""
        ...

    async def next(self, subject: str, after: int) -> StreamRecord | None:
        """Return the first message of a subject after a sequence, according to the stream's leader."""
        ...

    async def page(self, subject: str, after: int, through: int, limit: int) -> list[StreamRecord]:
        """Return messages of a subject after one sequence and up to another, in order.

        The page has about `limit` bytes, and at least one message.
        """
        ...

    async def ends(self) -> tuple[int, int]:
        """Return the first and the last sequence in the stream."""
        ...

    async def size(self) -> int:
        """Return the size of the stream in bytes, including the stream's own overhead."""
        ...

    async def follow(
        self, subjects: Iterable[str], after: int, deliver: Callable[[StreamRecord], None]
    ) -> StreamFollowing:
        """Deliver messages after a sequence as they come."""
        ...

    async def purge(self, subject: str, through: int | None = None) -> None:
        """Delete all messages of a subject; with `through`, only those up to that sequence."""
        ...


class Table(Protocol):
    """Values by key. A value with a time to live is deleted when that time has passed."""

    async def get(self, key: str) -> TableEntry | None: ...

    async def revision(self, key: str) -> int:
        """Return the revision of a key's newest change, according to the table's leader; 0 if there is none."""
        ...

    async def put(self, key: str, value: bytes, *, expected: int | None = None, ttl: float | None = None) -> int:
        """Set a value, and return its revision.

        `expected` is the revision to replace; 0 if the key must have none. Raises Conflict.
        """
        ...

    async def delete(self, key: str, *, expected: int | None = None, ttl: float | None = None) -> None:
        """Delete a value. `expected` is the revision to delete. Raises Conflict.

        After `ttl` seconds the table may forget that there was a value.
        """
        ...

    async def watch(self, changed: Callable[[TableEntry], None]) -> StreamFollowing:
        """Deliver every current value, then every change. Returns after all current values were delivered."""
        ...


Handler = Callable[[str, bytes], Coroutine[object, None, bytes | None]]
"""Takes a request's subject and body. Returns the answer, or None to send no answer."""

MessageHandler = Callable[[str, bytes], None]
"""Takes a message's subject and body."""
Unsubscribe = Callable[[], Awaitable[None]]
"""Ends a subscription."""


class Bus(Protocol):
    """A member's connection to all others."""

    async def request(self, subject: str, body: bytes, timeout: float) -> bytes:
        """Send a request and return the answer.

        Raises:
            Nowhere: nothing serves the subject.
            Unreachable: no answer came in time.
        """
        ...

    async def publish(self, subject: str, body: bytes, reply: str = "") -> None:
        """Send a message without waiting for an answer.

        If nobody subscribes to the subject, `reply` gets an empty message.
        """
        ...

    async def subscribe(self, subject: str, take: MessageHandler) -> Unsubscribe:
        """Subscribe to a subject, which may have wildcards, and return a function that ends the subscription.

        `take` is called for each message, in order. It must not block.
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
    ) -> Unsubscribe:
        """Answer requests on a subject, which may have wildcards, and return a function that ends this.

        Each request is answered in a task of its own. `answers` returns the prefix of the subjects on which the sender
        of a request may get its answer; other answers are not sent. At most `waiting` bytes of requests wait, and
        `at_once` requests are answered at the same time.

        `lost` is called with the subject of each request that was dropped, for lack of room or because its answer is
        wanted elsewhere. Without `lost`, the drop is logged.
        """
        ...

    async def stream(self, name: str, subjects: Sequence[str], *, max_bytes: int, max_age: float) -> BusStream:
        """Return a stream, which is created if it does not exist."""
        ...

    async def table(self, name: str) -> Table:
        """Return a table, which is created if it does not exist."""
        ...

    async def lost(self) -> str:
        """Wait until the connection is lost and does not reconnect by itself, and return the reason."""
        ...

    async def close(self) -> None: ...
