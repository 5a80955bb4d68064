"""`sandbox-agent acp`: a server's sessions for a program that speaks ACP on stdio, mostly an editor.

Lines of stdin go to the server's WebSocket, and its events to stdout. When the socket is cut, it is opened again and
continues after the last event; when the server was restarted, the log has what is missing. `Ledger` knows what has
to be sent again.
"""

import itertools
import os
import re
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec

from sandbox_agent.cli.commands.rpc import read_lines
from sandbox_agent.cli.flags import ACCESS, VARIABLE, ServerAddress, add_endpoint_flags, find_address
from sandbox_agent.cli.grammar import Arguments, Command, Parser
from sandbox_agent.cli.ledger import Ledger
from sandbox_agent.cli.output import EXIT_FAILED, complain, describe
from sandbox_agent.client.errors import ClientError
from sandbox_agent.envelope import Envelope, Kind, Object, object_at, objects_at, one_line, parse, request, text_at
from sandbox_agent.errors import NotAnEnvelope
from sandbox_agent.wire import headers, methods

if TYPE_CHECKING:
    import asyncio

    from websockets.asyncio.client import ClientConnection

DESCRIPTION = f"""\
Speak ACP on stdin and stdout, and pass it on to a server: any editor that can start an ACP agent as
a program can drive an agent on another machine. A cut connection is opened again, even if the server
was restarted, and nothing is lost or repeated.

The server is the one that --connect or {VARIABLE} names, or the one that runs on the data
directory. The address may be that of the server, or that of its /acp.
"""
EXAMPLES = """\
  sandbox-agent acp --agent claude
      an agent of the server on this machine
  sandbox-agent acp --connect https://box.example.org/acp/claude --token-file ~/.box-token
  sandbox-agent acp --agent claude --session 0198c2f4
      the editor's next new session is this one
"""


def command() -> Command:
    """The command, with its flags."""
    parser = Parser("sandbox-agent acp", DESCRIPTION, f"{ACCESS}\nexamples:\n{EXAMPLES}")
    parser.add_argument(
        "--connect", metavar="URL", dest="endpoint", help="The server's address; --endpoint is the same."
    )
    parser.add_argument(
        "--agent", metavar="AGENT", help="The agent; else that of the address, else the server's default."
    )
    parser.add_argument("--session", metavar="SESSION", help="Open this session when the editor asks for a new one.")
    add_endpoint_flags(parser)
    return Command(parser, _run)


def _run(arguments: Arguments) -> int:
    import asyncio

    server = find_address(arguments, os.environ)
    bridge = StdioBridge(server, arguments.word("agent"), arguments.word("session"))
    try:
        return asyncio.run(bridge.run())
    except ClientError as failure:
        describe(str(failure))
        return EXIT_FAILED


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
        from sandbox_agent.client.api import goes_direct
        from sandbox_agent.client.websocket import connect_socket

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
                envelope = parse(frame.partition(b"\n")[2])
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
