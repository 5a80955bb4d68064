"""What comes at an awkward moment, between clients, sessions and a fake of an agent process. Contract, section 5."""

import asyncio
import json
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import Raw

from sandbox_agent.agents.boot import Handshake, RunningAgent
from sandbox_agent.agents.manifest import Agent
from sandbox_agent.envelope import META, Envelope, parse
from sandbox_agent.errors import AgentNotReading, AlreadyAnswered, UnknownSession
from sandbox_agent.host.attached import AttachedFiles
from sandbox_agent.host.files import TextFiles
from sandbox_agent.host.terminals import TerminalLimits, Terminals
from sandbox_agent.hub.attachment import AttachmentLimits, Attachments
from sandbox_agent.hub.choices import MODE
from sandbox_agent.hub.forward import Forward
from sandbox_agent.hub.from_agent import FromAgent
from sandbox_agent.hub.from_client import FromClient
from sandbox_agent.hub.host_methods import HostMethods
from sandbox_agent.hub.hub import Hub
from sandbox_agent.hub.inventory import Inventory
from sandbox_agent.hub.ruling import Ruling
from sandbox_agent.hub.session_loading import SessionLoading
from sandbox_agent.hub.session_methods import SessionMethods
from sandbox_agent.hub.session_settings import SessionSettings
from sandbox_agent.hub.turns import Turns
from sandbox_agent.log.database import Database
from sandbox_agent.log.event import session_channel
from sandbox_agent.log.log import Limits, Log
from sandbox_agent.permissions.policy import Policy
from sandbox_agent.pools import Pool
from sandbox_agent.processes.children import Children
from tests.support.shapes import SHAPES

Json = dict[str, Any]
ALLOW: Json = {"outcome": {"outcome": "selected", "optionId": "yes"}}
OFFERED = {"modes": {"currentModeId": "default", "availableModes": []}}


class FakeProcess:
    """Remembers what it was sent, unless it does not read."""

    key = "a-1"
    alive = True
    reads = True

    def __init__(self) -> None:
        self.sent: list[Json] = []
        self._news = asyncio.Event()

    def send(self, line: bytes) -> None:
        if not self.reads:
            raise AgentNotReading("a")
        self.sent.append(json.loads(line))
        self._news.set()

    async def has_been_sent(self, count: int) -> None:
        """Wait until it was sent so many lines; `run` bounds it."""
        while len(self.sent) < count:
            self._news.clear()
            await self._news.wait()

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class World:
    """Everything between HTTP and the processes, with one agent and one session."""

    def __init__(self, path: Path | None = None) -> None:
        self.log = Log(Database(path), Limits())
        self.hub = Hub(self.log)
        self.turns = Turns(self.hub, 16)
        pool = Pool("test", 2)
        terminals = Terminals(Children("test"), pool, TerminalLimits())
        host = HostMethods(self.hub, TextFiles(1 << 20), terminals, pool, {}, (), client_fs=False)
        self.from_agent = FromAgent(self.hub, self.turns, host, Ruling(self.hub, Policy((), "/home", str)))
        agent = Agent(id="a", title="A", description="", source="path", command=(), env={})
        self.process = FakeProcess()
        capabilities = {"sessionCapabilities": {"delete": {}, "resume": {}}}
        handshake = Handshake(Raw(b"{}"), {"agentCapabilities": capabilities})
        process: Any = self.process
        self.running = RunningAgent(agent, process, handshake, self.from_agent, lambda *_: None)
        self.inventory = Inventory(self.hub)
        supervisor: Any = SimpleNamespace(running=lambda _: self.running, process=self._running)
        manifest: Any = SimpleNamespace(agent=lambda _: agent)
        self.forward = Forward(self.hub, supervisor, manifest, 120)
        release = self.from_agent.release
        settings, loading = SessionSettings(self.hub, self.forward), SessionLoading(self.hub, self.forward)
        attachments = Attachments(AttachedFiles(), AttachmentLimits(count=100, image_bytes=1 << 20), pool)
        parts = (self.inventory, settings, loading, attachments)
        methods = SessionMethods(self.hub, self.forward, self.turns, release, *parts)
        self.from_client = FromClient(self.hub, self.forward, self.turns, methods.table(), 120)
        self.client = self.hub.open_connection("a")
        self.session = self.hub.add_session(self.running, "s", "/", Raw(b"{}"))
        self.session.learn_offers(OFFERED)
        self.hub.save(self.session)
        self.hub.attach(self.client, self.session)

    async def _running(self, _: object) -> RunningAgent:
        return self.running

    def says(self, **fields: Any) -> None:
        """A line from the agent."""
        self.from_agent.receive(self.running, json.dumps({"jsonrpc": "2.0", **fields}).encode() + b"\n")

    def asks(self, id: object, method: str = "session/request_permission", **params: Any) -> None:
        self.says(
            id=id,
            method=method,
            params=params or {"sessionId": "s", "options": [{"optionId": "yes", "kind": "allow_once"}]},
        )

    def sent(self, method: str) -> Json:
        """The last request of a method that the agent was sent."""
        return [one for one in self.process.sent if one.get("method") == method][-1]

    def request(self, method: str, params: Json, id: object = "r") -> asyncio.Task[Any]:
        task = self.from_client.request(self.client, envelope(id=id, method=method, params=params))
        return asyncio.create_task(task)


def envelope(**fields: Any) -> Envelope:
    return parse(json.dumps({"jsonrpc": "2.0", **fields}).encode())


@asynccontextmanager
async def world(path: Path | None = None) -> AsyncGenerator[World]:
    one = World(path)
    try:
        yield one
        await one.log.flushed()
    finally:
        one.log.close()


def run(main: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(5):
            await main

    asyncio.run(bounded())


@pytest.mark.requirement("5.bad-agents-stall")
def test_a_prompt_that_could_not_be_sent_does_not_swallow_what_the_agent_asks_next() -> None:
    async def main() -> None:
        async with world() as own:
            own.process.reads = False
            answer = await own.request("session/prompt", {"sessionId": "s", "prompt": []})
            assert parse(answer.line).error()["code"] == AgentNotReading.rpc_code
            own.process.reads = True
            own.asks(5)
            assert [one.agent_id for one in own.hub.pending.of_session(own.session)] == [b"5"]

    run(main())


@pytest.mark.requirement("5.cancel-answers-pending")
def test_nothing_is_allowed_after_a_cancel_that_came_while_the_answer_was_on_its_way_to_the_disk() -> None:
    async def main() -> None:
        async with world() as own:
            own.asks(7)
            kept, reached = asyncio.Event(), asyncio.Event()

            async def committed(position: int) -> None:
                reached.set()
                await kept.wait()

            own.log.committed = committed  # type: ignore[method-assign]
            answer = asyncio.create_task(own.from_client.answer(own.client, envelope(id=7, result=ALLOW)))
            await reached.wait()
            with pytest.raises(AlreadyAnswered):
                await own.from_client.answer(own.client, envelope(id=7, result=ALLOW))
            cancel = envelope(method="session/cancel", params={"sessionId": "s"})
            await own.from_client.notify(own.client, cancel)
            kept.set()
            with pytest.raises(AlreadyAnswered) as refused:
                await answer
            assert refused.value.fields["outcome"] == "cancelled"
            answers = [one["result"] for one in own.process.sent if one.get("id") == 7]
            assert answers == [{"outcome": {"outcome": "cancelled"}}]
            assert own.hub.pending.of_session(own.session) == []

    run(main())


@pytest.mark.requirement("5.first-answer-wins")
def test_an_answer_that_could_not_be_kept_may_be_given_again() -> None:
    async def main() -> None:
        async with world() as own:
            own.asks(7)
            committed = own.log.committed

            async def failing(position: int) -> None:
                raise OSError("disk full")

            own.log.committed = failing  # type: ignore[method-assign]
            with pytest.raises(OSError, match="disk full"):
                await own.from_client.answer(own.client, envelope(id=7, result=ALLOW))
            assert own.process.sent == []
            own.log.committed = committed  # type: ignore[method-assign]
            await own.from_client.answer(own.client, envelope(id=7, result=ALLOW))
            assert [one["result"] for one in own.process.sent] == [ALLOW]

    run(main())


@pytest.mark.requirement("5.answer-unasked")
def test_what_belongs_to_the_call_of_a_live_connection_is_not_pending_for_another() -> None:
    async def main() -> None:
        async with world() as own:
            other = own.hub.open_connection("a")
            own.hub.attach(other, own.session)
            call = own.request("x/login", {"sessionId": "s"})
            await own.process.has_been_sent(1)
            own.asks(9, "elicitation/create", requestId=own.sent("x/login")["id"], message="Password?")

            assert len(own.inventory.pending(own.client, [own.session])) == 1
            assert own.inventory.pending(other, [own.session]) == []

            own.hub.close_connection(own.client, "gone")
            assert len(own.inventory.pending(other, [own.session])) == 1, "now nobody else can answer"
            own.says(id=own.sent("x/login")["id"], result={})
            await call

    run(main())


@pytest.mark.requirement("6.delete")
def test_a_setting_that_is_answered_after_a_delete_does_not_bring_the_session_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path / "log.db") as own:
            setting = own.request("session/set_mode", {"sessionId": "s", "modeId": "plan"})
            await own.process.has_been_sent(1)
            deletion = own.request("session/delete", {"sessionId": "s"})
            await own.process.has_been_sent(2)
            own.says(id=own.sent("session/delete")["id"], result={})
            assert parse((await deletion).line).succeeded
            own.says(id=own.sent("session/set_mode")["id"], result={})
            assert parse((await setting).line).succeeded
            assert own.hub.find_session("s") is None
        database = Database(tmp_path / "log.db")
        again = Log(database, Limits())
        try:
            assert list(Hub(again).sessions()) == []
            assert await again.history("s", 0, again.position + 1, 10) == []
        finally:
            again.close()

    run(main())


@pytest.mark.requirement("5.held-updates")
@pytest.mark.parametrize(
    "answer", [{"error": {"code": -32050, "message": "no"}}, {"result": {}}], ids=["error", "no id"]
)
def test_what_was_held_for_a_session_that_did_not_come_about_goes_its_way(answer: Json) -> None:
    async def main() -> None:
        async with world() as own:
            call = own.request("session/new", {"cwd": "/", "mcpServers": []})
            await own.process.has_been_sent(1)
            before = own.log.position
            update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "early"}}
            own.says(method="session/update", params={"sessionId": "unborn", "update": update})
            own.asks(77, sessionId="unborn", options=[])
            assert own.log.position == before, "held"
            assert len(own.process.sent) == 1
            own.says(id=own.sent("session/new")["id"], **answer)
            await call

            found = own.log.in_memory(own.client.channels(), before, own.log.tail_bytes)
            assert found is not None
            shown, _ = found
            assert [json.loads(line)["params"]["update"] for chunk in shown for line in chunk.lines] == [update]
            (refusal,) = [one for one in own.process.sent if one.get("id") == 77]
            assert refusal["error"]["code"] == -32002

    run(main())


def updates_told(own: World) -> list[str]:
    chunks, _ = own.log.in_memory([session_channel("s")], 0, 1 << 20) or ([], True)
    return [json.loads(line)["params"]["update"]["sessionUpdate"] for chunk in chunks for line in chunk.lines]


@pytest.mark.requirement("6.change-told")
def test_an_agent_has_a_moment_to_tell_of_a_change_itself() -> None:
    async def main() -> None:
        async with world() as own:
            own.session.all_told()
            task = own.request("session/set_mode", {"sessionId": "s", "modeId": "plan"})
            await own.process.has_been_sent(1)
            asked_at = own.hub.monotonic()
            own.says(id=own.sent("session/set_mode")["id"], result={})
            await task
            own.hub.tell_untold(asked_at - 1)
            assert updates_told(own) == []
            own.says(
                method="session/update",
                params={"sessionId": "s", "update": {"sessionUpdate": "current_mode_update", "currentModeId": "plan"}},
            )
            own.hub.tell_untold(own.hub.monotonic())
            assert updates_told(own) == ["current_mode_update", "config_option_update"]
            own.hub.tell_untold(own.hub.monotonic())
            assert len(updates_told(own)) == 2

    run(main())


@pytest.mark.requirement("6.change-told")
def test_nothing_is_told_of_a_session_that_has_ended_or_is_gone() -> None:
    async def main() -> None:
        async with world() as own:
            own.session.choose(MODE, "plan")
            own.hub.learned(own.session)
            own.hub.end_session(own.session, {"reason": "error"}, resumable=True)
            own.hub.tell_untold(own.hub.monotonic())
            own.hub.learned(own.session)
            own.hub.forget_session(own.session)
            own.hub.tell_untold(own.hub.monotonic())
            chunks, _ = own.log.in_memory([session_channel("s")], 0, 1 << 20) or ([], True)
            methods = [json.loads(line)["method"] for chunk in chunks for line in chunk.lines]
            assert "session/update" not in methods

    run(main())


@pytest.mark.requirement("6.set-any-way")
@pytest.mark.parametrize("result", [None, {}, {"_meta": {"x": 1}}])
def test_an_option_is_answered_with_all_options_whatever_its_agent_answers(result: object) -> None:
    async def main() -> None:
        async with world() as own:
            task = own.request("session/set_config_option", {"sessionId": "s", "configId": "mode", "value": "plan"})
            await own.process.has_been_sent(1)
            own.says(id=own.sent("session/set_mode")["id"], result=result)
            answer = parse((await task).line).result()
            assert [(one["id"], one["currentValue"]) for one in answer.pop("configOptions")] == [("mode", "plan")]  # type: ignore[attr-defined]
            assert answer == (result or {})

    run(main())


@pytest.mark.requirement("6.set-any-way")
def test_an_agent_that_answers_an_option_with_nothing_is_taken_at_its_word() -> None:
    async def main() -> None:
        async with world() as own:
            own.session.facts.offers = SHAPES["claude"].offers
            task = own.request("session/set_config_option", {"sessionId": "s", "configId": "mode", "value": "plan"})
            await own.process.has_been_sent(1)
            own.says(id=own.sent("session/set_config_option")["id"], result={})
            await task
            assert own.session.mode == "plan"
            assert own.session.facts.offers["modes"]["currentModeId"] == "plan"  # type: ignore[index]

    run(main())


def attaching(path: str) -> Json:
    """A prompt that has to wait for a file."""
    return {"sessionId": "s", "prompt": [], "_meta": {META: {"attachments": [{"path": path}]}}}


@pytest.mark.requirement("8.order")
def test_a_prompt_does_not_overtake_one_that_waits_for_its_files() -> None:
    async def main() -> None:
        async with world() as own:
            first = own.request("session/prompt", attaching("/"), "first")
            second = own.request("session/prompt", {"sessionId": "s", "prompt": ["second"]}, "second")
            await own.process.has_been_sent(1)
            assert own.sent("session/prompt")["params"]["prompt"][0]["uri"] == "file:///"
            own.says(id=own.sent("session/prompt")["id"], result={"stopReason": "end_turn"})
            await first
            await own.process.has_been_sent(2)
            assert own.sent("session/prompt")["params"]["prompt"] == ["second"]
            own.says(id=own.sent("session/prompt")["id"], result={"stopReason": "end_turn"})
            await second

    run(main())


@pytest.mark.requirement("8.gone")
def test_a_prompt_whose_session_goes_while_its_files_are_looked_at_is_not_sent() -> None:
    async def main() -> None:
        async with world() as own:
            prompt = own.request("session/prompt", attaching("/"))
            await asyncio.sleep(0)
            own.hub.forget_session(own.session)
            answer = await prompt
            assert parse(answer.line).error()["code"] == UnknownSession.rpc_code
            assert own.process.sent == []

    run(main())
