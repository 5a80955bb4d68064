"""One process per agent (contract, section 5): shared boots, failed ones, back-off, and the end of it all."""

import asyncio
import gc
import json
import time
import uuid
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from msgspec.structs import replace

from sandboxagent.protocol.errors import AgentBootFailed, AgentNotInstalled, SandboxAgentError, ShuttingDown
from sandboxagent.server.agents.launch import Launch
from sandboxagent.server.agents.manifest import Agent, load_manifest
from sandboxagent.server.agents.process import Exit
from sandboxagent.server.agents.running import RunningAgent
from sandboxagent.server.agents.start import AgentStarter, ProcessLimits
from sandboxagent.server.agents.supervisor import FREE_CRASHES, MAX_BACKOFF_INTERVAL, Provide, Supervisor, _backoff
from sandboxagent.server.processes.children import ProcessTrees
from tests.support.running import BOUND, alive, eventually, scripted

FIRST_WAIT = 0.5
SECOND_WAIT = 1.0


class Recorder:
    """Listens to all processes."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self.exits: list[tuple[RunningAgent, Exit]] = []

    def receive(self, running: RunningAgent, blob: bytes) -> None:
        self.received.append(blob)

    def oversized(self, running: RunningAgent, head: bytes) -> None:
        raise AssertionError("no line is that long here")

    def exited(self, running: RunningAgent, exit: Exit) -> None:
        self.exits.append((running, exit))


class House:
    """A supervisor with agents made for one test."""

    def __init__(self, directory: Path, provide: Provide | None = None) -> None:
        self._directory = directory
        self.listener = Recorder()
        limits = ProcessLimits(boot_timeout=BOUND, stop_grace=0.1)
        self._children = ProcessTrees(f"test-{uuid.uuid4()}")
        environ = {"PATH": "/usr/bin:/bin"}
        starter = AgentStarter(self._children, environ, (), limits, None)
        self.supervisor = Supervisor(self.listener, starter, provide or self._as_it_is)

    @staticmethod
    async def _as_it_is(agent: Agent) -> Launch:
        return Launch(agent.command)

    async def __aenter__(self) -> "House":
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.close()
        finally:
            # Whatever failed: with a process left, the event loop would never end.
            self._children.kill_leftovers()

    async def close(self) -> None:
        await self.supervisor.close(0.1)

    def agent(self, *flags: str, lines: str | None = None, **keys: str) -> Agent:
        """An agent that remembers each start of a process in `starts`."""
        file = self._directory / "agents.toml"
        own = scripted("--state", str(self._directory / "starts"), *flags, **keys) if lines is None else lines
        file.write_text(f"[agents.tested]\n{own}\n")
        agent = load_manifest(file).find("tested")
        assert agent is not None
        return agent

    @property
    def starts(self) -> int:
        file = self._directory / "starts"
        return file.read_text().count("started") if file.exists() else 0


def run(main: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(2 * BOUND):
            await main

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bounded())


async def failure(supervisor: Supervisor, agent: Agent) -> tuple[SandboxAgentError, float]:
    """The error of a boot that must fail, and how long it took."""
    begun = time.monotonic()
    with pytest.raises(SandboxAgentError) as failed:
        await supervisor.process(agent)
    return failed.value, time.monotonic() - begun


# --- shared boot ------------------------------------------------------------------------------------------------------


def test_concurrent_first_callers_share_one_boot(tmp_path: Path) -> None:
    async def main() -> None:
        async with House(tmp_path) as house:
            agent = house.agent("--slow-start", "0.05")
            found = await asyncio.gather(*(house.supervisor.process(agent) for _ in range(10)))
            assert len(set(found)) == 1
            assert house.starts == 1
            assert await house.supervisor.process(agent) is found[0]
            assert house.supervisor.running("tested") is found[0]
            assert house.supervisor.status("tested").status == "running"

    run(main())


@pytest.mark.requirement("12.boot-failed-502")
def test_an_agent_that_floods_before_it_answers_initialize_has_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandboxagent.server.agents.start.MAX_EARLY_BYTES", 1000)

    async def main() -> None:
        async with House(tmp_path) as house:
            line = json.dumps({"jsonrpc": "2.0", "method": "x/noise"})
            agent = house.agent(lines=f"command = ['yes', '{line}']")
            error, _ = await failure(house.supervisor, agent)
            assert isinstance(error, AgentBootFailed)
            assert str(error).endswith("it wrote more than 1000 bytes before it answered initialize")
            assert error.status == 502
            assert house.supervisor.running("tested") is None
            assert house.listener.received == []

    run(main())


def test_a_failed_boot_fails_all_who_wait_and_is_not_kept(tmp_path: Path) -> None:
    async def main() -> None:
        async with House(tmp_path) as house:
            broken = house.agent("--exit-at-once", "5")
            results = await asyncio.gather(
                *(house.supervisor.process(broken) for _ in range(5)), return_exceptions=True
            )
            assert [type(result) for result in results] == [AgentBootFailed] * 5
            assert house.starts == 1
            mended = house.agent()
            assert (await house.supervisor.process(mended)).alive
            assert house.starts == 2

    run(main())


def test_a_caller_that_goes_away_leaves_the_boot_to_the_others(tmp_path: Path) -> None:
    async def main() -> None:
        async with House(tmp_path) as house:
            agent = house.agent("--slow-start", "0.1")
            first = asyncio.create_task(house.supervisor.process(agent))
            second = asyncio.create_task(house.supervisor.process(agent))
            await asyncio.sleep(0)
            first.cancel()
            assert (await second).alive
            assert house.starts == 1
            with pytest.raises(asyncio.CancelledError):
                await first

    run(main())


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--exit-at-once", "5"], "exited before it answered"),
        (["--bad-handshake", "error"], "no handshake today"),
        (["--bad-handshake", "garbage"], "initialize"),
    ],
)
def test_a_boot_that_fails_says_why_and_leaves_no_process(flags: list[str], reason: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with House(tmp_path) as house:
            error, _ = await failure(house.supervisor, house.agent(*flags))
            assert isinstance(error, AgentBootFailed)
            assert reason in str(error)
            assert error.fields["agent"] == "tested"
            status = house.supervisor.status("tested")
            assert (status.status, status.running, status.last_error) == ("error", None, str(error))
            started = int((tmp_path / "starts").read_text().split(":")[1].strip(" }\n"))
            assert not alive(started)

    run(main())


def test_an_agent_that_is_gone_before_it_is_greeted_is_a_failed_boot(tmp_path: Path) -> None:
    async def busy() -> None:
        """Keeps the event loop from noticing anything until the process has ended."""
        for _ in range(3):
            await asyncio.sleep(0)
            time.sleep(0.02)  # noqa: ASYNC251 - blocking is the point

    async def main() -> None:
        unheard: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
        async with House(tmp_path) as house:
            agent = house.agent(lines="command = ['true']")
            meanwhile = asyncio.create_task(busy())
            error, _ = await failure(house.supervisor, agent)
            await meanwhile
            assert isinstance(error, AgentBootFailed)
            assert error.fields["exitCode"] == 0
            assert house.supervisor.status("tested").status == "error"
        gc.collect()
        assert unheard == []

    run(main())


def test_what_the_agent_wrote_to_stderr_is_in_the_error(tmp_path: Path) -> None:
    async def main() -> None:
        async with House(tmp_path) as house:
            error, _ = await failure(house.supervisor, house.agent("--exit-at-once", "5"))
            assert error.fields["exitCode"] == 5
            assert error.fields["stderr"] == "scripted agent: exiting at once"

    run(main())


def test_what_an_agent_says_before_its_handshake_is_not_lost(tmp_path: Path) -> None:
    early = '{"jsonrpc":"2.0","method":"x/early"}'
    answer = '{"jsonrpc":"2.0","id":"sandbox-agent-initialize","result":{"protocolVersion":1}}'
    script = f"read line; echo '{early}'; echo nonsense; echo '{answer}'; cat"

    async def main() -> None:
        async with House(tmp_path) as house:
            agent = house.agent(lines=f"command = ['sh', '-c', '''{script}''']")
            assert (await house.supervisor.process(agent)).alive
            assert early.encode() + b"\n" in b"".join(house.listener.received)

    run(main())


@pytest.mark.parametrize("not_offered", [(), ("fs",), ("fs", "terminal")])
def test_an_agent_is_not_told_of_what_it_gets_wrong(not_offered: tuple[str, ...], tmp_path: Path) -> None:
    answer = '{"jsonrpc":"2.0","id":"sandbox-agent-initialize","result":{"protocolVersion":1}}'
    script = f"read -r line; printf %s \"$line\" > {tmp_path}/greeting; echo '{answer}'; cat"

    async def main() -> None:
        async with House(tmp_path) as house:
            agent = house.agent(lines=f"command = ['sh', '-c', '''{script}''']")
            await house.supervisor.process(replace(agent, not_offered=not_offered))
            greeting = json.loads((tmp_path / "greeting").read_text())
            capabilities = greeting["params"]["clientCapabilities"]
            files, terminal = "fs" not in not_offered, "terminal" not in not_offered
            assert capabilities["fs"] == {"readTextFile": files, "writeTextFile": files}
            assert capabilities["terminal"] is terminal

    run(main())


# --- back-off ---------------------------------------------------------------------------------------------------------


def test_repeated_crashes_at_start_cost_a_growing_wait(tmp_path: Path) -> None:
    async def main() -> None:
        async with House(tmp_path) as house:
            agent = house.agent("--exit-at-once")
            waits = [(await failure(house.supervisor, agent))[1] for _ in range(FREE_CRASHES + 2)]
            assert not any(map(_backoff, range(FREE_CRASHES)))
            assert waits[FREE_CRASHES] >= FIRST_WAIT
            assert waits[FREE_CRASHES + 1] >= SECOND_WAIT
            assert house.starts == FREE_CRASHES + 2

    run(main())


def test_a_program_that_is_not_there_costs_no_process_and_is_named(tmp_path: Path) -> None:
    async def main() -> None:
        async with House(tmp_path) as house:
            missing = str(tmp_path / "no-such-program")
            error, _ = await failure(house.supervisor, house.agent(lines=f"command = [{missing!r}]"))
            assert isinstance(error, AgentBootFailed)
            assert error.fields["command"] == [missing]
            assert house.listener.exits == []

    run(main())


def test_what_is_not_installed_is_refused_without_any_wait(tmp_path: Path) -> None:
    async def refuse(agent: Agent) -> Launch:
        raise AgentNotInstalled(agent.id, "install it")

    async def main() -> None:
        async with House(tmp_path, refuse) as house:
            agent = house.agent()
            refusals = [await failure(house.supervisor, agent) for _ in range(FREE_CRASHES + 3)]
            assert {type(error) for error, _ in refusals} == {AgentNotInstalled}
            assert house.supervisor.status("tested").status == "stopped"
            assert house.supervisor.status("tested").short_lives == 0
            assert house.starts == 0

    run(main())


@pytest.mark.parametrize("isolation", ["agent", "session"])
def test_a_process_that_we_stopped_ourselves_is_no_crash(isolation: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with House(tmp_path) as house:
            agent = house.agent(isolation=isolation)
            start = (
                house.supervisor.process if isolation == "agent" else lambda agent: house.supervisor.isolated(agent, {})
            )
            for _ in range(FREE_CRASHES + 1):
                await house.supervisor.stop((await start(agent)).key)
            assert house.supervisor.status("tested").short_lives == 0, "that would be a back-off"
            assert (await house.supervisor.process(agent)).alive

    run(main())


def test_the_next_caller_gets_a_new_process_after_a_crash_and_it_is_counted(tmp_path: Path) -> None:
    async def main() -> None:
        async with House(tmp_path) as house:
            agent = house.agent()
            first = await house.supervisor.process(agent)
            first.process.send(b'{"jsonrpc":"2.0","id":1,"method":"session/prompt","params":{"sessionId":"s",'
                               b'"prompt":[{"type":"text","text":"[[\\"exit\\",7]]"}]}}')  # fmt: skip
            ended = await first.process.exited()
            assert ended.code == 7
            assert [(running, exit.code) for running, exit in house.listener.exits] == [(first, 7)]
            assert house.supervisor.running("tested") is None
            second = await house.supervisor.process(agent)
            assert second is not first
            assert second.key != first.key
            status = house.supervisor.status("tested")
            assert (status.status, status.restart_count) == ("running", 1)

    run(main())


# --- isolation and the end --------------------------------------------------------------------------------------------


def test_isolated_processes_are_each_their_own_and_get_their_own_environment(tmp_path: Path) -> None:
    async def main() -> None:
        async with House(tmp_path) as house:
            agent = house.agent(isolation="session")
            one = await house.supervisor.isolated(agent, {"WHO": "one"})
            other = await house.supervisor.isolated(agent, {"WHO": "other"})
            environments = [environ(running.process.pid) for running in (one, other)]
            assert [b"WHO=one" in environments[0], b"WHO=other" in environments[1]] == [True, True]
            await house.supervisor.stop(one.key)
            assert (one.alive, other.alive) == (False, True)
            await house.close()
            assert not other.alive

    run(main())


def environ(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


def test_after_the_end_nothing_is_left_and_nothing_is_started(tmp_path: Path) -> None:
    async def main() -> None:
        async with House(tmp_path) as house:
            agent = house.agent("--ignore-sigterm", "--ignore-eof")
            shared = await house.supervisor.process(agent)
            isolated = await house.supervisor.isolated(agent, {})
            await house.close()
            assert not alive(shared.process.pid)
            assert not alive(isolated.process.pid)
            for start in (house.supervisor.process(agent), house.supervisor.isolated(agent, {})):
                with pytest.raises(ShuttingDown):
                    await start

    run(main())


def test_who_waits_for_a_boot_or_a_back_off_is_told_at_once_when_it_ends(tmp_path: Path) -> None:
    async def main() -> None:
        async with House(tmp_path) as house:
            broken = house.agent("--exit-at-once")
            house.supervisor.status("tested").short_lives = 100
            backing_off = asyncio.create_task(house.supervisor.process(broken))
            silent = house.agent("--bad-handshake", "silent", "--ignore-eof", isolation="session")
            starting = asyncio.create_task(house.supervisor.isolated(silent, {}))
            await asyncio.to_thread(eventually, lambda: house.starts == 1, "the start of the agent")
            begun = time.monotonic()
            await house.close()
            for waiting in (backing_off, starting):
                with pytest.raises(ShuttingDown):
                    await waiting
            assert time.monotonic() - begun < MAX_BACKOFF_INTERVAL / 2
            assert house.starts == 1

    run(main())
