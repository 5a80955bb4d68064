"""Choose the process for an envelope, resume its session if needed, and send the envelope to it.

A session whose process is gone is first resumed at its agent. This module also checks, before it passes a request on,
that the request has the members it needs and that the agent offers the method.
"""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from pathlib import Path

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from sandboxagent.core.tasks import Shared, Tasks
from sandboxagent.core.threads import Pool
from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import (
    LARGE_BYTES,
    META,
    Envelope,
    Object,
    object_at,
    param,
    parse,
    request,
    same_id,
    text_at,
    with_param,
    without_params,
)
from sandboxagent.protocol.errors import (
    AgentExited,
    AgentNotInstalled,
    AgentTimeout,
    InvalidParams,
    InvalidRequest,
    MethodNotFound,
    RequestCancelled,
    SandboxAgentError,
)
from sandboxagent.server.agents.catalog import Catalog, write_instructions
from sandboxagent.server.agents.manifest import Agent, Name, Text
from sandboxagent.server.agents.supervisor import Supervisor
from sandboxagent.server.log.event import FROM_AGENT, FROM_CLIENT
from sandboxagent.server.sessions.attachments import KEY
from sandboxagent.server.sessions.calls import Call
from sandboxagent.server.sessions.connection import Connection
from sandboxagent.server.sessions.hub import Hub
from sandboxagent.server.sessions.lifecycle import Event
from sandboxagent.server.sessions.reply import Answer, Reply
from sandboxagent.server.sessions.session import Process, Replay, Session

logger = logging.getLogger(__name__)
NO_ID = b"null"
DISK_TIMEOUT = 10.0
"""Seconds that opening a session waits for the disk of its directory."""
REPLAY_TIMEOUT = 2.0
"""Seconds that an agent has to replay a session's history after its response."""


class Dispatcher:
    """Sends requests and notifications to agents, and starts or resumes what they need."""

    def __init__(
        self,
        hub: Hub,
        supervisor: Supervisor,
        catalog: Catalog,
        request_timeout: float,
        pool: Pool,
        is_directory: Callable[[str], bool] = os.path.isdir,
        disk_timeout: float = DISK_TIMEOUT,
    ) -> None:
        """`is_directory` and the catalog read the disk, in a thread of `pool`."""
        self._pool = pool
        self._is_directory = is_directory
        self._disk_timeout = disk_timeout
        self._hub = hub
        self._supervisor = supervisor
        self._catalog = catalog
        self._request_timeout = request_timeout
        self._resumes = Shared[str, Process]()
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}
        """For each session: its lock, and the number of callers that hold it or wait for it."""
        self._parked: dict[tuple[str, bytes], asyncio.Future[None]] = {}
        """Requests that wait until their session is resumed. Setting the future cancels the request."""
        self._tasks = Tasks()

    async def agent(self, connection: Connection, envelope: Envelope) -> Agent:
        """Return the agent for an envelope without a session: the one that it names, else the connection's."""
        named = None
        if KEY in envelope.line:
            named = text_at(envelope.params(), "_meta", META, "agent")
        return await self.find_agent(named or connection.agent)

    async def find_agent(self, agent: str) -> Agent:
        """Return an agent by its name. Raises UnknownAgent."""
        return await self._pool.run(self._catalog.agent, agent)

    async def agent_of(self, session: Session) -> Agent:
        return await self.find_agent(session.facts.agent)

    async def process(self, connection: Connection, envelope: Envelope) -> tuple[Process, Session | None]:
        """Return the process and the session for an envelope.

        It resumes the session or starts the process if needed. Raises UnknownSession, or the error of the start.
        """
        if envelope.session_id is not None:
            session = self._hub.session(envelope.session_id)
            return session.held or await self._park(connection, envelope, session), session
        agent = await self.agent(connection, envelope)
        self._hub.connections.follow_agent(connection, agent.id)
        return self._supervisor.running(agent.id) or await self._supervisor.process(agent), None

    async def get_holder(self, session: Session) -> Process:
        """Return the process that holds a session; resume the session first if its process is gone."""
        return session.held or await self.resume(session)

    async def resume(self, session: Session) -> Process:
        """Resume a session. All callers share one task."""
        with self._join_resume(session) as resuming:
            return await asyncio.shield(resuming)

    def _join_resume(self, session: Session) -> AbstractContextManager[asyncio.Task[Process]]:
        return self._resumes.join(session.id, lambda: self._resume(session), f"resume {session.id}")

    async def _park(self, connection: Connection, envelope: Envelope, session: Session) -> Process:
        """Wait until a request's session is resumed. Raises RequestCancelled if its client cancels the request."""
        if envelope.id is None:
            return await self.resume(session)
        key, cancelled = (connection.tag, same_id(envelope.id)), asyncio.get_running_loop().create_future()
        self._parked[key] = cancelled
        try:
            with self._join_resume(session) as resuming:
                await asyncio.wait([resuming, cancelled], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._parked.pop(key, None)
        if cancelled.done():
            raise RequestCancelled("the request was cancelled before its session was back")
        return resuming.result()

    def cancel_queued(self, connection: Connection, client_id: bytes) -> bool:
        """Cancel a request that waits until its session is resumed; return False if there is none."""
        cancelled = self._parked.pop((connection.tag, same_id(client_id)), None)
        if cancelled is None:
            return False
        cancelled.set_result(None)
        return True

    async def start(self, agent: str) -> Process:
        """Return an agent's shared process, by the agent's name; install the agent first if needed and allowed."""
        return await self._supervisor.process(await self._catalog.find(agent))

    async def start_installed(self, agent: Agent) -> Process:
        """Return an agent's shared process without installing the agent. Raises AgentNotInstalled."""
        is_running = self._supervisor.running(agent.id) is not None
        if not is_running and await self._pool.run(self._catalog.launch, agent) is None:
            raise AgentNotInstalled(agent.id, write_instructions(agent))
        return await self._supervisor.process(agent)

    async def spawn(self, agent: Agent, environment: Mapping[str, str] | None = None) -> Process:
        """Return a process for a session. A session with its own environment gets its own process."""
        if environment or agent.isolation == "session":
            return await self._supervisor.isolated(agent, environment or {})
        return await self._supervisor.process(agent)

    async def stop_if_unused(self, running: Process) -> None:
        """Stop the process of a session that has ended, if it was for that session alone and holds no fork of it."""
        if running.alone and not self._hub.store.find_all_held(running):
            await self._supervisor.stop(running.key)

    def stop_if_unused_soon(self, running: Process) -> None:
        """Like `stop_if_unused`, in a task, for callers that cannot wait."""
        self._tasks.run(self.stop_if_unused(running), f"stop unused process {running.key}")

    async def close_at_agent(self, running: Process, agent_session_id: str) -> None:
        """Close, at its agent, a session that has ended in the server. A refusal of the agent is ignored."""
        with suppress(SandboxAgentError):
            if running.handshake.offers("sessionCapabilities", "close"):
                await self.call_as_server(running, None, methods.CLOSE, {"sessionId": agent_session_id})
        await self.stop_if_unused(running)

    def close_at_agent_soon(self, running: Process, agent_session_id: str) -> None:
        """Like `close_at_agent`, in a task, for callers that cannot wait."""
        self._tasks.run(self.close_at_agent(running, agent_session_id), f"close a session at {running.key}")

    @asynccontextmanager
    async def lock_session(self, session_id: str) -> AsyncGenerator[None]:
        """Lock a session, so that only one caller at a time resumes or deletes it; the next one sees the result."""
        lock, users = self._locks.get(session_id) or (asyncio.Lock(), 0)
        self._locks[session_id] = lock, users + 1
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks.pop(session_id)
            if users > 1:
                self._locks[session_id] = lock, users - 1

    async def directory(self, params: Object) -> str:
        """Return `cwd`, checked. Only some agents check it, so the server does for all. Raises InvalidParams."""
        cwd = params.get("cwd")
        if not isinstance(cwd, str) or not Path(cwd).is_absolute():
            raise InvalidParams("cwd must be an absolute path", cwd=cwd)
        try:
            async with asyncio.timeout(self._disk_timeout):
                is_there = "\0" not in cwd and await self._pool.run(self._is_directory, cwd)
        except TimeoutError:
            seconds = self._disk_timeout
            reason = f"cwd {cwd} could not be checked in {seconds:g} s; its disk does not answer"
            raise InvalidParams(reason, cwd=cwd) from None
        if not is_there:
            raise InvalidParams(f"cwd {cwd} is not a directory on this host; create it first", cwd=cwd)
        return cwd

    async def request(self, connection: Connection, envelope: Envelope) -> Answer:
        """Pass a request on unchanged, and return its response."""
        running, session = await self.process(connection, envelope)
        return await self.call(connection, running, session, envelope)

    async def call(
        self,
        connection: Connection,
        running: Process,
        session: Session | None,
        envelope: Envelope,
        settle: Callable[[Call, Envelope], Answer] | None = None,
        *,
        makes_session: bool = False,
    ) -> Answer:
        """Send a client's request to a process.

        `settle` handles the response as soon as it arrives. Without it, the response is passed on unread.
        """
        if session is not None and not makes_session:
            self._hub.record(session, envelope.line, FROM_CLIENT)
        reply = Reply()
        self._open(connection, running, session, envelope, settle, reply, makes_session)
        return await reply

    def forward(self, connection: Connection, envelope: Envelope, reply: Reply) -> bool:
        """Pass a request on unchanged and return True, if a process holds its session.

        Otherwise it returns False, and the caller must use `request`.
        """
        session = self._hub.find_session(envelope.session_id)
        running = None if session is None else session.held
        if session is None or running is None:
            return False
        reply.accept(self._hub.record(session, envelope.line, FROM_CLIENT).last)
        self._open(connection, running, session, envelope, None, reply)
        return True

    def _open(
        self,
        connection: Connection,
        running: Process,
        session: Session | None,
        envelope: Envelope,
        settle: Callable[[Call, Envelope], Answer] | None,
        reply: Reply,
        makes_session: bool = False,
    ) -> None:
        assert envelope.id is not None
        deadline = self._hub.monotonic() + self._request_timeout
        how = settle or self.return_response
        call = Call(envelope.method, envelope.id, connection, running, session, how, reply, deadline)
        call.forwarded = settle is None
        call.makes_session = makes_session
        self._hub.calls.open(call)
        self._send(call, self.line_for(session, envelope, call.stdio_id))

    async def call_as_server(self, running: Process, session: Session | None, method: str, params: Object) -> Envelope:
        """Send a request of the server's own to a process, and return the response."""
        answers: list[Envelope] = []

        def settle(_: Call, response: Envelope) -> Answer:
            answers.append(response)
            return Answer(response.line)

        reply = Reply()
        deadline = self._hub.monotonic() + self._request_timeout
        call = Call(method, NO_ID, None, running, session, settle, reply, deadline)
        self._hub.calls.open(call)
        self._send(call, request(call.stdio_id, method, params))
        await reply
        return answers[0]

    def return_response(self, call: Call, response: Envelope) -> Answer:
        """Return the unchanged response under the client's own id, and record it in the session."""
        line = response.addressed(call.client_id, None)
        if call.session is None:
            return Answer(line)
        return Answer(line, self._hub.record(call.session, line, FROM_AGENT).last)

    def notify(self, connection: Connection, envelope: Envelope) -> Coroutine[object, None, None] | None:
        """Pass a notification on unchanged. Return the work that is left if no process holds its session."""
        session = self._hub.find_session(envelope.session_id)
        running = None if session is None else session.held
        if running is None:
            return self._start_and_notify(connection, envelope)
        self._send_notification(running, session, envelope)
        return None

    async def _start_and_notify(self, connection: Connection, envelope: Envelope) -> None:
        running, session = await self.process(connection, envelope)
        self._send_notification(running, session, envelope)

    def _send_notification(self, running: Process, session: Session | None, envelope: Envelope) -> None:
        if session is not None:
            self._hub.record(session, envelope.line, FROM_CLIENT)
        running.send(self.line_for(session, envelope))

    def _send(self, call: Call, line: bytes) -> None:
        try:
            call.running.send(line)
        except BaseException:
            self._hub.calls.close(call.running, call.stdio_id)
            raise

    @staticmethod
    def line_for(session: Session | None, envelope: Envelope, id: bytes | None = None) -> bytes:
        """Return an envelope's line for the agent, with this id and the agent's own session id.

        The session id may differ, because a client may use an alias.
        """
        if session is None or envelope.session_id == session.facts.agent_session_id:
            return envelope.addressed(id, None)
        return envelope.addressed(id, session.facts.agent_session_id)

    async def _resume(self, session: Session) -> Process:
        async with self.lock_session(session.id):
            if session.held is not None:
                return session.held
            # The session may have been deleted while this waited for the lock.
            self._hub.session(session.id).check_resumable()
            session.check_environment({})
            running = await self.spawn(await self.agent_of(session))
            try:
                # The session may have ended while its agent was started.
                session.check_resumable()
                self._hub.move(session, Event.RESUME, running)
                await self._resume_at(session, running)
            except BaseException as error:
                self._hub.move(session, Event.FAILED)
                if not isinstance(error, AgentTimeout):
                    session.replay = None
                await self.stop_if_unused(running)
                raise
            session.replay = None
            return running

    async def wait_for_replay(self, running: Process, session: Session) -> None:
        """Wait for an agent that replays the history after its response, so that the replay is not taken for new."""
        replay = session.replay
        if replay is None or replay.finished or not running.agent.replays_late:
            return
        finished = asyncio.Event()
        replay.when_finished = finished.set
        with suppress(TimeoutError):
            async with asyncio.timeout(REPLAY_TIMEOUT):
                await finished.wait()

    async def _resume_at(self, session: Session, running: Process) -> None:
        agent = running.agent.id
        resumes = running.handshake.offers("sessionCapabilities", "resume")
        if not resumes and not running.handshake.offers("loadSession"):
            raise InvalidRequest(f"agent {agent} can neither resume nor load sessions", sessionId=session.id)
        method = methods.RESUME if resumes else methods.LOAD
        session.replay = Replay(channel="", history=False)
        response = await self.call_as_server(running, session, method, resume_params(session))
        if not response.succeeded:
            error = response.error()
            reason = f"agent {agent} could not resume the session: {error.get('message')}"
            if not running.alive:
                raise AgentExited(reason, agent=agent, sessionId=session.id)
            raise InvalidRequest(reason, sessionId=session.id, agentError=error)
        await self.wait_for_replay(running, session)
        session.learn_offers(response.result())
        if not self._hub.mark_opened(session, running):
            await self.close_at_agent(running, session.facts.agent_session_id)
            raise session.ended_error()
        logger.info("session resumed session=%s agent=%s method=%s", session.id, agent, method)


def check_size(envelope: Envelope) -> None:
    """Refuse an envelope that is too large for the server itself to parse. Raises InvalidParams."""
    if len(envelope.line) > LARGE_BYTES:
        what = envelope.method or "this"
        raise InvalidParams(
            f"{what} may have {LARGE_BYTES} bytes; only envelopes for an agent may have more", limit=LARGE_BYTES
        )


def fill_from_session(line: bytes, session: Session) -> bytes:
    """Add to a request the params that it leaves out, as they were when the session was opened."""
    for name, value in resume_params(session).items():
        if param(line, name) is None:
            line = with_param(line, name, value)
    return line


def resume_params(session: Session) -> Object:
    """Return the params with which an agent resumes or loads a session."""
    opened = bytes(session.facts.opened_with)
    line = b'{"params":%b}' % opened
    params: Object = {"sessionId": session.facts.agent_session_id, "cwd": session.facts.cwd, "mcpServers": []}
    for name in ("mcpServers", "additionalDirectories"):
        value = param(line, name)
        if value is not None:
            params[name] = Raw(value)
    return params


Method = Callable[[Connection, Envelope], Awaitable[Answer]]
"""A handler that answers one method of clients."""

MAX_PROMPT_ID = 128

_ADVERTISED: Mapping[str, tuple[str, ...]] = {
    methods.LOAD: ("loadSession",),
    methods.RESUME: ("sessionCapabilities", "resume"),
    methods.FORK: ("sessionCapabilities", "fork"),
    methods.CLOSE: ("sessionCapabilities", "close"),
    "logout": ("auth", "logout"),
}


def require_advertised(running: Process, method: str) -> None:
    """Raise MethodNotFound, with the agent's name, if the agent does not advertise a method."""
    if not running.handshake.offers(*_ADVERTISED[method]):
        raise make_not_offered(running.agent.id, method)


def make_not_offered(agent: str, method: str, more: str = "") -> MethodNotFound:
    """Return the error for a method that an agent does not offer; `more` is advice, or names a consequence."""
    message = f"agent {agent} does not offer {method}"
    return MethodNotFound(f"{message}; {more}" if more else message, agent=agent, method=method)


def take_environment(envelope: Envelope) -> tuple[dict[str, str], Envelope]:
    """Return the `env` for a session's own process, and the request without it. Raises InvalidParams.

    `env` is removed because it may contain secrets.
    """
    asked = object_at(envelope.params(), "_meta", META) if KEY in envelope.line else {}
    if "env" not in asked:
        return {}, envelope
    try:
        environment = msgspec.convert(asked["env"], dict[Name, Text])
    except msgspec.ValidationError:
        raise InvalidParams('env must map names without "=" to strings, all of them without NUL') from None
    return environment, parse(without_params(envelope.line, "_meta", META, "env"))


class _Ours(Struct):
    promptId: Raw | UnsetType = UNSET


class _Meta(Struct, rename={"ours": META}):
    ours: _Ours | UnsetType = UNSET


def prompt_id(line: bytes) -> str | None:
    """Return the client's own id of a prompt; None if it has none. Raises InvalidParams."""
    meta = param(line, "_meta") if line.find(KEY) >= 0 else None
    try:
        ours = UNSET if meta is None else msgspec.json.decode(meta, type=_Meta).ours
    except msgspec.ValidationError:
        # Do not refuse it: the agent may understand it.
        return None
    if ours is UNSET or ours.promptId is UNSET:
        return None
    try:
        name = msgspec.json.decode(ours.promptId, type=str)
    except msgspec.DecodeError:
        name = ""
    if not 0 < len(name) <= MAX_PROMPT_ID or not name.isprintable():
        raise InvalidParams(f"promptId must be a string of 1 to {MAX_PROMPT_ID} printable characters")
    return name
