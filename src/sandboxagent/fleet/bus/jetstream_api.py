"""Call JetStream's API, parse its answers, and translate its errors."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec
from msgspec import Struct

from sandboxagent.fleet.bus.interface import BusRefused, Conflict, NoSubscriber, Unreachable

ANSWER_TIMEOUT = 5.0
"""Seconds that JetStream has for one answer."""
RETRY_INTERVAL = 1.0
"""Seconds without an answer after which a repeatable call is sent again. A server that is frozen, or is not the leader
any more, still gets requests and never answers them."""
MIN_TIMEOUT = 0.05
"""Seconds before a retry if the connection itself refuses at once, so that other tasks can run."""
FORM_TIMEOUT = 30.0
"""Seconds that the servers of a new cluster have to find each other."""
FORM_INTERVAL = 0.5
"""Seconds between two attempts to create a stream."""

_CONFLICTS = (10071, 10164)
_TOO_LARGE = 10054
_NO_ROOM = (10023, 10028, 10047, 10077)
_NOT_YET = (10005, 10008)
_TOO_FEW = (10005, 10074)
NOT_FOUND = 10037
_TAKEN = 10058
_UNAVAILABLE = (408, 503)

_MORE_ROOM = (
    "give it more (the disk, or max_file_store in the configuration of the NATS servers), or keep less: --log-max-bytes"
)
Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class NatsMessage:
    """A received message."""

    subject: str
    reply: str
    headers: Mapping[str, str]
    data: bytes


class NatsConnection(Protocol):
    """The operations of a connection to a NATS server that JetStream needs."""

    async def ask(
        self, subject: str, body: bytes, headers: Mapping[str, str] | None, timeout: float
    ) -> NatsMessage: ...
    async def publish(
        self, subject: str, body: bytes, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None: ...
    async def receive(
        self, subject: str, take: Callable[[NatsMessage], Awaitable[None]]
    ) -> Callable[[], Awaitable[None]]: ...
    def new_inbox(self) -> str: ...


class _Error(Struct):
    code: int = 0
    err_code: int = 0
    description: str = "no reason given"


class Stored(Struct):
    """A message in a stream."""

    seq: int
    data: bytes = b""
    hdrs: bytes = b""


class StreamState(Struct):
    """The content of a stream."""

    first_seq: int
    last_seq: int
    messages: int = 0
    bytes: int = 0


class _Peer(Struct):
    name: str
    current: bool = False
    lag: int = 0


class _Group(Struct):
    """The servers that store one stream."""

    leader: str = ""
    replicas: list[_Peer] = []


class _Limits(Struct):
    max_bytes: int = -1


class ApiAnswer(Struct):
    """An answer of JetStream, to any call."""

    error: _Error | None = None
    seq: int = 0
    num_pending: int = 0
    message: Stored | None = None
    state: StreamState | None = None
    config: _Limits | None = None
    cluster: _Group | None = None

    @property
    def error_code(self) -> int | None:
        return None if self.error is None else self.error.err_code or self.error.code

    def check(self, what: str) -> "ApiAnswer":
        """Return this answer, or raise the error that it reports."""
        if self.error is None:
            return self
        text = f"{what}: {self.error.description}"
        if self.error_code in _CONFLICTS:
            raise Conflict(what)
        if self.error_code in _NO_ROOM:
            raise BusRefused(f"JetStream has no room for {text}; {_MORE_ROOM}")
        if self.error_code != _TOO_LARGE and self.error.code in _UNAVAILABLE:
            raise Unreachable(text)
        raise BusRefused(text)


async def call_api(connection: NatsConnection, call: str, body: Json, timeout: float = ANSWER_TIMEOUT) -> ApiAnswer:
    """Call JetStream's management API. Raises BusRefused if the servers have no JetStream."""
    try:
        answer = await connection.ask(f"$JS.API.{call}", msgspec.json.encode(body), None, timeout)
    except NoSubscriber as error:
        raise BusRefused("the NATS servers have no JetStream for this account; turn it on") from error
    return msgspec.json.decode(answer.data, type=ApiAnswer)


async def call_again(connection: NatsConnection, call: str, body: Json) -> ApiAnswer:
    """Call JetStream's management API, and repeat the call if no answer comes. The call must be repeatable."""
    clock = asyncio.get_running_loop().time
    ends_at = clock() + ANSWER_TIMEOUT
    while True:
        try:
            return await call_api(connection, call, body, RETRY_INTERVAL)
        except Unreachable:
            if clock() >= ends_at:
                raise
            await asyncio.sleep(MIN_TIMEOUT)


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """The state of a stream, as reported by its servers."""

    name: str
    messages: int
    size: int
    """Size in bytes."""
    most: int
    """Maximum size in bytes; -1 for no limit."""
    leader: str
    """Name of the server that accepts appends; empty while there is none."""
    behind: dict[str, int]
    """Number of messages that other servers lack, by server; -1 for a server that is not reachable."""
    servers: int
    """Number of servers that store the stream."""


async def describe(connection: NatsConnection, name: str) -> StreamFacts:
    """Return the state of a stream. Raises BusError; BusRefused if there is no such stream."""
    answer = (await call_again(connection, f"STREAM.INFO.{name}", {})).check(name)
    assert answer.state is not None
    group = answer.cluster or _Group()
    behind = {each.name: each.lag or -1 for each in group.replicas if not each.current}
    most = -1 if answer.config is None else answer.config.max_bytes
    servers = 1 + len(group.replicas)
    return StreamFacts(name, answer.state.messages, answer.state.bytes, most, group.leader, behind, servers)


async def make(connection: NatsConnection, config: Json) -> None:
    """Create a stream, or give an existing one these limits."""
    kept = {"storage": "file", "retention": "limits", "discard": "old", "allow_direct": True, "allow_msg_ttl": True}
    name = str(config["name"])
    ends_at = asyncio.get_running_loop().time() + FORM_TIMEOUT
    while True:
        is_late = asyncio.get_running_loop().time() > ends_at
        try:
            made = await call_api(connection, f"STREAM.CREATE.{name}", kept | config)
            if made.error_code == _TAKEN:
                made = await call_api(connection, f"STREAM.UPDATE.{name}", kept | config)
        except Unreachable:
            # A request that arrived while there was no leader is never answered.
            if is_late:
                raise
        else:
            if made.error_code not in _NOT_YET or is_late:
                break
        await asyncio.sleep(FORM_INTERVAL)
    if made.error_code in _TOO_FEW:
        wanted = config.get("num_replicas", 1)
        raise BusRefused(f"the NATS servers are not a cluster of {wanted} that have JetStream; run so many: --replicas")
    made.check(f"the stream {name}")


def nanoseconds(seconds: float) -> int:
    """Convert seconds to JetStream's unit."""
    return round(seconds * 1e9)
