"""The mock agent in a process of its own, and the upstream SDK as its client."""

import asyncio
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import acp
from acp.client.connection import ClientSideConnection
from acp.schema import (
    AgentMessageChunk,
    ClientCapabilities,
    CreateTerminalResponse,
    ElicitationCapabilities,
    ElicitationFormCapabilities,
    ElicitationFormSessionMode,
    FileSystemCapabilities,
    ReadTextFileResponse,
    RequestPermissionResponse,
    TerminalOutputResponse,
    TextContentBlock,
    WaitForTerminalExitResponse,
)

T = TypeVar("T")
COMMAND = (sys.executable, "-m", "sandboxagent.adapters.mock")
WAIT = 60.0
FORMS = ClientCapabilities(elicitation=ElicitationCapabilities(form=ElicitationFormCapabilities()))
HOST = ClientCapabilities(fs=FileSystemCapabilities(read_text_file=True, write_text_file=True), terminal=True)


async def within(coroutine: Coroutine[Any, Any, T]) -> T:
    async with asyncio.timeout(WAIT):
        return await coroutine


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner() as runner:
        return runner.run(coroutine)


class Person:
    """The client: keeps every update, and answers by what the test put into `answers` for the session.

    Its files are in memory, and its terminals run nothing: every command exits with 3.
    """

    def __init__(self) -> None:
        self.updates: defaultdict[str, list[Any]] = defaultdict(list)
        self.asked: defaultdict[str, asyncio.Queue[dict[str, Any]]] = defaultdict(asyncio.Queue)
        self.answers: dict[str, Any] = {}
        self.files: dict[str, str] = {}
        self.commands: list[tuple[str, list[str]]] = []
        self.released: list[str] = []
        self.news = asyncio.Condition()

    async def session_update(self, session_id: str, update: Any, **kwargs: Any) -> None:
        self.updates[session_id].append(update)
        async with self.news:
            self.news.notify_all()

    async def request_permission(self, session_id: str, **request: Any) -> RequestPermissionResponse:
        return await self._answer(session_id, request)

    async def create_elicitation(self, mode: ElicitationFormSessionMode, **request: Any) -> Any:
        return await self._answer(mode.session_id, {"mode": mode, **request})

    async def ext_method(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        return await self._answer(params["sessionId"], {"method": method, **params})

    async def read_text_file(self, path: str, **_: Any) -> ReadTextFileResponse:
        if path not in self.files:
            raise acp.RequestError.resource_not_found(path)
        return ReadTextFileResponse(content=self.files[path])

    async def write_text_file(self, content: str, path: str, **_: Any) -> None:
        self.files[path] = content

    async def create_terminal(self, command: str, args: list[str], **_: Any) -> CreateTerminalResponse:
        self.commands.append((command, args))
        return CreateTerminalResponse(terminal_id=f"terminal-{len(self.commands)}")

    async def wait_for_terminal_exit(self, **_: Any) -> WaitForTerminalExitResponse:
        return WaitForTerminalExitResponse(exit_code=3)

    async def terminal_output(self, **_: Any) -> TerminalOutputResponse:
        return TerminalOutputResponse(output="total 0\n", truncated=False)

    async def release_terminal(self, terminal_id: str, **_: Any) -> None:
        self.released.append(terminal_id)

    async def _answer(self, session_id: str, request: dict[str, Any]) -> Any:
        await self.asked[session_id].put(request)
        if session_id not in self.answers:
            await asyncio.Event().wait()
        return self.answers[session_id]

    async def until(self, session_id: str, holds: Callable[[list[Any]], bool]) -> None:
        async with self.news:
            await self.news.wait_for(lambda: holds(self.updates[session_id]))


@dataclass
class Talk:
    """One session and what was said in it."""

    agent: ClientSideConnection
    person: Person
    session_id: str
    config_options: list[Any] = field(default_factory=list)

    @property
    def updates(self) -> list[Any]:
        return self.person.updates[self.session_id]

    @property
    def words(self) -> list[str]:
        return [it.content.text for it in self.updates if isinstance(it, AgentMessageChunk)]

    @property
    def text(self) -> str:
        return "".join(self.words)

    def only(self, kind: type[T]) -> list[T]:
        return [it for it in self.updates if isinstance(it, kind)]

    async def prompt(self, *blocks: Any, **meta: Any) -> str:
        content = [acp.text_block(it) if isinstance(it, str) else it for it in blocks]
        return (await self.agent.prompt(session_id=self.session_id, prompt=content, **meta)).stop_reason


@dataclass
class Mock:
    """A running mock agent that was greeted."""

    agent: ClientSideConnection
    person: Person
    process: asyncio.subprocess.Process
    greeting: acp.InitializeResponse

    async def talk(self, cwd: str = "/somewhere", **meta: Any) -> Talk:
        created = await self.agent.new_session(cwd=cwd, **meta)
        return Talk(self.agent, self.person, created.session_id, created.config_options or [])


@asynccontextmanager
async def started(state: Path, capabilities: ClientCapabilities = FORMS) -> AsyncIterator[Mock]:
    person = Person()
    environment = {"MOCK_AGENT_STATE_DIR": str(state)}
    async with acp.spawn_agent_process(
        cast("acp.Client", person), *COMMAND, env=environment, use_unstable_protocol=True
    ) as (agent, process):
        greeting = await within(agent.initialize(acp.PROTOCOL_VERSION, client_capabilities=capabilities))
        yield Mock(agent, person, process, greeting)


class Shared:
    """The process that most tests use."""

    def __init__(self, runner: asyncio.Runner, mock: Mock) -> None:
        self._runner, self.mock = runner, mock

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(within(coroutine))


def is_text(update: Any) -> bool:
    return isinstance(update, AgentMessageChunk) and isinstance(update.content, TextContentBlock)
