"""Reapers that processes below them stop: contract, section 10 (the whole tree dies, whatever it does to hide)."""

import asyncio
import os
import signal
import sys
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest
import uvloop

from sandboxagent.server.agents.process import AgentProcess
from sandboxagent.server.processes.children import ProcessTrees
from sandboxagent.server.processes.watch import MAX_STOPS
from tests.support.running import BOUND
from tests.support.spawning import Recorder, alive, escape, eventually

TRACER = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None)
reaper = os.getppid()
if os.fork() == 0:
    os.setsid()
    # PTRACE_SEIZE and PTRACE_INTERRUPT.
    seized = libc.ptrace(0x4206, reaper, None, None) == 0 and libc.ptrace(0x4207, reaper, None, None) == 0
    print(os.getpid() if seized else 0, flush=True)
    time.sleep(60)
sys.stdin.readline()
"""


class Counting(ProcessTrees):
    """Counts how often it was looked whether a reaper was stopped, and how often it was."""

    def __init__(self) -> None:
        super().__init__(f"test-{uuid.uuid4()}")
        self.woken = 0

    def wake(self, key: str) -> bool:
        was_stopped = super().wake(key)
        self.woken += was_stopped
        return was_stopped


def run(main: Callable[[], Coroutine[None, None, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(BOUND):
            await main()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bounded())


async def start(children: ProcessTrees, *command: str) -> tuple[AgentProcess, list[int]]:
    """An agent, and the pids that it says."""
    listener = Recorder()
    process = await AgentProcess.spawn(
        agent="test",
        key=uuid.uuid4().hex,
        command=command,
        environment={"PATH": os.environ["PATH"]},
        directory=None,
        children=children,
        listener=listener,
    )
    return process, [int(word) for word in (await listener.line()).split()]


def reaper_of(children: ProcessTrees, process: AgentProcess) -> int:
    child = children.get(process.key)
    assert child is not None
    return child.pid


@pytest.mark.parametrize("code", [0, 3])
def test_the_end_of_an_agent_that_stopped_its_reaper_is_seen_and_its_daemons_end(code: int) -> None:
    async def main() -> None:
        children = Counting()
        process, pids = await start(children, *escape("naked", "nameless", "marked", "child", "stripped"))
        os.kill(reaper_of(children, process), signal.SIGSTOP)

        process.send(b"exit %d" % code)

        assert (await process.exited()).code == code
        assert await eventually(lambda: not any(map(alive, pids)))

    run(main)


def test_a_reaper_that_was_stopped_goes_on_while_its_program_runs() -> None:
    async def main() -> None:
        children = Counting()
        process, pids = await start(children, *escape("naked"))
        os.kill(reaper_of(children, process), signal.SIGSTOP)

        assert await eventually(lambda: children.woken == 1)
        # It does its work again: nobody else waits for this one.
        os.kill(pids[0], signal.SIGKILL)
        assert await eventually(lambda: not Path(f"/proc/{pids[0]}").exists())
        await process.stop(0)

    run(main)


def test_an_agent_that_stops_its_reaper_again_and_again_is_killed_whole() -> None:
    async def main() -> None:
        children = Counting()
        process, pids = await start(children, *escape("naked", "stopper"))

        assert (await process.exited()).signal == "SIGKILL"

        assert children.woken <= 3 * MAX_STOPS
        assert await eventually(lambda: not any(map(alive, [*pids, process.pid])))

    run(main)


def test_an_agent_that_stopped_its_reaper_can_be_stopped() -> None:
    async def main() -> None:
        children = Counting()
        process, pids = await start(children, *escape("naked", "nameless"))
        os.kill(reaper_of(children, process), signal.SIGSTOP)

        await process.stop(0)

        assert await eventually(lambda: not any(map(alive, [*pids, process.pid])))

    run(main)


def test_a_process_that_traces_its_reaper_dies_with_the_agent() -> None:
    async def main() -> None:
        children = Counting()
        process, (tracer,) = await start(children, sys.executable, "-c", TRACER)
        if tracer:
            process.send(b"end")
            assert (await process.exited()).code == 0, "the reaper went on when its tracer was dead"
            assert await eventually(lambda: not alive(tracer))
        await process.stop(0)

    run(main)
