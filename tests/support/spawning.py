"""Programs that stand for agents, and listeners that remember what they get from them."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Protocol

from sandboxagent.server.agents.process import AgentProcess, Exit
from sandboxagent.server.processes.children import ProcessTrees
from tests.support.running import BOUND

ESCAPING_AGENT = Path(__file__).with_name("escaping_agent.py")


class Run(Protocol):
    def __call__(self, main: Callable[[], Coroutine[None, None, None]]) -> None: ...


class Recorder:
    """Listens, and lets a test wait for what it heard."""

    def __init__(self) -> None:
        self.blob = b""
        self.heads: list[bytes] = []
        self.exits: list[Exit] = []
        self.bytes_at_exit = 0
        self._news = asyncio.Event()

    def lines(self, process: AgentProcess, blob: bytes) -> None:
        assert blob.endswith(b"\n")
        self.blob += blob
        self._news.set()

    def oversized(self, process: AgentProcess, head: bytes) -> None:
        self.heads.append(head)
        self._news.set()

    def exited(self, process: AgentProcess, ended: Exit) -> None:
        self.exits.append(ended)
        self.bytes_at_exit = len(self.blob)
        self._news.set()

    async def until(self, condition: Callable[[], bool], seconds: float = BOUND) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                self._news.clear()
                await self._news.wait()

    async def line(self) -> bytes:
        await self.until(lambda: b"\n" in self.blob)
        line, _, self.blob = self.blob.partition(b"\n")
        return line


class Raising(Recorder):
    """A listener with a bug."""

    def lines(self, process: AgentProcess, blob: bytes) -> None:
        super().lines(process, blob)
        raise RuntimeError("a bug in lines")

    def exited(self, process: AgentProcess, ended: Exit) -> None:
        super().exited(process, ended)
        raise RuntimeError("a bug in exited")


class Powerless(ProcessTrees):
    """What it is like when a process hangs in the kernel: no signal has an effect."""

    def terminate(self, key: str) -> None:
        pass

    def kill(self, key: str) -> int:
        return 1


Spawn = Callable[..., Awaitable[AgentProcess]]


def python(script: str) -> tuple[str, ...]:
    return (sys.executable, "-c", script)


def escape(*kinds: str) -> tuple[str, ...]:
    return (sys.executable, str(ESCAPING_AGENT), *kinds)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + BOUND
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.005)
    return True
