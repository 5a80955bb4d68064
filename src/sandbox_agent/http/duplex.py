"""One WebSocket for everything: a client's envelopes in, its connection's events out, in the order they were sent."""

import asyncio
import logging
import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import msgspec

from sandbox_agent.envelope import REQUEST, Envelope, failure, parse
from sandbox_agent.errors import InvalidRequest, LogUnavailable, NotAnEnvelope, SandboxAgentError, Unparsable
from sandbox_agent.http.asgi import Scope, header, transport
from sandbox_agent.http.clients import Clients, Intake
from sandbox_agent.http.delivery import Delivery
from sandbox_agent.http.encoding import TextFrames
from sandbox_agent.http.stream import TAKEN_OVER, Stream, Streams
from sandbox_agent.hub.connections import Connection
from sandbox_agent.hub.idempotency import MAX_KEY
from sandbox_agent.wire import methods
from sandbox_agent.wire.headers import WITH_IDS

if TYPE_CHECKING:
    from sandbox_agent.http.websocket import WebSocket

logger = logging.getLogger(__name__)

NORMAL, GOING_AWAY, PROTOCOL_ERROR, INTERNAL_ERROR, TRY_AGAIN_LATER = 1000, 1001, 1002, 1011, 1013
_BEGINS_JSON = re.compile(rb"\s*[\[{]")
CLOSED_FOR_ANOTHER = 4001
"""Close code of a socket whose connection has opened another stream: its client need not come back."""
REFUSED = 4000
"""Plus the HTTP status of a refusal: its close code."""


class Duplex:
    """The transport of `/acp` and `/v1/rpc` when a client asks for a WebSocket."""

    def __init__(self, clients: Clients, intake: Intake, streams: Streams, delivery: Delivery, max_size: int) -> None:
        self._clients = clients
        self._intake = intake
        self._streams = streams
        self._delivery = delivery
        self._max_size = max_size

    async def __call__(
        self,
        scope: Scope,
        connection: Connection | None,
        after: int,
        headers: list[tuple[str, str]],
        id_header: str,
        agent: str | None = None,
    ) -> None:
        """Serve a socket to its end; without a connection, its first message opens one."""
        websocket: WebSocket = scope["extensions"]["sandbox_agent.websocket"](self._max_size)
        connection_id = self._clients.make_id() if connection is None else connection.connection_id
        websocket.accept(scope, [(id_header, connection_id), *headers])
        try:
            if connection is None:
                connection = await self._open(websocket, connection_id, agent)
            if connection is not None:
                websocket.greeted = True
                await self._serve(scope, websocket, connection, after)
        except Exception:
            websocket.close(INTERNAL_ERROR, "the server failed")
            raise

    def refuse(self, scope: Scope, error: SandboxAgentError) -> None:
        """Open the socket, and close it at once with the reason. Raises BadRequest for what is no handshake."""
        websocket: WebSocket = scope["extensions"]["sandbox_agent.websocket"](self._max_size)
        websocket.accept(scope, [])
        websocket.close(REFUSED + error.status, error.slug)

    async def _open(self, websocket: "WebSocket", connection_id: str, agent: str | None) -> Connection | None:
        """Wait for `initialize`; one that fails may be tried again. None when the socket is closed before."""
        while (message := await websocket.receive()) is not None:
            envelope = _initialize(message)
            if envelope is None or envelope.id is None:
                websocket.close(PROTOCOL_ERROR, "the first message must be initialize")
                return None
            websocket.greeted = True
            try:
                connection, answer = await self._intake.open(envelope, agent, connection_id)
            except SandboxAgentError as error:
                await websocket.send_text(_numbered(websocket, 0, failure(envelope.id, error)))
                websocket.greeted = False
                continue
            await websocket.send_text(_numbered(websocket, connection.opened_at, answer.line))
            return connection
        return None

    async def _serve(self, scope: Scope, websocket: "WebSocket", connection: Connection, after: int) -> None:
        encoding = TextFrames(websocket.expect_pong, numbered=websocket.numbered)
        stream = self._streams.open(connection, after, transport(scope), encoding)
        writing = asyncio.create_task(self._write(websocket, connection, stream))
        try:
            while (message := await websocket.receive()) is not None:
                connection.used_at = self._clients.monotonic()
                await self._take(websocket, connection, message)
        finally:
            stream.close("its socket was closed")
            await writing
            if websocket.left:
                await self._clients.close(connection, "the client closed the connection")

    async def _write(self, websocket: "WebSocket", connection: Connection, stream: Stream) -> None:
        reason, code = "the log cannot be read", TRY_AGAIN_LATER
        try:
            while not websocket.over and (data := await stream.next()) is not None:
                await websocket.send(data)
        except LogUnavailable as error:
            logger.warning("stream ended connection=%s reason=%s", connection.tag, error)
        else:
            reason, code = stream.reason or "", self._code(connection, stream)
        finally:
            self._streams.forget(connection, stream)
            connection.used_at = self._clients.monotonic()
        websocket.close(code, reason)

    def _code(self, connection: Connection, stream: Stream) -> int:
        if self._clients.stopping:
            return GOING_AWAY
        return CLOSED_FOR_ANOTHER if stream.reason == TAKEN_OVER and not connection.closed else NORMAL

    async def _take(self, websocket: "WebSocket", connection: Connection, message: bytes) -> None:
        try:
            key, message = _split_key(message) if websocket.numbered else (None, message)
            envelope = parse(message)
        except (NotAnEnvelope, InvalidRequest) as error:
            self._delivery.complain(connection, _complaint(message, error))
            return
        if envelope.kind is not REQUEST:
            if key is not None:
                await self._delivery.acknowledge(connection, envelope, key)
                return
            try:
                await self._delivery.take(connection, envelope)
            except SandboxAgentError as error:
                self._delivery.complain(connection, error)
            return
        try:
            await self._delivery.begin(connection, envelope, key)
        except SandboxAgentError as error:
            assert envelope.id is not None
            self._clients.tell(connection, failure(envelope.id, error))


def query(scope: Scope) -> dict[str, str]:
    """The query of a request for a WebSocket; of a name that is there twice, the last."""
    found = parse_qs(scope["query_string"].decode("latin-1"))
    return {name: values[-1] for name, values in found.items()}


def offers_ids(scope: Scope) -> bool:
    """Whether a client offers the subprotocol of our own clients."""
    offered = header(scope, b"sec-websocket-protocol") or b""
    return WITH_IDS.encode() in (name.strip() for name in offered.split(b","))


def _initialize(message: bytes) -> Envelope | None:
    try:
        envelope = parse(message)
    except NotAnEnvelope:
        return None
    is_request = envelope.kind is REQUEST and envelope.method == methods.INITIALIZE
    return envelope if is_request else None


def _numbered(websocket: "WebSocket", position: int, line: bytes) -> bytes:
    return b"%d\n%b" % (position, line) if websocket.numbered else line


def _split_key(message: bytes) -> tuple[str | None, bytes]:
    """The key in the first line, if there is one, and the envelope."""
    if _BEGINS_JSON.match(message):
        return None, message
    key, _, rest = message.partition(b"\n")
    if not 0 < len(key) <= MAX_KEY or not rest:
        raise InvalidRequest(f"a frame is an envelope, or a key of 1 to {MAX_KEY} characters, a line break and one")
    return key.decode("latin-1"), rest


def _complaint(message: bytes, error: SandboxAgentError) -> SandboxAgentError:
    """A message that is no envelope, as JSON-RPC tells such failures apart."""
    try:
        msgspec.json.decode(message)
    except (msgspec.DecodeError, RecursionError):
        if not isinstance(error, InvalidRequest):
            return Unparsable(str(error))
    return InvalidRequest(str(error))
