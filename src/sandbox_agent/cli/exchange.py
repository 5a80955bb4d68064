"""`sandbox-agent api v1 rpc`: envelopes in, envelopes out, a line each.

One thread sends what it reads, one after another, so that it arrives in order; every request is told to be answered on
the stream, so that none holds up the next. One thread listens to the stream. The main one prints, and knows when all is
answered: nothing that the network does keeps it from being interrupted.
"""

import os
import queue
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import Thread

from sandbox_agent.cli.arguments import Arguments, complain
from sandbox_agent.cli.failures import EXIT_FAILED
from sandbox_agent.cli.output import write_json
from sandbox_agent.cli.remote import Refused, Remote, calling
from sandbox_agent.cli.rpc import POSITION, Connection, opened, opening
from sandbox_agent.envelope import Kind, one_line, parse
from sandbox_agent.errors import NotAnEnvelope, SettingsError

LONGEST = 256 << 20
"""Bytes of a line; a server takes less, and says so."""
_PIECE = 1 << 16
_OPENED = "it is opened by --agent, or by an initialize in the first line"
_WAITING = 1000
"""Things that may wait to be printed; then the stream is not read."""


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
class Failed:
    """A line was refused; if it was a request, it will not be answered."""

    line: int
    why: Refused
    id: bytes | None


@dataclass(frozen=True, slots=True)
class Broken:
    """There will be nothing more on the stream."""

    why: Exception


class InputEnded:
    """Everything has been sent."""


News = Sent | Came | Answered | Failed | Broken | InputEnded
Tell = Callable[[News], None]
Lines = Iterator[tuple[int, bytes]]
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
            case Failed(line, why, id):
                self.failed = True
                why.tell(f"line {line}: ")
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
            envelope = parse(line)
        except NotAnEnvelope:
            return
        if envelope.kind is Kind.RESPONSE:
            self._close(envelope.id)

    def _close(self, id: bytes | None) -> None:
        if id is not None and self._open[id] > 1:
            self._open[id] -= 1
        elif id is not None:
            del self._open[id]


def exchange(arguments: Arguments) -> int:
    """Pass envelopes on, both ways; gives the exit code."""
    agent, known = arguments.word("agent"), arguments.word("connection")
    if agent and known:
        raise SettingsError("--agent and --connection contradict each other; give one of them")
    if known is not None and not (known.isascii() and known.isprintable() and known):
        raise SettingsError("--connection: expected the id of a connection, as the header X-ACP-Connection-Id has it")
    given = [os.fsencode(each) for each in arguments.words("data")]
    lines = ((number, line) for number, line in enumerate(given or _lines(0), 1) if line.strip())

    def work(remote: Remote) -> int:
        connection, first = _connection(remote, agent, known, lines)
        try:
            return _exchange(connection, first, lines, arguments)
        finally:
            if arguments.switch("keep"):
                # An id may begin with a dash.
                complain(f"the connection stays open; use it with --connection={connection.id}")
            elif known is None:
                connection.close()

    return calling(arguments, work)


def _connection(remote: Remote, agent: str | None, known: str | None, lines: Lines) -> tuple[Connection, bytes | None]:
    """A connection, and the response that opened it when that was the user's own request."""
    if known is not None:
        return Connection(remote, known), None
    if agent is not None:
        return opened(remote, opening(agent))[0], None
    _, first = next(lines, (0, b""))
    if not first:
        raise Refused(f"there is nothing to send, and no connection: {_OPENED}")
    try:
        connection, response = opened(remote, first)
    except Refused as refused:
        if refused.slug != "missing-connection":
            raise
        raise Refused(f"no connection is open: {_OPENED}", slug=refused.slug) from refused
    return connection, one_line(response)


def _exchange(connection: Connection, first: bytes | None, lines: Lines, arguments: Arguments) -> int:
    news: queue.Queue[News] = queue.Queue(_WAITING)
    after = arguments.number("after")
    listening = not arguments.switch("no_stream")
    if listening and after is None and arguments.word("connection"):
        after = connection.position()
    tally = Tally(_write, after or 0)
    if first is not None:
        _write(first)
    _start(lambda: _send(connection, lines, news.put, later=listening), news.put)
    if listening:
        _start(lambda: _listen(connection, after, news.put), news.put)
    follow, silence = arguments.switch("follow"), arguments.number("timeout")
    while follow or not tally.done:
        try:
            tally.take(news.get(timeout=silence if tally.waiting else None))
        except queue.Empty:
            raise Refused(f"nothing came for {silence} s; not answered: {tally.waiting}") from None
    return EXIT_FAILED if tally.failed else 0


def _start(work: Callable[[], None], tell: Tell) -> None:
    def told() -> None:
        try:
            work()
        except Exception as error:  # Whatever it is, the main thread must not wait for what never comes.
            tell(Broken(error))

    # Daemons: whatever they wait for, the program ends when the main thread does.
    Thread(target=told, daemon=True).start()


def _send(connection: Connection, lines: Lines, tell: Tell, *, later: bool) -> None:
    """Send line by line; `later` when responses come on the stream."""
    for number, line in lines:
        _send_one(connection, number, line, tell, later=later)
    tell(InputEnded())


def _send_one(connection: Connection, number: int, line: bytes, tell: Tell, *, later: bool) -> None:
    id = _request_id(line)
    if id is not None:
        tell(Sent(id))
    try:
        with connection.named():
            response = connection.post(line, later=later)
    except Refused as refused:
        tell(Failed(number, refused, id))
        return
    if response.content:
        # Without a stream there is nothing to hold it back for.
        after = int(response.headers.get(POSITION, "0")) if later else 0
        tell(Answered(after, one_line(response.content)))


def _request_id(line: bytes) -> bytes | None:
    """The id of what will be answered. What is no envelope is sent all the same: to judge it is up to the server."""
    try:
        envelope = parse(line)
    except NotAnEnvelope:
        return None
    return envelope.id if envelope.kind is Kind.REQUEST else None


def _listen(connection: Connection, after: int | None, tell: Tell) -> None:
    with connection.named():
        for event in connection.stream(after):
            tell(Came(int(event.id) if event.id.isdigit() else 0, one_line(event.data.encode())))
    why = "somebody else listens to this connection now, or has closed it, or the server stops"
    raise Refused(f"the server has ended the stream: {why}")


def _lines(descriptor: int) -> Iterator[bytes]:
    """Lines as they come. Raises Refused when one has no end, or cannot be read."""
    rest = bytearray()
    while piece := _read(descriptor):
        start = len(rest)
        rest += piece
        if b"\n" in piece:
            *whole, last = bytes(rest).split(b"\n")
            yield from whole
            rest = bytearray(last)
        elif start > LONGEST:
            raise Refused(f"a line of the input is longer than {LONGEST >> 20} MiB")
    if rest:
        yield bytes(rest)


def _read(descriptor: int) -> bytes:
    # Not through sys.stdin: a thread that waits there keeps the program from ending.
    try:
        return os.read(descriptor, _PIECE)
    except OSError as error:
        raise Refused(f"the input cannot be read: {error.strerror}") from error


def _write(line: bytes) -> None:
    write_json(line)
    sys.stdout.buffer.flush()
