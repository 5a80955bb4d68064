"""Provide streams and tables on JetStream, with readers that continue where they were."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from sandboxagent.fleet.bus.interface import (
    MAX_BODY_BYTES,
    MAX_MESSAGES,
    Append,
    BusError,
    BusRefused,
    Conflict,
    NoSubscriber,
    StreamMessage,
    StreamRecord,
    TableEntry,
    Unreachable,
)
from sandboxagent.fleet.bus.jetstream_api import (
    ANSWER_TIMEOUT,
    MIN_TIMEOUT,
    NOT_FOUND,
    RETRY_INTERVAL,
    ApiAnswer,
    Json,
    NatsConnection,
    NatsMessage,
    Stored,
    StreamState,
    call_again,
    call_api,
    nanoseconds,
)

logger = logging.getLogger(__name__)

WRITE_TIMEOUT = 10.0
"""Seconds for a write to a table, in which the servers can elect a new leader."""
READER_TIMEOUT = 2.0
"""Seconds to create or change a reader."""
PLACE_INTERVAL = 0.25
"""Seconds without an answer after which the creation of a reader is requested again. A server places each reader on
some server of the cluster, for some seconds even on one that was just killed. Such a reader never answers. The next
attempt may be placed elsewhere."""
MAX_PAGES_AT_ONCE = 4
"""Maximum number of pages that are requested at the same time. A page of a rare subject costs a server much time, and
requests that wait there would be repeated."""
HEARTBEAT_INTERVAL = 0.5
SILENCE_TIMEOUT = 3 * HEARTBEAT_INTERVAL
"""Seconds without a message after which a reader is created again where it was."""
MARKER_TIMEOUT = 3600
"""Seconds for which a table remembers that a key has expired."""

_EXPECTED = "Nats-Expected-Last-Subject-Sequence"
_ID = "Sa-Id"
"""Header of a write to a table. It identifies a write that has happened although its answer was lost."""
_BACK = "Sa-Back"
"""Header with the distance to the previous message of the same subject in the same append."""


class JetStream:
    """A stream of JetStream."""

    def __init__(self, connection: NatsConnection, name: str) -> None:
        self._connection = connection
        self._name = name
        self._paging = asyncio.Semaphore(MAX_PAGES_AT_ONCE)

    async def append(self, append: Append) -> int:
        messages = append.messages
        if not 0 < len(messages) <= MAX_MESSAGES:
            raise BusRefused(f"an append has 1 to {MAX_MESSAGES} messages")
        if any(len(message.body) > MAX_BODY_BYTES for message in messages):
            raise BusRefused(f"a message has at most {MAX_BODY_BYTES} bytes")
        *before, last = _with_headers(append, self._connection.new_inbox().rpartition(".")[2])
        for message, headers in before:
            await self._connection.publish(message.subject, message.body, headers=headers)
        message, headers = last
        try:
            answer = await self._connection.ask(message.subject, message.body, headers, ANSWER_TIMEOUT)
        except NoSubscriber as error:
            raise BusRefused(f"no stream takes {message.subject}") from error
        acknowledged = msgspec.json.decode(answer.data, type=ApiAnswer).check(", ".join(append.expected))
        return acknowledged.seq - len(messages) + 1

    async def last(self, subject: str) -> StreamRecord | None:
        return await self._get(subject, {"last_by_subj": subject})

    async def next(self, subject: str, after: int) -> StreamRecord | None:
        return await self._get(subject, {"seq": after + 1, "next_by_subj": subject})

    async def _get(self, subject: str, asked: Json) -> StreamRecord | None:
        found = await call_again(self._connection, f"STREAM.MSG.GET.{self._name}", asked)
        if found.error_code == NOT_FOUND:
            return None
        stored = found.check(subject).message
        return None if stored is None else _record(stored.seq, subject, stored.data, _read_headers(stored.hdrs))

    async def page(self, subject: str, after: int, through: int, limit: int) -> list[StreamRecord]:
        async with self._paging:
            return await self._page(subject, after, through, limit)

    async def _page(self, subject: str, after: int, through: int, limit: int) -> list[StreamRecord]:
        clock = asyncio.get_running_loop().time
        ends_at = clock() + ANSWER_TIMEOUT
        while True:
            page = _Page(subject, through)
            inbox = self._connection.new_inbox()
            end = await self._connection.receive(inbox, page.take)
            asked = {
                "seq": after + 1,
                "next_by_subj": subject,
                "batch": 1024,
                "max_bytes": max(limit, 2 * MAX_BODY_BYTES),
            }
            try:
                # Any server that stores the stream may answer.
                request = msgspec.json.encode(asked)
                await self._connection.publish(f"$JS.API.DIRECT.GET.{self._name}", request, reply=inbox)
                return await page.whole()
            except TimeoutError as error:
                if clock() >= ends_at:
                    raise Unreachable(f"{subject}: no page came") from error
            finally:
                await end()

    async def ends(self) -> tuple[int, int]:
        state = await self._state()
        return state.first_seq, state.last_seq

    async def size(self) -> int:
        return (await self._state()).bytes

    async def _state(self) -> StreamState:
        info = (await call_again(self._connection, f"STREAM.INFO.{self._name}", {})).check(self._name)
        assert info.state is not None
        return info.state

    async def follow(self, subjects: Iterable[str], after: int, deliver: Callable[[StreamRecord], None]) -> "_Reader":
        def take(message: NatsMessage, sequence: int) -> None:
            deliver(_record(sequence, message.subject, message.data, message.headers))

        reader = _Reader(self._connection, self._name, take)
        await reader.start(subjects, {"deliver_policy": "by_start_sequence", "opt_start_seq": after + 1}, after)
        return reader

    async def purge(self, subject: str, through: int | None = None) -> None:
        asked: Json = {"filter": subject}
        if through is not None:
            asked["seq"] = through + 1
        (await call_api(self._connection, f"STREAM.PURGE.{self._name}", asked)).check(subject)


class _Page:
    """The messages that answer one request."""

    def __init__(self, subject: str, through: int) -> None:
        self._subject = subject
        self._through = through
        self._records: list[StreamRecord] = []
        self._came = asyncio.Event()
        self._end: bool | BusError = False

    async def take(self, message: NatsMessage) -> None:
        headers = message.headers
        self._came.set()
        if "Nats-Sequence" not in headers:
            is_end = headers.get("Status") in ("204", "404")
            self._end = True if is_end else Unreachable(f"{self._subject}: {headers}")
            return
        record = _record(int(headers["Nats-Sequence"]), headers["Nats-Subject"], message.data, headers)
        if record.sequence <= self._through:
            self._records.append(record)

    async def whole(self) -> list[StreamRecord]:
        """Return the whole page. Raises TimeoutError if nothing comes for a while, or the error in the answer."""
        while not self._end:
            self._came.clear()
            async with asyncio.timeout(RETRY_INTERVAL):
                await self._came.wait()
        if self._end is not True:
            raise self._end
        return self._records


class JetStreamTable:
    """A bucket of JetStream's key-value store."""

    def __init__(self, connection: NatsConnection, name: str) -> None:
        self._connection = connection
        self._prefix = f"$KV.{name}."
        self._stream = f"KV_{name}"

    async def get(self, key: str) -> TableEntry | None:
        stored = await self._newest(key)
        if stored is None or _is_marker(_read_headers(stored.hdrs)):
            return None
        return TableEntry(key, stored.data, stored.seq)

    async def revision(self, key: str) -> int:
        stored = await self._newest(key)
        return 0 if stored is None else stored.seq

    async def _newest(self, key: str) -> Stored | None:
        found = await call_again(
            self._connection, f"STREAM.MSG.GET.{self._stream}", {"last_by_subj": self._prefix + key}
        )
        return None if found.error_code == NOT_FOUND else found.check(key).message

    async def put(self, key: str, value: bytes, *, expected: int | None = None, ttl: float | None = None) -> int:
        return await self._publish(key, value, _lifetime(ttl), expected)

    async def delete(self, key: str, *, expected: int | None = None, ttl: float | None = None) -> None:
        await self._publish(key, b"", {"KV-Operation": "DEL", **_lifetime(ttl)}, expected)

    async def _publish(self, key: str, value: bytes, headers: Mapping[str, str], expected: int | None) -> int:
        """Write a value, and repeat the write if no answer comes. An id in a header reveals that it has happened.

        Without an expected revision, a repetition may replace values that others have written meanwhile.
        """
        id = self._connection.new_inbox()
        if expected is not None:
            headers = {**headers, _EXPECTED: str(expected)}
        clock = asyncio.get_running_loop().time
        ends_at, is_repeat = clock() + WRITE_TIMEOUT, False
        while True:
            try:
                answer = await self._connection.ask(self._prefix + key, value, {**headers, _ID: id}, RETRY_INTERVAL)
                return msgspec.json.decode(answer.data, type=ApiAnswer).check(key).seq
            except Unreachable:
                if clock() >= ends_at:
                    raise
                is_repeat = True
                await asyncio.sleep(MIN_TIMEOUT)
            except Conflict:
                stored = await self._newest(key) if is_repeat else None
                if stored is None or _read_headers(stored.hdrs).get(_ID) != id:
                    raise
                return stored.seq

    async def watch(self, changed: Callable[[TableEntry], None]) -> "_Reader":
        def take(message: NatsMessage, sequence: int) -> None:
            gone = _is_marker(message.headers)
            changed(TableEntry(message.subject.removeprefix(self._prefix), None if gone else message.data, sequence))

        reader = _Reader(self._connection, self._stream, take)
        await reader.start([self._prefix + ">"], {"deliver_policy": "last_per_subject"}, 0)
        await reader.is_current.wait()
        return reader


@dataclass(frozen=True, slots=True)
class _Place:
    """The position of a delivered message: in the stream, and among the messages of its consumer."""

    stream: int
    consumer: int
    pending: int


class _Reader:
    """A consumer of a stream. It is created again after its last message if it falls silent or skips one.

    nats-py has ordered consumers, but they cannot change their subjects while they run.
    """

    def __init__(self, connection: NatsConnection, stream: str, take: Callable[[NatsMessage, int], None]) -> None:
        self.is_current = asyncio.Event()
        """Set when all messages that existed at the start have been delivered."""
        self._connection = connection
        self._stream = stream
        self._take = take
        self._subjects: list[str] = []
        self._after = 0
        self._consumer = ""
        self._consumed: int = 0
        self._made: Json = {}
        self._heard_at = 0.0
        self._lacking_since: float | None = None
        """Time of the first request for a consumer that does not exist yet."""
        self._end: Callable[[], Awaitable[None]] | None = None
        self._lock = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._watchdog: asyncio.Task[None] | None = None

    async def start(self, subjects: Iterable[str], policy: Json, after: int) -> None:
        self._subjects, self._after = sorted(subjects), after
        async with self._lock:
            await self._make(policy)
        self._watchdog = asyncio.create_task(self._watch())

    async def change(self, subjects: Iterable[str]) -> None:
        async with self._lock:
            had = bool(self._subjects)
            self._subjects = sorted(subjects)
            if not self._subjects:
                await self._drop()
            elif had and self._consumer:
                await self._update()
            elif had:
                # The consumer was lost. The new one continues after the last delivered message.
                await self._make(None)
            else:
                # Start at the end of the stream. Store that position, because the reader may be created again before it
                # has delivered anything.
                info = await call_again(self._connection, f"STREAM.INFO.{self._stream}", {})
                state = info.check(self._stream).state
                self._after = 0 if state is None else state.last_seq
                await self._make(None)

    async def close(self) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
        async with self._lock:
            await self._drop()

    def _config(self, policy: Json) -> Json:
        return {
            "ack_policy": "none",
            "replay_policy": "instant",
            "max_deliver": 1,
            "flow_control": True,
            "idle_heartbeat": nanoseconds(HEARTBEAT_INTERVAL),
            "inactive_threshold": nanoseconds(10 * SILENCE_TIMEOUT),
            "mem_storage": True,
            "num_replicas": 1,
            "filter_subjects": self._subjects,
            **policy,
        }

    async def _update(self) -> None:
        """Change the consumer's subjects. Create a new consumer if it is lost or cannot be changed."""
        config = self._made | {"filter_subjects": self._subjects}
        try:
            changed = await self._ask_for(self._consumer, config, 2 * PLACE_INTERVAL, action="update")
            reason = None if changed.error is None else changed.error.description
        except Unreachable as error:
            reason = str(error)
        if reason is not None:
            logger.info("reader begins anew stream=%s reason=%s", self._stream, reason)
            await self._make(None)

    async def _make(self, policy: Json | None) -> None:
        """Create a consumer; without a policy, one that continues after the last message.

        Each attempt may take as long as all attempts before it together, so that slow servers have enough time.
        """
        await self._drop()
        if not self._subjects:
            self.is_current.set()
            return
        began_at = self._loop.time()
        if self._lacking_since is None:
            self._lacking_since = began_at
        while True:
            lacking_for = self._loop.time() - self._lacking_since
            try:
                await self._place(policy or self._behind_last(), min(max(PLACE_INTERVAL, lacking_for), READER_TIMEOUT))
            except BusError as error:
                await self._drop()
                if self._consumed:
                    # The consumer exists and has delivered messages. Only the answer was lost.
                    policy = None
                if not isinstance(error, Unreachable) or self._loop.time() - began_at >= READER_TIMEOUT:
                    raise
                await asyncio.sleep(MIN_TIMEOUT)
            else:
                self._lacking_since = None
                return

    def _behind_last(self) -> Json:
        return {"deliver_policy": "by_start_sequence", "opt_start_seq": self._after + 1}

    async def _place(self, policy: Json, timeout: float) -> None:
        """Request one consumer, under a new name."""
        inbox = self._connection.new_inbox()
        name = inbox.rpartition(".")[2]
        self._consumed = 0
        self._heard_at = self._loop.time()
        self._end = await self._connection.receive(inbox, self._deliver)
        self._consumer, self._made = name, self._config(policy) | {"name": name, "deliver_subject": inbox}
        made = (await self._ask_for(name, self._made, timeout)).check(self._stream)
        if not made.num_pending and not self._consumed:
            self.is_current.set()

    async def _ask_for(self, name: str, config: Json, timeout: float, **how: str) -> ApiAnswer:
        """Create or change a consumer."""
        asked: Json = {"stream_name": self._stream, "config": config, **how}
        return await call_api(self._connection, f"CONSUMER.CREATE.{self._stream}.{name}", asked, timeout)

    async def _drop(self) -> None:
        end, self._end = self._end, None
        consumer, self._consumer = self._consumer, ""
        if end is not None:
            with suppress(BusError):
                await end()
        if consumer:
            # The answer is not awaited. Servers without a leader do not answer, and all servers delete unused consumers
            # by themselves.
            with suppress(BusError):
                await self._connection.publish(f"$JS.API.CONSUMER.DELETE.{self._stream}.{consumer}", b"")

    async def _deliver(self, message: NatsMessage) -> None:
        headers = message.headers
        if headers.get("Status"):
            self._heard_at = self._loop.time()
            # Flow control: the server asks whether it may continue, or says that it still waits for a confirmation.
            ready = message.reply or headers.get("Nats-Consumer-Stalled", "")
            if ready:
                with suppress(BusError):
                    await self._connection.publish(ready, b"")
            elif int(headers.get("Nats-Last-Consumer", 0)) > self._consumed:
                self._heard_at = 0.0
            return
        place = _place_of(message.reply)
        if place.consumer != self._consumed + 1:
            # A message is missing: the reader is created again. Until then, no message is accepted.
            self._heard_at = 0.0
            return
        self._heard_at = self._loop.time()
        self._consumed = place.consumer
        self._after = place.stream
        try:
            self._take(message, place.stream)
        except Exception:
            logger.exception("message not taken subject=%s", message.subject)
        if place.pending == 0:
            self.is_current.set()

    async def _watch(self) -> None:
        while True:
            timeout = self._heard_at + SILENCE_TIMEOUT - self._loop.time()
            await asyncio.sleep(min(max(timeout, 0.0), HEARTBEAT_INTERVAL) if self._consumer else HEARTBEAT_INTERVAL)
            if self._is_heard():
                continue
            async with self._lock:
                # Meanwhile the reader may have been created again, or have lost its subjects.
                if self._is_heard() or not self._subjects:
                    continue
                try:
                    await self._make(None)
                except BusError as error:
                    logger.info("reader waits stream=%s reason=%s", self._stream, error)

    def _is_heard(self) -> bool:
        return bool(self._consumer) and self._loop.time() - self._heard_at < SILENCE_TIMEOUT


def _with_headers(append: Append, batch: str) -> list[tuple[StreamMessage, dict[str, str]]]:
    """Add the headers that JetStream checks, and each message's distance to its predecessor."""
    several = len(append.messages) > 1
    last: dict[str, int] = {}
    result: list[tuple[StreamMessage, dict[str, str]]] = []
    for place, message in enumerate(append.messages, 1):
        headers = dict(message.headers)
        if message.subject in last:
            # Only the first message of a subject has the header, because JetStream checks one per subject in an append.
            headers[_BACK] = str(place - last[message.subject])
        else:
            headers[_EXPECTED] = str(append.expected[message.subject])
        last[message.subject] = place
        if several:
            headers |= {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(place)}
        result.append((message, headers))
    if several:
        result[-1][1]["Nats-Batch-Commit"] = "1"
    return result


def _record(sequence: int, subject: str, body: bytes, headers: Mapping[str, str]) -> StreamRecord:
    if _BACK in headers:
        predecessor = sequence - int(headers[_BACK])
    else:
        predecessor = int(headers.get(_EXPECTED, 0))
    ours = {name: value for name, value in headers.items() if not name.startswith("Nats-") and name != _BACK}
    return StreamRecord(sequence, subject, body, ours, predecessor)


def _read_headers(raw: bytes) -> dict[str, str]:
    """Parse headers in the form that JetStream returns: the lines of a message head."""
    lines = raw.decode().split("\r\n")[1:]
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines) if name}


def _lifetime(ttl: float | None) -> dict[str, str]:
    return {} if ttl is None else {"Nats-TTL": f"{max(1, round(ttl))}s"}


def _is_marker(headers: Mapping[str, str]) -> bool:
    """Return whether a message says that a key has no value any more."""
    return "KV-Operation" in headers or "Nats-Marker-Reason" in headers


def _place_of(reply: str) -> _Place:
    """Parse a reply subject: `$JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<time>.<pending>`.

    With a JetStream domain, it has two more parts after `$JS.ACK`, and one at the end.
    """
    parts = reply.split(".")
    if len(parts) > 9:
        parts = parts[:11]
        return _Place(int(parts[7]), int(parts[8]), int(parts[10]))
    return _Place(int(parts[5]), int(parts[6]), int(parts[8]))
