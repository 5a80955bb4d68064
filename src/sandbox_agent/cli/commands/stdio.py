"""A server's sessions on stdio: lines of stdin go to the server's WebSocket, and its events to stdout.

When the socket is cut, it is opened again and continues after the last event; when the server was restarted, the log
has what is missing. `Ledger`, which is pure, knows what an editor and the server have sent each other, what has to be
sent again after a cut, and what a connection means to the editor that is not the first.
"""

import itertools
import re
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec import Raw

from sandbox_agent.cli.commands.rpc import read_lines
from sandbox_agent.cli.output import complain
from sandbox_agent.client.api import goes_direct
from sandbox_agent.client.errors import ClientError
from sandbox_agent.client.websocket import connect_socket
from sandbox_agent.core.discovery import ServerAddress
from sandbox_agent.envelope import (
    Envelope,
    Kind,
    Object,
    failure,
    notification,
    object_at,
    objects_at,
    one_line,
    param,
    parse,
    parse_answer,
    request,
    text_at,
    with_id,
    with_param,
    with_result,
)
from sandbox_agent.protocol.errors import LogUnavailable, NodeUnreachable, NotAnEnvelope, OutcomeUnknown, ShuttingDown
from sandbox_agent.wire import headers, methods

if TYPE_CHECKING:
    import asyncio

    from websockets.asyncio.client import ClientConnection

_OPENING = (methods.NEW, methods.LOAD, methods.RESUME, methods.FORK)
"""Requests that attach a client to a session."""
_STILL_OPEN = (LogUnavailable.slug, NodeUnreachable.slug)
"""Refusals of an answer after which the agent still waits for it."""
_REPEATABLE = (methods.INITIALIZE, methods.LIST)
"""Requests that name no session, and may be made any number of times."""


class UnansweredRequest(NamedTuple):
    """A request of the editor's that is not answered."""

    method: str
    session_id: str | None
    frame: bytes


@dataclass(slots=True)
class Notice:
    """A notification or an answer of the editor's that the server has not acknowledged."""

    frame: bytes
    answers: bytes | None = None
    """The id of the request of the agent's, as this connection knows it."""
    refusals: int = 0
    """How often the server could not take it, and may take it later."""


@dataclass(slots=True)
class Ledger:
    """Lines of an editor become frames for the server, and frames of the server become lines."""

    session: str | None = None
    """The session that the editor gets instead of a new one."""
    last: int = 0
    """The id of the last event."""
    introduction: bytes | None = None
    """The editor's `initialize`."""
    sessions: dict[str, None] = field(default_factory=dict[str, None])
    """Those that the editor is attached to."""
    _generation: int = 0
    """How many connections there have been before this one."""
    _requests: dict[bytes, UnansweredRequest] = field(default_factory=dict[bytes, UnansweredRequest])
    _notices: dict[bytes, Notice] = field(default_factory=dict[bytes, Notice])
    """By their keys."""
    _refused: list[bytes] = field(default_factory=list[bytes])
    """Keys of answers that the server could not take, and may take later."""
    _questions: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    """Open requests of the agent: their ids as the editor knows them, and as this connection does."""
    _opened: set[bytes] = field(default_factory=set[bytes])
    """Requests for a new session that became requests for this one."""

    def outgoing(self, line: bytes, key: str) -> bytes | None:
        """The frame of a line; None for an answer that no connection waits for any more."""
        try:
            envelope = parse(line)
        except NotAnEnvelope:
            # The server says what is wrong with it.
            return line
        match envelope.kind:
            case Kind.REQUEST:
                return self._ask(envelope, key)
            case Kind.RESPONSE:
                return self._answer(envelope, key)
            case Kind.NOTIFICATION:
                return self._keep(envelope.line, key)

    def _ask(self, envelope: Envelope, key: str) -> bytes:
        assert envelope.id is not None
        line, session_id = envelope.line, envelope.session_id
        if envelope.method == methods.NEW and self.session is not None:
            self._opened.add(envelope.id)
            session_id = self.session
            line = request(envelope.id, methods.RESUME, {"sessionId": session_id})
        frame = b"%b\n%b" % (key.encode(), line)
        if envelope.method == methods.INITIALIZE:
            # It opens the connection, so there is nothing yet that a key could belong to.
            self.introduction = frame = line
        self._requests[envelope.id] = UnansweredRequest(envelope.method, session_id, frame)
        return frame

    def _answer(self, envelope: Envelope, key: str) -> bytes | None:
        assert envelope.id is not None
        id = self._questions.pop(envelope.id, None)
        if id is None and self._generation:
            return None
        return self._keep(envelope.line if id is None else with_id(envelope.line, id), key, id or envelope.id)

    def _keep(self, line: bytes, key: str, answers: bytes | None = None) -> bytes:
        frame = b"%b\n%b" % (key.encode(), line)
        self._notices[b'"%b"' % key.encode()] = Notice(frame, answers)
        return frame

    def incoming(self, frame: bytes) -> bytes | None:
        """The line of a frame; None for what is not for the editor, or what it has got already."""
        number, _, line = frame.partition(b"\n")
        if number.isdigit():
            self.last = max(self.last, int(number))
        try:
            envelope = parse_answer(line)
        except NotAnEnvelope:
            # A sign of life, or a complaint that belongs to no request.
            return None
        match envelope.kind:
            case Kind.REQUEST:
                return self._question(envelope)
            case Kind.RESPONSE:
                return self._answered(envelope)
            case Kind.NOTIFICATION:
                return self._renamed(envelope)

    def _question(self, envelope: Envelope) -> bytes:
        assert envelope.id is not None
        shown = self._name(envelope.id)
        self._questions[shown] = envelope.id
        return envelope.line if shown == envelope.id else with_id(envelope.line, shown)

    def _answered(self, envelope: Envelope) -> bytes | None:
        if envelope.id is None:
            return None
        if envelope.id in self._notices:
            notice = self._notices[envelope.id]
            if notice.answers is not None and text_at(envelope.error(), "data", "type") in _STILL_OPEN:
                notice.refusals += 1
                self._refused.append(envelope.id)
            else:
                del self._notices[envelope.id]
            return None
        if text_at(envelope.error(), "data", "type") == ShuttingDown.slug:
            # A server that stops says so to all; the outcome is known when it is back.
            return None
        asked = self._requests.pop(envelope.id, None)
        if asked is None:
            return None
        if not envelope.succeeded:
            return envelope.line
        found = text_at(envelope.result(), "sessionId") or asked.session_id
        if found is not None and asked.method in _OPENING:
            self.sessions[found] = None
        elif asked.method == methods.CLOSE and asked.session_id is not None:
            self.sessions.pop(asked.session_id, None)
        if envelope.id in self._opened:
            self._opened.discard(envelope.id)
            return with_result(envelope.line, "sessionId", self.session)
        return envelope.line

    def _renamed(self, envelope: Envelope) -> bytes:
        """A notification; one that withdraws a request names it as the editor knows it."""
        id = param(envelope.line, "requestId") if envelope.method == methods.CANCEL_REQUEST else None
        if id is None:
            return envelope.line
        shown = self._name(id)
        self._questions.pop(shown, None)
        # An answer that the server could not take is of no use any more.
        self._notices = {key: notice for key, notice in self._notices.items() if notice.answers != id}
        return envelope.line if shown == id else with_param(envelope.line, "requestId", Raw(shown))

    def _name(self, id: bytes) -> bytes:
        """What the editor knows an agent's request by: a new connection asks once more what an older one has asked."""
        return id if not self._generation else b'"%d/%b"' % (self._generation, id.replace(b'"', b"'"))

    def take_refused(self) -> dict[bytes, int]:
        """Those that were refused since, by their keys, and how often each was by now."""
        refused, self._refused = self._refused, []
        return {key: self._notices[key].refusals for key in refused if key in self._notices}

    def find_unacknowledged(self, key: bytes) -> bytes | None:
        """The frame of a notification or an answer; None for one that needs not be sent again."""
        notice = self._notices.get(key)
        return None if notice is None else notice.frame

    def again(self) -> list[bytes]:
        """Frames to send once more after a cut: those that had arrived change nothing."""
        return [each.frame for each in (*self._notices.values(), *self._requests.values())]

    def renew(self) -> list[bytes]:
        """The server has forgotten the connection, and there is another. Gives the lines that tell the editor so.

        What the agent has asked is withdrawn: what is still open is asked again. A request fails if its outcome is
        unknown, unless its session knows.
        """
        lines = [notification(methods.CANCEL_REQUEST, {"requestId": Raw(id)}) for id in self._questions]
        for id, asked in list(self._requests.items()):
            if asked.session_id is None and asked.method not in _REPEATABLE:
                del self._requests[id]
                lines.append(failure(id, OutcomeUnknown()))
        self._questions.clear()
        self._notices = {key: notice for key, notice in self._notices.items() if notice.answers is None}
        self._generation += 1
        self.last = 0
        return lines


PAUSES = (0.1, 0.3, 1.0, 3.0)
"""Seconds before each further attempt to connect again; the last one repeats."""
REPEAT_AFTER = 3.0
"""Seconds before an answer that could not be taken is sent again; twice as many after each further refusal …"""
LONGEST_PAUSE = 30.0
"""… and at most so many: a node may be away for days."""
PATIENCE = 300.0
"""Seconds after which a server that cannot be reached is given up."""
PING = 60.0
"""Seconds without a sign of life after which the server is taken for gone; it is asked for one in between."""
PASSING = (502, 503, 504)
"""Statuses of a server that is starting, or of a proxy before one."""
UNKNOWN_CONNECTION = 4404


class StdioBridge:
    """Stdio on one side, a server's WebSocket on the other."""

    def __init__(self, server: ServerAddress, agent: str | None, session: str | None) -> None:
        base, _, named = server.url.partition("/acp")
        self._url = re.sub("^http", "ws", base) + "/acp"
        agent = agent or named.strip("/") or None
        self._path = f"/{agent}" if agent else ""
        self._headers = {} if server.token is None else {"Authorization": f"Bearer {server.token}"}
        self._server_url = base
        self._ledger = Ledger(session)
        self._socket: ClientConnection | None = None
        self._connected: asyncio.Event
        """Clear while the socket is cut: lines wait in the pipe then."""
        self._connection_id = ""
        self._repeating: dict[bytes, asyncio.Task[None]] = {}

    async def run(self) -> int:
        """Pass on what comes, both ways, until stdin ends; gives the exit code."""
        import asyncio

        socket = self._socket = await self._connect()
        self._connected = asyncio.Event()
        self._connected.set()
        reading = asyncio.create_task(self._read_stdin(read_lines()))
        writing = asyncio.create_task(self._write_stdout(socket))
        try:
            await asyncio.wait((reading, writing), return_when=asyncio.FIRST_COMPLETED)
            if writing.done():
                writing.result()
            reading.result()
        finally:
            for task in (reading, writing, *self._repeating.values()):
                task.cancel()
            await asyncio.gather(reading, writing, return_exceptions=True)
            await self._socket.close()
        return 0

    async def _read_stdin(self, lines: AsyncIterator[bytes]) -> None:
        from websockets.exceptions import ConnectionClosed

        async for line in lines:
            if not line.strip():
                continue
            await self._connected.wait()
            frame = self._ledger.outgoing(one_line(line), secrets.token_hex(16))
            assert self._socket is not None
            if frame is None:
                continue
            # What does not get through is sent when the socket is there again.
            with suppress(ConnectionClosed):
                await self._socket.send(frame.decode(errors="replace"))

    async def _write_stdout(self, socket: "ClientConnection") -> None:
        from websockets.exceptions import ConnectionClosed

        while True:
            with suppress(ConnectionClosed):
                async for frame in socket:
                    self._pass_on(frame)
            if socket.close_code in (1000, 1002, 4001):
                raise ClientError(f"the server closed the connection: {socket.close_reason or 'without a reason'}")
            self._connected.clear()
            complain("the connection was cut; connecting again")
            socket = self._socket = await self._connect()
            with suppress(ConnectionClosed):
                for frame in self._ledger.again():
                    await socket.send(frame.decode(errors="replace"))
            self._connected.set()

    def _pass_on(self, frame: "str | bytes") -> None:
        line = self._ledger.incoming(_bytes(frame))
        if line is not None:
            _write(line)
        for key, refusals in self._ledger.take_refused().items():
            self._repeat_later(key, pause_before_repeat(refusals))

    def _repeat_later(self, key: bytes, pause: float) -> None:
        """An answer could not be taken, while its agent waits for it. One repeat waits for each."""
        import asyncio

        if key not in self._repeating:
            task = self._repeating[key] = asyncio.create_task(self._repeat(key, pause))
            task.add_done_callback(lambda _: self._repeating.pop(key, None))

    async def _repeat(self, key: bytes, pause: float) -> None:
        import asyncio

        from websockets.exceptions import ConnectionClosed

        await asyncio.sleep(pause)
        await self._connected.wait()
        frame = self._ledger.find_unacknowledged(key)
        if frame is not None and self._socket is not None:
            with suppress(ConnectionClosed):
                await self._socket.send(frame.decode(errors="replace"))

    # Connecting

    async def _connect(self) -> "ClientConnection":
        """A socket; keeps trying when there was one before. Raises ClientError."""
        import asyncio
        import time

        from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

        first, began, attempt = not self._connection_id, time.monotonic(), 0
        while True:
            try:
                return await (self._open({}) if first else self._resume())
            except InvalidStatus as refused:
                # A proxy before a server that is starting has statuses of its own.
                if first or refused.response.status_code not in PASSING:
                    raise ClientError(_refusal(refused.response.status_code)) from None
                error: Exception = refused
            except (OSError, InvalidHandshake, TimeoutError, ConnectionClosed) as failure:
                error = failure
            if first or time.monotonic() - began > PATIENCE:
                raise ClientError(f"the server at {self._url} cannot be reached: {error}") from error
            await asyncio.sleep(PAUSES[min(attempt, len(PAUSES) - 1)])
            attempt += 1

    async def _resume(self) -> "ClientConnection":
        """The same connection on another socket; another one if the server knows nothing of it any more."""
        from websockets.exceptions import ConnectionClosed

        socket = await self._open({headers.ACP_CONNECTION_ID: self._connection_id})
        try:
            # One that the server serves begins with a frame, an empty one if need be.
            self._pass_on(await socket.recv())
        except ConnectionClosed:
            if socket.close_code != UNKNOWN_CONNECTION:
                raise
            complain("the server was restarted; continuing from the log")
            return await self._begin_anew()
        return socket

    async def _begin_anew(self) -> "ClientConnection":
        seen, introduction = self._ledger.last, self._ledger.introduction
        socket = await self._open({})
        if introduction is None:
            return socket
        calling = Calling(socket)
        answer = await calling.exchange(introduction)
        if not answer.succeeded:
            await socket.close()
            raise ClientError(f"the server refuses to go on: {text_at(answer.error(), 'message')}")
        missed = [line for session_id in self._ledger.sessions async for line in calling.missed(session_id, seen)]
        # From here on it is this connection that counts.
        for line in [*missed, *self._ledger.renew()]:
            _write(line)
        for frame in calling.others:
            self._pass_on(frame)
        return socket

    async def _open(self, known: dict[str, str]) -> "ClientConnection":
        place = f"{self._url}?after={self._ledger.last}" if known else f"{self._url}{self._path}"
        socket = await connect_socket(place, self._headers | known, PING, direct=goes_direct(self._server_url))
        assert socket.response is not None
        self._connection_id = socket.response.headers.get(headers.ACP_CONNECTION_ID, self._connection_id)
        return socket


class Calling:
    """Requests of the bridge's own, on a socket that nothing else uses yet."""

    def __init__(self, socket: "ClientConnection") -> None:
        self._socket = socket
        self._ids = itertools.count()
        self.others: list[bytes] = []
        """Frames that came meanwhile."""

    async def exchange(self, line: bytes) -> Envelope:
        """The response to a request."""
        wanted = parse(line).id
        await self._socket.send(line.decode(errors="replace"))
        while True:
            frame = _bytes(await self._socket.recv())
            with suppress(NotAnEnvelope):
                envelope = parse_answer(frame.partition(b"\n")[2])
                if envelope.kind is Kind.RESPONSE and envelope.id == wanted:
                    return envelope
                self.others.append(frame)

    async def call(self, method: str, params: Object) -> Object:
        """Its result; empty when it fails."""
        answer = await self.exchange(request(b'"bridge-%d"' % next(self._ids), method, params))
        return answer.result()

    async def missed(self, session_id: str, after: int) -> AsyncIterator[bytes]:
        """Attach to a session; the notifications in it after a position, up to now."""
        position = (await self.call(methods.ATTACH, {"sessionId": session_id})).get("position")
        place: object = after
        while isinstance(position, int) and isinstance(place, int):
            span: Object = {"sessionId": session_id, "after": place, "before": position + 1}
            page = await self.call(methods.EVENTS, span)
            for event in objects_at(page, "events"):
                envelope = object_at(event, "envelope")
                if event.get("direction") != "fromClient" and "method" in envelope and "id" not in envelope:
                    yield msgspec.json.encode(envelope)
            place = page.get("next")


def pause_before_repeat(refusals: int) -> float:
    """Seconds before an answer is sent again that was refused so often."""
    return min(REPEAT_AFTER * 2 ** min(refusals - 1, 10), LONGEST_PAUSE)


def _write(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def _bytes(frame: str | bytes) -> bytes:
    return frame.encode() if isinstance(frame, str) else frame


def _refusal(status: int) -> str:
    if status == HTTPStatus.UNAUTHORIZED:
        return "the server wants its token; give it with --token or --token-file"
    return f"the server refuses the connection with HTTP {status}"
