"""`sandbox-agent acp`: a server's session for a program that speaks ACP on stdio, an editor mostly.

Lines of stdin go to the server's WebSocket, and its events to stdout. When the socket is cut it is opened again, and
goes on after the last event; `Ledger` knows what has to be sent again.
"""

import os
import re
import secrets
import sys
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sandbox_agent.cli.commands.rpc import read_lines
from sandbox_agent.cli.flags import ACCESS, VARIABLE, ServerAddress, add_endpoint_flags, find_address
from sandbox_agent.cli.grammar import Arguments, Command, Parser
from sandbox_agent.cli.output import EXIT_FAILED, complain, describe
from sandbox_agent.client.errors import ClientError
from sandbox_agent.envelope import Envelope, Kind, one_line, parse, request, with_result
from sandbox_agent.errors import NotAnEnvelope
from sandbox_agent.wire import headers, methods
from sandbox_agent.wire.subprotocols import WITH_IDS

if TYPE_CHECKING:
    import asyncio

    from websockets.asyncio.client import ClientConnection

DESCRIPTION = f"""\
Speak ACP on stdin and stdout, and pass it on to a server: any editor that can start an ACP agent as
a program can so drive an agent on another machine. A cut connection is opened again, and nothing is
lost or repeated.

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
PAUSES = (0.1, 0.3, 1.0, 3.0)
"""Seconds before each further attempt to connect again; the last one repeats."""
PATIENCE = 300.0
"""Seconds after which a server that cannot be reached is given up."""
PING = 20.0
"""Seconds between pings; a server that answers none within as many is taken for gone."""
KEPT_BYTES = 1 << 20
"""How much of the newest answers is kept, to be sent again after a cut."""


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
    bridge = Bridge(server, arguments.word("agent"), arguments.word("session"))
    try:
        return asyncio.run(bridge.run())
    except ClientError as failure:
        describe(str(failure))
        return EXIT_FAILED


@dataclass(slots=True)
class Ledger:
    """What was sent and may not have arrived. Pure."""

    session: str | None = None
    """The session that the editor gets instead of a new one."""
    last: int = 0
    """The id of the last event."""
    _requests: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    """Frames of requests that are not answered, by id."""
    _answers: OrderedDict[bytes, bytes] = field(default_factory=OrderedDict[bytes, bytes])
    """The newest answers to what the agent asked, by id."""
    _answer_bytes: int = 0
    _opened: set[bytes] = field(default_factory=set[bytes])
    """Requests for a new session that became requests for this one."""

    def outgoing(self, line: bytes, key: str) -> bytes:
        """The frame of a line."""
        try:
            envelope = parse(line)
        except NotAnEnvelope:
            # The server says what is wrong with it.
            return line
        match envelope.kind:
            case Kind.REQUEST:
                return self._ask(envelope, key)
            case Kind.RESPONSE:
                self._answer(envelope)
                return envelope.line
            case Kind.NOTIFICATION:
                return envelope.line

    def _ask(self, envelope: Envelope, key: str) -> bytes:
        assert envelope.id is not None
        line = envelope.line
        if envelope.method == methods.NEW and self.session is not None:
            self._opened.add(envelope.id)
            line = request(envelope.id, methods.RESUME, {"sessionId": self.session})
        # initialize opens the connection, so there is nothing yet that a key could belong to.
        frame = line if envelope.method == methods.INITIALIZE else b"%b\n%b" % (key.encode(), line)
        self._requests[envelope.id] = frame
        return frame

    def _answer(self, envelope: Envelope) -> None:
        assert envelope.id is not None
        self._answers[envelope.id] = envelope.line
        self._answer_bytes += len(envelope.line)
        while self._answer_bytes > KEPT_BYTES:
            self._answer_bytes -= len(self._answers.popitem(last=False)[1])

    def incoming(self, frame: bytes) -> bytes | None:
        """The line of a frame; None for what the editor has got already, or did not ask for."""
        number, _, line = frame.partition(b"\n")
        if number.isdigit():
            self.last = max(self.last, int(number))
        try:
            envelope = parse(line)
        except NotAnEnvelope:
            # A complaint about an answer that was sent once more.
            return None
        if envelope.kind is not Kind.RESPONSE or envelope.id is None:
            return envelope.line
        if self._requests.pop(envelope.id, None) is None:
            return None
        if envelope.id in self._opened and envelope.succeeded:
            self._opened.discard(envelope.id)
            return with_result(envelope.line, "sessionId", self.session)
        return envelope.line

    def again(self) -> list[bytes]:
        """Frames to send once more after a cut: whatever of it had arrived changes nothing."""
        return [*self._answers.values(), *self._requests.values()]


class Bridge:
    """Stdio on one side, a server's WebSocket on the other."""

    def __init__(self, server: ServerAddress, agent: str | None, session: str | None) -> None:
        base, _, named = server.url.partition("/acp")
        self._url = re.sub("^http", "ws", base) + "/acp"
        agent = agent or named.strip("/") or None
        self._path = f"/{agent}" if agent else ""
        self._headers = {} if server.token is None else {"Authorization": f"Bearer {server.token}"}
        self._ledger = Ledger(session)
        self._socket: ClientConnection | None = None
        self._connected: asyncio.Event
        """Clear while the socket is cut: lines wait in the pipe then."""
        self._connection_id = ""

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
            for task in (reading, writing):
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
            # What does not get through is sent when the socket is there again, if it may be sent twice.
            with suppress(ConnectionClosed):
                await self._socket.send(frame.decode(errors="replace"))

    async def _write_stdout(self, socket: "ClientConnection") -> None:
        from websockets.exceptions import ConnectionClosed

        while True:
            try:
                async for frame in socket:
                    line = self._ledger.incoming(frame.encode() if isinstance(frame, str) else frame)
                    if line is not None:
                        sys.stdout.buffer.write(line + b"\n")
                        sys.stdout.buffer.flush()
            except ConnectionClosed:
                pass
            if socket.close_code in (1000, 1002, 4001):
                raise ClientError(f"the server closed the connection: {socket.close_reason or 'without a reason'}")
            self._connected.clear()
            complain("the connection was cut; connecting again")
            socket = self._socket = await self._connect()
            for frame in self._ledger.again():
                with suppress(ConnectionClosed):
                    await socket.send(frame.decode(errors="replace"))
            self._connected.set()

    async def _connect(self) -> "ClientConnection":
        """A socket; keeps trying when there was one before. Raises ClientError."""
        import asyncio
        import time

        from websockets.exceptions import InvalidHandshake, InvalidStatus

        first, began, attempt = not self._connection_id, time.monotonic(), 0
        while True:
            try:
                return await self._open()
            except InvalidStatus as refused:
                raise ClientError(_refusal(refused.response.status_code, first=first)) from None
            except (OSError, InvalidHandshake, TimeoutError) as error:
                if first or time.monotonic() - began > PATIENCE:
                    raise ClientError(f"the server at {self._url} cannot be reached: {error}") from error
                await asyncio.sleep(PAUSES[min(attempt, len(PAUSES) - 1)])
                attempt += 1

    async def _open(self) -> "ClientConnection":
        from websockets.asyncio.client import connect
        from websockets.typing import Subprotocol

        known = {headers.ACP_CONNECTION_ID: self._connection_id} if self._connection_id else {}
        place = f"{self._url}?after={self._ledger.last}" if known else f"{self._url}{self._path}"
        socket = await connect(
            place,
            additional_headers=self._headers | known,
            subprotocols=[Subprotocol(WITH_IDS)],
            compression=None,
            max_size=None,
            ping_interval=PING,
            ping_timeout=PING,
        )
        assert socket.response is not None
        self._connection_id = socket.response.headers[headers.ACP_CONNECTION_ID]
        return socket


def _refusal(status: int, *, first: bool) -> str:
    match status:
        case 401:
            return "the server wants its token; give it with --token or --token-file"
        case 404 if not first:
            return "the server has forgotten the connection: it was started anew, or was away for too long"
        case _:
            return f"the server refuses the connection with HTTP {status}"
