"""Send HTTP requests from a gateway into nodes, and check the answers.

A node is not trusted: what it answers is checked before a client gets it, and it sees nothing of a request but what the
routes need. Knows nothing of routes.
"""

import asyncio
import logging
import re
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import msgspec

from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.bus.interface import Bus, BusError, StopHearing
from sandboxagent.fleet.bus.tunnel import PIECE, BusWay, Flow, FlowBroken, FlowKind, FlowTable, Piece, Reason
from sandboxagent.fleet.messages import SAFE_AT, AnswerHead, Lease, Opening, Waiting
from sandboxagent.protocol import headers
from sandboxagent.protocol.errors import LogUnavailable, NodeUnreachable, TooMany
from sandboxagent.server.http.asgi import Receive, Scope, Send, header, is_gone, transport
from sandboxagent.server.http.body import ClientDisconnected
from sandboxagent.server.http.downloads import STALL_TIMEOUT

logger = logging.getLogger(__name__)

SHARE = 4
"""One node may have the fourth part of a gateway's flows."""
ANSWERS = 4
"""All answers of one node that come at the same time have together so many times the bytes that one may have."""
INLINE = 32 << 10
"""Bytes of a body that go with the opening."""
MAX_HEADERS, MAX_HEADER_BYTES = 200, 64 << 10

_ASKED = {
    *(b"accept", b"accept-encoding", b"user-agent"),
    *(b"content-type", b"content-length", b"content-encoding", b"content-range"),
    *(b"if-match", b"if-none-match", b"if-modified-since", b"if-unmodified-since", b"if-range", b"range"),
    *map(headers.raw, (headers.PREFER, headers.IDEMPOTENCY_KEY, headers.RESUME_AFTER, headers.OPENCODE_DIRECTORY)),
}
"""Headers of a request that a node sees. A token is not among them, nor what a proxy may have added."""
_ANSWERED = {
    *(b"content-type", b"content-length", b"content-encoding", b"content-range", b"content-disposition"),
    *(b"etag", b"last-modified", b"accept-ranges", b"cache-control", b"allow", b"retry-after", b"x-accel-buffering"),
    *map(headers.raw, (headers.PREFERENCE_APPLIED, headers.LAST_EVENT)),
}
"""Headers of an answer that a client sees: none that tells a browser something about the gateway's origin."""
_CONFINED = [(b"content-security-policy", b"sandbox"), (b"x-content-type-options", b"nosniff")]
"""An answer comes from a sandbox, and has no rights at the gateway's origin."""
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(rb"[^\x00-\x08\x0a-\x1f\x7f]*")
_LENGTH = re.compile(rb"[0-9]{1,19}")

_REASONS = {
    Reason.ABSENT: "is not connected",
    Reason.SILENT: "does not answer",
    Reason.LOST: "could not be heard without a gap",
    Reason.ILL_BEHAVED: "sends what makes no sense",
    Reason.FULL: "has as many requests under way as it takes",
    Reason.STOPPED: "is stopping",
    Reason.ABORTED: "has broken off its answer",
    Reason.CUT_OFF: "cannot be reached, because this gateway has lost NATS",
    Reason.FINISHED: "has answered already",
}


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """A request for a node, but for its body."""

    method: str
    target: bytes
    """The path, percent-encoded."""
    query: bytes = b""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list[tuple[bytes, bytes]])


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """A whole answer of a node."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    run: str
    """The run of the node that gave it, by its nonce."""


Seen = Callable[[str, int], "asyncio.Future[None]"]
"""Done when the fleet's stream has brought what a node has said up to a position of its own."""


class Caller(Protocol):
    """The way to nodes."""

    async def call(self, node: str, asked: NodeRequest, body: bytes = b"", *, most: int) -> NodeAnswer:
        """Raises NodeUnreachable or TooMany."""
        ...


class _Early(NamedTuple):
    """An answer that came before what it speaks of is safe."""

    length: int
    safe_at: int


class GatewayTunnels:
    """Requests to nodes that are under way; at most so many."""

    def __init__(
        self, gateway: str, bus: Bus, leases: Mapping[str, Lease], most: int, seen: Seen | None = None
    ) -> None:
        """`leases` are the nodes that are there."""
        self.stray: Callable[[str], None] = lambda node: None
        """Called for each message of a node into a flow that is not there."""
        self._seen = seen
        self._gateway = gateway
        self._bus = bus
        self._leases = leases
        self._most = most
        self.table = FlowTable()
        self._under_way: Counter[str] = Counter()
        self._answered: Counter[str] = Counter()
        """Node → bytes of its answers that are not yet whole."""
        self._flows: dict[str, Flow] = {}
        """By the subject on which its node sends."""
        self._heard: dict[str, asyncio.Task[StopHearing]] = {}
        """Nodes whose flows are heard: each by one subscription, so that none gets into the way of the others."""

    async def run(self) -> None:
        """Notice nodes that are gone. Ends all flows when it is cancelled."""
        try:
            await self.table.run()
        finally:
            self.table.break_all(Reason.STOPPED)

    @asynccontextmanager
    async def open(
        self, node: str, asked: NodeRequest, body: bytes = b"", *, more: bool = False
    ) -> AsyncGenerator["NodeExchange"]:
        """A request, and what comes of it; leaving the block before the end of the answer cancels it at the node.

        `body` has at most INLINE bytes; with `more`, the rest of it follows. Raises NodeUnreachable or TooMany.
        """
        lease = self._leases.get(node)
        if lease is None:
            raise NodeUnreachable(node, "is not there")
        if lease.set_aside:
            raise NodeUnreachable(node, "is set aside, because it floods")
        with self._take_place(node):
            id = secrets.token_urlsafe(16)
            subject = subjects.flow_to_gateway(node, self._gateway, id)
            way = BusWay(self._bus, subjects.flow_to_node(node, id), subject)
            waiting = msgspec.msgpack.encode(Waiting(self._gateway, lease.nonce))
            flow = self.table.open(way, ends_with_them=True, sign=waiting)
            exchange = NodeExchange(node, lease.nonce, flow)
            opening = Opening(
                self._gateway, lease.nonce, asked.method, asked.target, asked.query, asked.headers, body, more, True
            )
            try:
                await self._hear(node)
            except BaseException as error:
                flow.finish()
                if isinstance(error, BusError):
                    raise exchange.unreachable(Reason.CUT_OFF) from None
                raise
            self._flows[subject] = flow
            try:
                await exchange.begin(opening)
                yield exchange
            finally:
                flow.break_off(Reason.ABORTED)
                del self._flows[subject]

    async def _hear(self, node: str) -> None:
        """Hear what a node sends into flows, from now on. Raises BusError."""
        hearing = self._heard.get(node)
        if hearing is None:
            self._stop_hearing_lost()
            subject = subjects.flow_to_gateway(node, self._gateway, "*")
            hearing = self._heard[node] = asyncio.create_task(self._bus.hear(subject, self._take))
        if hearing.done() and hearing.exception() is None:
            return
        try:
            await asyncio.shield(hearing)
        except BusError:
            if self._heard.get(node) is hearing:
                del self._heard[node]
            raise

    def _stop_hearing_lost(self) -> None:
        """Done when another node comes, so that there are not many of them."""
        for node in [each for each in self._heard if each not in self._leases and not self._under_way[each]]:
            self.table.spawn(_stop(self._heard.pop(node)))

    def _take(self, subject: str, message: bytes) -> None:
        flow = self._flows.get(subject)
        if flow is not None:
            flow.accept(message)
        else:
            self.stray(subjects.sender(subject)[0])

    def silence(self, node: str) -> None:
        """Hear a node no more, until it is needed again, and break off what is under way with it."""
        hearing = self._heard.pop(node, None)
        if hearing is not None:
            self.table.spawn(_stop(hearing))
        for flow in [each for subject, each in self._flows.items() if subjects.sender(subject)[0] == node]:
            flow.break_off(Reason.ILL_BEHAVED)

    @contextmanager
    def _take_place(self, node: str) -> Generator[None]:
        share = max(self._most // SHARE, 1)
        if self._under_way.total() >= self._most or self._under_way[node] >= share:
            raise TooMany("requests to nodes", self._most, "--flows")
        self._under_way[node] += 1
        try:
            yield
        finally:
            self._under_way[node] -= 1
            if not self._under_way[node]:
                del self._under_way[node]

    async def call(self, node: str, asked: NodeRequest, body: bytes = b"", *, most: int) -> NodeAnswer:
        """A request and its whole answer, which may take hours. To cancel this cancels it at the node.

        An answer that comes early waits here until the stream has brought what it speaks of, or the node says so.

        Raises NodeUnreachable or TooMany; also for an answer of more than `most` bytes, or several that are too large.
        """
        inline = len(body) <= INLINE
        async with self.open(node, asked, body if inline else b"", more=not inline) as exchange:
            sending = None if inline else asyncio.create_task(_send_whole(exchange, body))
            answer = bytearray()
            try:
                head = await exchange.head()
                early = _read_early(head)
                while (early is None or len(answer) < early.length) and (piece := await exchange.next()) is not None:
                    answer += piece
                    self._answered[node] += len(piece)
                    if len(answer) > most or self._answered[node] > ANSWERS * most:
                        raise NodeUnreachable(node, "answers with too much")
                if early is not None:
                    problem = await self._wait_until_safe(exchange, early.safe_at)
                    if problem is not None:
                        return NodeAnswer(LogUnavailable.status, [], problem, exchange.run)
                return NodeAnswer(head.status, head.headers, bytes(answer), exchange.run)
            finally:
                self._answered[node] -= len(answer)
                if not self._answered[node]:
                    del self._answered[node]
                if sending is not None:
                    await _end(sending)

    async def _wait_until_safe(self, exchange: "NodeExchange", position: int) -> bytes | None:
        """Wait until an early answer may be passed on; returns the problem that keeps it from that."""
        if self._seen is None:
            return await exchange.next()
        seen = self._seen(exchange.node, position)
        seen.add_done_callback(lambda done: None if done.cancelled() else exchange.take_early())
        try:
            return await exchange.next()
        finally:
            seen.cancel()

    async def proxy(self, node: str, scope: Scope, receive: Receive, send: Send, query: bytes | None = None) -> None:
        """Have a node answer a client's request; `query` in place of its own.

        Raises NodeUnreachable or TooMany, before anything was answered.
        """
        asked = NodeRequest(
            scope["method"],
            scope["raw_path"],
            scope["query_string"] if query is None else query,
            [pair for pair in scope["headers"] if pair[0] in _ASKED],
        )
        try:
            first, more = await _read_first(scope, receive)
        except ClientDisconnected:
            return
        inline = len(first) <= INLINE
        async with self.open(node, asked, first if inline else b"", more=more or not inline) as exchange:
            pumping = asyncio.create_task(_pump(receive, exchange, b"" if inline else first, more=more))
            try:
                await _relay(exchange, scope, send)
            except NodeUnreachable:
                if not exchange.cancelled:
                    raise
            finally:
                await _end(pumping)


class NodeExchange:
    """One request at a node, and its answer. Nothing that a node sends is passed on unchecked."""

    def __init__(self, node: str, run: str, flow: Flow) -> None:
        self.node = node
        self.run = run
        """Of the node: every other one leaves the request alone."""
        self.cancelled = False
        """From our side."""
        self._flow = flow
        self._whole = False
        self._first = b""
        """The beginning of the body, which came with the head."""

    def unreachable(self, reason: Reason) -> NodeUnreachable:
        return NodeUnreachable(self.node, _REASONS[reason])

    async def begin(self, opening: Opening) -> None:
        """Raises NodeUnreachable."""
        try:
            await self._flow.put(FlowKind.OPENING, msgspec.msgpack.encode(opening))
        except FlowBroken as error:
            raise self.unreachable(error.reason) from None

    async def send(self, body: bytes, *, last: bool) -> None:
        """More of the body, as fast as the node takes it. Raises FlowBroken; then `next` knows why."""
        pieces = [body[start : start + PIECE] for start in range(0, len(body), PIECE)] or [b""]
        for place, piece in enumerate(pieces, 1):
            ending = last and place == len(pieces)
            if piece or ending:
                await self._flow.put(FlowKind.LAST if ending else FlowKind.BODY, piece)

    def cancel(self) -> None:
        """The answer is not wanted any more."""
        self.cancelled = True
        self._flow.break_off(Reason.ABORTED)

    async def head(self) -> AnswerHead:
        """Status and headers of the answer, when they come. Raises NodeUnreachable."""
        piece = await self._take()
        assert piece is not None
        try:
            head = msgspec.msgpack.decode(piece.body, type=AnswerHead)
        except (msgspec.DecodeError, UnicodeDecodeError):
            head = None
        if piece.kind is not FlowKind.HEAD or head is None or not _is_sound(head):
            raise self._spurn()
        self._first = head.body
        if head.whole:
            self.settle()
        return head

    def settle(self) -> None:
        """There is nothing more to come."""
        self._whole = True
        self._flow.finish()

    def take_early(self) -> None:
        """Take the answer without its end, and tell the node, which need not put it on the stream then."""
        if self._flow.broken is None:
            self._whole = True
            self._flow.break_off(Reason.FINISHED)

    async def next(self) -> bytes | None:
        """More of the answer's body, and with that the word that the last one is dealt with; None at its end.

        Raises NodeUnreachable.
        """
        if self._first:
            first, self._first = self._first, b""
            return first
        if self._whole:
            return None
        piece = await self._take()
        if piece is None:
            return None
        if piece.kind is FlowKind.LAST:
            self.settle()
            return piece.body or None
        if piece.kind is not FlowKind.BODY:
            raise self._spurn()
        return piece.body

    async def _take(self) -> Piece | None:
        """None when it was settled meanwhile."""
        try:
            return await self._flow.take()
        except FlowBroken as error:
            if self._whole:
                return None
            raise self.unreachable(error.reason) from None

    def _spurn(self) -> NodeUnreachable:
        self._flow.break_off(Reason.ILL_BEHAVED)
        return self.unreachable(Reason.ILL_BEHAVED)


def _read_early(head: AnswerHead) -> _Early | None:
    found = {name.lower(): value for name, value in head.headers}
    length, safe_at = found.get(b"content-length", b""), found.get(SAFE_AT, b"")
    if not (_LENGTH.fullmatch(length) and _LENGTH.fullmatch(safe_at)):
        return None
    return _Early(int(length), int(safe_at))


def _is_sound(head: AnswerHead) -> bool:
    size = sum(len(name) + len(value) for name, value in head.headers)
    if not 200 <= head.status < 600 or len(head.headers) > MAX_HEADERS or size > MAX_HEADER_BYTES:
        return False
    return all(_NAME.fullmatch(name) and _VALUE.fullmatch(value) for name, value in head.headers)


async def _read_first(scope: Scope, receive: Receive) -> tuple[bytes, bool]:
    """What goes with the opening, and whether more follows. Of a large body nothing: the node may not want it."""
    length = header(scope, b"content-length")
    if length is None and header(scope, b"transfer-encoding") is None:
        return b"", False
    if length is None or int(length) > INLINE or header(scope, b"expect") is not None:
        return b"", True
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnected
    return message.get("body", b""), message.get("more_body", False)


async def _pump(receive: Receive, exchange: NodeExchange, first: bytes, *, more: bool) -> None:
    """The rest of a client's body, as fast as the node takes it; then notice that the client leaves."""
    with suppress(FlowBroken):
        if first:
            await exchange.send(first, last=not more)
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                exchange.cancel()
                return
            if more:
                more = message.get("more_body", False)
                await exchange.send(message.get("body", b""), last=not more)


async def _send_whole(exchange: NodeExchange, body: bytes) -> None:
    with suppress(FlowBroken):
        await exchange.send(body, last=True)


async def _stop(hearing: "asyncio.Task[StopHearing]") -> None:
    with suppress(BusError):
        stop = await hearing
        await stop()


async def _end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait({task})


async def _relay(exchange: NodeExchange, scope: Scope, send: Send) -> None:
    """The node's answer, as far as it makes sense. Half of one does not look like a whole one."""
    head = await exchange.head()
    answered = {name.lower(): value for name, value in head.headers if name.lower() in _ANSWERED}
    length = answered.get(b"content-length")
    if length is not None and not _LENGTH.fullmatch(length):
        raise exchange.unreachable(Reason.ILL_BEHAVED)
    bodiless = scope["method"] == "HEAD" or head.status in (204, 304)
    left = 0 if bodiless else None if length is None else int(length)
    try:
        async with asyncio.timeout(STALL_TIMEOUT):
            await send(
                {"type": "http.response.start", "status": head.status, "headers": [*answered.items(), *_CONFINED]}
            )
        while (piece := await exchange.next()) is not None:
            if left is not None:
                left -= len(piece)
                if left < 0:
                    raise exchange.unreachable(Reason.ILL_BEHAVED)
            async with asyncio.timeout(STALL_TIMEOUT):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            if is_gone(scope):
                return
        if left:
            raise exchange.unreachable(Reason.ABORTED)
    except (NodeUnreachable, TimeoutError) as error:
        logger.info("answer of a node cut off node=%s reason=%s", exchange.node, error)
        transport(scope).abort()
        return
    await send({"type": "http.response.body", "body": b""})
