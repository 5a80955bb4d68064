"""Provide a bus within one process for tests, with the promises of NATS and faults on demand."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from sandboxagent.core.tasks import Tasks
from sandboxagent.fleet.bus.interface import (
    MAX_AT_ONCE,
    MAX_BODY_BYTES,
    MAX_MESSAGES,
    MAX_WAITING_BYTES,
    Append,
    BusRefused,
    Conflict,
    Handler,
    MessageHandler,
    NoSubscriber,
    StreamRecord,
    TableEntry,
    Unreachable,
    Unsubscribe,
)


@dataclass(slots=True, eq=False)
class Cluster:
    """The state that all members share."""

    streams: dict[str, "MemoryStream"] = field(default_factory=dict[str, "MemoryStream"])
    tables: dict[str, "MemoryTable"] = field(default_factory=dict[str, "MemoryTable"])
    served: list[tuple[str, Handler, "MemoryBus"]] = field(default_factory=list[tuple[str, Handler, "MemoryBus"]])
    subscriptions: list["_Subscription"] = field(default_factory=list["_Subscription"])
    disturb: Callable[[str, bytes], Iterable[bytes]] | None = None
    """Replaces a message on its way to subscribers by the messages that it returns: none, several, or other ones."""
    answers_to_lose: int = 0
    """Number of next appends and puts that happen although their senders get Unreachable."""
    appends_to_refuse: int = 0
    """Number of next appends that are refused, as if the servers were full."""
    puts_to_refuse: int = 0
    """Number of next puts that are refused, as if the servers were full."""
    pages_to_miss: int = 0
    """Number of next pages that are empty, as from a server that is behind."""
    deliveries_to_lose: int = 0
    """Number of next messages that do not reach their readers."""
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when all connections are lost for good."""
    held: list[Callable[[], None]] | None = None
    """If it is a list, messages to readers are held back in it."""

    def lose_answer(self) -> None:
        """Raise Unreachable if the sender must not learn that its call has happened."""
        if self.answers_to_lose:
            self.answers_to_lose -= 1
            raise Unreachable("the answer was lost")

    def deliver(self, subject: str, body: bytes) -> bool:
        """Pass a message to its subscribers, after all earlier messages. Return whether there are subscribers."""
        loop = asyncio.get_running_loop()
        subscribed = [each for each in self.subscriptions if matches(each.pattern, subject)]
        for each in subscribed:
            for sent in (body,) if self.disturb is None else self.disturb(subject, body):
                loop.call_soon(each.take, subject, sent)
        return bool(subscribed)


class MemoryBus:
    """A member's connection to all others. Setting `cut` has the effect of pulling the network cable."""

    def __init__(self, cluster: Cluster) -> None:
        self.cut = False
        self.cluster = cluster
        self._tasks = Tasks()

    async def request(self, subject: str, body: bytes, timeout: float) -> bytes:
        self.check()
        serving = [(handler, server) for pattern, handler, server in self.cluster.served if matches(pattern, subject)]
        if not serving:
            raise NoSubscriber(subject)
        asked = {
            self._tasks.run(handler(subject, body), f"answer {subject}"): server
            for handler, server in serving
            if not server.cut
        }
        waiting = set(asked)
        ends_at = asyncio.get_running_loop().time() + timeout
        while waiting:
            left = ends_at - asyncio.get_running_loop().time()
            done, waiting = await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            self.check()
            for task in done:
                answer = task.result()
                if answer is not None and not asked[task].cut:
                    return answer
            if not done:
                break
        if not asked:
            await asyncio.sleep(timeout)
        raise Unreachable(subject)

    async def publish(self, subject: str, body: bytes, reply: str = "") -> None:
        self.check()
        heard = self.cluster.deliver(subject, body)
        for pattern, handler, server in self.cluster.served:
            if matches(pattern, subject):
                heard = True
                if not server.cut:
                    await handler(subject, body)
        if reply and not heard:
            self.cluster.deliver(reply, b"")

    async def subscribe(self, subject: str, take: MessageHandler) -> Unsubscribe:
        self.check()
        subscribed = _Subscription(subject, take, self)
        self.cluster.subscriptions.append(subscribed)
        return subscribed.end

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
        # `answers` needs no check: an answer is returned to the caller and goes nowhere else.
        served = (subject, handler, self)
        self.cluster.served.append(served)

        async def end() -> None:
            if served in self.cluster.served:
                self.cluster.served.remove(served)

        return end

    async def stream(self, name: str, subjects: Sequence[str], *, max_bytes: int, max_age: float) -> "_Reached":
        stream = self.cluster.streams.setdefault(name, MemoryStream(self.cluster, subjects))
        return _Reached(self, stream)

    async def table(self, name: str) -> "_ReachedTable":
        return _ReachedTable(self, self.cluster.tables.setdefault(name, MemoryTable(self.cluster)))

    async def close(self) -> None:
        self.cut = True
        self.cluster.served = [each for each in self.cluster.served if each[2] is not self]
        self.cluster.subscriptions = [each for each in self.cluster.subscriptions if each.bus is not self]

    async def lost(self) -> str:
        await self.cluster.closed.wait()
        return "the cluster is gone"

    def check(self) -> None:
        """Raise Unreachable while this member is cut off."""
        if self.cut:
            raise Unreachable("cut off")


@dataclass(frozen=True, slots=True, eq=False)
class _Subscription:
    """A member's subscription to a subject."""

    pattern: str
    hand_over: MessageHandler
    bus: MemoryBus

    def take(self, subject: str, body: bytes) -> None:
        if not self.bus.cut and self in self.bus.cluster.subscriptions:
            self.hand_over(subject, body)

    async def end(self) -> None:
        if self in self.bus.cluster.subscriptions:
            self.bus.cluster.subscriptions.remove(self)


@dataclass(frozen=True, slots=True)
class _Reached:
    """A stream as one member sees it."""

    bus: MemoryBus
    whole: "MemoryStream"

    async def append(self, append: Append) -> int:
        self.bus.check()
        return self.whole.append(append)

    async def last(self, subject: str) -> StreamRecord | None:
        self.bus.check()
        return self.whole.newest(subject)

    async def next(self, subject: str, after: int) -> StreamRecord | None:
        self.bus.check()
        later = (each for each in self.whole.records if each.subject == subject and each.sequence > after)
        return next(later, None)

    async def page(self, subject: str, after: int, through: int, limit: int) -> list[StreamRecord]:
        self.bus.check()
        if self.whole.cluster.pages_to_miss:
            self.whole.cluster.pages_to_miss -= 1
            return []
        found: list[StreamRecord] = []
        for record in self.whole.records:
            if record.subject == subject and after < record.sequence <= through and limit > 0:
                found.append(record)
                limit -= len(record.body)
        return found

    async def ends(self) -> tuple[int, int]:
        self.bus.check()
        records = self.whole.records
        return (records[0].sequence if records else self.whole.position + 1), self.whole.position

    async def size(self) -> int:
        self.bus.check()
        return sum(len(record.body) for record in self.whole.records)

    async def follow(self, subjects: Iterable[str], after: int, deliver: Callable[[StreamRecord], None]) -> "_Reader":
        self.bus.check()
        reader = _Reader(self.whole, set(subjects), deliver, self.bus)
        for record in self.whole.records:
            if record.sequence > after:
                reader.take(record)
        self.whole.readers.append(reader)
        return reader

    async def purge(self, subject: str, through: int | None = None) -> None:
        self.bus.check()
        last = self.whole.position if through is None else through
        self.whole.keep([each for each in self.whole.records if each.subject != subject or each.sequence > last])


class MemoryStream:
    """The records of a stream, and its readers."""

    def __init__(self, cluster: Cluster, subjects: Sequence[str]) -> None:
        self.records: list[StreamRecord] = []
        self.readers: list[_Reader] = []
        self.position = 0
        self._subjects = subjects
        self.cluster = cluster
        self._last: dict[str, int] = {}

    def append(self, append: Append) -> int:
        if self.cluster.appends_to_refuse:
            self.cluster.appends_to_refuse -= 1
            raise BusRefused("the stream is full")
        if not 0 < len(append.messages) <= MAX_MESSAGES:
            raise BusRefused(f"an append has 1 to {MAX_MESSAGES} messages")
        for message in append.messages:
            if not any(matches(pattern, message.subject) for pattern in self._subjects):
                raise BusRefused(f"no stream takes {message.subject}")
            if len(message.body) > MAX_BODY_BYTES:
                raise BusRefused(f"a message has at most {MAX_BODY_BYTES} bytes")
            if append.expected[message.subject] != self._last.get(message.subject, 0):
                raise Conflict(message.subject)
        first = self.position + 1
        for message in append.messages:
            self.position += 1
            before = self._last.get(message.subject, 0)
            self._last[message.subject] = self.position
            record = StreamRecord(self.position, message.subject, message.body, dict(message.headers), before)
            self.records.append(record)
            for reader in self.readers:
                reader.take(record)
        self.cluster.lose_answer()
        return first

    def newest(self, subject: str) -> StreamRecord | None:
        return next((record for record in reversed(self.records) if record.subject == subject), None)

    def forget_after(self, sequence: int) -> None:
        """Lose the newest records, like servers that lose their disks."""
        self.keep([record for record in self.records if record.sequence <= sequence])
        self.position = sequence

    def trim(self, count: int) -> None:
        """Drop the oldest records, like a full stream."""
        self.keep(self.records[count:])

    def keep(self, records: list[StreamRecord]) -> None:
        """Keep only these records. For appends, a subject without records begins again."""
        self.records = records
        self._last = {record.subject: record.sequence for record in records}


class _Reader:
    def __init__(
        self, stream: MemoryStream, subjects: set[str], deliver: Callable[[StreamRecord], None], bus: MemoryBus
    ) -> None:
        self._stream = stream
        self._subjects = subjects
        self._deliver = deliver
        self._bus = bus
        self._loop = asyncio.get_running_loop()
        self._closed = False

    def take(self, record: StreamRecord) -> None:
        cluster = self._stream.cluster
        if not any(matches(pattern, record.subject) for pattern in self._subjects):
            return
        if cluster.deliveries_to_lose:
            cluster.deliveries_to_lose -= 1
        elif cluster.held is not None:
            cluster.held.append(lambda: self._hand_over(record))
        else:
            self._loop.call_soon(self._hand_over, record)

    def _hand_over(self, record: StreamRecord) -> None:
        if not self._closed and not self._bus.cut:
            self._deliver(record)

    async def change(self, subjects: Iterable[str]) -> None:
        self._subjects = set(subjects)

    async def close(self) -> None:
        self._closed = True
        if self in self._stream.readers:
            self._stream.readers.remove(self)


@dataclass(frozen=True, slots=True)
class _ReachedTable:
    """A table as one member sees it."""

    bus: MemoryBus
    whole: "MemoryTable"

    async def get(self, key: str) -> TableEntry | None:
        self.bus.check()
        entry = self.whole.entries.get(key)
        return entry if entry is not None and entry.value is not None else None

    async def revision(self, key: str) -> int:
        self.bus.check()
        entry = self.whole.entries.get(key)
        return 0 if entry is None else entry.revision

    async def put(self, key: str, value: bytes, *, expected: int | None = None, ttl: float | None = None) -> int:
        self.bus.check()
        return self.whole.put(key, value, expected, ttl)

    async def delete(self, key: str, *, expected: int | None = None, ttl: float | None = None) -> None:
        self.bus.check()
        self.whole.expect(key, expected)
        self.whole.set(key, None)

    async def watch(self, changed: Callable[[TableEntry], None]) -> "_Watcher":
        self.bus.check()
        for entry in self.whole.entries.values():
            if entry.value is not None:
                changed(entry)
        watcher = _Watcher(self.whole, changed, self.bus)
        self.whole.watchers.append(watcher)
        return watcher


class MemoryTable:
    """The entries of a table, and its watchers."""

    def __init__(self, cluster: Cluster) -> None:
        self.entries: dict[str, TableEntry] = {}
        self.watchers: list[_Watcher] = []
        self._revision = 0
        self._cluster = cluster
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def put(self, key: str, value: bytes, expected: int | None, ttl: float | None) -> int:
        if self._cluster.puts_to_refuse:
            self._cluster.puts_to_refuse -= 1
            raise BusRefused("the table is full")
        self.expect(key, expected)
        revision = self.set(key, value)
        if ttl is not None:
            self._timers[key] = asyncio.get_running_loop().call_later(ttl, self.set, key, None)
        self._cluster.lose_answer()
        return revision

    def expect(self, key: str, revision: int | None) -> None:
        """Raise Conflict if the key has another revision."""
        known = self.entries.get(key)
        if revision is not None and revision != (0 if known is None else known.revision):
            raise Conflict(key)

    def set(self, key: str, value: bytes | None) -> int:
        if timer := self._timers.pop(key, None):
            timer.cancel()
        self._revision += 1
        entry = self.entries[key] = TableEntry(key, value, self._revision)
        for watcher in self.watchers:
            watcher.take(entry)
        return self._revision


class _Watcher:
    def __init__(self, table: MemoryTable, changed: Callable[[TableEntry], None], bus: MemoryBus) -> None:
        self._table = table
        self._changed = changed
        self._bus = bus
        self._loop = asyncio.get_running_loop()

    def take(self, entry: TableEntry) -> None:
        self._loop.call_soon(self._hand_over, entry)

    def _hand_over(self, entry: TableEntry) -> None:
        if self in self._table.watchers and not self._bus.cut:
            self._changed(entry)

    async def change(self, subjects: Iterable[str]) -> None:
        """Do nothing, because a table is always watched as a whole."""

    async def close(self) -> None:
        if self in self._table.watchers:
            self._table.watchers.remove(self)


def matches(pattern: str, subject: str) -> bool:
    """Return whether a subject matches a pattern: `*` stands for one part, `>` for all remaining parts."""
    wanted, parts = pattern.split("."), subject.split(".")
    for position, part in enumerate(wanted):
        if part == ">":
            return len(parts) > position
        if position >= len(parts) or part not in ("*", parts[position]):
            return False
    return len(wanted) == len(parts)
