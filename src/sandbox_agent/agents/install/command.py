"""Running npm or uv to completion. If the caller is cancelled, the whole process tree is killed."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from sandbox_agent.agents.lines import StderrTail
from sandbox_agent.agents.process import AgentProcess, Exit
from sandbox_agent.processes.children import Children

_MAX_LINE = 1 << 20
_TAIL = 4096
_keys = count(1)


@dataclass(frozen=True, slots=True)
class Finished:
    """How a program ended, and the last of what it wrote."""

    code: int | None
    text: str


class _Lines:
    """Passes lines on and keeps the last of them."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.tail = StderrTail()
        self._tell = tell

    def lines(self, process: AgentProcess, blob: bytes) -> None:
        self.tail.feed(blob)
        for line in blob.decode("utf-8", "replace").splitlines():
            self._tell(line)

    def oversized(self, process: AgentProcess, head: bytes) -> None:
        self.tail.feed(head[:_TAIL] + b"\n")

    def exited(self, process: AgentProcess, ended: Exit) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Runner:
    """Starts programs as children of ours."""

    children: Children

    async def run(
        self, command: Sequence[str], environment: Mapping[str, str], directory: Path, tell: Callable[[str], None]
    ) -> Finished:
        """Run a program; `tell` hears each line that it writes, to stdout or stderr."""
        lines = _Lines(tell)
        process = await AgentProcess.spawn(
            agent=Path(command[0]).name,
            key=f"install-{next(_keys)}",
            # One stream: an error makes sense only beside what went before it.
            command=["/bin/sh", "-c", 'exec "$@" 2>&1 </dev/null', "sh", *command],
            environment=environment,
            directory=str(directory),
            listener=lines,
            children=self.children,
            max_line=_MAX_LINE,
        )
        try:
            ended = await process.exited()
        except BaseException:
            await asyncio.shield(process.stop(0))
            raise
        return Finished(ended.code, lines.tail.text(_TAIL))
