"""Run `sandbox-agent api v1 rpc`: envelopes in, envelopes out in the server's order, one per line.

The SDK's transport sends the input line by line, so that it arrives in order, and follows the stream, which brings the
responses. `PendingOutput` counts the requests that wait for a response.
"""

import logging
import os
import sys
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING

from sandboxagent import __version__
from sandboxagent.cli.call import CLIENT, CalledServer, call, read_input
from sandboxagent.cli.failures import tell
from sandboxagent.cli.output import EXIT_FAILED, complain, write_json
from sandboxagent.cli.parser import ParsedArguments
from sandboxagent.client.errors import ClientError, ConnectionLost, ServerProblem
from sandboxagent.protocol.envelope import META, Kind, one_line, parse, parse_answer, request
from sandboxagent.protocol.errors import NotAnEnvelope, SettingsError

if TYPE_CHECKING:
    from sandboxagent.client.api import Api
    from sandboxagent.client.incoming import Arrival
    from sandboxagent.client.transport import Transport

ID, POSITION = "X-ACP-Connection-Id", "X-ACP-Last-Event-Id"
MAX_LINE_BYTES = 256 << 20
"""Maximum number of bytes of a line. A server accepts less, and says so."""
MAX_BREAKS = 5
"""Maximum number of breaks of the stream in a row, without an envelope in between."""
CLOSE_TIMEOUT = 2.0
"""Seconds to wait for the server to close the connection: the user may already have interrupted the command."""
_OPENED = "open one with --agent, or with an initialize in the first line"
_JSON = {"Content-Type": "application/json"}

Lines = AsyncIterator[tuple[int, bytes]]
"""Envelopes with their line numbers."""


# --- pending responses ------------------------------------------------------------------------------------------------


class PendingOutput:
    """The output of envelopes, with the number of requests that wait for a response."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        import asyncio

        self._write = write
        self._open: Counter[bytes] = Counter()
        self._breaks = 0
        """Number of breaks of the stream since the last envelope."""
        self._ended = False
        self.changed = asyncio.Event()
        """Set after every change of this object."""
        self.failed = False
        """Whether the server refused a line."""
        self.failure: Exception | None = None
        """The error that ended the exchange."""

    @property
    def is_done(self) -> bool:
        """Whether all input is sent and every request has its response."""
        return self._ended and not self._open

    @property
    def waiting(self) -> str:
        """The ids of requests that wait for an answer; empty when there are none."""
        return ", ".join(id.decode("utf-8", "replace") for id in self._open)

    def send(self, id: bytes) -> None:
        """Note that a request is about to be sent."""
        self._open[id] += 1
        self.changed.set()

    def receive(self, line: bytes) -> None:
        """Print an envelope. If it is a response, its request waits no more."""
        self._breaks = 0
        self.changed.set()
        try:
            if self.failure is None:
                self._write(line)
            envelope = parse_answer(line)
        except OSError as error:
            self.end(error)
        except NotAnEnvelope:
            return
        else:
            if envelope.kind is Kind.RESPONSE:
                self._close(envelope.id)

    def refuse(self, line: int, why: ClientError, id: bytes | None) -> None:
        """Report a refused line. If it is a request, it will get no response."""
        self.failed = True
        tell(why, f"line {line}: ")
        self._close(id)
        self.changed.set()

    def interrupt(self, why: ClientError | None, _away: float = 0) -> None:
        """Note that the stream broke or the server ended it. A reader that was cut off as too slow may continue."""
        self._breaks += 1
        if why is None:
            reason = "another client listens to this connection now, or has closed it, or the server stops"
            self.end(ClientError(f"the server has ended the stream: {reason}"))
        elif self._breaks > MAX_BREAKS or not (isinstance(why, ConnectionLost) and why.outcome_unknown):
            self.end(why)

    def end(self, failure: Exception | None = None) -> None:
        """Note that all input was sent, or the error that ends the exchange."""
        self._ended = True
        self.failure = self.failure or failure
        self.changed.set()

    def _close(self, id: bytes | None) -> None:
        if id is not None and self._open[id] > 1:
            self._open[id] -= 1
        elif id is not None:
            del self._open[id]


# --- the exchange -----------------------------------------------------------------------------------------------------


def exchange(arguments: ParsedArguments) -> int:
    """Pass envelopes on in both directions. Return the exit code."""
    agent, known = arguments.word("agent"), arguments.word("connection")
    if agent and known:
        raise SettingsError("--agent and --connection contradict each other; give one of them")
    if known is not None and not (known.isascii() and known.isprintable() and known):
        raise SettingsError("--connection: expected a connection's id, as in the header X-ACP-Connection-Id")

    async def work(remote: CalledServer) -> int:
        lines = _lines([os.fsencode(each) for each in arguments.words("data")])
        id, first = await _open(remote.api, agent, known, lines)
        try:
            return await _exchange(remote.api, id, arguments, first, lines)
        finally:
            if arguments.switch("keep"):
                # With `=`, because an id may begin with a dash.
                complain(f"the connection stays open; use it with --connection={id}")
            elif known is None:
                with suppress(ClientError):
                    await remote.api.request("DELETE", "/v1/rpc", headers={ID: id}, silence=CLOSE_TIMEOUT)

    return call(arguments, work)


async def _open(api: "Api", agent: str | None, known: str | None, lines: Lines) -> tuple[str, bytes | None]:
    """Return the id of a connection, and the response to the user's own `initialize` if that opened it."""
    if known is not None:
        return known, None
    if agent is not None:
        response = await api.request("POST", "/v1/rpc", content=_initialize(agent), headers=_JSON)
        return response.headers.get(ID, ""), None
    begun = await anext(lines, None)
    if begun is None:
        raise ClientError(f"there is nothing to send, and no connection is open: {_OPENED}")
    try:
        response = await api.request("POST", "/v1/rpc", content=begun[1], headers=_JSON)
    except ServerProblem as problem:
        if problem.slug != "missing-connection":
            raise
        raise ClientError(f"no connection is open: {_OPENED}") from problem
    return response.headers.get(ID, ""), one_line(response.content)


def _initialize(agent: str) -> bytes:
    """Return the request that opens a connection with this agent. It asks for the agent's requests unchanged."""
    return request(
        b"0",
        "initialize",
        {
            "protocolVersion": 1,
            "clientInfo": {"name": CLIENT, "version": __version__},
            "clientCapabilities": {"elicitation": {"form": {}, "url": {}}, "_meta": {META: {"questions": True}}},
            "_meta": {META: {"agent": agent}},
        },
    )


async def _exchange(api: "Api", id: str, arguments: ParsedArguments, first: bytes | None, lines: Lines) -> int:
    """Send and listen until every request has its response. Return the exit code."""
    import asyncio

    output = PendingOutput(_write)
    if first is not None:
        _write(first)
    transport = None if arguments.switch("no_stream") else await _listen(api, id, arguments, output)
    sending = asyncio.create_task(_send_all(api, id, transport, lines, output))
    try:
        while arguments.switch("follow") or not output.is_done:
            await _wait_for_more(output, arguments.number("timeout"))
        if output.failure is not None:
            raise output.failure
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        if transport is not None:
            await transport.close()
    return EXIT_FAILED if output.failed else 0


async def _wait_for_more(output: PendingOutput, silence: float | None) -> None:
    """Wait for the next change. Raises the error that ended the exchange, and ClientError after `silence` seconds."""
    import asyncio

    try:
        async with asyncio.timeout(silence if output.waiting else None):
            await output.changed.wait()
    except TimeoutError:
        raise ClientError(f"nothing came for {silence} s; not answered: {output.waiting}") from None
    output.changed.clear()
    if output.failure is not None:
        raise output.failure


async def _listen(api: "Api", id: str, arguments: ParsedArguments, output: PendingOutput) -> "Transport":
    """Open a transport that follows the stream of the connection."""
    from sandboxagent.client.incoming import Hooks
    from sandboxagent.client.transport import Transport

    # The command reports failures itself, so log reports are kept from stderr.
    logging.getLogger("sandboxagent.client").addHandler(logging.NullHandler())
    after = arguments.number("after")
    if after is None and arguments.word("connection"):
        after = await _position(api, id)

    def receive(arrival: "Arrival") -> None:
        output.receive(arrival.line)

    transport = Transport(api, Hooks(receive, interrupted=output.interrupt), timeout=0)
    transport.adopt(id, after)
    return transport


async def _send_all(api: "Api", id: str, transport: "Transport | None", lines: Lines, output: PendingOutput) -> None:
    """Send the input unchanged. Any error ends the exchange, which would otherwise wait for ever."""
    try:
        async for number, line in lines:
            asked = _request_id(line)
            if asked is not None:
                output.send(asked)
            try:
                if transport is not None:
                    await transport.send_line(line)
                    continue
                response = await api.request("POST", "/v1/rpc", content=line, headers={ID: id} | _JSON)
            except ClientError as failure:
                output.refuse(number, failure, asked)
                continue
            if response.content:
                output.receive(one_line(response.content))
        output.end()
    except Exception as error:
        output.end(error)


async def _position(api: "Api", id: str) -> int:
    """Return the id of the last event for this connection."""
    # Any response has it in a header, also one about an unknown session.
    asked = request(b"0", "_sandboxagent/session/get", {"sessionId": ""})
    response = await api.request("POST", "/v1/rpc", content=asked, headers={ID: id} | _JSON)
    return int(response.headers.get(POSITION, "0"))


def _request_id(line: bytes) -> bytes | None:
    """Return the id if the line is a request. An invalid line is sent, too: the server judges it."""
    try:
        envelope = parse(line)
    except NotAnEnvelope:
        return None
    return envelope.id if envelope.kind is Kind.REQUEST else None


async def _lines(given: list[bytes]) -> AsyncGenerator[tuple[int, bytes]]:
    """Yield the envelopes of the command line, or else those of stdin, with their numbers."""
    number = 0
    async for line in _each(given) if given else read_lines():
        number += 1
        if line.strip():
            yield number, line


async def _each(given: list[bytes]) -> AsyncGenerator[bytes]:
    for line in given:
        yield line


async def read_lines() -> AsyncGenerator[bytes]:
    """Yield the lines of stdin as they arrive. Raises ClientError."""
    rest = bytearray()
    try:
        async with aclosing(read_input(0)) as pieces:
            async for piece in pieces:
                start = len(rest)
                rest += piece
                if b"\n" in piece:
                    *whole, last = bytes(rest).split(b"\n")
                    for line in whole:
                        yield line
                    rest = bytearray(last)
                elif start > MAX_LINE_BYTES:
                    raise ClientError(f"a line of the input is longer than {MAX_LINE_BYTES >> 20} MiB")
    except OSError as error:
        raise ClientError(f"the input cannot be read: {error.strerror}") from error
    if rest:
        yield bytes(rest)


def _write(line: bytes) -> None:
    write_json(line)
    sys.stdout.buffer.flush()
