"""Choose the process that an envelope is for, resume its session if needed, and send it there.

A session whose process is gone is brought back to its agent first. Here is also what a request must bring, and its
agent must offer, before it is passed on.
"""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from sandboxagent.core.tasks import Tasks
from sandboxagent.core.threads import Pool
from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import (
    LARGE,
    META,
    Envelope,
    Object,
    object_at,
    param,
    parse,
    request,
    same_id,
    text_at,
    with_id,
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
"""Seconds that a session which is about to be opened waits for the disk of its directory."""
REPLAY_TIMEOUT = 2.0
"""Seconds that an agent has to repeat a session's past after it has answered."""


class Dispatcher:
    """The way to the agents."""

    def __init__(
        self,
        hub: Hub,
        supervisor: Supervisor,
        catalog: Catalog,
        request_timeout: float,
        pool: Pool,
        is_directory: Callable[[str], bool] = os.path.isdir,
        disk_patience: float = DISK_TIMEOUT,
    ) -> None:
        """`is_directory` looks at the disk, in a thread of `pool`."""
        self._pool = pool
        self._is_directory = is_directory
        self._disk_patience = disk_patience
        self._hub = hub
        self._supervisor = supervisor
        self._catalog = catalog
        self._request_timeout = request_timeout
        self._revivals: dict[str, asyncio.Task[Process]] = {}
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}
        """By session, with the number of callers that have it or wait for it."""
        self._parked: dict[tuple[str, bytes], asyncio.Future[None]] = {}
        """Requests that wait for their session to come back, until that or until their client takes them back."""
        self._tasks = Tasks()

    def agent(self, connection: Connection, envelope: Envelope) -> Agent:
        """The agent an envelope without a session is for: the one it names, else the connection's."""
        named = None
        if KEY in envelope.line:
            named = text_at(envelope.params(), "_meta", META, "agent")
        return self._catalog.agent(named or connection.agent)

    def find_agent(self, agent: str) -> Agent:
        """Raises UnknownAgent."""
        return self._catalog.agent(agent)

    def agent_of(self, session: Session) -> Agent:
        return self.find_agent(session.facts.agent)

    async def process(self, connection: Connection, envelope: Envelope) -> tuple[Process, Session | None]:
        """Where an envelope goes; raises UnknownSession, or what hinders the process from starting."""
        if envelope.session_id is not None:
            session = self._hub.session(envelope.session_id)
            return session.held or await self._park(connection, envelope, session), session
        agent = self.agent(connection, envelope)
        self._hub.connections.meet(connection, agent.id)
        return self._supervisor.running(agent.id) or await self._supervisor.process(agent), None

    async def get_holder(self, session: Session) -> Process:
        """The process that holds a session; brings the session back when its process is gone."""
        return session.held or await asyncio.shield(self.resume(session))

    def resume(self, session: Session) -> asyncio.Task[Process]:
        """A session on its way back to its agent: one task, shared by all who wait for it."""
        revival = self._revivals.get(session.id)
        if revival is None:
            revival = asyncio.create_task(self._revive(session), name=f"revive {session.id}")
            self._revivals[session.id] = revival
            revival.add_done_callback(lambda _: self._revivals.pop(session.id, None))
            # The callers may have left.
            revival.add_done_callback(lambda task: task.cancelled() or task.exception())
        return revival

    async def _park(self, connection: Connection, envelope: Envelope, session: Session) -> Process:
        """Let a request wait until its session is back; raises RequestCancelled when its client takes it back."""
        revival = self.resume(session)
        if envelope.id is None:
            return await asyncio.shield(revival)
        key, taken_back = (connection.tag, same_id(envelope.id)), asyncio.get_running_loop().create_future()
        self._parked[key] = taken_back
        try:
            await asyncio.wait([revival, taken_back], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._parked.pop(key, None)
        if taken_back.done():
            raise RequestCancelled("the request was cancelled before its session was back")
        return revival.result()

    def cancel_queued(self, connection: Connection, client_id: bytes) -> bool:
        """Take back a request that waits for its session to come back; False when there is none."""
        taken_back = self._parked.pop((connection.tag, same_id(client_id)), None)
        if taken_back is None:
            return False
        taken_back.set_result(None)
        return True

    async def start(self, agent: str) -> Process:
        """An agent's shared process, by name; installs it first when that is needed and allowed."""
        return await self._supervisor.process(await self._catalog.find(agent))

    async def start_installed(self, agent: Agent) -> Process:
        """The same for what is worth no install: raises AgentNotInstalled."""
        if self._supervisor.running(agent.id) is None and self._catalog.launch(agent) is None:
            raise AgentNotInstalled(agent.id, write_instructions(agent))
        return await self._supervisor.process(agent)

    async def spawn(self, agent: Agent, environment: Mapping[str, str] | None = None) -> Process:
        """The process for a session of an agent; one of its own when it brings its own environment."""
        if environment or agent.isolation == "session":
            return await self._supervisor.isolated(agent, environment or {})
        return await self._supervisor.process(agent)

    async def stop_if_unused(self, running: Process) -> None:
        """A session is over: its process goes too when it had one to itself, and left no fork in it."""
        if running.alone and not self._hub.store.find_all_held(running):
            await self._supervisor.stop(running.key)

    def stop_if_unused_soon(self, running: Process) -> None:
        """The same, for callers that cannot wait."""
        self._tasks.run(self.stop_if_unused(running), f"dismiss {running.key}")

    async def close_at_agent(self, running: Process, agent_session_id: str) -> None:
        """Close a session at its agent that has ended here; an agent that refuses does not keep it alive."""
        with suppress(SandboxAgentError):
            if running.handshake.offers("sessionCapabilities", "close"):
                await self.call_as_server(running, None, methods.CLOSE, {"sessionId": agent_session_id})
        await self.stop_if_unused(running)

    def close_at_agent_soon(self, running: Process, agent_session_id: str) -> None:
        """The same, for callers that cannot wait."""
        self._tasks.run(self.close_at_agent(running, agent_session_id), f"close a session at {running.key}")

    @asynccontextmanager
    async def lock_session(self, session_id: str) -> AsyncGenerator[None]:
        """Only one caller at a time resumes or deletes a session; the next one sees the result."""
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
        """`cwd`. Only some agents check it, so it is checked for all of them; raises InvalidParams."""
        cwd = params.get("cwd")
        if not isinstance(cwd, str) or not Path(cwd).is_absolute():
            raise InvalidParams("cwd must be an absolute path", cwd=cwd)
        try:
            async with asyncio.timeout(self._disk_patience):
                is_there = "\0" not in cwd and await self._pool.run(self._is_directory, cwd)
        except TimeoutError:
            seconds = self._disk_patience
            reason = f"cwd {cwd} could not be looked at in {seconds:g} s; its disk does not answer"
            raise InvalidParams(reason, cwd=cwd) from None
        if not is_there:
            raise InvalidParams(f"cwd {cwd} is not a directory on this host; create it first", cwd=cwd)
        return cwd

    async def request(self, connection: Connection, envelope: Envelope) -> Answer:
        """Pass a request on as it is, and its response back."""
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
        """Send a client's request to a process; `settle` runs the moment it answers."""
        if session is not None and not makes_session:
            self._hub.record(session, envelope.line, FROM_CLIENT)
        reply = Reply()
        self._open(connection, running, session, envelope, settle or self.pass_back, reply, makes_session)
        return await reply

    def forward(self, connection: Connection, envelope: Envelope, reply: Reply) -> bool:
        """Pass a request on as it is, if a process holds its session; False for one that is left to `request`."""
        session = self._hub.find_session(envelope.session_id)
        running = None if session is None else session.held
        if session is None or running is None:
            return False
        reply.accept(self._hub.record(session, envelope.line, FROM_CLIENT).last)
        self._open(connection, running, session, envelope, self.pass_back, reply)
        return True

    def _open(
        self,
        connection: Connection,
        running: Process,
        session: Session | None,
        envelope: Envelope,
        settle: Callable[[Call, Envelope], Answer],
        reply: Reply,
        makes_session: bool = False,
    ) -> None:
        assert envelope.id is not None
        deadline = self._hub.monotonic() + self._request_timeout
        call = Call(envelope.method, envelope.id, connection, running, session, settle, reply, deadline)
        call.makes_session = makes_session
        self._hub.calls.open(call)
        self._send(call, self.line_for(session, envelope, call.stdio_id))

    async def call_as_server(self, running: Process, session: Session | None, method: str, params: Object) -> Envelope:
        """Send a request of the server's own to a process."""
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

    def pass_back(self, call: Call, response: Envelope) -> Answer:
        """The response as it came, under the client's own id."""
        line = with_id(response.line, call.client_id)
        if call.session is None:
            return Answer(line)
        return Answer(line, self._hub.record(call.session, line, FROM_AGENT).last)

    async def notify(self, connection: Connection, envelope: Envelope) -> None:
        """Pass a notification on as it is."""
        running, session = await self.process(connection, envelope)
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
        """The line for an agent, under this id, with its own session id in it: a client may have used an alias."""
        if session is None or envelope.session_id == session.facts.agent_session_id:
            return envelope.addressed(id, None)
        return envelope.addressed(id, session.facts.agent_session_id)

    async def _revive(self, session: Session) -> Process:
        async with self.lock_session(session.id):
            if session.held is not None:
                return session.held
            # It may have been deleted while we waited.
            self._hub.session(session.id).check_revivable()
            session.check_environment({})
            running = await self.spawn(self.agent_of(session))
            try:
                # Or ended while its agent was started.
                session.check_revivable()
                self._hub.move(session, Event.REVIVE, running)
                await self._revive_at(session, running)
            except BaseException as error:
                self._hub.move(session, Event.FAILED)
                if not isinstance(error, AgentTimeout):
                    session.replay = None
                await self.stop_if_unused(running)
                raise
            session.replay = None
            return running

    async def wait_for_replay(self, running: Process, session: Session) -> None:
        """Wait for an agent that answers first and repeats the past afterwards, so that it is not taken for new."""
        replay = session.replay
        if replay is None or replay.finished or not running.agent.replays_late:
            return
        finished = asyncio.Event()
        replay.when_finished = finished.set
        with suppress(TimeoutError):
            async with asyncio.timeout(REPLAY_TIMEOUT):
                await finished.wait()

    async def _revive_at(self, session: Session, running: Process) -> None:
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
    """Refuse an envelope that is too large for the server itself to read.

    What a file may have is for its method to say: that one reads it in a thread.
    """
    if len(envelope.line) > LARGE and envelope.method != methods.WRITE_FILE:
        what = envelope.method or "this"
        raise InvalidParams(f"{what} may have {LARGE} bytes; only what is for an agent may have more", limit=LARGE)


def fill_from_session(line: bytes, session: Session) -> bytes:
    """A request with all that it leaves out as it was when the session was opened."""
    for name, value in resume_params(session).items():
        if param(line, name) is None:
            line = with_param(line, name, value)
    return line


def resume_params(session: Session) -> Object:
    """What an agent needs to take up a session again."""
    opened = bytes(session.facts.opened_with)
    line = b'{"params":%b}' % opened
    params: Object = {"sessionId": session.facts.agent_session_id, "cwd": session.facts.cwd, "mcpServers": []}
    for name in ("mcpServers", "additionalDirectories"):
        value = param(line, name)
        if value is not None:
            params[name] = Raw(value)
    return params


Method = Callable[[Connection, Envelope], Awaitable[Answer]]
"""Answers one method of a client."""

MAX_PROMPT_ID = 128

_ADVERTISED: Mapping[str, tuple[str, ...]] = {
    methods.LOAD: ("loadSession",),
    methods.RESUME: ("sessionCapabilities", "resume"),
    methods.FORK: ("sessionCapabilities", "fork"),
    methods.CLOSE: ("sessionCapabilities", "close"),
    "logout": ("auth", "logout"),
}


def require_advertised(running: Process, method: str) -> None:
    """Raises MethodNotFound, with the agent's name, for what the agent does not advertise."""
    if not running.handshake.offers(*_ADVERTISED[method]):
        raise make_not_offered(running.agent.id, method)


def make_not_offered(agent: str, method: str, more: str = "") -> MethodNotFound:
    """The error for a method an agent does not have; `more` is what to do, or what comes of it."""
    message = f"agent {agent} does not offer {method}"
    return MethodNotFound(f"{message}; {more}" if more else message, agent=agent, method=method)


def take_environment(envelope: Envelope) -> tuple[dict[str, str], Envelope]:
    """`env` for a session's own process, and the request without it: it may contain secrets. Raises InvalidParams."""
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
    """What the client calls a prompt; None when it calls it nothing. Raises InvalidParams."""
    meta = param(line, "_meta") if line.find(KEY) >= 0 else None
    try:
        ours = UNSET if meta is None else msgspec.json.decode(meta, type=_Meta).ours
    except msgspec.ValidationError:
        # Not ours to judge: the agent may understand it.
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
