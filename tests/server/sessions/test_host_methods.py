"""An agent's requests about the host, at awkward moments: contract, section 5."""

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from msgspec import Raw

from sandboxagent.core.threads import Pool
from sandboxagent.protocol.envelope import parse
from sandboxagent.protocol.errors import AgentExited, AgentNotReading
from sandboxagent.server.agents.handshake import Handshake
from sandboxagent.server.agents.manifest import Agent
from sandboxagent.server.agents.running import RunningAgent
from sandboxagent.server.files.text import TextFiles
from sandboxagent.server.log.database import Database
from sandboxagent.server.log.log import Limits, Log
from sandboxagent.server.permissions.rules import Policy
from sandboxagent.server.processes.children import ProcessTrees
from sandboxagent.server.sessions.agent_events import AgentEvents
from sandboxagent.server.sessions.budgets import Budgets
from sandboxagent.server.sessions.host_methods import MAX_FILES, MAX_UNDER_WAY, HostRequests
from sandboxagent.server.sessions.hub import Hub, HubLimits
from sandboxagent.server.sessions.lifecycle import Event
from sandboxagent.server.sessions.policy import PolicyCheck
from sandboxagent.server.sessions.session import Session
from sandboxagent.server.sessions.terminals import TerminalLimits, Terminals
from sandboxagent.server.sessions.turns import Turns
from tests.support.running import BOUND

POOL = Pool("test", 4)

Json = dict[str, Any]
READ, WRITE, CREATE, WAIT = "fs/read_text_file", "fs/write_text_file", "terminal/create", "terminal/wait_for_exit"


class FakeProcess:
    """Remembers what it was sent; refuses as often as the test says."""

    key = "a-1"
    alive = True

    def __init__(self) -> None:
        self.sent: list[Json] = []
        self.refuses: list[Exception] = []
        self._news = asyncio.Event()

    def send(self, line: bytes) -> None:
        if self.refuses:
            raise self.refuses.pop(0)
        self.sent.append(json.loads(line))
        self._news.set()

    async def answer(self, id: int) -> Json:
        """Wait until it was answered; `run` bounds it."""
        while not (found := [line for line in self.sent if line["id"] == id]):
            self._news.clear()
            await self._news.wait()
        return found[0]

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class World:
    """One agent with one session in a folder."""

    def __init__(
        self, folder: Path, *, client_fs: bool = False, files: TextFiles | None = None, memory: int = 256 << 20
    ) -> None:
        self.folder = folder
        self.log = Log(Database(None), Limits())
        self.hub = Hub(self.log, HubLimits(memory))
        self.terminals = Terminals(ProcessTrees("test"), POOL, TerminalLimits(grace=BOUND), Budgets())
        self.files = files or TextFiles(1 << 20)
        environ = {"PATH": "/usr/bin:/bin"}
        self.host = HostRequests(self.hub, self.files, self.terminals, POOL, environ, (), client_fs=client_fs)
        policy_check = PolicyCheck(self.hub, Policy((), "/home", str), 5)
        self.agent_events = AgentEvents(self.hub, Turns(self.hub, 16), self.host, policy_check, POOL)
        self.process = FakeProcess()
        self.running = self.runs(self.process)
        self.session = self.open(self.running, "s")

    def runs(self, process: Any) -> RunningAgent:
        agent = Agent(id="a", title="A", description="", source="path", command=(), env={})
        return RunningAgent(agent, process, Handshake(Raw(b"{}"), {}), self.agent_events, lambda _running, _exit: None)

    def open(self, running: RunningAgent, id: str) -> Session:
        opened = Raw(json.dumps({"cwd": str(self.folder)}).encode())
        session = self.hub.add_session(running, id, str(self.folder), opened)
        self.hub.move(session, Event.OPENED)
        return session

    def ask(self, id: int, method: str, by: RunningAgent | None = None, **params: object) -> None:
        line = {"jsonrpc": "2.0", "id": id, "method": method, "params": {"sessionId": "s", **params}}
        self.agent_events.receive(by or self.running, json.dumps(line).encode() + b"\n")

    def say(self, method: str, **params: object) -> None:
        line = {"jsonrpc": "2.0", "method": method, "params": params}
        self.agent_events.receive(self.running, json.dumps(line).encode() + b"\n")

    async def answer(self, id: int, method: str, **params: object) -> Json:
        self.ask(id, method, **params)
        return await self.process.answer(id)

    async def history(self) -> list[Json]:
        chunks = await self.log.history("s", 0, self.log.position + 1, 10_000)
        return [json.loads(line) for chunk in chunks for line in chunk.lines]


@asynccontextmanager
async def world(
    folder: Path, *, client_fs: bool = False, files: TextFiles | None = None, memory: int = 256 << 20
) -> AsyncGenerator[World]:
    made = World(folder, client_fs=client_fs, files=files, memory=memory)
    try:
        yield made
    finally:
        await made.terminals.close(0)
        made.log.close()


def run(main: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await main

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bounded())


def test_an_answer_waits_for_an_agent_that_reads_late(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as here:
            (tmp_path / "file").write_text("text")
            here.process.refuses = [AgentNotReading("a")] * 3
            answered = await here.answer(1, READ, path=str(tmp_path / "file"))
            assert answered["result"] == {"content": "text"}
            assert [line.get("id") for line in await here.history()] == [1, 1]

    run(main())


def test_an_answer_to_an_agent_that_is_gone_is_dropped(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as here:
            (tmp_path / "file").write_text("text")
            here.process.refuses = [AgentExited("gone", agent="a")]
            here.ask(1, READ, path=str(tmp_path / "file"))
            assert (await here.answer(2, READ, path=str(tmp_path / "file")))["result"] == {"content": "text"}
            assert [line["id"] for line in here.process.sent] == [2]

    run(main())


def test_requests_under_way_are_bounded(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as here:
            created = await here.answer(0, CREATE, command="sleep", args=["60"])
            terminal = created["result"]["terminalId"]
            await asyncio.sleep(0)
            for number in range(1, MAX_UNDER_WAY + 1):
                here.ask(number, WAIT, terminalId=terminal)
            # At once: nothing is begun for it.
            here.ask(1000, WAIT, terminalId=terminal)
            assert [line["id"] for line in here.process.sent] == [0, 1000]
            assert here.process.sent[1]["error"]["data"] == {"type": "invalid-request", "limit": MAX_UNDER_WAY}
            here.say("$/cancel_request", requestId=7)
            assert (await here.process.answer(7))["error"]["code"] == -32800
            await asyncio.sleep(0)
            released = await here.answer(2000, "terminal/release", terminalId=terminal)
            assert released["result"] == {}
            for number in range(1, MAX_UNDER_WAY + 1):
                await here.process.answer(number)

    run(main())


@pytest.mark.requirement("5.agent-memory")
def test_requests_and_answers_about_the_host_stay_within_the_budget_of_the_agent(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path, memory=64 << 10) as here:
            created = await here.answer(0, CREATE, command="sleep", args=["60"])
            terminal = created["result"]["terminalId"]
            await asyncio.sleep(0)
            here.ask(1, WAIT, terminalId=terminal, filler="x" * (60 << 10))
            here.ask(2, WAIT, terminalId=terminal, filler="x" * (60 << 10))
            refused = await here.process.answer(2)
            assert refused["error"]["data"] == {"type": "invalid-request", "limit": 64 << 10}
            assert "--agent-memory" in refused["error"]["message"]
            # A wrong one, and one that is over, give back what they took.
            for number in range(100):
                assert "error" in await here.answer(100 + number, WAIT, terminalId="none")
            here.say("$/cancel_request", requestId=1)
            await here.process.answer(1)
            await asyncio.sleep(0)
            assert here.hub.budgets.used(here.running.key) == 0
            (tmp_path / "large").write_text("x" * (100 << 10))
            refused = await here.answer(3, READ, path=str(tmp_path / "large"))
            assert refused["error"]["data"]["limit"] == 64 << 10
            (tmp_path / "small").write_text("small")
            assert (await here.answer(4, READ, path=str(tmp_path / "small")))["result"] == {"content": "small"}
            await asyncio.sleep(0)
            assert here.hub.budgets.used(here.running.key) == 0

    run(main())


class SlowFiles(TextFiles):
    """A file called `slow` takes as long as a test wants it to."""

    def __init__(self) -> None:
        super().__init__(1 << 20)
        self.begun = threading.Semaphore(0)
        self.go_on = threading.Event()
        self.reading: list[str] = []

    def read(self, directories: Iterable[str], path: str, line: int | None, limit: int | None) -> str:
        if path.endswith("slow"):
            self.reading.append(path)
            self.begun.release()
            self.go_on.wait(BOUND)
        return super().read(directories, path, line, limit)


@pytest.mark.requirement("5.host-shares")
def test_an_agent_process_has_its_share_of_the_threads_and_leaves_others_theirs(tmp_path: Path) -> None:
    async def main() -> None:
        files = SlowFiles()
        async with world(tmp_path, files=files) as here:
            (tmp_path / "slow").write_text("slow")
            (tmp_path / "file").write_text("text")
            for number in range(6):
                here.open(here.running, f"s{number}")
                here.ask(number, READ, sessionId=f"s{number}", path=str(tmp_path / "slow"))
            for _ in range(MAX_FILES):
                await asyncio.to_thread(files.begun.acquire)
            other = FakeProcess()
            other.key = "b-1"
            running = here.runs(other)
            here.open(running, "t")
            here.ask(1, READ, running, sessionId="t", path=str(tmp_path / "file"))
            assert (await other.answer(1))["result"] == {"content": "text"}
            assert len(files.reading) == MAX_FILES
            assert here.process.sent == []
            files.go_on.set()
            for number in range(6):
                assert (await here.process.answer(number))["result"] == {"content": "slow"}

    run(main())


def test_a_session_that_is_deleted_meanwhile_is_answered_and_not_kept(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as here:
            created = await here.answer(1, CREATE, command="sleep", args=["60"])
            here.ask(2, WAIT, terminalId=created["result"]["terminalId"])
            here.hub.move(here.session, Event.DELETE)
            assert (await here.process.answer(2))["result"] == {"exitCode": None, "signal": "SIGTERM"}
            assert await here.history() == []
            answered = await here.answer(3, READ, path=str(tmp_path))
            assert answered["error"]["data"]["type"] == "unknown-session"

    run(main())


def test_a_process_that_dies_takes_terminals_along_that_its_session_never_held(tmp_path: Path) -> None:
    """A terminal of a session that was about to be loaded when its process died."""

    async def main() -> None:
        async with world(tmp_path) as here:
            here.hub.move(here.session, Event.EXITED, termination={})
            here.hub.move(here.session, Event.RESUME, here.running)
            created = await here.answer(1, CREATE, command="sleep", args=["60"])
            here.ask(2, WAIT, terminalId=created["result"]["terminalId"])
            here.host.exited(here.running)
            assert (await here.process.answer(2))["result"]["signal"] == "SIGTERM"

    run(main())


def test_only_what_a_connection_left_open_about_the_host_is_taken_over(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path, client_fs=True) as here:
            (tmp_path / "file").write_text("text")
            declared = {"fs": {"readTextFile": True, "writeTextFile": True}}
            connection = here.hub.connections.open("a", declared)
            here.hub.attach(connection, here.session)
            here.session.facts.creator = connection.tag
            here.ask(1, READ, path=str(tmp_path / "file"))
            here.ask(2, "session/request_permission", options=[])
            here.ask(3, WRITE, path=str(tmp_path / "new"), content="new")
            assert here.process.sent == []
            here.hub.close_connection(connection, "gone")
            assert (await here.process.answer(1))["result"] == {"content": "text"}
            assert (await here.process.answer(3))["result"] == {}
            assert (tmp_path / "new").read_text() == "new"
            (left,) = here.hub.pending.of_session(here.session)
            assert left.agent_id == b"2"

    run(main())


@pytest.mark.parametrize(
    ("opened", "expected"),
    [
        ({}, []),
        ({"additionalDirectories": ["/one", "/two"]}, ["/one", "/two"]),
        ({"additionalDirectories": ["relative", 7, None, "/one"]}, ["/one"]),
        ({"additionalDirectories": "/one"}, []),
        ({"additionalDirectories": None}, []),
    ],
)
def test_the_directories_of_a_session_are_those_it_was_opened_with(
    tmp_path: Path, opened: Json, expected: list[str]
) -> None:
    async def main() -> None:
        async with world(tmp_path) as here:
            here.session.facts.opened_with = Raw(json.dumps(opened).encode())
            assert here.session.directories == [str(tmp_path), *expected]

    run(main())


def test_half_a_surrogate_pair_in_what_a_session_was_opened_with_does_no_harm(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as here:
            (tmp_path / "file").write_text("text")
            here.session.facts.opened_with = Raw(b'{"additionalDirectories":["/a\\ud800"],"x":"\\udc00"}')
            assert here.session.directories[0] == str(tmp_path)
            line = parse(
                b'{"jsonrpc":"2.0","id":1,"method":"%s","params":{"sessionId":"s","path":"%s","x":"\\ud800"}}'
                % (READ.encode(), str(tmp_path / "file").encode())
            ).line
            here.agent_events.receive(here.running, line + b"\n")
            assert (await here.process.answer(1))["result"] == {"content": "text"}

    run(main())
