"""Everything between HTTP and the agents' pipes, in memory: a hub with clients on one side and fakes of processes.

Nothing here starts a process, opens a socket or waits for a clock, so a test takes milliseconds. The test plays the
agent: `world.agent.says(...)` is a line from it, `world.agent.sent` has the lines that it got.
"""

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from msgspec import Raw

from sandboxagent.core.threads import Pool
from sandboxagent.protocol.envelope import Envelope, parse_envelope
from sandboxagent.protocol.errors import AgentExited, AgentNotReading, SandboxAgentError
from sandboxagent.server.agents.handshake import Handshake
from sandboxagent.server.agents.lines import Stderr
from sandboxagent.server.agents.manifest import Agent
from sandboxagent.server.agents.process import Exit
from sandboxagent.server.agents.running import RunningAgent
from sandboxagent.server.files.attached import AttachedFiles
from sandboxagent.server.files.text import TextFiles
from sandboxagent.server.log.event import agent_channel, session_channel
from sandboxagent.server.log.log import Limits, Log
from sandboxagent.server.log.recovery import open_database
from sandboxagent.server.permissions.rules import Policy
from sandboxagent.server.processes.children import ProcessTrees
from sandboxagent.server.sessions.agent_events import AgentEvents
from sandboxagent.server.sessions.attachments import AttachmentLimits, Attachments
from sandboxagent.server.sessions.close import CloseSession
from sandboxagent.server.sessions.connection import Connection
from sandboxagent.server.sessions.dispatch import Dispatcher
from sandboxagent.server.sessions.extensions import ExtensionMethods
from sandboxagent.server.sessions.host_methods import HostRequests
from sandboxagent.server.sessions.hub import Hub, HubLimits
from sandboxagent.server.sessions.lifecycle import Event
from sandboxagent.server.sessions.listing import SessionListing
from sandboxagent.server.sessions.load import LoadSession
from sandboxagent.server.sessions.methods import SessionMethods
from sandboxagent.server.sessions.policy import PolicyCheck
from sandboxagent.server.sessions.requests import Requests
from sandboxagent.server.sessions.session import Session
from sandboxagent.server.sessions.settings import SessionSettings
from sandboxagent.server.sessions.terminals import TerminalLimits, Terminals
from sandboxagent.server.sessions.timeouts import TimeoutLoop
from sandboxagent.server.sessions.turns import Turns
from tests.support.running import BOUND

Json = dict[str, Any]
CAPABILITIES: Json = {"loadSession": True, "sessionCapabilities": {"delete": {}, "resume": {}, "close": {}}}
OFFERED: Json = {"modes": {"currentModeId": "default", "availableModes": []}}


@cache
def _children() -> ProcessTrees:
    """Of all worlds: there are none, and looking for some takes longer than all the rest."""
    return ProcessTrees("test")


class Pipe:
    """What an agent process is to the server: remembers what it was sent, unless it does not read."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.alive = True
        self.reads = True
        self.is_read = True
        """Whether the server reads what it writes."""
        self.sent: list[Json] = []
        self._news = asyncio.Event()

    def send(self, line: bytes) -> None:
        if not self.alive:
            raise AgentExited("agent a exited", agent="a")
        if not self.reads:
            raise AgentNotReading("a")
        self.sent.append(json.loads(line))
        self._news.set()

    async def has_been_sent(self, count: int) -> None:
        """Wait until it was sent so many lines; `run` bounds it."""
        while len(self.sent) < count:
            self._news.clear()
            await self._news.wait()

    async def request(self, method: str) -> Json:
        """The next request of a method that it was sent and has not been asked for yet."""
        while not (found := [one for one in self.sent if one.get("method") == method and "taken" not in one]):
            self._news.clear()
            await self._news.wait()
        found[0]["taken"] = True
        return found[0]

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True


class FakeAgent:
    """One process of the agent, played by the test."""

    def __init__(self, world: "World", key: str, capabilities: Json) -> None:
        self.pipe = Pipe(key)
        self._world = world
        handshake = Handshake(Raw(b"{}"), {"agentCapabilities": capabilities})
        pipe: Any = self.pipe
        self.running = RunningAgent(world.manifest, pipe, handshake, world.agent_events, lambda *_: None)

    @property
    def sent(self) -> list[Json]:
        return self.pipe.sent

    def says(self, **fields: Any) -> None:
        """A line from it."""
        self._world.agent_events.receive(self.running, json.dumps({"jsonrpc": "2.0", **fields}).encode() + b"\n")

    def updates(self, text: str, session: str = "s") -> None:
        """A piece of its message."""
        content = {"type": "text", "text": text}
        update = {"sessionUpdate": "agent_message_chunk", "content": content}
        self.says(method="session/update", params={"sessionId": session, "update": update})

    async def answers(self, method: str, result: object = None) -> Json:
        """Answer the next request of a method, when it has come; gives the request."""
        request = await self.pipe.request(method)
        self.says(id=request["id"], result={} if result is None else result)
        return request

    def crashes(self) -> None:
        """The process is gone."""
        self.pipe.alive = False
        if self._world.agents[-1] is self:
            self._world.agents.append(None)
        self._world.agent_events.exited(self.running, Exit(1, None, Stderr([], [], False, 0)))


class World:
    """A hub with one agent, one client and, unless a test says otherwise, one session of theirs, `s`."""

    def __init__(
        self,
        path: Path | None = None,
        *,
        capabilities: Json | None = None,
        queue: int = 16,
        session: str = "s",
        tail_bytes: int = 32 << 20,
        is_directory: Callable[[str], bool] = os.path.isdir,
        disk_timeout: float = BOUND,
        limits: HubLimits | None = None,
    ) -> None:
        self.now = 1000.0
        """The monotonic clock."""
        self.log = Log(open_database(path).database, Limits(tail_bytes=tail_bytes))
        self.hub = Hub(self.log, limits, monotonic=lambda: self.now)
        self.hub.end_interrupted()
        self.turns = Turns(self.hub, queue)
        pool = Pool("test", 2)
        terminals = Terminals(_children(), pool, TerminalLimits(), self.hub.budgets)
        host = HostRequests(self.hub, TextFiles(1 << 20), terminals, pool, {}, (), client_fs=False)
        self.agent_events = AgentEvents(
            self.hub, self.turns, host, PolicyCheck(self.hub, Policy((), "/home", str), 5), pool
        )
        self.manifest = Agent(id="a", title="A", description="", source="path", command=(), env={})
        self.capabilities = CAPABILITIES if capabilities is None else capabilities
        self.agents: list[FakeAgent | None] = []
        self.starting = asyncio.Event()
        """Cleared, it holds up the start of the agent."""
        self.starting.set()
        self.start_failure: SandboxAgentError | None = None
        """Why the agent does not start."""
        self.listing = SessionListing(self.hub)
        supervisor: Any = SimpleNamespace(running=self._running, process=self._process)
        catalog: Any = SimpleNamespace(agent=lambda _: self.manifest, launch=lambda _: object())
        self.dispatcher = Dispatcher(self.hub, supervisor, catalog, 120, pool, is_directory, disk_timeout)
        settings, loading = SessionSettings(self.hub, self.dispatcher), LoadSession(self.hub, self.dispatcher)
        ending = CloseSession(self.hub, self.dispatcher, self.turns)
        attachments = Attachments(AttachedFiles(), AttachmentLimits(count=100, image_bytes=1 << 20), pool)
        parts = (self.listing, settings, loading, ending, attachments)
        methods = SessionMethods(self.hub, self.dispatcher, self.turns, self.agent_events.release, *parts, pool)
        views: Any = None
        extensions = ExtensionMethods(self.hub, self.dispatcher, ending, self.listing, views, views)
        own = methods.table() | extensions.table()
        self.requests = Requests(self.hub, self.dispatcher, self.turns, methods.prompt, own, 120)
        self.timeout_loop = TimeoutLoop(self.hub, 120, 1800, 60, 1800)
        self.agents.append(FakeAgent(self, "a-1", self.capabilities))
        self.client = self.hub.connections.open("a")
        self.session = self.add_session(session)
        self.hub.attach(self.client, self.session)

    def add_session(self, id: str, agent: FakeAgent | None = None) -> Session:
        """A session that a process of the agent holds: this one, or the one that runs."""
        session = self.hub.add_session((agent or self.agent).running, id, "/", Raw(b"{}"))
        session.learn_offers(OFFERED)
        self.hub.move(session, Event.OPENED)
        return session

    @property
    def agent(self) -> FakeAgent:
        """The process that runs."""
        agent = self.agents[-1]
        assert agent is not None
        return agent

    @property
    def process(self) -> Pipe:
        return self.agent.pipe

    @property
    def running(self) -> RunningAgent:
        return self.agent.running

    def _running(self, _: object) -> RunningAgent | None:
        return self.agents[-1].running if self.agents[-1] is not None else None

    async def _process(self, _: object) -> RunningAgent:
        await self.starting.wait()
        if self.start_failure is not None:
            raise self.start_failure
        if self.agents[-1] is None:
            self.agents[-1] = FakeAgent(self, f"a-{len(self.agents)}", self.capabilities)
        return self.agent.running

    # The agent

    def says(self, **fields: Any) -> None:
        self.agent.says(**fields)

    def hears(self, blob: bytes) -> None:
        """Lines of the agent, as they came."""
        self.agent_events.receive(self.running, blob)

    async def has_logged(self, position: int) -> None:
        """Wait until the log has come so far; `run` bounds it."""
        while True:
            if self.log.position >= position:
                return
            await asyncio.sleep(0.001)

    def asks(self, id: object, method: str = "session/request_permission", **params: Any) -> str:
        """The agent asks under an id of its own; gives the one that clients know, if they are asked."""
        options = [{"optionId": "yes", "kind": "allow_once"}, {"optionId": "no", "kind": "reject_once"}]
        self.says(id=id, method=method, params=params or {"sessionId": "s", "options": options})
        pending = self.hub.pending.find(self.running, json.dumps(id).encode())
        return "" if pending is None else json.loads(pending.id)

    def sent(self, method: str) -> Json:
        """The last request of a method that the agent was sent."""
        return [one for one in self.process.sent if one.get("method") == method][-1]

    # The client

    def request(self, method: str, params: Json, id: object = "r", key: str | None = None) -> asyncio.Task[Any]:
        """A client's request, and its answer as a task."""

        async def answer() -> Any:
            request = envelope(id=id, method=method, params=params)
            result = await self.requests.submit(self.client, request, key)
            result.release_updates()
            return result

        return asyncio.create_task(answer())

    def prompt(self, text: str = "hello", id: object = "p", session: str = "s") -> asyncio.Task[Any]:
        return self.request("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": text}]}, id)

    async def notify(self, method: str, **params: Any) -> None:
        await self.requests.notify(self.client, envelope(method=method, params=params))

    async def started(self) -> "FakeAgent":
        """The process that runs, as soon as one does."""
        while True:
            if (agent := self.agents[-1]) is not None:
                return agent
            await asyncio.sleep(0.001)

    async def booted(self) -> None:
        """Start a process, when none runs."""
        await self._process(None)

    async def settled(self) -> None:
        """Let everything happen that can happen by itself."""
        for _ in range(20):
            await asyncio.sleep(0)

    async def events(self, session: str = "s") -> list[Json]:
        """The envelopes in a session's log."""
        found: list[Json] = []
        after, end = 0, self.log.position + 1
        while chunks := await self.log.history(session, after, end, 10_000):
            found += [json.loads(line) for chunk in chunks for line in chunk.lines]
            after = chunks[-1].last
        return found

    async def heard(self, connection: Connection, session: str = "s") -> list[Json]:
        """The envelopes that a client's stream has: of a session that it is attached to, of its agent, and its own."""
        channels = [session_channel(session), agent_channel("a"), connection.channel]
        await self.log.flushed()
        chunks = await self.log.page(channels, 0, self.log.position)
        seen = [chunk for chunk in chunks if chunk.exclude != connection.tag]
        return [json.loads(line) for chunk in seen for line in connection.lines(chunk)]

    def connect(self, **introduction: Any) -> Connection:
        """Another client."""
        return self.hub.connections.open("a", introduction)


def envelope(**fields: Any) -> Envelope:
    return parse_envelope(json.dumps({"jsonrpc": "2.0", **fields}).encode())


def result_of(answer: Any) -> Json:
    """The result of an answer; fails when it is an error."""
    response = json.loads(answer.line)
    assert "result" in response, response
    return response["result"]


def error_of(answer: Any) -> Json:
    return json.loads(answer.line)["error"]


@asynccontextmanager
async def world(path: Path | None = None, **options: Any) -> AsyncGenerator[World]:
    one = World(path, **options)
    try:
        yield one
        await one.log.flushed()
    finally:
        one.log.close()


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a test's coroutine, with a bound."""

    async def bounded() -> None:
        async with asyncio.timeout(BOUND):
            await main

    asyncio.run(bounded())
