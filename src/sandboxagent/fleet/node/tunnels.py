"""Answer requests that came to a gateway with this node's own app.

The gateway has checked token, Host and Origin. Only gateways may publish to a node, so the bus guarantees that the
request is from a gateway. From then on, it is handled like a request on a socket.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TypeVar
from urllib.parse import unquote

import msgspec

from sandboxagent.core.tasks import Tasks
from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.bus.interface import Bus
from sandboxagent.fleet.bus.tunnel import (
    MAX_PIECE_BYTES,
    BusSender,
    Flow,
    FlowBroken,
    FlowKind,
    FlowTable,
    Reason,
    read_opening,
    read_sign,
)
from sandboxagent.fleet.messages import AnswerHead, Opening, Waiting
from sandboxagent.protocol.headers import IDEMPOTENCY_KEY, raw
from sandboxagent.server.http.asgi import App, Message, Scope, header
from sandboxagent.server.http.posts import GatewayPost, PostHead, read_head

logger = logging.getLogger(__name__)

MAX_JOINED_BYTES = 32 << 10
"""Maximum number of bytes of an answer's body that are sent together with its head."""
_KEY = raw(IDEMPOTENCY_KEY)
T = TypeVar("T", Opening, Waiting)
_ASGI: Mapping[str, str] = {"version": "3.0", "spec_version": "2.3"}


class NodeTunnels:
    """The open requests through gateways, up to a maximum number."""

    def __init__(
        self, node: str, app: App, most: int, read_post: Callable[[Scope], PostHead | None] | None = None
    ) -> None:
        """Create the tunnels of a node.

        `read_post` parses the head of a POST that carries an envelope. The app answers all requests for which it
        returns None.
        """
        self._node = node
        self._app = app
        self._read_post = read_post
        self.table = FlowTable()
        self._flows: dict[str, Flow] = {}
        """Flows by the subject on which the gateway sends."""
        self._answering = Tasks(most)
        self._nonce = ""

    async def start(self, bus: Bus, nonce: str) -> None:
        """Subscribe to messages of gateways that mean the node with this nonce."""
        self._nonce = nonce

        def take(subject: str, message: bytes) -> None:
            flow = self._flows.get(subject)
            if flow is None:
                self._open(bus, subject, message)
            else:
                flow.accept(message)

        await bus.subscribe(subjects.flow_to_node(self._node, "*"), take)

    async def run(self) -> None:
        """Detect gateways that are gone. End all flows when the task is cancelled."""
        try:
            await self.table.run()
        finally:
            self.table.break_all(Reason.STOPPED)

    @property
    def busy(self) -> bool:
        return bool(self._answering)

    def _open(self, bus: Bus, subject: str, message: bytes) -> None:
        opening = _read(read_opening(message), Opening)
        said = opening or _read(read_sign(message), Waiting)
        # The message belongs to a flow that has ended, or to another node of this name.
        if said is None or said.nonce != self._nonce or not subjects.is_name(said.gateway):
            return
        way = BusSender(bus, subjects.flow_to_gateway(self._node, said.gateway, subject.rpartition(".")[2]))
        flow = self.table.open(way, ends_with_them=False)
        if opening is None:
            # The opening, or the end of the answer, was lost together with a connection to the bus.
            flow.break_off(Reason.LOST)
            return
        flow.accept(message)
        if self._answering.is_full:
            logger.warning("request through a gateway refused reason=too many gateway=%s", opening.gateway)
            flow.break_off(Reason.FULL)
            return
        self._flows[subject] = flow
        self._answering.run(self._answer(subject, flow, opening), "answer through a gateway")

    async def _answer(self, subject: str, flow: Flow, opening: Opening) -> None:
        exchange = _Exchange(flow, opening)
        try:
            await flow.take()
            scope = exchange.scope()
            head = None if self._read_post is None else self._read_post(scope)
            if head is None:
                await self._app(scope, exchange.receive, exchange.send)
            else:
                await exchange.post(head, header(scope, _KEY))
        except Exception:
            logger.exception("request through a gateway failed path=%r", opening.target)
        finally:
            # This has no effect on a flow that came to its regular end.
            flow.break_off(Reason.ABORTED)
            self._flows.pop(subject, None)


def _read(body: bytes | None, kind: type[T]) -> T | None:
    """Decode a message. Return None if there is none, or if it is invalid."""
    if body is None:
        return None
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


class _Exchange:
    """A request with its answer, in the form of ASGI or as a POST that carries an envelope."""

    def __init__(self, flow: Flow, opening: Opening) -> None:
        self._flow = flow
        self._opening = opening
        self._body: bytes | None = opening.body
        """Body of the opening, until it is taken."""
        self._head: AnswerHead | None = None
        """Head of the answer, while it waits for the beginning of the body."""

    def scope(self) -> Scope:
        opening = self._opening
        path = opening.target.decode("ascii", "replace")
        return {
            "type": "http",
            "asgi": dict(_ASGI),
            "http_version": "1.1",
            "server": None,
            "client": None,
            "scheme": "http",
            "method": opening.method,
            "root_path": "",
            "path": unquote(path) if "%" in path else path,
            "raw_path": opening.target,
            "query_string": opening.query,
            "headers": opening.headers,
            "state": {},
            "extensions": {"sandboxagent.transport": FlowTransport(self._flow)},
        }

    async def post(self, head: PostHead, key: bytes | None) -> None:
        """Handle a POST of an envelope, and send the answer."""
        answer = _PostAnswer(self._flow)
        post = GatewayPost(answer, head, key, flow=answer)
        post.begin(None)
        while post.more_body and not post.response_complete:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                return
            post.take_body(message["body"])
            if not message["more_body"]:
                post.end_body()
        while (message := await answer.next()) is not None:
            await self.send(message)

    async def receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": self._opening.more}
        try:
            piece = await self._flow.take()
        except FlowBroken:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": piece.body, "more_body": piece.kind is not FlowKind.LAST}

    async def send(self, message: Message) -> None:
        """Send a part of the answer. Parts for a client that has left are dropped, like at a server."""
        if self._flow.broken is not None:
            return
        try:
            if message["type"] == "http.response.start":
                head = AnswerHead(message["status"], [(name, value) for name, value in message.get("headers", ())])
                # A body of known length follows at once. Without a length, nothing may follow the head for hours.
                if self._opening.joins and any(name == b"content-length" for name, _ in head.headers):
                    self._head = head
                else:
                    await self._send_head(head)
            else:
                await self._send_body(message.get("body", b""), more=message.get("more_body", False))
        except FlowBroken:
            return

    async def _send_head(self, head: AnswerHead) -> None:
        await self._flow.put(FlowKind.HEAD, msgspec.msgpack.encode(head))

    async def _send_body(self, body: bytes, *, more: bool) -> None:
        head, self._head = self._head, None
        if head is not None and len(body) <= MAX_JOINED_BYTES:
            head.body, head.whole = bytes(body), not more
            await self._send_head(head)
            if head.whole:
                self._flow.finish()
            return
        if head is not None:
            await self._send_head(head)
        pieces = [bytes(body[start : start + MAX_PIECE_BYTES]) for start in range(0, len(body), MAX_PIECE_BYTES)]
        last = None if more else (pieces.pop() if pieces else b"")
        for piece in pieces:
            await self._flow.put(FlowKind.BODY, piece)
        if last is not None:
            await self._flow.put(FlowKind.LAST, last)
            self._flow.finish()


class _PostAnswer:
    """Passes the answer to a POST from callbacks, which cannot wait, to a flow, which may have to wait."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue()

    async def next(self) -> Message | None:
        """Return the next part of the answer; None after the last one."""
        return await self._messages.get()

    def is_gone(self) -> bool:
        return is_gone(self._flow)

    def reply(self, head: bytes, body: bytes, *, keep_alive: bool) -> bool:
        self._put_head(head)
        self.end(body)
        return not self.is_gone()

    def begin(self, head: bytes, body: bytes) -> None:
        self._put_head(head)
        self._messages.put_nowait({"type": "http.response.body", "body": body, "more_body": True})

    def end(self, rest: bytes) -> None:
        self._messages.put_nowait({"type": "http.response.body", "body": rest})
        self._messages.put_nowait(None)

    def _put_head(self, head: bytes) -> None:
        status, headers = read_head(head)
        self._messages.put_nowait({"type": "http.response.start", "status": status, "headers": headers})


def is_gone(flow: Flow) -> bool:
    """Return whether the gateway does not need the answer any more. After a flow's regular end, this is False."""
    return flow.broken not in (None, Reason.FINISHED)


class FlowTransport(asyncio.Transport):
    """Takes the place of the socket for a request that came through a flow."""

    def __init__(self, flow: Flow) -> None:
        super().__init__()
        self._flow = flow

    def mark_authenticated(self) -> None:
        """Do nothing, because the gateway keeps the counts of authenticated sockets."""

    def is_closing(self) -> bool:
        return is_gone(self._flow)

    def get_write_buffer_size(self) -> int:
        return self._flow.unfinished * MAX_PIECE_BYTES

    def abort(self) -> None:
        self._flow.break_off(Reason.ABORTED)
