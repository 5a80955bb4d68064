"""Run `sandbox-agent acp`: a server's sessions on stdin and stdout, for editors that speak ACP.

It sends lines of stdin to the server, and prints the server's events. The SDK's transport reconnects after cuts and
restarts. `MessageLedger`, which does no I/O, translates the events of a new connection for the editor, which has only
ever opened one.
"""

import logging
import os
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec import Raw

from sandboxagent.cli.commands.rpc import read_lines
from sandboxagent.cli.failures import tell
from sandboxagent.cli.flags import ACCESS, add_endpoint_flags
from sandboxagent.cli.output import EXIT_FAILED, complain
from sandboxagent.cli.parser import Command, ParsedArguments, Parser
from sandboxagent.client.errors import ClientError, ConnectionLost
from sandboxagent.core.settings.options import ENDPOINT_VARIABLE
from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import (
    META,
    Envelope,
    Kind,
    failure,
    notification,
    object_at,
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
from sandboxagent.protocol.errors import NotAnEnvelope, OutcomeUnknown, SandboxAgentError, ShuttingDown

if TYPE_CHECKING:
    import asyncio

    from sandboxagent.client.api import Api
    from sandboxagent.client.incoming import Arrival, Call, RequestId
    from sandboxagent.core.discovery import ServerAddress

DESCRIPTION = f"""\
Speak ACP on stdin and stdout, and pass it on to a server: any editor that can start an ACP agent as
a program can drive an agent on another machine. A cut connection is opened again, even if the server
was restarted, and nothing is lost or repeated.

--connect or {ENDPOINT_VARIABLE} names the server. Without them, it is the server that runs on the
data directory. The address may end with /acp or /acp/AGENT.
"""
EXAMPLES = """\
  sandbox-agent acp --agent claude
      an agent of the server on this machine
  sandbox-agent acp --connect https://box.example.org/acp/claude --token-file ~/.box-token
  sandbox-agent acp --agent claude --session 0198c2f4
      open this session when the editor asks for a new one
"""
RECONNECT_TIMEOUT = 300.0
"""Seconds after which the adapter gives up on a server that it cannot reach."""
CLOSE_TIMEOUT = 5.0
"""Seconds for the editor's last messages to reach the server."""
_OPENING = (methods.NEW, methods.LOAD, methods.RESUME, methods.FORK)
"""Requests that attach a client to a session."""


def command() -> Command:
    """Make the command `acp`."""
    parser = Parser("sandbox-agent acp", DESCRIPTION, f"{ACCESS}\nexamples:\n{EXAMPLES}")
    parser.add_argument("--connect", metavar="URL", dest="endpoint", help="Address of the server, like --endpoint.")
    parser.add_argument(
        "--agent", metavar="AGENT", help="The agent. (default: that of the address, else the server's default agent)"
    )
    parser.add_argument("--session", metavar="SESSION", help="Open this session when the editor asks for a new one.")
    add_endpoint_flags(parser)
    return Command(parser, _run)


def _run(arguments: ParsedArguments) -> int:
    import asyncio

    from sandboxagent.core.discovery import USUAL_SERVER, find_server

    server = find_server(arguments.values, os.environ, complain) or USUAL_SERVER
    # The adapter reports failures itself, so log reports are kept from stderr.
    logging.getLogger("sandboxagent.client").addHandler(logging.NullHandler())
    try:
        asyncio.run(_adapt(server, arguments.word("agent"), arguments.word("session")))
    except ClientError as failure:
        tell(failure)
        return EXIT_FAILED
    return 0


# --- messages between the editor and the server ----------------------------------------------------------------------


class UnansweredRequest(NamedTuple):
    """A request of the editor that has no response yet."""

    method: str
    session_id: str | None
    is_renamed: bool
    """Whether the editor asked for a new session, and the adapter sent a request for the given session instead."""


@dataclass(slots=True, eq=False)
class OpenQuestion:
    """A request of the agent that has no response yet."""

    id: "RequestId"
    answering: "asyncio.Task[object] | None" = None
    """The task that sends the editor's response to the server."""


@dataclass(slots=True)
class MessageLedger:
    """A translator between lines of an editor and envelopes of a server."""

    session: str | None = None
    """The session that the editor gets instead of a new one."""
    last: int = 0
    """The id of the last event from the server."""
    sessions: dict[str, int] = field(default_factory=dict[str, int])
    """The sessions to which the editor is attached, with the position up to which it has their log."""
    questions: dict[bytes, OpenQuestion] = field(default_factory=dict[bytes, OpenQuestion])
    """Open requests of the agent, by the ids that the editor sees."""
    _requests: dict[bytes, UnansweredRequest] = field(default_factory=dict[bytes, UnansweredRequest])

    def ask(self, asked: Envelope) -> Envelope:
        """Return the envelope to send to the server for a request of the editor."""
        assert asked.id is not None
        is_renamed = asked.method == methods.NEW and self.session is not None
        sent = parse(request(asked.id, methods.RESUME, {"sessionId": self.session})) if is_renamed else asked
        self._requests[asked.id] = UnansweredRequest(asked.method, sent.session_id, is_renamed)
        return sent

    def fail(self, id: bytes, error: SandboxAgentError) -> bytes | None:
        """Return the error for a request that the server will not answer; None if it has a response already."""
        if self._requests.pop(id, None) is None:
            return None
        return failure(id, OutcomeUnknown() if isinstance(error, ConnectionLost) and error.outcome_unknown else error)

    def incoming(self, arrival: "Arrival") -> bytes | None:
        """Return the line for an envelope of the server; None if the editor must not get it."""
        self.last = max(self.last, arrival.position or 0)
        try:
            envelope = parse_answer(arrival.line)
        except NotAnEnvelope:
            # An error response without an id: it answers no request.
            return None
        match envelope.kind:
            case Kind.REQUEST:
                return self._question(envelope, arrival.generation)
            case Kind.RESPONSE:
                return self._answered(envelope)
            case Kind.NOTIFICATION:
                return self._renamed(envelope, arrival.generation)

    def _question(self, envelope: Envelope, generation: int) -> bytes:
        from sandboxagent.client.incoming import RequestId

        assert envelope.id is not None
        shown = _name(envelope.id, generation)
        self.questions[shown] = OpenQuestion(RequestId(generation, envelope.id.decode()))
        return envelope.line if shown == envelope.id else with_id(envelope.line, shown)

    def _answered(self, envelope: Envelope) -> bytes | None:
        assert envelope.id is not None
        if text_at(envelope.error(), "data", "type") == ShuttingDown.slug:
            # A server that stops answers every request with this error. Once it is back, the outcome arrives.
            return None
        asked = self._requests.pop(envelope.id, None)
        if asked is None or not envelope.succeeded:
            return None if asked is None else envelope.line
        found = text_at(envelope.result(), "sessionId") or asked.session_id
        if found is not None and asked.method in _OPENING:
            self.sessions[found] = 0
        elif asked.method == methods.CLOSE and asked.session_id is not None:
            self.sessions.pop(asked.session_id, None)
        return with_result(envelope.line, "sessionId", self.session) if asked.is_renamed else envelope.line

    def _renamed(self, envelope: Envelope, generation: int) -> bytes:
        """Return the line of a notification. One that cancels a request gets the id that the editor knows."""
        id = param(envelope.line, "requestId") if envelope.method == methods.CANCEL_REQUEST else None
        if id is None:
            return envelope.line
        shown = _name(id, generation)
        withdrawn = self.questions.pop(shown, None)
        if withdrawn is not None and withdrawn.answering is not None:
            # The response is useless: the agent has withdrawn the request.
            withdrawn.answering.cancel()
        return envelope.line if shown == id else with_param(envelope.line, "requestId", Raw(shown))

    def settle(self, shown: bytes, question: OpenQuestion, *, is_answered: bool) -> None:
        """Note the end of a response's delivery. A request that the server did not accept a response for stays open."""
        question.answering = None
        if is_answered and self.questions.get(shown) is question:
            del self.questions[shown]

    def renew(self) -> list[bytes]:
        """Note that a new connection replaces the one that the server has forgotten.

        Returns lines that cancel the agent's requests at the editor. The server sends open ones again.
        """
        lines = [notification(methods.CANCEL_REQUEST, {"requestId": Raw(id)}) for id in self.questions]
        self.questions.clear()
        self.last = 0
        return lines


def _name(id: bytes, generation: int) -> bytes:
    """Return the id that the editor sees for an agent's request. A new connection sends older requests again."""
    return id if generation == 1 else b'"%d/%b"' % (generation - 1, id.replace(b'"', b"'"))


# --- stdin and stdout -------------------------------------------------------------------------------------------------


async def _adapt(server: "ServerAddress", agent: str | None, session: str | None) -> None:
    from sandboxagent.client.api import Api

    base, _, named = server.url.partition("/acp")
    api = Api(base, server.token)
    try:
        # Report a server that cannot be reached, or that refuses the token, before the editor sends anything.
        await api.request("GET", "/v1/health")
        await StdioAdapter(api, agent or named.strip("/") or None, session).run()
    finally:
        await api.close()


class StdioAdapter:
    """An adapter between stdio and a connection to a server."""

    def __init__(self, api: "Api", agent: str | None, session: str | None) -> None:
        import asyncio

        from sandboxagent.client.incoming import Hooks
        from sandboxagent.client.transport import Transport
        from sandboxagent.core.tasks import Tasks

        hooks = Hooks(self._received, interrupted=self._interrupted, reopening=self._catch_up)
        self._transport = Transport(api, hooks, RECONNECT_TIMEOUT, websocket=True)
        self._agent = agent
        self._ledger = MessageLedger(session)
        self._requests, self._others = Tasks(), Tasks()
        """Deliveries under way: requests until their response, and others until the server has accepted them."""
        self._reading: asyncio.Task[None]
        self._failure: Exception | None = None
        """The error that ended the adapter."""

    async def run(self) -> None:
        """Pass envelopes on in both directions until stdin ends. Raises ClientError, and OSError of stdout."""
        import asyncio

        self._reading = asyncio.create_task(self._read_stdin())
        try:
            await self._reading
        except asyncio.CancelledError:
            if self._failure is None:
                raise
            raise self._failure from None
        finally:
            await self._requests.close()
            await self._transport.close()
            await self._others.close()

    async def _read_stdin(self) -> None:
        import asyncio

        is_open = False
        async for line in read_lines():
            if not line.strip():
                continue
            try:
                envelope = parse(line)
            except NotAnEnvelope as error:
                complain(f"skipped an invalid line of the editor: {error}")
                continue
            if not is_open:
                is_open = await self._open(envelope)
                continue
            # While the server is away, lines wait in the pipe.
            await self._transport.ready()
            self._take(envelope)
        # Let the tasks of the last lines start.
        await asyncio.sleep(0)
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self._others.settle()

    async def _open(self, introduction: Envelope) -> bool:
        """Open the connection with the editor's `initialize`. Return False if that failed; the editor may try again."""
        if introduction.method != methods.INITIALIZE or introduction.id is None:
            raise ClientError("the first line must be an initialize request")
        try:
            response = await self._transport.introduce(_with_agent(introduction, self._agent))
        except ConnectionLost:
            raise
        except ClientError as error:
            self._write(failure(introduction.id, error))
            return False
        self._write(one_line(response.content))
        return True

    def _take(self, envelope: Envelope) -> None:
        match envelope.kind:
            case Kind.REQUEST:
                self._requests.run(self._ask(self._ledger.ask(envelope)), "pass on a request")
            case Kind.NOTIFICATION:
                self._others.run(self._notify(envelope.line), "pass on a notification")
            case Kind.RESPONSE:
                question = self._ledger.questions.get(envelope.id or b"")
                if question is not None and question.answering is None:
                    question.answering = self._others.run(self._answer(envelope, question), "pass on an answer")

    async def _ask(self, asked: Envelope) -> None:
        assert asked.id is not None
        try:
            await self._transport.forward(asked)
        except ClientError as error:
            line = self._ledger.fail(asked.id, error)
            if line is not None:
                self._write(line)

    async def _notify(self, line: bytes) -> None:
        try:
            await self._transport.send_unanswered(line, in_order=True)
        except ClientError as error:
            complain(f"a notification was not delivered: {error}")

    async def _answer(self, envelope: Envelope, question: OpenQuestion) -> None:
        line = with_id(envelope.line, question.id.text.encode())
        wrong = await self._transport.deliver(question.id, line)
        self._ledger.settle(envelope.id or b"", question, is_answered=wrong is None)

    # Callbacks of the transport

    def _received(self, arrival: "Arrival") -> None:
        line = self._ledger.incoming(arrival)
        if line is not None:
            self._write(line)

    def _write(self, line: bytes) -> None:
        try:
            if self._failure is None:
                sys.stdout.buffer.write(line + b"\n")
                sys.stdout.buffer.flush()
        except OSError as error:
            self._fail(error)

    def _interrupted(self, why: ClientError | None, away: float) -> None:
        from sandboxagent.client.api import is_temporary

        if why is not None and not is_temporary(why):
            self._fail(why)
        elif away > RECONNECT_TIMEOUT:
            self._fail(ClientError(f"the server cannot be reached: {why or 'it ends each stream'}"))
        elif why is not None and not away:
            complain("the connection was cut; connecting again")

    async def _catch_up(self, call: "Call") -> None:
        """Attach a new connection to the editor's sessions, and print the events that their logs have since the old."""
        from sandboxagent.client.api import is_temporary

        complain("the server was restarted; continuing from the log")
        for session_id in list(self._ledger.sessions):
            try:
                await self._show_missed(call, session_id)
            except ClientError as error:
                if is_temporary(error):
                    raise
                complain(f"cannot continue session {session_id}: {error}")
        for line in self._ledger.renew():
            self._write(line)

    async def _show_missed(self, call: "Call", session_id: str) -> None:
        from sandboxagent.client.incoming import LogSource
        from sandboxagent.core.cursor import Cursor, Gap

        position = (await call(methods.ATTACH, {"sessionId": session_id})).get("position")
        if not isinstance(position, int):
            return
        sessions = self._ledger.sessions
        # Later events come on the new connection, so the cursor is closed from the beginning.
        cursor = Cursor(LogSource(call, session_id, position + 1), max(self._ledger.last, sessions[session_id]), 0)
        cursor.close()
        while (item := await cursor.next()) is not None:
            if isinstance(item, Gap):
                self._write(notification(methods.GAP, {"after": item.after, "resumesAt": item.resumes_at}))
                sessions[session_id] = item.resumes_at - 1
                continue
            event = item.event
            if event.direction != "fromClient" and "method" in event.envelope and "id" not in event.envelope:
                self._write(msgspec.json.encode(event.envelope))
            sessions[session_id] = item.last
        sessions[session_id] = position

    def _fail(self, error: Exception) -> None:
        """End the adapter with an error."""
        self._failure = self._failure or error
        self._reading.cancel()


def _with_agent(introduction: Envelope, agent: str | None) -> bytes:
    """Return the `initialize` with this agent, unless it names an agent already."""
    meta = object_at(introduction.params(), "_meta")
    ours = object_at(meta, META)
    if agent is None or "agent" in ours:
        return introduction.line
    return with_param(introduction.line, "_meta", {**meta, META: {**ours, "agent": agent}})
