"""Carry a connection's envelopes over a WebSocket, in both directions.

One socket carries everything: a client's envelopes in, and its connection's events out, in the order they were sent.
"""

import asyncio
import logging
import re
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw

from sandboxagent.core.threads import Pool
from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import LARGE_BYTES, REQUEST, Envelope, failure, parse, parse_envelope, parse_large
from sandboxagent.protocol.errors import (
    InvalidRequest,
    LogUnavailable,
    NotAnEnvelope,
    SandboxAgentError,
    Unparsable,
)
from sandboxagent.protocol.headers import WITH_IDS
from sandboxagent.server.http.asgi import Scope, header, transport
from sandboxagent.server.http.deliver import Delivery
from sandboxagent.server.http.encoding import TextFrames
from sandboxagent.server.http.ports import Clients, RequestHandler
from sandboxagent.server.http.stream import REPLACED, Stream, Streams
from sandboxagent.server.sessions.connection import Connection
from sandboxagent.server.sessions.idempotency import MAX_KEY
from sandboxagent.server.sessions.reply import as_answerable

if TYPE_CHECKING:
    from sandboxagent.server.http.websocket import WebSocket

logger = logging.getLogger(__name__)

NORMAL, GOING_AWAY, PROTOCOL_ERROR, INTERNAL_ERROR, TRY_AGAIN_LATER = 1000, 1001, 1002, 1011, 1013
POLICY_VIOLATION = 1008
MAX_INVALID = 100
"""Maximum number of consecutive messages that are no envelopes. Each is answered with an error; the next one closes the
socket."""
IN_ONE_TURN = 16
"""Number of messages taken in a row before other tasks run, and the disk may catch up."""
DISK_INTERVAL = 0.5
"""Seconds to wait after so many messages while the log cannot be written."""
_BEGINS_JSON = re.compile(rb"\s*[\[{]")
CLOSED_FOR_ANOTHER = 4001
"""Close code of a socket whose connection has opened another stream. Its client need not reconnect."""
REFUSED = 4000
"""Base of the close code of a refusal. The HTTP status is added to it."""


class WebSocketTransport:
    """The transport of `/acp` and `/v1/rpc` when a client asks for a WebSocket."""

    def __init__(
        self,
        clients: Clients,
        intake: RequestHandler,
        streams: Streams,
        delivery: Delivery,
        lines: Pool,
        max_size: int,
    ) -> None:
        """Create the transport. A thread of `lines` parses large messages."""
        self._lines = lines
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
        """Serve a WebSocket until it ends. Without a connection, its first message opens one."""
        websocket: WebSocket = scope["extensions"]["sandboxagent.websocket"](self._max_size)
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
        """Open the WebSocket, and close it at once with the reason. Raises BadRequest for an invalid handshake."""
        websocket: WebSocket = scope["extensions"]["sandboxagent.websocket"](self._max_size)
        websocket.accept(scope, [])
        websocket.close(REFUSED + error.status, error.slug)

    async def _open(self, websocket: "WebSocket", connection_id: str, agent: str | None) -> Connection | None:
        """Wait until an `initialize` opens a connection; a failed one may be repeated.

        Return None if the socket closes before.
        """
        while (message := await websocket.receive()) is not None:
            envelope = await self._read_first(message)
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
            await self._take_all(websocket, connection)
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
        return CLOSED_FOR_ANOTHER if stream.reason == REPLACED and not connection.closed else NORMAL

    async def _take_all(self, websocket: "WebSocket", connection: Connection) -> None:
        taken = nonsense = 0
        while (message := await websocket.receive()) is not None:
            connection.used_at = self._clients.monotonic()
            makes_sense = await self._take(websocket, connection, message)
            nonsense = 0 if makes_sense else nonsense + 1
            if nonsense > MAX_INVALID:
                websocket.cut_off(
                    POLICY_VIOLATION, f"more than {MAX_INVALID} messages one after another were no envelopes"
                )
                return
            taken += 1
            if taken % IN_ONE_TURN == 0:
                await self._let_others()

    async def _let_others(self) -> None:
        """Let other tasks run and the disk catch up: a client may send faster than the server works."""
        await asyncio.sleep(0)
        try:
            await self._clients.committed(self._clients.position)
        except LogUnavailable:
            await asyncio.sleep(DISK_INTERVAL)

    async def _read_first(self, message: bytes) -> Envelope | None:
        """Return the envelope of an `initialize`; None for any other message."""
        try:
            envelope = parse(message) if len(message) <= LARGE_BYTES else await self._lines.run(parse_large, message)
        except NotAnEnvelope:
            return None
        is_request = envelope.kind is REQUEST and envelope.method == methods.INITIALIZE
        return envelope if is_request else None

    async def _take(self, websocket: "WebSocket", connection: Connection, message: bytes) -> bool:
        """Take a message, and report its failure on the stream. Return whether it was an envelope."""
        numbered = websocket.numbered
        try:
            if len(message) <= LARGE_BYTES:
                key, envelope = _read(message, numbered=numbered)
            else:
                key, envelope = await self._lines.run(_read, message, numbered=numbered)
        except SandboxAgentError as error:
            self._delivery.complain(connection, error)
            return False
        try:
            if envelope.kind is REQUEST:
                await self._delivery.deliver(connection, envelope, key).accepted()
            elif key is not None:
                await self._delivery.acknowledge(connection, envelope, key)
            else:
                await self._delivery.take(connection, envelope).accepted()
        except Exception as error:
            answerable = as_answerable(error, envelope.method)
            if envelope.kind is REQUEST:
                assert envelope.id is not None
                self._clients.tell(connection, failure(envelope.id, answerable))
            else:
                self._delivery.complain(connection, answerable)
        return True


def offers_ids(scope: Scope) -> bool:
    """Whether a client offers the subprotocol of sandbox-agent's own clients, which has ids."""
    offered = header(scope, b"sec-websocket-protocol") or b""
    return WITH_IDS.encode() in (name.strip() for name in offered.split(b","))


def _numbered(websocket: "WebSocket", position: int, line: bytes) -> bytes:
    return b"%d\n%b" % (position, line) if websocket.numbered else line


def _read(message: bytes, *, numbered: bool) -> tuple[str | None, Envelope]:
    """Return the key of a message, if it has one, and its envelope. Raises the error for its client."""
    try:
        key, message = _split_key(message) if numbered else (None, message)
        return key, parse_envelope(message)
    except (NotAnEnvelope, InvalidRequest) as error:
        raise _complaint(message, error) from None


def _split_key(message: bytes) -> tuple[str | None, bytes]:
    """Return the key in the first line, if there is one, and the envelope."""
    if _BEGINS_JSON.match(message):
        return None, message
    key, _, rest = message.partition(b"\n")
    if not 0 < len(key) <= MAX_KEY or not rest:
        raise InvalidRequest(
            f"a frame is an envelope, or a key of 1 to {MAX_KEY} characters, a line break and an envelope"
        )
    return key.decode("latin-1"), rest


def _complaint(message: bytes, error: SandboxAgentError) -> SandboxAgentError:
    """Return the error for a message that is no envelope: invalid JSON, or an invalid request, as JSON-RPC has it."""
    try:
        msgspec.json.decode(message, type=Raw)
    except (msgspec.DecodeError, RecursionError):
        if not isinstance(error, InvalidRequest):
            return Unparsable(str(error))
    return InvalidRequest(str(error))
