"""Answer `fs/*` and `terminal/*` requests of agents, within the session's directories.

With `--client-fs`, the client that opened the session answers instead, if it declared that it can, and as long as it
is connected.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from fnmatch import fnmatchcase
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from sandboxagent.core.tasks import Tasks
from sandboxagent.core.threads import Pool
from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import Envelope, Object, at, failure, same_id, success, with_param
from sandboxagent.protocol.errors import (
    AgentNotReading,
    InternalError,
    InvalidParams,
    InvalidRequest,
    MethodNotFound,
    RequestCancelled,
    RpcError,
    SandboxAgentError,
)
from sandboxagent.server.agents.environment import allowed_environment
from sandboxagent.server.agents.manifest import Name, Text
from sandboxagent.server.files.text import TextFiles
from sandboxagent.server.log.event import Direction
from sandboxagent.server.sessions.budgets import KEPT_COST_BYTES
from sandboxagent.server.sessions.connection import Connection
from sandboxagent.server.sessions.decision import CANCEL
from sandboxagent.server.sessions.hub import Hub
from sandboxagent.server.sessions.observers import Observer
from sandboxagent.server.sessions.pending import Outcome
from sandboxagent.server.sessions.session import Process, Session
from sandboxagent.server.sessions.terminals import ExitStatus, Terminal, TerminalCommand, TerminalOwners, Terminals

logger = logging.getLogger(__name__)

T = TypeVar("T")
Method = Callable[[Process, Session, Envelope], Awaitable[bytes]]
"""A handler of one method: it returns the line that answers a request."""
Number = Annotated[int, Meta(ge=0)]

MAX_UNDER_WAY = 256
"""Maximum number of requests of one agent process that may be under way at once."""
MAX_FILES = 2
"""Maximum number of files that may be read or written at once for one agent process."""
DELIVERY_TIMEOUT, DELIVERY_INTERVAL = 10.0, 0.05
"""Seconds that an answer waits for an agent that does not read, and seconds between two attempts."""

_DECLARED = {methods.READ_TEXT_FILE: ("fs", "readTextFile"), methods.WRITE_TEXT_FILE: ("fs", "writeTextFile")}
"""The capability that a client declares if it answers a method; `terminal` for all other methods."""


class HostRequests(Observer):
    """Answers agents' requests about the host. Its methods must not raise into the pipe's callback."""

    def __init__(
        self,
        hub: Hub,
        files: TextFiles,
        terminals: Terminals,
        pool: Pool,
        environ: Mapping[str, str],
        secrets: Collection[str],
        *,
        client_fs: bool,
    ) -> None:
        self._hub = hub
        self._files = files
        self._terminals = terminals
        self._pool = pool
        self._environ = environ
        self._secrets = secrets
        self._client_fs = client_fs
        self._methods: Mapping[str, Method] = {
            methods.READ_TEXT_FILE: self._read,
            methods.WRITE_TEXT_FILE: self._write,
            methods.TERMINAL_CREATE: self._create,
            methods.TERMINAL_OUTPUT: self._output,
            methods.TERMINAL_WAIT: self._wait_for_exit,
            methods.TERMINAL_KILL: self._kill,
            methods.TERMINAL_RELEASE: self._release,
        }
        self._tasks = Tasks()
        self._taken_back: dict[tuple[str, bytes], asyncio.Future[None]] = {}
        self._under_way: Counter[str] = Counter()
        self._shares: dict[str, asyncio.Semaphore] = {}
        """For each agent process, its share of the threads. Its further requests wait, in order."""
        self._turns: dict[str, asyncio.Lock] = {}
        """For each session, a lock that keeps the answers about its files in the order of the requests."""
        hub.observers.add(self)

    # Events

    def client(self, session: Session, request: Envelope) -> Connection | None:
        """Return the connection that answers a request instead of the server; None if the server does."""
        if not self._client_fs or session.facts.creator is None:
            return None
        declared = _DECLARED.get(request.method, ("terminal",))
        for connection in self._hub.connections.all():
            if connection.tag == session.facts.creator and at(connection.capabilities, *declared) is True:
                return connection
        return None

    def serve(self, running: Process, session: Session, request: Envelope) -> None:
        """Start to answer a request."""
        session.heard_at = self._hub.monotonic()
        line = request.line
        if session.facts.agent_session_id != session.id:
            line = with_param(line, "sessionId", session.id)
        self._hub.record(session, line, Direction.FROM_AGENT)
        self._begin(running, session, request)

    def withdraw(self, running: Process, id: bytes) -> None:
        """Stop waiting for a command's exit, because the agent has withdrawn its request.

        Other requests go on: they may have effects.
        """
        taken_back = self._taken_back.get((running.key, same_id(id)))
        if taken_back is not None and not taken_back.done():
            taken_back.set_result(None)

    def exited(self, running: Process) -> None:
        """End the terminals of an agent process that has exited."""
        self._terminals.end_process(running.key)

    def session_ended(self, session: Session) -> None:
        self._terminals.end_session(session.id)
        self._turns.pop(session.id, None)

    def connection_closed(self, connection: Connection) -> None:
        """Answer the requests that a closed connection has left unanswered."""
        for pending in self._hub.pending.find_for(connection.tag):
            if pending.request.method in self._methods and pending.session is not None:
                self._hub.settle(pending, Outcome.CANCELLED, CANCEL)
                self._begin(pending.process, pending.session, pending.request)

    # Answering

    def _begin(self, running: Process, session: Session, request: Envelope) -> None:
        assert request.id is not None
        try:
            answered = self._start(running, session, request)
        except RpcError as error:
            line = failure(request.id, error)
            self._hub.record(session, line, Direction.FROM_SERVER)
            self._sent(running, line)
            return
        self._under_way[running.key] += 1
        task = self._tasks.run(self._answer(running, session, request, answered), "answer about the host")

        def done(_: asyncio.Task[None]) -> None:
            self._hub.budgets.release_bytes(running.key, len(request.line) + KEPT_COST_BYTES)
            self._under_way[running.key] -= 1
            if not self._under_way[running.key]:
                del self._under_way[running.key]
                self._shares.pop(running.key, None)

        task.add_done_callback(done)

    def _start(self, running: Process, session: Session, request: Envelope) -> Awaitable[bytes]:
        """Start a request's method, and count the request in the budget of its process until it is answered."""
        method, size = self._method(running, request), len(request.line) + KEPT_COST_BYTES
        if not self._hub.budgets.take(running.key, size):
            raise self._no_room()
        try:
            return method(running, session, request)
        except BaseException:
            self._hub.budgets.release_bytes(running.key, size)
            raise

    def _method(self, running: Process, request: Envelope) -> Method:
        if request.method not in self._methods:
            raise MethodNotFound(f"{request.method} is not offered", method=request.method)
        if self._under_way[running.key] >= MAX_UNDER_WAY:
            message = f"{MAX_UNDER_WAY} requests about the host are under way already; wait for one"
            raise InvalidRequest(message, limit=MAX_UNDER_WAY)
        return self._methods[request.method]

    def _no_room(self) -> InvalidRequest:
        return InvalidRequest(self._hub.budgets.refusal(), limit=self._hub.budgets.most)

    async def _answer(self, running: Process, session: Session, request: Envelope, answered: Awaitable[bytes]) -> None:
        assert request.id is not None
        async with self._turn(session, request):
            line = await self._line(running, request, answered)
            if not self._hub.budgets.take(running.key, len(line)):
                line = failure(request.id, self._no_room())
                self._hub.record(session, line, Direction.FROM_SERVER)
                self._sent(running, line)
                return
            try:
                await self._deliver(running, session, line)
            finally:
                self._hub.budgets.release_bytes(running.key, len(line))

    async def _deliver(self, running: Process, session: Session, line: bytes) -> None:
        self._hub.record(session, line, Direction.FROM_SERVER)
        deadline = self._hub.monotonic() + DELIVERY_TIMEOUT
        # An agent that requests much at once gets time to read it. The session's other file requests wait.
        while not self._sent(running, line) and self._hub.monotonic() < deadline:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(DELIVERY_INTERVAL)

    def _turn(self, session: Session, request: Envelope) -> AbstractAsyncContextManager[object]:
        if not request.method.startswith("fs/"):
            return nullcontext()
        return self._turns.setdefault(session.id, asyncio.Lock())

    async def _line(self, running: Process, request: Envelope, answered: Awaitable[bytes]) -> bytes:
        assert request.id is not None
        try:
            return await answered
        except SandboxAgentError as error:
            return failure(request.id, error)
        except Exception:
            logger.exception("request of an agent failed agent=%s method=%s", running.agent.id, request.method)
            return failure(request.id, InternalError())

    def _sent(self, running: Process, line: bytes) -> bool:
        """Send a line; return False if the caller should try again."""
        try:
            running.send(line)
        except AgentNotReading:
            return False
        except RpcError as error:
            logger.debug("agent takes no answer agent=%s reason=%s", running.agent.id, error.slug)
        return True

    # Files: parsed, read and written in a thread, because contents may be large

    def _read(self, running: Process, session: Session, request: Envelope) -> Awaitable[bytes]:
        def read() -> bytes:
            asked = _params(request, _Read)
            return _result(
                request, {"content": self._files.read(session.directories, asked.path, asked.line, asked.limit)}
            )

        return self._in_thread(running, read)

    def _write(self, running: Process, session: Session, request: Envelope) -> Awaitable[bytes]:
        def write() -> bytes:
            asked = _params(request, _Write)
            self._files.write(session.directories, asked.path, asked.content)
            return _result(request, {})

        return self._in_thread(running, write)

    async def _in_thread(self, running: Process, work: Callable[[], bytes]) -> bytes:
        async with self._shares.setdefault(running.key, asyncio.Semaphore(MAX_FILES)):
            return await self._pool.run(work)

    # Terminals

    def _create(self, running: Process, session: Session, request: Envelope) -> Awaitable[bytes]:
        asked = _params(request, _Create)
        wanted = {variable.name: variable.value for variable in asked.env or ()}
        command = TerminalCommand(
            program=asked.command,
            arguments=asked.args or (),
            environment=self._environment(running) | wanted,
            directory=asked.cwd or session.facts.cwd,
            directories=session.directories,
            output_limit=asked.outputByteLimit,
        )

        async def created() -> bytes:
            id = await self._terminals.create(TerminalOwners(running.key, session.id), command)
            return _result(request, {"terminalId": id})

        return created()

    async def _output(self, running: Process, session: Session, request: Envelope) -> bytes:
        terminal = self._terminal(running, session, request)
        text, truncated = terminal.output()
        result: Object = {"output": text, "truncated": truncated}
        return _result(request, result if terminal.exit is None else result | {"exitStatus": _ending(terminal.exit)})

    def _wait_for_exit(self, running: Process, session: Session, request: Envelope) -> Awaitable[bytes]:
        assert request.id is not None
        # Look the terminal up here, before the wait: the agent's next request may release it.
        terminal = self._terminal(running, session, request)
        taken_back = asyncio.get_running_loop().create_future()
        id = (running.key, same_id(request.id))
        self._taken_back[id] = taken_back

        async def waited() -> bytes:
            exited = asyncio.ensure_future(terminal.exited())
            await asyncio.wait({exited, taken_back}, return_when=asyncio.FIRST_COMPLETED)
            self._taken_back.pop(id, None)
            if not exited.done():
                exited.cancel()
                raise RequestCancelled("the request was taken back")
            return _result(request, _ending(exited.result()))

        return waited()

    async def _kill(self, running: Process, session: Session, request: Envelope) -> bytes:
        await self._terminals.kill(TerminalOwners(running.key, session.id), _params(request, _Terminal).terminalId)
        return _result(request, {})

    async def _release(self, running: Process, session: Session, request: Envelope) -> bytes:
        await self._terminals.release(TerminalOwners(running.key, session.id), _params(request, _Terminal).terminalId)
        return _result(request, {})

    def _terminal(self, running: Process, session: Session, request: Envelope) -> Terminal:
        return self._terminals.get(TerminalOwners(running.key, session.id), _params(request, _Terminal).terminalId)

    def _environment(self, running: Process) -> dict[str, str]:
        """Return a command's environment: that of its agent, without credentials, which only the model needs."""
        agent = running.agent
        seen = {**allowed_environment(self._environ, agent.variables), **agent.env, **running.environment}
        return {
            name: value
            for name, value in seen.items()
            if value not in self._secrets and not any(fnmatchcase(name, secret) for secret in agent.credentials)
        }


class _Read(msgspec.Struct):
    path: str
    line: Number | None = None
    limit: Number | None = None


class _Write(msgspec.Struct):
    path: str
    content: str


class _Variable(msgspec.Struct):
    name: Name
    value: Text


class _Create(msgspec.Struct):
    command: Annotated[Text, Meta(min_length=1)]
    args: list[Text] | None = None
    env: list[_Variable] | None = None
    cwd: str | None = None
    outputByteLimit: Number | None = None


class _Terminal(msgspec.Struct):
    terminalId: str


def _params(request: Envelope, type: type[T]) -> T:
    try:
        return msgspec.convert(request.params(), type)
    except msgspec.ValidationError as error:
        raise InvalidParams(f"{request.method}: {error}", method=request.method) from None


def _result(request: Envelope, result: Object) -> bytes:
    assert request.id is not None
    return success(request.id, result)


def _ending(exit: ExitStatus) -> Object:
    return {"exitCode": exit.code, "signal": exit.signal}
