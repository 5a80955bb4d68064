"""Send HTTP requests from a gateway into nodes, and check the answers.

A node is not trusted: its answer is checked before a client gets it. The node sees only those parts of a request that
the routes need. The module knows no routes.
"""

import asyncio
import logging
import re
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import msgspec

from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.bus.interface import Bus, BusError, Unsubscribe
from sandboxagent.fleet.bus.tunnel import (
    MAX_PIECE_BYTES,
    BusSender,
    Flow,
    FlowBroken,
    FlowKind,
    FlowTable,
    Piece,
    Reason,
)
from sandboxagent.fleet.messages import SAFE_AT, AnswerHead, Lease, Opening, Waiting
from sandboxagent.protocol import headers
from sandboxagent.protocol.errors import LogUnavailable, NodeUnreachable, TooMany
from sandboxagent.server.http.asgi import Receive, Scope, Send, header, is_gone, transport
from sandboxagent.server.http.body import ClientDisconnected
from sandboxagent.server.http.downloads import STALL_TIMEOUT

logger = logging.getLogger(__name__)

SHARE = 4
"""Divisor of a gateway's flows: one node may use a quarter of them."""
ANSWERS = 4
"""All simultaneous answers of one node may together have this many times the maximum size of one answer."""
MAX_INLINE_BYTES = 32 << 10
"""Maximum number of bytes of a body that are sent together with the opening."""
MAX_HEADERS, MAX_HEADER_BYTES = 200, 64 << 10

_ASKED = {
    *(b"accept", b"accept-encoding", b"user-agent"),
    *(b"content-type", b"content-length", b"content-encoding", b"content-range"),
    *(b"if-match", b"if-none-match", b"if-modified-since", b"if-unmodified-since", b"if-range", b"range"),
    *map(headers.raw, (headers.PREFER, headers.IDEMPOTENCY_KEY, headers.RESUME_AFTER)),
}
"""Headers of a request that a node sees, besides those of capabilities. They exclude tokens, and headers that a proxy
may have added."""
_ANSWERED = {
    *(b"content-type", b"content-length", b"content-encoding", b"content-range", b"content-disposition"),
    *(b"etag", b"last-modified", b"accept-ranges", b"cache-control", b"allow", b"retry-after", b"x-accel-buffering"),
    *map(headers.raw, (headers.PREFERENCE_APPLIED, headers.LAST_EVENT)),
}
"""Headers of an answer that a client sees. They exclude headers that affect the gateway's origin in a browser."""
_CONFINED = [(b"content-security-policy", b"sandbox"), (b"x-content-type-options", b"nosniff")]
"""Headers for every answer. It comes from a sandbox, and gets no rights at the gateway's origin."""
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(rb"[^\x00-\x08\x0a-\x1f\x7f]*")
_LENGTH = re.compile(rb"[0-9]{1,19}")

_REASONS = {
    Reason.ABSENT: "is not connected",
    Reason.SILENT: "does not answer",
    Reason.LOST: "did not get or send every part of this request",
    Reason.ILL_BEHAVED: "sends invalid data",
    Reason.FULL: "has as many requests under way as it takes",
    Reason.STOPPED: "is stopping",
    Reason.ABORTED: "has broken off its answer",
    Reason.CUT_OFF: "cannot be reached, because this gateway has lost NATS",
    Reason.FINISHED: "has answered already",
}


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """A request for a node, without its body."""

    method: str
    target: bytes
    """The path, percent-encoded."""
    query: bytes = b""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list[tuple[bytes, bytes]])


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """A complete answer of a node."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    run: str
    """Nonce of the node's run that answered."""


Seen = Callable[[str, int], "asyncio.Future[None]"]
"""Returns a future that is done when the fleet's stream has delivered a node's events up to one of the node's
positions."""


class Caller(Protocol):
    """Sends requests to nodes."""

    async def call(self, node: str, asked: NodeRequest, body: bytes = b"", *, most: int) -> NodeAnswer:
        """Send a request, and return the answer. Raises NodeUnreachable or TooMany."""
        ...


class _Early(NamedTuple):
    """An answer that came before the events that it refers to are in the stream."""

    length: int
    safe_at: int


class GatewayTunnels:
    """The open requests to nodes, up to a maximum number."""

    def __init__(
        self,
        gateway: str,
        bus: Bus,
        leases: Mapping[str, Lease],
        most: int,
        seen: Seen | None = None,
        further: Iterable[str] = (),
    ) -> None:
        """Create the tunnels. `leases` are the connected nodes, and `further` names headers that nodes see, too."""
        self._passed = _ASKED.union(map(headers.raw, further))
        self.stray: Callable[[str], None] = lambda node: None
        """Called for each message of a node into a flow that does not exist."""
        self._seen = seen
        self._gateway = gateway
        self._bus = bus
        self._leases = leases
        self._most = most
        self.table = FlowTable()
        self._under_way: Counter[str] = Counter()
        self._answered: Counter[str] = Counter()
        """Number of bytes of each node's incomplete answers."""
        self._flows: dict[str, Flow] = {}
        """Flows by the subject on which the node sends."""
        self._heard: dict[str, asyncio.Task[Unsubscribe]] = {}
        """Subscriptions to nodes' flows. Each node has its own, so that no node affects the others."""

    async def run(self) -> None:
        """Detect nodes that are gone. End all flows when the task is cancelled."""
        try:
            await self.table.run()
        finally:
            self.table.break_all(Reason.STOPPED)

    @asynccontextmanager
    async def open(
        self, node: str, asked: NodeRequest, body: bytes = b"", *, more: bool = False
    ) -> AsyncGenerator["NodeExchange"]:
        """Send a request, and yield the exchange. Leaving the block before the end of the answer cancels the request.

        `body` has at most MAX_INLINE_BYTES. With `more`, the rest of it follows. Raises NodeUnreachable or TooMany.
        """
        lease = self._leases.get(node)
        if lease is None:
            raise NodeUnreachable(node, "is not there")
        if lease.set_aside:
            raise NodeUnreachable(node, "is set aside, because it floods")
        with self._take_place(node):
            id = secrets.token_urlsafe(16)
            subject = subjects.flow_to_gateway(node, self._gateway, id)
            way = BusSender(self._bus, subjects.flow_to_node(node, id), subject)
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
        """Subscribe to a node's flows. Raises BusError."""
        # Not a `Shared`: the task is kept after its end, as the subscription.
        hearing = self._heard.get(node)
        if hearing is None:
            self._stop_hearing_lost()
            subject = subjects.flow_to_gateway(node, self._gateway, "*")
            hearing = self._heard[node] = asyncio.create_task(self._bus.subscribe(subject, self._take))
        if hearing.done() and hearing.exception() is None:
            return
        try:
            await asyncio.shield(hearing)
        except BusError:
            if self._heard.get(node) is hearing:
                del self._heard[node]
            raise

    def _stop_hearing_lost(self) -> None:
        """End subscriptions to lost nodes. Called when another node comes, so that there are never many."""
        for node in [each for each in self._heard if each not in self._leases and not self._under_way[each]]:
            self.table.spawn(_stop(self._heard.pop(node)))

    def _take(self, subject: str, message: bytes) -> None:
        flow = self._flows.get(subject)
        if flow is not None:
            flow.accept(message)
        else:
            self.stray(subjects.sender(subject)[0])

    def silence(self, node: str) -> None:
        """End the subscription to a node until it is needed again, and all flows with it."""
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
        """Send a request, and return its complete answer, which may take hours. Cancelling this cancels it at the node.

        An early answer waits here until the stream has the events that it refers to, or until the node says so.

        Raises:
            NodeUnreachable: the node does not answer, or sends an answer of more than `most` bytes, or too much in
                total.
            TooMany: there are too many requests.
        """
        inline = len(body) <= MAX_INLINE_BYTES
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
        """Wait until an early answer may be passed on. Return the problem that prevents it, or None."""
        if self._seen is None:
            return await exchange.next()
        seen = self._seen(exchange.node, position)
        seen.add_done_callback(lambda done: None if done.cancelled() else exchange.take_early())
        try:
            return await exchange.next()
        finally:
            seen.cancel()

    async def proxy(self, node: str, scope: Scope, receive: Receive, send: Send, query: bytes | None = None) -> None:
        """Let a node answer a client's request. `query` replaces the request's own query.

        Raises NodeUnreachable or TooMany, before anything was sent to the client.
        """
        asked = NodeRequest(
            scope["method"],
            scope["raw_path"],
            scope["query_string"] if query is None else query,
            [pair for pair in scope["headers"] if pair[0] in self._passed],
        )
        try:
            first, more = await _read_first(scope, receive)
        except ClientDisconnected:
            return
        inline = len(first) <= MAX_INLINE_BYTES
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
    """A request at a node, with its answer. All data from the node is checked before it is passed on."""

    def __init__(self, node: str, run: str, flow: Flow) -> None:
        self.node = node
        self.run = run
        """Nonce of the node's run. Other runs ignore the request."""
        self.cancelled = False
        """Whether this side has cancelled the request."""
        self._flow = flow
        self._whole = False
        self._first = b""
        """The beginning of the body, which came with the head."""

    def unreachable(self, reason: Reason) -> NodeUnreachable:
        return NodeUnreachable(self.node, _REASONS[reason])

    async def begin(self, opening: Opening) -> None:
        """Send the opening. Raises NodeUnreachable."""
        try:
            await self._flow.put(FlowKind.OPENING, msgspec.msgpack.encode(opening))
        except FlowBroken as error:
            raise self.unreachable(error.reason) from None

    async def send(self, body: bytes, *, last: bool) -> None:
        """Send more of the body, as fast as the node takes it. Raises FlowBroken, for which `next` knows the reason."""
        pieces = [body[start : start + MAX_PIECE_BYTES] for start in range(0, len(body), MAX_PIECE_BYTES)] or [b""]
        for place, piece in enumerate(pieces, 1):
            ending = last and place == len(pieces)
            if piece or ending:
                await self._flow.put(FlowKind.LAST if ending else FlowKind.BODY, piece)

    def cancel(self) -> None:
        """Cancel the request, because the answer is not needed any more."""
        self.cancelled = True
        self._flow.break_off(Reason.ABORTED)

    async def head(self) -> AnswerHead:
        """Wait for status and headers of the answer. Raises NodeUnreachable."""
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
        """Note that the answer is complete."""
        self._whole = True
        self._flow.finish()

    def take_early(self) -> None:
        """Take the answer without its end, and tell the node, which then need not put it on the stream."""
        if self._flow.broken is None:
            self._whole = True
            self._flow.break_off(Reason.FINISHED)

    async def next(self) -> bytes | None:
        """Return more of the answer's body; None at its end. This confirms the previous part to the node.

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
        """Return the next piece; None if the answer was settled meanwhile."""
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
    """Return the part of the body that goes with the opening, and whether more follows.

    Nothing of a large body goes with it, because the node may not want the body.
    """
    length = header(scope, b"content-length")
    if length is None and header(scope, b"transfer-encoding") is None:
        return b"", False
    if length is None or int(length) > MAX_INLINE_BYTES or header(scope, b"expect") is not None:
        return b"", True
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnected
    return message.get("body", b""), message.get("more_body", False)


async def _pump(receive: Receive, exchange: NodeExchange, first: bytes, *, more: bool) -> None:
    """Send the rest of a client's body, as fast as the node takes it. Then wait until the client leaves, and cancel."""
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


async def _stop(hearing: "asyncio.Task[Unsubscribe]") -> None:
    with suppress(BusError):
        stop = await hearing
        await stop()


async def _end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait({task})


async def _relay(exchange: NodeExchange, scope: Scope, send: Send) -> None:
    """Send the node's valid answer to the client. A partial answer must not look like a complete one."""
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
