"""`sandbox-agent api v1 rpc`: envelopes in, envelopes out, a line each.

One task sends what it reads, one after another, so that it arrives in order; every request asks to be answered on the
stream, so that none holds up the next. One task listens to the stream. `Tally` says what may be printed, and when all
is answered.
"""

import os
import sys
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandbox_agent import __version__
from sandbox_agent.cli.calling import CLIENT, CalledServer, call, read_input, tell
from sandbox_agent.cli.grammar import Arguments
from sandbox_agent.cli.output import EXIT_FAILED, complain, write_json
from sandbox_agent.client.errors import ClientError, ConnectionLost, ServerProblem
from sandbox_agent.envelope import META, Kind, one_line, parse, parse_answer, request
from sandbox_agent.protocol.errors import NotAnEnvelope, SettingsError

if TYPE_CHECKING:
    from sandbox_agent.client.api import Api
    from sandbox_agent.client.ways import Response

ID, POSITION = "X-ACP-Connection-Id", "X-ACP-Last-Event-Id"
LONGEST = 256 << 20
"""Bytes of a line; a server takes less, and says so."""
BREAKS, PAUSE = 5, 0.2
"""How often in a row a stream may break without anything having come; seconds between two of them."""
CLOSING = 2.0
"""Seconds that closing may take: you may have said stop already."""
_WAITING = 1000
"""Things that may wait to be printed; then the stream is not read."""
_OPENED = "it is opened by --agent, or by an initialize in the first line"
_JSON = {"Content-Type": "application/json"}


# --- what may be printed ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sent:
    """A request is about to be sent."""

    id: bytes


@dataclass(frozen=True, slots=True)
class Came:
    """An envelope, with its number on the stream."""

    number: int
    line: bytes


@dataclass(frozen=True, slots=True)
class Answered:
    """A response that did not come on the stream; `after` is the number of the event that it came after."""

    after: int
    line: bytes


@dataclass(frozen=True, slots=True)
class RefusedLine:
    """A line was refused; if it was a request, it will not be answered."""

    line: int
    why: ClientError
    id: bytes | None


@dataclass(frozen=True, slots=True)
class Broken:
    """There will be nothing more on the stream."""

    why: Exception


class InputEnded:
    """Everything has been sent."""


News = Sent | Came | Answered | RefusedLine | Broken | InputEnded
Tell = Callable[[News], Awaitable[None]]
Lines = AsyncIterator[tuple[int, bytes]]
"""With their numbers."""


class Tally:
    """What is still to be answered, and what may be printed: an answer not before the events that came before it."""

    def __init__(self, write: Callable[[bytes], None], at: int) -> None:
        self._write = write
        self._at = at
        self._open: Counter[bytes] = Counter()
        self._held: list[Answered] = []
        self._ended = False
        self.failed = False

    @property
    def done(self) -> bool:
        """Nothing more will be sent, and everything is answered."""
        return self._ended and not self._open and not self._held

    @property
    def waiting(self) -> str:
        """The ids of requests that wait for an answer; empty when there are none."""
        return ", ".join(id.decode("utf-8", "replace") for id in self._open)

    def take(self, news: News) -> None:
        """Take what has happened. Raises why nothing more can."""
        match news:
            case Sent(id):
                self._open[id] += 1
            case Came(number, line):
                self._at = max(self._at, number)
                self._print(line)
                self._release()
            case Answered():
                self._held.append(news)
                self._release()
            case RefusedLine(line, why, id):
                self.failed = True
                tell(why, f"line {line}: ")
                self._close(id)
            case Broken(why):
                raise why
            case InputEnded():
                self._ended = True

    def _release(self) -> None:
        ready = [each for each in self._held if each.after <= self._at]
        self._held = [each for each in self._held if each.after > self._at]
        for each in ready:
            self._print(each.line)

    def _print(self, line: bytes) -> None:
        self._write(line)
        try:
            envelope = parse_answer(line)
        except NotAnEnvelope:
            return
        if envelope.kind is Kind.RESPONSE:
            self._close(envelope.id)

    def _close(self, id: bytes | None) -> None:
        if id is not None and self._open[id] > 1:
            self._open[id] -= 1
        elif id is not None:
            del self._open[id]


# --- the exchange -----------------------------------------------------------------------------------------------------


def exchange(arguments: Arguments) -> int:
    """Pass envelopes on, both ways; gives the exit code."""
    agent, known = arguments.word("agent"), arguments.word("connection")
    if agent and known:
        raise SettingsError("--agent and --connection contradict each other; give one of them")
    if known is not None and not (known.isascii() and known.isprintable() and known):
        raise SettingsError("--connection: expected the id of a connection, as the header X-ACP-Connection-Id has it")

    async def work(remote: CalledServer) -> int:
        lines = _lines([os.fsencode(each) for each in arguments.words("data")])
        id, first = await _open(remote.api, agent, known, lines)
        try:
            return await _Exchange(remote.api, id, arguments).run(first, lines)
        finally:
            if arguments.switch("keep"):
                # An id may begin with a dash.
                complain(f"the connection stays open; use it with --connection={id}")
            elif known is None:
                with suppress(ClientError):
                    await remote.api.request("DELETE", "/v1/rpc", headers={ID: id}, silence=CLOSING)

    return call(arguments, work)


async def _open(api: "Api", agent: str | None, known: str | None, lines: Lines) -> tuple[str, bytes | None]:
    """The id of a connection, and the response that opened it when that was the user's own request."""
    if known is not None:
        return known, None
    if agent is not None:
        response = await api.request("POST", "/v1/rpc", content=_initialize(agent), headers=_JSON)
        return response.headers.get(ID, ""), None
    begun = await anext(lines, None)
    if begun is None:
        raise ClientError(f"there is nothing to send, and no connection: {_OPENED}")
    try:
        response = await api.request("POST", "/v1/rpc", content=begun[1], headers=_JSON)
    except ServerProblem as problem:
        if problem.slug != "missing-connection":
            raise
        raise ClientError(f"no connection is open: {_OPENED}") from problem
    return response.headers.get(ID, ""), one_line(response.content)


def _initialize(agent: str) -> bytes:
    """The envelope that opens a connection with this agent. What an agent asks comes as the agent asks it."""
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


class _Exchange:
    """Envelopes on one connection."""

    def __init__(self, api: "Api", id: str, arguments: Arguments) -> None:
        import asyncio

        self._api = api
        self._headers = {ID: id}
        self._arguments = arguments
        self._listens = not arguments.switch("no_stream")
        self._news: asyncio.Queue[News] = asyncio.Queue(_WAITING)

    async def run(self, first: bytes | None, lines: Lines) -> int:
        """Send and listen until all is answered; gives the exit code."""
        import asyncio

        after = self._arguments.number("after")
        if self._listens and after is None and self._arguments.word("connection"):
            after = await self._position()
        tally = Tally(_write, after or 0)
        if first is not None:
            _write(first)
        tasks = [asyncio.create_task(self._report_failure(self._send(lines)))]
        if self._listens:
            tasks.append(asyncio.create_task(self._report_failure(self._listen(after))))
        try:
            await self._print_all(tally)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return EXIT_FAILED if tally.failed else 0

    async def _print_all(self, tally: Tally) -> None:
        import asyncio

        silence = self._arguments.number("timeout")
        while self._arguments.switch("follow") or not tally.done:
            try:
                async with asyncio.timeout(silence if tally.waiting else None):
                    news = await self._news.get()
            except TimeoutError:
                raise ClientError(f"nothing came for {silence} s; not answered: {tally.waiting}") from None
            tally.take(news)

    async def _report_failure(self, work: Awaitable[None]) -> None:
        """Whatever goes wrong ends the exchange: it must not wait for what never comes."""
        try:
            await work
        except Exception as error:
            await self._news.put(Broken(error))

    async def _send(self, lines: Lines) -> None:
        async for number, line in lines:
            id = _request_id(line)
            if id is not None:
                await self._news.put(Sent(id))
            try:
                response = await self._post(line)
            except ClientError as failure:
                await self._news.put(RefusedLine(number, failure, id))
                continue
            if response.content:
                # Without a stream there is nothing to hold it back for.
                after = int(response.headers.get(POSITION, "0")) if self._listens else 0
                await self._news.put(Answered(after, one_line(response.content)))
        await self._news.put(InputEnded())

    async def _post(self, line: bytes) -> "Response":
        """Send an envelope as it is; with a stream, the response to a request comes there."""
        headers = self._headers | _JSON | ({"Prefer": "respond-async"} if self._listens else {})
        return await self._api.request("POST", "/v1/rpc", content=line, headers=headers)

    async def _position(self) -> int:
        """The number of the last event that was meant for this connection."""
        # Any answer says it: of a session that is not there, too.
        asked = request(b"0", "_sandboxagent/session/get", {"sessionId": ""})
        response = await self._api.request("POST", "/v1/rpc", content=asked, headers=self._headers | _JSON)
        return int(response.headers.get(POSITION, "0"))

    async def _listen(self, after: int | None) -> None:
        """Take what comes, until the server ends it. When the socket breaks, go on after the last event."""
        import asyncio

        breaks = 0
        while True:
            try:
                async with aclosing(self._stream(after)) as stream:
                    async for number, line in stream:
                        breaks, after = 0, number
                        await self._news.put(Came(number, line))
            except ConnectionLost as lost:
                # A reader that was too slow is cut off, and may go on.
                breaks += 1
                if breaks > BREAKS or not lost.outcome_unknown:
                    raise
                await asyncio.sleep(PAUSE * (breaks - 1))
            else:
                why = "another client listens to this connection now, or has closed it, or the server stops"
                raise ClientError(f"the server has ended the stream: {why}")

    async def _stream(self, after: int | None) -> AsyncGenerator[tuple[int, bytes]]:
        from sandbox_agent.client.api import EVENT_STREAM, read_events

        headers = self._headers | {"Accept": EVENT_STREAM}
        headers |= {} if after is None else {"Last-Event-ID": str(after)}
        async with (
            self._api.stream("GET", "/v1/rpc", headers=headers) as response,
            aclosing(read_events(response)) as found,
        ):
            async for event in found:
                yield int(event.id) if event.id.isdigit() else 0, one_line(event.data.encode())


def _request_id(line: bytes) -> bytes | None:
    """The id of what will be answered. What is no envelope is sent all the same: the server judges it."""
    try:
        envelope = parse(line)
    except NotAnEnvelope:
        return None
    return envelope.id if envelope.kind is Kind.REQUEST else None


async def _lines(given: list[bytes]) -> AsyncGenerator[tuple[int, bytes]]:
    """The envelopes of the command line, or those of stdin as they come."""
    number = 0
    async for line in _each(given) if given else read_lines():
        number += 1
        if line.strip():
            yield number, line


async def _each(given: list[bytes]) -> AsyncGenerator[bytes]:
    for line in given:
        yield line


async def read_lines() -> AsyncGenerator[bytes]:
    """Lines of stdin, as they come; raises ClientError."""
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
                elif start > LONGEST:
                    raise ClientError(f"a line of the input is longer than {LONGEST >> 20} MiB")
    except OSError as error:
        raise ClientError(f"the input cannot be read: {error.strerror}") from error
    if rest:
        yield bytes(rest)


def _write(line: bytes) -> None:
    write_json(line)
    sys.stdout.buffer.flush()
