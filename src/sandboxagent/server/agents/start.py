"""Start an agent process and perform ACP's handshake with it.

A failed start leaves no process behind. This module does not know which processes there should be, nor who uses them.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Raw, Struct

from sandboxagent import __version__
from sandboxagent.core.gates import Gate
from sandboxagent.core.reports import Reports
from sandboxagent.core.threads import Pool
from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import LARGE_BYTES, Envelope, Kind, Object, parse, request
from sandboxagent.protocol.errors import AgentBootFailed, AgentExited, AgentTimeout, NotAnEnvelope, ShuttingDown
from sandboxagent.server.agents.dialects.dialect import Companion, companion_of
from sandboxagent.server.agents.environment import child_environment
from sandboxagent.server.agents.handshake import (
    CLIENT_CAPABILITIES,
    HANDSHAKE_ID,
    NOT_OFFERED,
    PROTOCOL_VERSION,
    Handshake,
)
from sandboxagent.server.agents.launch import FolderLock, Launch
from sandboxagent.server.agents.manifest import Agent
from sandboxagent.server.agents.process import AgentProcess, Exit, StderrLog
from sandboxagent.server.agents.running import Gone, Listener, RunningAgent
from sandboxagent.server.processes.children import ProcessTrees

logger = logging.getLogger(__name__)


STDERR_IN_ERRORS = 4096
MAX_EARLY_BYTES = 8 << 20
"""Maximum bytes that an agent may write before it has answered our initialize."""


class _Start:
    """The listener of a process until it has answered our initialize."""

    def __init__(self, agent: str, answered: asyncio.Future[Envelope], companion: Companion | None) -> None:
        self._agent = agent
        self._answered = answered
        self.companion = companion
        self._early_size = 0
        self.early: list[bytes] = []
        """Envelopes that came before the process was handed over."""
        self.oversized_heads: list[bytes] = []
        """Beginnings of lines that were too long."""
        self._bad_lines = Reports(time.monotonic, _report_bad_lines)

    def lines(self, process: AgentProcess, blob: bytes) -> None:
        for line in blob.splitlines():
            if len(line) > LARGE_BYTES:
                self._keep_large(process, line)
                continue
            try:
                envelope = parse(line)
            except NotAnEnvelope:
                self._bad_lines.note(self._agent, what=f"bytes={len(line)}")
                continue
            if envelope.kind is Kind.RESPONSE and envelope.id == HANDSHAKE_ID and not self._answered.done():
                self._answered.set_result(envelope)
            else:
                self._keep(process, self.early, line)

    def _keep_large(self, process: AgentProcess, line: bytes) -> None:
        """Keep a long line unread: the listener to come parses it in a thread. The first answer must be short."""
        if self._answered.done():
            self._keep(process, self.early, line)
        else:
            reason = f"it wrote a line of more than {LARGE_BYTES} bytes before it answered initialize"
            self._answered.set_exception(_start_failed(self._agent, reason, None))

    def oversized(self, process: AgentProcess, head: bytes) -> None:
        self._keep(process, self.oversized_heads, head)

    def _keep(self, process: AgentProcess, kept: list[bytes], line: bytes) -> None:
        """Keep a line for the listener to come.

        Fail, or pause the process after its answer, when too many bytes have come.
        """
        if self._early_size + len(line) <= MAX_EARLY_BYTES:
            kept.append(line)
            self._early_size += len(line)
        elif not self._answered.done():
            reason = f"it wrote more than {MAX_EARLY_BYTES} bytes before it answered initialize"
            self._answered.set_exception(_start_failed(self._agent, reason, None))
        else:
            # The companion is still connecting. Lines that were read are kept, and the rest stays in the pipe.
            kept.append(line)
            process.pause_reading()

    def hand_over(self, running: "RunningAgent", process: AgentProcess) -> None:
        """Deliver the kept lines to the listener, and read on."""
        self._bad_lines.forget(self._agent)
        process.resume_reading()
        for head in self.oversized_heads:
            running.oversized(process, head)
        if self.early:
            running.lines(process, b"".join(line + b"\n" for line in self.early))

    def exited(self, process: AgentProcess, exit: Exit) -> None:
        self._bad_lines.forget(self._agent)
        if not self._answered.done():
            self._answered.set_exception(_start_failed(self._agent, "it exited before it answered initialize", exit))


class ProcessLimits(Struct, frozen=True):
    """Limits of one agent process, in seconds and bytes."""

    boot_timeout: float = 120.0
    max_line: int = 64 << 20
    stdin_limit: int = 64 << 20
    stop_grace: float = 1.0


class ProcessObservers(Protocol):
    """The functions to call when an agent process has started, and when it has exited. They must not raise."""

    @property
    def process_started(self) -> Sequence[Callable[[AgentProcess], None]]: ...
    @property
    def process_exited(self) -> Sequence[Callable[[AgentProcess, Exit], None]]: ...


class AgentStarter:
    """The starter of agent processes."""

    def __init__(
        self,
        children: ProcessTrees,
        environ: Mapping[str, str],
        secrets: Collection[str],
        limits: ProcessLimits,
        log_directory: Path | None,
        observers: ProcessObservers | None = None,
    ) -> None:
        self.before_start: Gate[Agent, Mapping[str, str]] = Gate("the start of an agent's process")
        self._observers = observers
        self._children = children
        self._environ = environ
        self._secrets = secrets
        self._limits = limits
        self._log_directory = log_directory
        self._pool = Pool("stderr", 2)
        self._keys = count(1)
        self._starting: dict[AgentProcess, asyncio.Future[Envelope]] = {}
        self._closed = False

    async def start(
        self, agent: Agent, launch: Launch, environment: Mapping[str, str], listener: Listener, gone: Gone
    ) -> RunningAgent:
        """Start a process, and return it once it has answered our initialize.

        Raises:
            AgentBootFailed: the process did not answer; the error has its stderr.
            AgentTimeout: the process was too slow.
            FolderGone: the installation is being replaced.
            SandboxAgentError: a check before the start refuses it.
        """
        wait = self.before_start.ask(agent, environment)
        if wait is not None:
            await wait
        companion = companion_of(agent.dialect)
        try:
            return await self._start(agent, launch, environment, listener, gone, companion)
        except _CompanionFailed:
            # The agent's questions would not arrive, and it would wait forever. So it is started with questions off.
            logger.warning("agent starts without questions, its port was not reached agent=%s", agent.id)
            return await self._start(agent, launch, environment, listener, gone, None)

    async def _start(
        self,
        agent: Agent,
        launch: Launch,
        environment: Mapping[str, str],
        listener: Listener,
        gone: Gone,
        companion: Companion | None,
    ) -> RunningAgent:
        self._check_open()
        key = f"{agent.id}-{next(self._keys)}"
        answered: asyncio.Future[Envelope] = asyncio.get_running_loop().create_future()
        begun = _Start(agent.id, answered, companion)
        child = child_environment(agent, self._environ, {**launch.env, **environment}, self._secrets)
        if companion is not None:
            child = companion.prepare(child)
        lock = await _lock_folder(launch)

        def ended(running: RunningAgent, exit: Exit) -> None:
            lock.release()
            gone(running, exit)

        try:
            process = await self._spawn(agent, launch, child, key, begun)
            self._starting[process] = answered
            running = await self._finish_handshake(agent, process, begun, answered, listener, ended)
        except BaseException:
            lock.release()
            raise
        running.environment = environment
        return running

    async def verify(self, agent: Agent, launch: Launch) -> Handshake:
        """Start the agent, return its handshake, and stop it again."""
        running = await self.start(agent, launch, {}, _SilentListener(), lambda _running, _exit: None)
        await self.stop(running)
        return running.handshake

    async def stop(self, running: RunningAgent, longest: float | None = None) -> None:
        """Stop a process and its whole tree. It gets the usual grace, but no more than `longest` seconds."""
        grace = self._limits.stop_grace
        await running.process.stop(grace if longest is None else min(longest, grace))

    async def close(self, longest: float) -> None:
        """Stop all processes that are starting, and start no more."""
        self._closed = True
        for answered in self._starting.values():
            if not answered.done():
                answered.set_exception(ShuttingDown())
        grace = min(longest, self._limits.stop_grace)
        await asyncio.gather(*(process.stop(grace) for process in self._starting), return_exceptions=True)

    def _open_log(self, agent: Agent) -> StderrLog | None:
        if self._log_directory is None:
            return None
        return StderrLog(self._log_directory / f"{agent.id}.stderr.log", self._pool)

    async def _spawn(
        self, agent: Agent, launch: Launch, environment: Mapping[str, str], key: str, begun: _Start
    ) -> AgentProcess:
        try:
            process = await AgentProcess.spawn(
                agent=agent.id,
                key=key,
                command=launch.command,
                environment=environment,
                directory=None,
                listener=begun,
                children=self._children,
                stderr_log=self._open_log(agent),
                max_line=self._limits.max_line,
                stdin_limit=self._limits.stdin_limit,
            )
        except OSError as error:
            reason = f"agent {agent.id} could not be started: {launch.command[0]}: {error.strerror}"
            raise AgentBootFailed(reason, agent=agent.id, command=list(launch.command)) from error
        logger.info("agent process started agent=%s pid=%d", agent.id, process.pid)
        if self._observers is not None:
            for hear in self._observers.process_started:
                hear(process)
            process.when_exited(self._tell_exit)
        return process

    def _tell_exit(self, process: AgentProcess, exit: Exit) -> None:
        assert self._observers is not None
        for hear in self._observers.process_exited:
            hear(process, exit)

    async def _finish_handshake(
        self,
        agent: Agent,
        process: AgentProcess,
        begun: _Start,
        answered: asyncio.Future[Envelope],
        listener: Listener,
        gone: Gone,
    ) -> RunningAgent:
        companion = begun.companion
        try:
            self._check_open()
            handshake = await self._shake_hands(agent, process, answered)
            await _join(companion, process)
            return _take_over(RunningAgent(agent, process, handshake, listener, gone, companion), begun)
        except BaseException as error:
            # Leave no half-started process behind, whatever went wrong. Shielded, because this task may be cancelled,
            # too.
            if companion is not None:
                companion.stop()
            exit = await asyncio.shield(process.stop(self._limits.stop_grace))
            if isinstance(error, AgentBootFailed | AgentTimeout):
                error.fields.setdefault("stderr", exit.stderr.text(STDERR_IN_ERRORS))
            raise
        finally:
            del self._starting[process]

    async def _shake_hands(self, agent: Agent, process: AgentProcess, answered: asyncio.Future[Envelope]) -> Handshake:
        info = {"name": "sandbox-agent", "title": "sandbox-agent", "version": __version__}
        capabilities = CLIENT_CAPABILITIES | {name: NOT_OFFERED[name] for name in agent.not_offered}
        params = {"protocolVersion": PROTOCOL_VERSION, "clientCapabilities": capabilities, "clientInfo": info}
        # If the process is gone already, its exit reports that, with its stderr.
        with suppress(AgentExited):
            process.send(request(HANDSHAKE_ID, methods.INITIALIZE, params))
        try:
            async with asyncio.timeout(self._limits.boot_timeout):
                answer = await answered
        except TimeoutError:
            seconds = self._limits.boot_timeout
            raise AgentTimeout(f"agent {agent.id} did not answer initialize in {seconds:g} s", agent=agent.id) from None
        if not answer.succeeded:
            raise _start_failed(agent.id, f"it refused initialize: {answer.error().get('message')}", None)
        if not bytes(msgspec.json.encode(answer.peek.result)).startswith(b"{"):
            raise _start_failed(agent.id, "its answer to initialize is not an object", None)
        return Handshake(Raw(bytes(msgspec.json.encode(answer.peek.result))), answer.result())

    def _check_open(self) -> None:
        if self._closed:
            raise ShuttingDown


async def _lock_folder(launch: Launch) -> FolderLock:
    """Lock the program's folder, in a thread: the disk may hang. Raises FolderGone."""
    locking = asyncio.get_running_loop().run_in_executor(None, launch.lock_folder)
    try:
        return await asyncio.shield(locking)
    except asyncio.CancelledError:
        locking.add_done_callback(lambda done: None if done.exception() else done.result().release())
        raise


class _CompanionFailed(Exception):
    """The companion did not reach its agent."""


async def _join(companion: Companion | None, process: AgentProcess) -> None:
    if companion is not None and not await companion.connect(process.pid):
        raise _CompanionFailed


class _SilentListener:
    """A listener that ignores all output, for a process that is only verified."""

    def receive(self, running: RunningAgent, blob: bytes) -> None: ...
    def oversized(self, running: RunningAgent, head: bytes) -> None: ...
    def exited(self, running: RunningAgent, exit: Exit) -> None: ...


def _take_over(running: RunningAgent, begun: _Start) -> RunningAgent:
    """Connect a process with its listener, and deliver everything that it has written already."""
    process = running.process
    process.listener = running
    begun.hand_over(running, process)
    if process.exit is not None:
        raise _start_failed(running.agent.id, "it exited right after initialize", process.exit)
    return running


def _report_bad_lines(agent: str, count: int, newest: str) -> None:
    logger.warning("agent wrote lines that are no envelopes agent=%s lines=%d %s", agent, count, newest)


def describe_exit(exit: Exit) -> str:
    """Describe for people how a process ended."""
    return f"ended by {exit.signal}" if exit.signal else f"exited with code {exit.code}"


def _start_failed(agent: str, reason: str, exit: Exit | None) -> AgentBootFailed:
    fields: Object = {"agent": agent}
    if exit is not None:
        fields["stderr"] = exit.stderr.text(STDERR_IN_ERRORS)
        fields.update({"signal": exit.signal} if exit.signal else {"exitCode": exit.code})
    return AgentBootFailed(f"agent {agent} did not start: {reason}", **fields)
