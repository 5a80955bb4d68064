"""One process per agent: booted on first use, shaken hands with once, watched, and booted again when next needed.

Concurrent first callers share one boot. An agent with `isolation = "session"` gets a process for each session instead.
Tells its Listener what the processes say; these are the only calls in the project that go up a layer.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Literal, Protocol

import msgspec
from msgspec import Raw

from sandbox_agent import __version__
from sandbox_agent.agents.manifest import Agent, child_environment
from sandbox_agent.agents.process import AgentProcess, Exit
from sandbox_agent.envelope import META, Envelope, Kind, Object, at, object_at, parse, request
from sandbox_agent.errors import (
    AgentBootFailed,
    AgentExited,
    AgentNotInstalled,
    AgentTimeout,
    NotAnEnvelope,
    ShuttingDown,
)
from sandbox_agent.processes.children import Children

logger = logging.getLogger(__name__)

HANDSHAKE_ID = b'"sandbox-agent-initialize"'
PROTOCOL_VERSION = 1
CLIENT_CAPABILITIES: Object = {
    # Files and terminals are not served yet, so they are not promised.
    "fs": {"readTextFile": False, "writeTextFile": False},
    "terminal": False,
    "elicitation": {"form": {}, "url": {}},
    "plan": {},
    "_meta": {META: {"questions": True}},
}

SHORT_LIFE = 10.0
"""A process that lived shorter than this has crashed at start, which is what back-off is for."""
FREE_CRASHES = 3
"""This many short lives in a row cost no wait."""
MAX_BACKOFF = 30.0
STDERR_IN_ERRORS = 4096
EARLY_BYTES = 8 << 20
"""What an agent may say before it has answered our initialize."""


class Listener(Protocol):
    """Who hears what agent processes say. Nothing here may raise."""

    def receive(self, running: "RunningAgent", blob: bytes) -> None: ...
    def oversized(self, running: "RunningAgent", head: bytes) -> None: ...
    def exited(self, running: "RunningAgent", exit: Exit) -> None: ...


@dataclass(frozen=True, slots=True)
class Handshake:
    """What an agent answered to `initialize`."""

    result: Raw
    facts: Object

    @property
    def capabilities(self) -> Object:
        return object_at(self.facts, "agentCapabilities")

    def offers(self, *path: str) -> bool:
        """Whether the agent advertises a capability: `true`, or an object."""
        found = at(self.capabilities, *path)
        return found is not None and found is not False

    @property
    def resumes(self) -> bool:
        return self.offers("loadSession") or self.offers("sessionCapabilities", "resume")


class RunningAgent:
    """One agent process after its handshake."""

    def __init__(
        self,
        agent: Agent,
        process: AgentProcess,
        handshake: Handshake,
        listener: Listener,
        gone: Callable[["RunningAgent", Exit], None],
    ) -> None:
        self.agent = agent
        self.process = process
        self.handshake = handshake
        self.echoes_prompts: bool | None = agent.echoes_prompts
        """Whether it repeats prompts as user_message_chunk; None until it has shown it."""
        self._listener = listener
        self._gone = gone

    @property
    def key(self) -> str:
        return self.process.key

    @property
    def alive(self) -> bool:
        return self.process.alive

    def send(self, line: bytes) -> None:
        self.process.send(line)

    def lines(self, process: AgentProcess, blob: bytes) -> None:
        self._listener.receive(self, blob)

    def oversized(self, process: AgentProcess, head: bytes) -> None:
        self._listener.oversized(self, head)

    def exited(self, process: AgentProcess, exit: Exit) -> None:
        self._gone(self, exit)
        self._listener.exited(self, exit)


class _Boot:
    """Listens to a process until it has answered our initialize."""

    def __init__(self, agent: str, answered: asyncio.Future[Envelope]) -> None:
        self._agent = agent
        self._answered = answered
        self._early_size = 0
        self.early: list[bytes] = []
        """Envelopes that came before the answer."""

    def lines(self, process: AgentProcess, blob: bytes) -> None:
        for line in blob.splitlines():
            try:
                envelope = parse(line)
            except NotAnEnvelope:
                logger.warning("agent wrote a line that is not an envelope agent=%s bytes=%d", self._agent, len(line))
                continue
            if envelope.kind is Kind.RESPONSE and envelope.id == HANDSHAKE_ID and not self._answered.done():
                self._answered.set_result(envelope)
            elif self._early_size + len(line) <= EARLY_BYTES:
                self.early.append(line)
                self._early_size += len(line)
            elif not self._answered.done():
                reason = f"it wrote more than {EARLY_BYTES} bytes before it answered initialize"
                self._answered.set_exception(_boot_failed(self._agent, reason, None))

    def oversized(self, process: AgentProcess, head: bytes) -> None:
        logger.warning("agent wrote an oversized line agent=%s", self._agent)

    def exited(self, process: AgentProcess, exit: Exit) -> None:
        if not self._answered.done():
            self._answered.set_exception(_boot_failed(self._agent, "it exited before it answered initialize", exit))


@dataclass(slots=True)
class AgentStatus:
    """How an agent's shared process is doing."""

    status: Literal["stopped", "installing", "starting", "running", "error"] = "stopped"
    running: RunningAgent | None = None
    boot: asyncio.Task[RunningAgent] | None = None
    restart_count: int = 0
    short_lives: int = 0
    last_error: str | None = None
    isolated: set[RunningAgent] = field(default_factory=set[RunningAgent])


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """What one agent process may take, in seconds and bytes."""

    boot_timeout: float = 120.0
    max_line: int = 64 << 20
    stdin_limit: int = 64 << 20
    stop_grace: float = 1.0


class Supervisor:
    """All agent processes."""

    def __init__(
        self,
        listener: Listener,
        children: Children,
        environ: Mapping[str, str],
        secrets: Collection[str],
        limits: ProcessLimits,
        log_directory: Path | None,
    ) -> None:
        self._listener = listener
        self._children = children
        self._environ = environ
        self._secrets = secrets
        self._limits = limits
        self._log_directory = log_directory
        self._status: dict[str, AgentStatus] = {}
        self._keys = count(1)
        self._booting: dict[AgentProcess, asyncio.Future[Envelope]] = {}
        self._closing = asyncio.Event()

    def status(self, agent: str) -> AgentStatus:
        return self._status.setdefault(agent, AgentStatus())

    def running(self, agent: str) -> RunningAgent | None:
        """The agent's shared process, if it is up."""
        status = self._status.get(agent)
        return status.running if status else None

    async def process(self, agent: Agent) -> RunningAgent:
        """The agent's shared process; boots it when it is not up."""
        status = self.status(agent.id)
        if status.running is not None:
            return status.running
        _check_installed(agent)
        if status.boot is None:
            status.boot = asyncio.create_task(self._shared_boot(agent, status), name=f"boot {agent.id}")
        # Shielded: a caller that goes away must not take the others' boot with it.
        return await asyncio.shield(status.boot)

    async def isolated(self, agent: Agent, environment: Mapping[str, str]) -> RunningAgent:
        """A process of its own for one session of an agent with `isolation = "session"`."""
        running = await self._boot(agent, environment)
        self.status(agent.id).isolated.add(running)
        return running

    async def stop(self, running: RunningAgent) -> None:
        """End one process, tree and all."""
        await running.process.stop(self._limits.stop_grace)

    async def close(self, longest: float) -> None:
        """End all processes and start no more; none gets longer than this."""
        self._closing.set()
        for answered in self._booting.values():
            if not answered.done():
                answered.set_exception(ShuttingDown())
        running = [one for status in self._status.values() for one in (*status.isolated, status.running) if one]
        processes = [*self._booting, *(one.process for one in running)]
        grace = min(longest, self._limits.stop_grace)
        await asyncio.gather(*(process.stop(grace) for process in processes), return_exceptions=True)
        boots = [status.boot for status in self._status.values() if status.boot is not None]
        await asyncio.gather(*boots, return_exceptions=True)

    async def _shared_boot(self, agent: Agent, status: AgentStatus) -> RunningAgent:
        status.status = "starting"
        try:
            await self._wait(_backoff(status.short_lives))
            running = await self._boot(agent, {})
        except (AgentBootFailed, AgentTimeout) as error:
            status.status, status.last_error = "error", str(error)
            status.short_lives += 1
            raise
        except BaseException:
            status.status = "stopped"
            raise
        else:
            # It may have died between its handshake and this line; then `_gone` has come first.
            if running.alive:
                status.status, status.running = "running", running
            return running
        finally:
            status.boot = None

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise ShuttingDown

    async def _wait(self, seconds: float) -> None:
        if seconds:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._closing.wait()

    async def _boot(self, agent: Agent, environment: Mapping[str, str]) -> RunningAgent:
        self._check_open()
        command = _check_installed(agent)
        key = f"{agent.id}-{next(self._keys)}"
        answered: asyncio.Future[Envelope] = asyncio.get_running_loop().create_future()
        boot = _Boot(agent.id, answered)
        child = child_environment(agent, self._environ, environment, self._secrets) | self._children.environment(key)
        try:
            process = await AgentProcess.spawn(
                agent=agent.id,
                key=key,
                command=command,
                environment=child,
                directory=None,
                listener=boot,
                children=self._children,
                stderr_log=self._log_directory / f"{agent.id}.stderr.log" if self._log_directory else None,
                max_line=self._limits.max_line,
                stdin_limit=self._limits.stdin_limit,
            )
        except OSError as error:
            reason = f"agent {agent.id} could not be started: {command[0]}: {error.strerror}"
            raise AgentBootFailed(reason, agent=agent.id, command=list(command)) from error
        logger.info("agent process started agent=%s pid=%d", agent.id, process.pid)
        self._booting[process] = answered
        try:
            self._check_open()
            return await self._shake_hands(agent, process, boot, answered)
        except BaseException as error:
            # Whatever went wrong, nothing half-booted stays behind; shielded, for we may be cancelled ourselves.
            exit = await asyncio.shield(process.stop(self._limits.stop_grace))
            if isinstance(error, AgentBootFailed | AgentTimeout):
                error.fields.setdefault("stderr", exit.stderr.text(STDERR_IN_ERRORS))
            raise
        finally:
            del self._booting[process]

    async def _shake_hands(
        self, agent: Agent, process: AgentProcess, boot: _Boot, answered: asyncio.Future[Envelope]
    ) -> RunningAgent:
        info = {"name": "sandbox-agent", "title": "sandbox-agent", "version": __version__}
        params = {"protocolVersion": PROTOCOL_VERSION, "clientCapabilities": CLIENT_CAPABILITIES, "clientInfo": info}
        # One that is gone already is told of by its exit, with its stderr.
        with suppress(AgentExited):
            process.send(request(HANDSHAKE_ID, "initialize", params))
        try:
            async with asyncio.timeout(self._limits.boot_timeout):
                answer = await answered
        except TimeoutError:
            seconds = self._limits.boot_timeout
            raise AgentTimeout(f"agent {agent.id} did not answer initialize in {seconds:g} s", agent=agent.id) from None
        if not answer.succeeded:
            raise _boot_failed(agent.id, f"it refused initialize: {answer.error().get('message')}", None)
        if not bytes(msgspec.json.encode(answer.peek.result)).startswith(b"{"):
            raise _boot_failed(agent.id, "its answer to initialize is not an object", None)
        handshake = Handshake(Raw(bytes(msgspec.json.encode(answer.peek.result))), answer.result())
        running = RunningAgent(agent, process, handshake, self._listener, self._gone)
        process.listener = running
        if boot.early:
            running.lines(process, b"".join(line + b"\n" for line in boot.early))
        if process.exit is not None:
            raise _boot_failed(agent.id, "it exited right after initialize", process.exit)
        return running

    def _gone(self, running: RunningAgent, exit: Exit) -> None:
        """Forget it, so that the next call boots a new one."""
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
            status.short_lives = status.short_lives + 1 if lived < SHORT_LIFE else 0
        logger.info("agent process exited agent=%s exit=%s", running.agent.id, describe_exit(exit))


def _check_installed(agent: Agent) -> tuple[str, ...]:
    # A program of the user's own is tried as it is written; that it cannot be started says more than "not installed".
    if agent.command is None or (agent.source != "path" and not agent.installed):
        raise AgentNotInstalled(agent.id, agent.instructions)
    return agent.command


def describe_exit(exit: Exit) -> str:
    """How it ended, for people."""
    return f"ended by {exit.signal}" if exit.signal else f"exited with code {exit.code}"


def _boot_failed(agent: str, reason: str, exit: Exit | None) -> AgentBootFailed:
    fields: Object = {"agent": agent}
    if exit is not None:
        fields["stderr"] = exit.stderr.text(STDERR_IN_ERRORS)
        fields.update({"signal": exit.signal} if exit.signal else {"exitCode": exit.code})
    return AgentBootFailed(f"agent {agent} did not start: {reason}", **fields)


def _backoff(short_lives: int) -> float:
    if short_lives < FREE_CRASHES:
        return 0.0
    return min(MAX_BACKOFF, 0.5 * 2.0 ** (short_lives - FREE_CRASHES))
