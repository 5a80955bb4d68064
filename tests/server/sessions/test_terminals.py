"""Commands that agents run: contract, section 5; that trees die whole, section 10."""

import asyncio
import os
import resource
import shlex
import sys
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Protocol

import pytest
import uvloop

from sandboxagent.core.threads import Pool
from sandboxagent.protocol.errors import InvalidParams, InvalidRequest, NoSuchFile, ShuttingDown, UnknownTerminal
from sandboxagent.server.processes.children import ProcessTrees
from sandboxagent.server.sessions.budgets import Budgets
from sandboxagent.server.sessions.terminals import (
    ExitStatus,
    TerminalCommand,
    TerminalLimits,
    TerminalOwners,
    Terminals,
)
from tests.support.running import BOUND, alive

POOL = Pool("test", 4)

ESCAPING = Path(__file__).parents[2] / "support" / "escaping_agent.py"
ASKER = TerminalOwners("agent-1", "session-1")
USUAL = TerminalLimits()
MEMORY = 4 << 20
"""The budget of the agent process."""


class Host:
    """Terminals in a folder, with short words for tests."""

    def __init__(self, folder: Path, limits: TerminalLimits) -> None:
        self.folder = folder
        self.children = ProcessTrees(f"test-{uuid.uuid4()}")
        self.budgets = Budgets(MEMORY)
        self.terminals = Terminals(self.children, POOL, limits, self.budgets)

    async def start(self, program: str, *arguments: str, asker: TerminalOwners = ASKER, **more: object) -> str:
        settings: dict[str, object] = {
            "environment": {"PATH": os.environ["PATH"]},
            "directory": str(self.folder),
            "directories": [str(self.folder)],
        }
        command = TerminalCommand(program=program, arguments=arguments, **(settings | more))  # type: ignore[arg-type]
        return await self.terminals.create(asker, command)

    async def exited(self, id: str) -> ExitStatus:
        return await self.terminals.get(ASKER, id).exited()

    def output(self, id: str) -> str:
        return self.terminals.get(ASKER, id).output()[0]

    async def says(self, id: str, lines: int = 1) -> list[str]:
        """What it wrote, once there are so many lines; the test's own bound ends the wait."""
        while len(words := self.output(id).split("\n")) <= lines:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.005)
        return words[:lines]

    async def run(self, program: str, *arguments: str, **more: object) -> tuple[ExitStatus, str]:
        id = await self.start(program, *arguments, **more)
        return await self.exited(id), self.output(id)


class Run(Protocol):
    def __call__(self, main: Callable[[Host], Coroutine[None, None, None]], limits: TerminalLimits = USUAL) -> None: ...


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a test on a loop as the server has one; it ends in time or fails, and leaves nothing."""

    async def bounded(main: Callable[[Host], Coroutine[None, None, None]], limits: TerminalLimits) -> None:
        host = Host(tmp_path, limits)
        try:
            async with asyncio.timeout(60):
                await main(host)
        finally:
            await host.terminals.close(0)

    def run(main: Callable[[Host], Coroutine[None, None, None]], limits: TerminalLimits = USUAL) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(bounded(main, limits))

    return run


def gone(*pids: int) -> bool:
    return not any(alive(pid) for pid in pids)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that has no event; the test's own bound ends the wait."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


# Running


def test_a_command_runs_and_its_output_and_its_code_are_there(run: Run) -> None:
    async def main(host: Host) -> None:
        assert await host.run("sh", "-c", "echo hello; exit 3") == (ExitStatus(3, None), "hello\n")
        assert await host.run("true") == (ExitStatus(0, None), "")

    run(main)


def test_stdout_and_stderr_are_one_in_order_and_stdin_is_empty(run: Run) -> None:
    async def main(host: Host) -> None:
        script = "for i in 1 2 3 4 5; do echo out$i; echo err$i >&2; done; cat"
        expected = "".join(f"out{i}\nerr{i}\n" for i in range(1, 6))
        assert await host.run("sh", "-c", script) == (ExitStatus(0, None), expected)

    run(main)


def test_a_line_without_arguments_that_is_no_program_is_run_by_a_shell(run: Run) -> None:
    async def main(host: Host) -> None:
        assert await host.run("echo a | tr a b && exit 4") == (ExitStatus(4, None), "b\n")
        script = host.folder / "my script"
        script.write_text("#!/bin/sh\necho ran $#\n")
        script.chmod(0o755)
        assert (await host.run("./my script"))[1] == "ran 0\n"
        assert (await host.run(str(script)))[1] == "ran 0\n"
        code, output = await host.run("surely-not-a-program")
        assert code == ExitStatus(127, None)
        assert "surely-not-a-program" in output

    run(main)


def test_a_program_that_is_not_there_is_said(run: Run) -> None:
    async def main(host: Host) -> None:
        with pytest.raises(NoSuchFile, match="surely-not-a-program"):
            await host.start("surely-not-a-program", "x")
        # Nothing of it is left that would count.
        for _ in range(3):
            await host.start("true")

    run(main, TerminalLimits(count=3))


def test_it_runs_in_the_directory_it_was_given(run: Run) -> None:
    async def main(host: Host) -> None:
        (host.folder / "sub").mkdir()
        assert (await host.run("pwd"))[1] == f"{host.folder}\n"
        assert (await host.run("pwd", directory=str(host.folder / "sub")))[1] == f"{host.folder}/sub\n"
        (host.folder / "out").symlink_to("/")
        for outside in ("/", str(host.folder / "out"), f"{host.folder}/..", "sub"):
            with pytest.raises(InvalidParams):
                await host.start("pwd", directory=outside)
        with pytest.raises(NoSuchFile):
            await host.start("pwd", directory=str(host.folder / "missing"))

    run(main)


def test_it_sees_the_environment_it_was_given_and_our_marks(run: Run) -> None:
    async def main(host: Host) -> None:
        _, output = await host.run("env", environment={"PATH": os.environ["PATH"], "OWN": "1"})
        names = {line.partition("=")[0] for line in output.splitlines()}
        assert names == {"PATH", "OWN", "SANDBOX_AGENT_OWNER"}

    run(main)


def test_it_inherits_no_descriptor(run: Run) -> None:
    async def main(host: Host) -> None:
        _, output = await host.run("ls", "-l", "/proc/self/fd")
        # 3 is what ls itself looks with.
        assert [line.split(" -> ")[0].split()[-1] for line in output.splitlines()[1:]] == ["0", "1", "2", "3"]

    run(main)


def test_several_wait_for_one_exit_and_later_ones_need_not(run: Run) -> None:
    async def main(host: Host) -> None:
        id = await host.start("sh", "-c", "while [ ! -e go ]; do sleep 0.01; done; exit 5")
        waiting = [asyncio.create_task(host.exited(id)) for _ in range(5)]
        cancelled = asyncio.create_task(host.exited(id))
        await asyncio.sleep(0)
        cancelled.cancel()
        (host.folder / "go").touch()
        assert await asyncio.gather(*waiting) == [ExitStatus(5, None)] * 5
        assert await host.exited(id) == ExitStatus(5, None)

    run(main)


# Output


def test_the_newest_output_is_kept_within_what_was_asked_and_within_the_maximum(run: Run) -> None:
    async def main(host: Host) -> None:
        for asked, kept in ((5, 5), (None, 100), (1000, 100), (0, 0)):
            id = await host.start("sh", "-c", "seq 1000", output_limit=asked)
            await host.exited(id)
            text, truncated = host.terminals.get(ASKER, id).output()
            assert text == "".join(f"{i}\n" for i in range(1, 1001))[-kept:] if kept else text == ""
            assert truncated

    run(main, TerminalLimits(output=100))


def test_unread_output_costs_no_memory(run: Run) -> None:
    async def main(host: Host) -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        id = await host.start("sh", "-c", "head -c 256M /dev/zero | tr '\\0' x; echo end")
        assert await host.exited(id) == ExitStatus(0, None)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 * 1024
        text, truncated = host.terminals.get(ASKER, id).output()
        assert text.endswith("xend\n")
        assert len(text) == 1 << 20
        assert truncated

    run(main)


def test_output_that_comes_byte_by_byte_costs_no_more(run: Run) -> None:
    async def main(host: Host) -> None:
        id = await host.start("dd", "if=/dev/zero", "bs=1", "count=20000", "status=none", output_limit=1000)
        await host.exited(id)
        assert host.terminals.get(ASKER, id).output() == ("\0" * 1000, True)

    run(main)


def test_output_is_there_while_the_command_runs(run: Run) -> None:
    async def main(host: Host) -> None:
        id = await host.start("sh", "-c", "echo first; sleep 60")
        assert await host.says(id) == ["first"]
        assert host.terminals.get(ASKER, id).exit is None

    run(main)


def test_what_a_command_left_writing_is_heard_before_it_is_ended(run: Run) -> None:
    async def main(host: Host) -> None:
        status, output = await host.run("sh", "-c", "(sleep 0.05; echo late) & echo early")
        assert (status, output) == (ExitStatus(0, None), "early\nlate\n")

    run(main)


# Ending


def test_kill_ends_the_command_and_its_output_stays_until_release(run: Run) -> None:
    async def main(host: Host) -> None:
        id = await host.start("sh", "-c", "echo $$; sleep 60 & wait")
        (pid,) = await host.says(id)
        await host.terminals.kill(ASKER, id)
        await until(lambda: gone(int(pid)))
        assert await host.exited(id) == ExitStatus(None, "SIGTERM")
        assert host.output(id) == f"{pid}\n"
        await host.terminals.kill(ASKER, id)
        await host.terminals.release(ASKER, id)
        for action in (host.terminals.kill, host.terminals.release):
            with pytest.raises(UnknownTerminal):
                await action(ASKER, id)

    run(main, TerminalLimits(grace=60))


def test_who_ignores_sigterm_is_killed_after_the_grace(run: Run) -> None:
    async def main(host: Host) -> None:
        id = await host.start("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 60; done")
        await host.says(id)
        await host.terminals.kill(ASKER, id)
        assert await host.exited(id) == ExitStatus(None, "SIGKILL")

    run(main, TerminalLimits(grace=0.1))


def test_a_signal_of_its_own_is_reported(run: Run) -> None:
    async def main(host: Host) -> None:
        assert (await host.run("sh", "-c", "kill -USR1 $$"))[0] == ExitStatus(None, "SIGUSR1")

    run(main)


@pytest.mark.parametrize("ending", ["release", "kill", "session", "process", "close"])
def test_the_whole_tree_dies_daemons_too_however_it_ends(run: Run, ending: str) -> None:
    async def main(host: Host) -> None:
        daemons = ["naked", "marked", "child", "stripped"]
        line = shlex.join([sys.executable, str(ESCAPING), *daemons])
        id = await host.start("sh", "-c", f"{line}; true")
        pids = [int(word) for word in (await host.says(id))[0].split()]
        assert len(pids) == 4
        assert all(map(alive, pids))
        match ending:
            case "release":
                await host.terminals.release(ASKER, id)
            case "kill":
                await host.terminals.kill(ASKER, id)
            case "session":
                host.terminals.end_session(ASKER.session)
            case "process":
                host.terminals.end_process(ASKER.process)
            case _:
                await host.terminals.close(0.1)
        await until(lambda: gone(*pids))

    run(main, TerminalLimits(grace=0.1))


def test_what_a_command_left_behind_ends_with_the_command(run: Run) -> None:
    async def main(host: Host) -> None:
        status, output = await host.run("sh", "-c", "sleep 60 & echo $!; (setsid sleep 60 & echo $!)")
        assert status == ExitStatus(0, None)
        await until(lambda: gone(*map(int, output.split())))

    run(main)


def test_only_its_own_terminals_end_with_a_session(run: Run) -> None:
    async def main(host: Host) -> None:
        other = TerminalOwners(ASKER.process, "session-2")
        first, second = await host.start("sleep", "60"), await host.start("sleep", "60", asker=other)
        host.terminals.end_session(ASKER.session)
        with pytest.raises(UnknownTerminal):
            host.terminals.get(ASKER, first)
        assert host.terminals.get(other, second).exit is None

    run(main)


def test_a_session_cannot_reach_the_terminals_of_another(run: Run) -> None:
    async def main(host: Host) -> None:
        id = await host.start("sleep", "60")
        for stranger in (TerminalOwners(ASKER.process, "session-2"), TerminalOwners("agent-2", ASKER.session)):
            with pytest.raises(UnknownTerminal):
                host.terminals.get(stranger, id)
            with pytest.raises(UnknownTerminal):
                await host.terminals.release(stranger, id)

    run(main)


def test_a_session_that_ends_while_a_command_starts_takes_it_along(run: Run) -> None:
    async def main(host: Host) -> None:
        starting = asyncio.create_task(host.start("sh", "-c", "echo $$ > pid; sleep 60"))
        await asyncio.sleep(0)
        host.terminals.end_session(ASKER.session)
        with pytest.raises(UnknownTerminal):
            await starting
        await host.terminals.close(0.1)
        pid = host.folder / "pid"
        await until(lambda: not pid.exists() or not pid.read_text() or gone(int(pid.read_text())))

    run(main)


def test_a_session_has_so_many_terminals_and_no_more_until_one_is_released(run: Run) -> None:
    async def main(host: Host) -> None:
        ids = [await host.start("true") for _ in range(2)]
        with pytest.raises(InvalidRequest, match="2 terminals already"):
            await host.start("true")
        await host.start("true", asker=TerminalOwners(ASKER.process, "session-2"))
        await host.terminals.release(ASKER, ids[0])
        await host.start("true")

    run(main, TerminalLimits(count=2))


def test_nothing_starts_after_the_end_and_a_slow_end_does_not_hold_it_up(run: Run) -> None:
    async def main(host: Host) -> None:
        id = await host.start("sh", "-c", "trap '' TERM; echo $$; while :; do sleep 60; done")
        (pid,) = await host.says(id)
        releasing = asyncio.create_task(host.terminals.release(ASKER, id))
        await asyncio.sleep(0)
        async with asyncio.timeout(BOUND):
            await host.terminals.close(0.1)
        await until(lambda: gone(int(pid)))
        await releasing
        with pytest.raises(ShuttingDown):
            await host.start("true")

    run(main, TerminalLimits(grace=60))


def test_output_of_all_terminals_of_a_process_is_within_its_budget(run: Run) -> None:
    async def main(host: Host) -> None:
        write = f"import sys; sys.stdout.write('a' * {MEMORY}); sys.stdout.write('the end')"
        limits = {"output_limit": 1 << 20}
        ids = [(await host.start(sys.executable, "-c", write, **limits)) for _ in range(6)]
        for id in ids:
            await host.exited(id)
        kept = [host.terminals.get(ASKER, id).output() for id in ids]
        assert 0 < sum(len(text) for text, _ in kept) <= host.budgets.used(ASKER.process) <= MEMORY
        assert all(truncated for _, truncated in kept)
        for id in ids:
            await host.terminals.release(ASKER, id)
        assert host.budgets.used(ASKER.process) == 0
        # What is free again can be used again.
        assert (await host.run(sys.executable, "-c", write, **limits))[1].endswith("the end")
        host.terminals.end_process(ASKER.process)
        assert host.budgets.used(ASKER.process) == 0

    run(main)
