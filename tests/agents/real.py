"""A real agent behind a server of ours, and sessions with it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import count
from pathlib import Path

import httpx
import psutil

from tests.agents.recipe import Recipe, isolated
from tests.support.asking import PERMISSION, TURN, texts
from tests.support.client import Client, Event, Json, Stream
from tests.support.model.api import Request
from tests.support.model.gate import BOUND, Gate
from tests.support.model.script import Script, has_marker
from tests.support.model.server import ModelServer
from tests.support.running import Server

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = Path(os.environ.get("SANDBOX_AGENT_TEST_AGENTS", ROOT / ".cache" / "agents"))
INSTALL_BOUND = 600.0
"""Seconds for a download of some hundred megabytes."""

ATTACH, TERMINATE = "_sandboxagent/session/attach", "_sandboxagent/session/terminate"

PLAIN = "plain"
"""Sessions as they are when they are new."""

_folders = count(1)


@dataclass(frozen=True)
class Turn:
    """A turn that has ended: what its prompt was answered, and what came on the stream meanwhile."""

    response: Json
    events: list[Event]

    @property
    def stop_reason(self) -> str:
        assert "result" in self.response, self.response
        return self.response["result"]["stopReason"]

    @property
    def chunks(self) -> list[str]:
        return texts(self.events)

    @property
    def text(self) -> str:
        return "".join(self.chunks)

    @property
    def asked(self) -> list[str]:
        """The methods of the agent's requests."""
        return [event.method for event in self.events if event.method and "id" in event.data]

    def updates(self, kind: str) -> list[Json]:
        return [event.update for event in self.events if event.update.get("sessionUpdate") == kind]


class Prompt:
    """A prompt on its way."""

    def __init__(self, session: "Session", params: Json) -> None:
        self._session = session
        self._start = len(session.stream.seen)
        self._posted = asyncio.create_task(session.client.call("session/prompt", params))

    async def response(self) -> Json:
        """Wait for its answer."""
        return await self._posted

    async def ended(self) -> Turn:
        """Wait for its answer, and for all that came on the stream up to the end of the turn."""
        response = await self.response()
        stream = self._session.stream
        if not any(map(self._is_end, stream.seen[self._start :])):
            await stream.until(self._is_end, BOUND)
        return Turn(response, stream.seen[self._start :])

    def _is_end(self, event: Event) -> bool:
        params = event.data.get("params", {})
        return event.method == TURN and params["sessionId"] == self._session.id and params["state"] == "ended"


@dataclass
class Session:
    """A session with a folder of its own. Its stream has the events of all sessions of that connection."""

    id: str
    client: Client
    stream: Stream
    folder: Path
    settings: Json
    """The result of `session/new`."""

    def ask(self, script: Script, *blocks: Json) -> Prompt:
        """Send a prompt, after other blocks of content, and go on."""
        return Prompt(self, self.prompt(script, *blocks))

    def prompt(self, script: Script, *blocks: Json) -> Json:
        """The parameters of that prompt."""
        text = {"type": "text", "text": f"Please do what {script.marker} says"}
        return {"sessionId": self.id, "prompt": [*blocks, text]}

    async def turn(self, script: Script, *blocks: Json) -> Turn:
        """Send a prompt, and wait for its end."""
        return await self.ask(script, *blocks).ended()

    async def asked(self, method: str = PERMISSION) -> Event:
        """The agent's next request."""
        return await self.next(lambda event: event.method == method)

    async def said(self, text: str) -> None:
        """Wait until the agent says this."""
        await self.next(lambda event: text in event.text)

    async def next(self, wanted: Callable[[Event], bool]) -> Event:
        return (await self.stream.until(wanted, BOUND))[-1]

    def named(self, id: str) -> "Session":
        """Another session on the same connection."""
        return replace(self, id=id)

    def on(self, client: Client, stream: Stream) -> "Session":
        """The same session on another connection."""
        return replace(self, client=client, stream=stream)

    async def decide(self, request: Event, kind: str) -> None:
        """Answer a request for permission with the option of that kind."""
        (option,) = [option for option in request.data["params"]["options"] if option["kind"] == kind]
        outcome = {"outcome": "selected", "optionId": option["optionId"]}
        response = await self.client.answer(request.data["id"], {"outcome": outcome})
        assert response.status_code == 202, response.text


class IdleSessions:
    """Open sessions that no test uses now. A new session costs some agents seconds, and most tests need just any."""

    def __init__(self) -> None:
        self._idle: dict[str, list[tuple[int, Session]]] = {}

    def take(self, kind: str, pid: int | None) -> Session | None:
        """One of a kind that this process holds."""
        idle = self._idle.get(kind, [])
        while idle:
            holder, session = idle.pop()
            if holder == pid:
                return session
        return None

    def put_back(self, kind: str, pid: int | None, session: Session) -> None:
        """Keep it for the next test, unless its process is gone."""
        if pid is not None:
            self._idle.setdefault(kind, []).append((pid, session))


@dataclass(frozen=True)
class RealAgent:
    """A real agent behind a server of ours, whose model is scripted."""

    recipe: Recipe
    server: Server
    model: ModelServer
    _idle: IdleSessions = field(default_factory=IdleSessions)

    @property
    def pid(self) -> int:
        """Its process now."""
        return self._request("GET")["serverStatus"]["pid"]

    @property
    def pids(self) -> list[int]:
        """Its processes now: the one that sessions share, and those of single sessions."""
        command = psutil.Process(self.pid).cmdline()
        below = psutil.Process(self.server.process.pid).children(recursive=True)
        return [each.pid for each in below if _command(each) == command]

    def crash(self) -> list[int]:
        """Kill all its processes; gives what they were and had started."""
        pids = self.pids
        family = [each for pid in pids for each in tree(pid)]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        return family

    @property
    def _pid_if_running(self) -> int | None:
        return (self._request("GET").get("serverStatus") or {}).get("pid")

    def install(self) -> None:
        """Have it installed in the version that is pinned, unless it is; tests have no time for that."""
        self._request("POST", "/install", {"agentProcessVersion": self.recipe.version})

    def _request(self, method: str, path: str = "", body: Json | None = None) -> Json:
        url = f"{self.server.url}/v1/agents/{self.recipe.agent}{path}"
        headers = {"Authorization": f"Bearer {self.server.token}"}
        # Plain HTTP: to load certificates would take longer than to ask, and tests ask for processes all the time.
        response = httpx.request(
            method, url, json=body, headers=headers, timeout=INSTALL_BOUND, trust_env=False, verify=False
        )
        assert response.status_code == 200, response.text
        return response.json()

    def age(self) -> None:
        """Make its sessions as old as they must be to be loaded; its process must not run."""
        if self.recipe.age is not None:
            self.recipe.age(self.server.directory / "home")

    def client(self) -> Client:
        return Client(self.server, self.recipe.agent)

    def other(self) -> Client:
        """A client of another agent on the same server."""
        return Client(self.server)

    @asynccontextmanager
    async def session(self, **meta: object) -> AsyncGenerator[Session]:
        """A new session on a new connection, with an open stream; ended afterwards, for each takes its memory."""
        async with self.client() as client, client.stream() as stream:
            session = await self.new_session(client, stream, **meta)
            yield session
            await client.call(TERMINATE, {"sessionId": session.id})

    @asynccontextmanager
    async def any_session(self) -> AsyncGenerator[Session]:
        """A session on a new connection, with an open stream, for a test that leaves it as it was.

        Other tests may have prompted it: read what a model got now with `told_now`.
        """
        async with (
            self.client() as client,
            client.stream() as stream,
            self.lent(PLAIN, client, stream, lambda: self.new_session(client, stream)) as session,
        ):
            yield session

    @asynccontextmanager
    async def lent(
        self, kind: str, client: Client, stream: Stream, opened: Callable[[], Awaitable[Session]]
    ) -> AsyncGenerator[Session]:
        """An idle session of a kind on this connection, or one that is opened now; kept for the next test."""
        idle = self._idle.take(kind, self._pid_if_running)
        if idle is None:
            session = await opened()
        else:
            session = idle.on(client, stream)
            await client.result(ATTACH, {"sessionId": session.id})
        holder = self._pid_if_running
        yield session
        if self._pid_if_running == holder:
            self._idle.put_back(kind, holder, session)

    async def new_session(self, client: Client, stream: Stream, **meta: object) -> Session:
        """A new session on a connection; keyword arguments go into our `_meta`."""
        folder = Path(self.server.work) / str(next(_folders))
        folder.mkdir()
        params: Json = {"cwd": str(folder), "mcpServers": [], "_meta": {"sandboxagent.dev": meta}}
        settings = await client.result("session/new", params)
        return Session(settings["sessionId"], client, stream, folder, settings)


async def begun(real: RealAgent, session: Session, text: str, gate: Gate) -> None:
    """Wait until the model has said this and is held at the gate, and the agent has passed it on if it streams."""
    await gate.reached()
    if real.recipe.streams:
        await session.said(text)


def told(request: Request) -> str:
    """All that the model got in the session so far."""
    assert request.conversation is not None
    return "\n".join(turn.text for turn in request.conversation.turns)


def told_now(request: Request) -> str:
    """What the model got with the newest prompt and since then."""
    assert request.conversation is not None
    turns = request.conversation.turns
    newest = max(number for number, turn in enumerate(turns) if has_marker(turn))
    # An agent may put what a prompt attaches into messages of its own, before that with the text.
    earlier = (number for number in range(newest) if turns[number].role == "model" or has_marker(turns[number]))
    return "\n".join(turn.text for turn in turns[max(earlier, default=-1) + 1 :])


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:  # It has just ended.
        return []


def tree(pid: int) -> list[int]:
    """A process and all that come from it."""
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


@contextmanager
def running(recipe: Recipe, *lines: str) -> Generator[RealAgent]:
    """The agent, installed, behind a new server, with more lines of its agents.toml.

    Nothing of it may have tried to leave the machine.
    """
    with ModelServer() as model:
        server = Server(environment=hidden(recipe))
        home, registry = server.directory / "home", server.directory / "registry.json"
        home.mkdir()
        # An empty one: the versions of the manifest are what is tried here.
        registry.write_text('{"version": "1.0.0", "agents": []}')
        server.flags = ("--agents-dir", str(INSTALLED), "--acp-registry-url", str(registry))
        variables = {**isolated(home, model.url), **recipe.environment(home, model.url)}
        inline = ", ".join(f"{name} = {json.dumps(value)}" for name, value in variables.items())
        server.agents[recipe.agent] = "\n".join((f"env = {{ {inline} }}", *lines))
        with server:
            agent = RealAgent(recipe, server, model)
            agent.install()
            yield agent
        assert not model.strays, f"{recipe.agent} wanted to leave the machine: {model.strays}"


def install(recipe: Recipe) -> None:
    """Have it in the folder of all runs in the version that is pinned, unless it is; without a server."""
    record = INSTALLED / recipe.agent / "installed.json"
    if record.exists() and json.loads(record.read_text())["version"] == recipe.version:
        return
    wanted = [recipe.agent, "--agent-process-version", recipe.version, "--agents-dir", str(INSTALLED)]
    command = [sys.executable, "-m", "sandboxagent", "agents", "install", *wanted]
    subprocess.run(command, check=True, timeout=INSTALL_BOUND)


def hidden(recipe: Recipe) -> dict[str, None]:
    """What the agent would see of the environment that the tests run in."""
    patterns = [*recipe.manifest["credentials"], *recipe.manifest["variables"]]
    return {name: None for name in os.environ if any(fnmatchcase(name, pattern) for pattern in patterns)}
