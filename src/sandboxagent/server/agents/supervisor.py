"""Run one process per agent: start it on first use, watch it, and start it again when needed.

Concurrent first callers share one start. A session that brings its own environment, or whose agent has `isolation =
"session"`, gets a process of its own instead. The supervisor passes the output of processes to its Listener. No other
calls in the project go up a layer.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Literal

from msgspec import Struct, field

from sandboxagent.core.tasks import Shared
from sandboxagent.protocol.errors import (
    AgentBootFailed,
    AgentNotInstalled,
    AgentTimeout,
    SandboxAgentError,
    ShuttingDown,
)
from sandboxagent.server.agents.launch import FolderGone, Launch
from sandboxagent.server.agents.manifest import Agent
from sandboxagent.server.agents.process import Exit
from sandboxagent.server.agents.running import Listener, RunningAgent
from sandboxagent.server.agents.start import AgentStarter, describe_exit

logger = logging.getLogger(__name__)

EARLY_EXIT_TIMEOUT = 10.0
"""Seconds. A process that ends sooner has crashed at its start, and back-off applies."""
FREE_CRASHES = 3
"""Number of crashes at the start, in a row, from which on the next start has to wait."""
MAX_BACKOFF_INTERVAL = 30.0
MAX_START_TRIES = 5

Provide = Callable[[Agent], Awaitable[Launch]]
"""Function that returns how to start an agent. It installs the agent first when that is needed and allowed."""


class AgentStatus(Struct):
    """The state of an agent's shared process."""

    status: Literal["stopped", "starting", "running", "error"] = "stopped"
    running: RunningAgent | None = None
    restart_count: int = 0
    short_lives: int = 0
    last_error: str | None = None
    isolated: set[RunningAgent] = field(default_factory=set[RunningAgent])


class Supervisor:
    """The supervisor of all agent processes."""

    def __init__(self, listener: Listener, starter: AgentStarter, provide: Provide) -> None:
        self._listener = listener
        self._starter = starter
        self._provide = provide
        self._status: dict[str, AgentStatus] = {}
        self._starts = Shared[str, RunningAgent]()
        self._closing = asyncio.Event()

    def status(self, agent: str) -> AgentStatus:
        return self._status.setdefault(agent, AgentStatus())

    def running(self, agent: str) -> RunningAgent | None:
        """Return the agent's shared process, if it is running."""
        status = self._status.get(agent)
        return status.running if status else None

    async def process(self, agent: Agent) -> RunningAgent:
        """Return the agent's shared process. Start it when it is not running."""
        status = self.status(agent.id)
        if status.running is not None:
            return status.running
        return await self._starts.get(agent.id, lambda: self._shared_start(agent, status), f"boot {agent.id}")

    async def isolated(self, agent: Agent, environment: Mapping[str, str]) -> RunningAgent:
        """Start a process of its own for one session."""
        running = await self._start(agent, environment)
        running.alone = True
        self.status(agent.id).isolated.add(running)
        return running

    async def stop(self, key: str) -> None:
        """Stop the process with a key, and its whole tree."""
        for running in self._running():
            if running.key == key:
                await self._starter.stop(running)

    def _running(self) -> list[RunningAgent]:
        return [one for status in self._status.values() for one in (*status.isolated, status.running) if one]

    async def close(self, longest: float) -> None:
        """Stop all processes and start no more. None gets longer than `longest` seconds."""
        self._closing.set()
        stops = [self._starter.stop(one, longest) for one in self._running()]
        await asyncio.gather(self._starter.close(longest), *stops, return_exceptions=True)
        await self._starts.settle()

    async def _shared_start(self, agent: Agent, status: AgentStatus) -> RunningAgent:
        status.status = "starting"
        try:
            await self._wait(_backoff(status.short_lives))
            running = await self._start(agent, {})
        except (AgentBootFailed, AgentTimeout) as error:
            status.status, status.last_error = "error", str(error)
            status.short_lives += 1
            raise
        except (ShuttingDown, AgentNotInstalled):
            status.status = "stopped"
            raise
        except SandboxAgentError as error:
            status.status, status.last_error = "error", str(error)
            raise
        except BaseException:
            status.status = "stopped"
            raise
        else:
            # The process may have died between its handshake and this line; then `_gone` has come first.
            if running.alive:
                status.status, status.running = "running", running
            return running

    async def _start(self, agent: Agent, environment: Mapping[str, str]) -> RunningAgent:
        for _ in range(MAX_START_TRIES):
            launch = await self._provide(agent)
            if self._closing.is_set():
                raise ShuttingDown
            # Another server may have replaced the installation between the lookup and the start.
            with suppress(FolderGone):
                return await self._starter.start(agent, launch, environment, self._listener, self._gone)
        raise AgentBootFailed(f"agent {agent.id} was replaced again and again while it was started", agent=agent.id)

    async def _wait(self, seconds: float) -> None:
        if seconds:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._closing.wait()

    def _gone(self, running: RunningAgent, exit: Exit) -> None:
        """Forget an exited process, so that the next call starts a new one."""
        status = self.status(running.agent.id)
        lived = time.time() - running.process.started_at
        status.isolated.discard(running)
        if status.running is running:
            status.running = None
            status.status = "stopped" if exit.code == 0 or running.process.stopping else "error"
            status.restart_count += 1
        crashed = exit.code != 0 and not running.process.stopping
        if crashed:
            status.last_error = describe_exit(exit)
            status.short_lives = status.short_lives + 1 if lived < EARLY_EXIT_TIMEOUT else 0
        logger.info("agent process exited agent=%s exit=%s", running.agent.id, describe_exit(exit))


def _backoff(short_lives: int) -> float:
    if short_lives < FREE_CRASHES:
        return 0.0
    return min(MAX_BACKOFF_INTERVAL, 0.5 * 2.0 ** (short_lives - FREE_CRASHES))
