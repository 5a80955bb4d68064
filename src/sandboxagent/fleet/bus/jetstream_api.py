"""Call JetStream's API, read its answers, and say what its errors mean."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec
from msgspec import Struct

from sandboxagent.fleet.bus.interface import BusRefused, Conflict, Nowhere, Unreachable

ANSWER_TIMEOUT = 5.0
"""How long JetStream may take for one answer."""
RETRY_INTERVAL = 1.0
"""Seconds of silence after which what may be asked twice is asked again. A server that is frozen, or no longer the
leader, still gets requests, and never answers them."""
MIN_TIMEOUT = 0.05
"""Seconds before that, when the connection itself refuses at once: others have to go on meanwhile."""
FORM_TIMEOUT = 30.0
"""How long the servers of a cluster that has just been started may take to find each other."""
FORM_INTERVAL = 0.5
"""Seconds before a stream is asked for again that could not be made."""

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
    """A message as it came."""

    subject: str
    reply: str
    headers: Mapping[str, str]
    data: bytes


class NatsConnection(Protocol):
    """What is needed of a connection to a NATS server."""

    async def ask(
        self, subject: str, body: bytes, headers: Mapping[str, str] | None, patience: float
    ) -> NatsMessage: ...
    async def publish(
        self, subject: str, body: bytes, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None: ...
    async def subscribe(
        self, subject: str, take: Callable[[NatsMessage], Awaitable[None]]
    ) -> Callable[[], Awaitable[None]]: ...
    def new_inbox(self) -> str: ...


class _Error(Struct):
    code: int = 0
    err_code: int = 0
    description: str = "no reason given"


class Stored(Struct):
    """A message as a stream has it."""

    seq: int
    data: bytes = b""
    hdrs: bytes = b""


class StreamState(Struct):
    """What a stream has."""

    first_seq: int
    last_seq: int
    messages: int = 0
    bytes: int = 0


class _Peer(Struct):
    name: str
    current: bool = False
    lag: int = 0


class _Group(Struct):
    """The servers that keep one stream."""

    leader: str = ""
    replicas: list[_Peer] = []


class _Limits(Struct):
    max_bytes: int = -1


class ApiAnswer(Struct):
    """Of JetStream, whatever was asked."""

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
        """Raises what the error means, if there is one."""
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


async def call_api(connection: NatsConnection, call: str, body: Json, patience: float = ANSWER_TIMEOUT) -> ApiAnswer:
    """A call of JetStream's management; raises Refused when the servers have no JetStream."""
    try:
        answer = await connection.ask(f"$JS.API.{call}", msgspec.json.encode(body), None, patience)
    except Nowhere as error:
        raise BusRefused("the NATS servers have no JetStream for this account; turn it on") from error
    return msgspec.json.decode(answer.data, type=ApiAnswer)


async def call_again(connection: NatsConnection, call: str, body: Json) -> ApiAnswer:
    """A call that may be made twice; made again when no answer comes."""
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
    """How a stream is, as its servers say."""

    name: str
    messages: int
    size: int
    """In bytes."""
    most: int
    """Bytes that it may have; -1 for no limit."""
    leader: str
    """The server that takes its appends; empty while there is none."""
    behind: dict[str, int]
    """Other servers that do not have all of it, and how many messages each lacks; -1 for one that is not there."""
    servers: int
    """How many keep it."""


async def describe(connection: NatsConnection, name: str) -> StreamFacts:
    """Raises BusError, Refused when there is no such stream."""
    answer = (await call_again(connection, f"STREAM.INFO.{name}", {})).check(name)
    assert answer.state is not None
    group = answer.cluster or _Group()
    behind = {each.name: each.lag or -1 for each in group.replicas if not each.current}
    most = -1 if answer.config is None else answer.config.max_bytes
    servers = 1 + len(group.replicas)
    return StreamFacts(name, answer.state.messages, answer.state.bytes, most, group.leader, behind, servers)


async def make(connection: NatsConnection, config: Json) -> None:
    """Make a stream, or give the one that is there these limits."""
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
            # What was asked while there was no leader is never answered.
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
    """A time as JetStream takes it."""
    return round(seconds * 1e9)
